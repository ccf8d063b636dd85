/*
 * mode_costs: reads the options of a mode that decide what crosses which link.
 */
#include "experiments/predict/mode_costs.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/send_limit.h"
#include "common/shard_map/shard_map.h"
#include "experiments/network/network_options.h"
#include "experiments/network/relay.h"
#include "experiments/predict/simulation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD_SHARE (1448.0 / 1514) /* of a full frame, with time stamps */
#define SEED          1               /* of simulations */
#define WEIGHTED_MAX  256             /* servers of a mixed placement */

static const char *option_of(const struct mode_costs *m, const char *name)
{
    return experiment_option(m->experiment, m->mode, name);
}

static bool is_set(const struct mode_costs *m, const char *option)
{
    return option_of(m, option)[0] != '\0';
}

/* Not set counts as the default. */
static bool is_default(const struct mode_costs *m, const char *option, const char *by_default)
{
    return !is_set(m, option) || strcmp(option_of(m, option), by_default) == 0;
}

static bool is_placed(const struct mode_costs *m, const char *placement)
{
    return strcmp(option_of(m, "server-placement"), placement) == 0;
}

/* ---- reading */

static double payload_byte_s(const struct network_link *link)
{
    return link->rate > 0 ? 8 / link->rate / PAYLOAD_SHARE : 0;
}

/* Are there links of single hosts?  The model knows those of ranks and of servers. */
static bool names_hosts(const struct mode_costs *m)
{
    return strstr(option_of(m, "network-rate"), "host") ||
           strstr(option_of(m, "network-delay"), "host");
}

/* A host with ranks and one of a dedicated server. */
static enum status read_network(struct mode_costs *m, struct error *err)
{
    struct network_options o = {.seed = 1};
    struct network_link links[2], both;
    enum status status;

    (void)snprintf(o.rate, sizeof(o.rate), "%s", option_of(m, "network-rate"));
    (void)snprintf(o.delay, sizeof(o.delay), "%s", option_of(m, "network-delay"));
    status = network_options_read(&o, 2, 1, m->min_delay_ms, links, err);
    if (status != STATUS_OK)
        return status;
    both = network_link_join(&links[0], &links[1]);
    m->inputs.network = (struct cost_network){
        .byte_s = payload_byte_s(&links[0]),
        .server_byte_s = payload_byte_s(&links[1]),
        .latency_s = (double)both.delay_ns * 1e-9,
        .queue_s = links[1].rate > 0 && both.delay_ns > 0
                       ? 8 * (double)relay_queue_bytes(&links[1]) / links[1].rate
                       : 0};
    return STATUS_OK;
}

static bool is_two_level(const struct mode_costs *m)
{
    return strcmp(option_of(m, "backend"), "hier") == 0;
}

static bool is_allreduce(const struct mode_costs *m)
{
    return strcmp(option_of(m, "sync"), "allreduce") == 0 &&
           (is_two_level(m) || strcmp(option_of(m, "backend"), "ring") == 0) &&
           is_default(m, "transport", "tcp") && is_default(m, "comm-hook", "none") &&
           is_default(m, "bucket-cap-mb", "-1") && is_default(m, "reduce", "fast") &&
           is_default(m, "weighting", "ranks") &&
           is_default(m, "find-unused-parameters", "false") &&
           is_default(m, "static-graph", "false") &&
           (is_default(m, "uneven", "pad") || is_default(m, "uneven", "drop"));
}

static bool has_hosts(const struct mode_costs *m)
{
    return is_set(m, "network-rate") || is_set(m, "network-delay");
}

static unsigned ranks_per_host_of(const struct mode_costs *m)
{
    const uint64_t ranks = (uint64_t)m->mode->nproc;
    uint64_t count = 1;

    if (has_hosts(m))
        (void)parse_uint64(option_of(m, "ranks-per-host"), &count);
    else if (is_two_level(m))
        count = ranks;
    return (unsigned)(count < ranks ? count : ranks);
}

/* Through sockets, whole gradients. */
static bool is_plain_ps(const struct mode_costs *m)
{
    return strcmp(option_of(m, "sync"), "ps") == 0 && is_default(m, "compression", "none") &&
           is_default(m, "compression-down", "none") && is_default(m, "replicas", "false") &&
           !is_set(m, "server-weights") && is_default(m, "on-rank-loss", "fail") &&
           (has_hosts(m) || strcmp(option_of(m, "ps-transport"), "grpc") == 0);
}

static struct consistency consistency_of(const struct mode_costs *m)
{
    struct consistency c = {.mode = CONSISTENCY_BSP};
    uint64_t staleness = 0, backup = 0;

    (void)consistency_parse(option_of(m, "consistency"), &c.mode);
    (void)parse_uint64(option_of(m, "staleness"), &staleness);
    (void)parse_uint64(option_of(m, "backup-workers"), &backup);
    c.staleness = (uint32_t)staleness;
    c.backup = (uint32_t)backup;
    return c;
}

static size_t elements_of(const struct mode_costs *m)
{
    const struct cost_load *load = &m->inputs.load;

    return (size_t)load->ready[load->ready_count - 1].bytes / sizeof(float);
}

static double bytes_of(const struct mode_costs *m)
{
    return (double)elements_of(m) * sizeof(float);
}

/* Of a mixed placement; NULL: all the same.  Owned by the caller. */
static enum status make_weights(const struct mode_costs *m, uint32_t **ret, struct error *err)
{
    enum status status = STATUS_OK;

    *ret = NULL;
    if (is_placed(m, "mixed"))
        status = mem_calloc(m->inputs.job.servers, sizeof(**ret), "weights", ret, err);
    if (*ret)
        shard_map_mixed_weights(m->inputs.job.ranks, (unsigned)m->mode->servers, *ret);
    return status;
}

/* As workers measure it, bytes per second; 0: nothing limits the links. */
static double link_rate(const struct mode_costs *m)
{
    return m->inputs.network.byte_s > 0 ? 1 / m->inputs.network.byte_s : 0;
}

static enum status read_servers(struct mode_costs *m, struct error *err)
{
    struct cost_job *job = &m->inputs.job;
    uint32_t *weights = NULL;
    uint64_t bytes;
    enum status status;

    job->consistency = consistency_of(m);
    job->is_colocated = is_placed(m, "colocated") || is_placed(m, "mixed");
    job->overlaps_forward = consistency_is_lockstep(&job->consistency) &&
                            is_default(m, "ps-update", "server") &&
                            is_default(m, "overlap-forward", "true");
    job->in_order = !is_default(m, "priority", "on");
    job->servers = (unsigned)m->mode->servers;
    if (is_placed(m, "mixed"))
        job->servers += job->ranks;
    else if (job->is_colocated && job->servers == 0)
        job->servers = job->ranks;
    if (job->servers == 0 || (is_placed(m, "mixed") && job->servers > WEIGHTED_MAX) ||
        (job->is_colocated && cost_ranks_per_host(job) > 1))
        m->is_known = false;
    if (!m->is_known)
        return STATUS_OK;
    status = make_weights(m, &weights, err);
    if (!parse_bytes(option_of(m, "partition-bytes"), &bytes) || bytes == 0) {
        bytes = shard_map_partition_bytes(elements_of(m), job->servers, weights, link_rate(m));
        if (consistency_is_lockstep(&job->consistency))
            job->pushes_ahead = send_limit_messages(link_rate(m), 2 * m->inputs.network.latency_s,
                                                    job->ranks, (double)bytes);
    }
    job->partition_bytes = (double)bytes;
    free(weights);
    return status;
}

enum status mode_costs_read(struct mode_costs *m, const struct job_load *load, struct error *err)
{
    const bool is_local = strcmp(option_of(m, "sync"), "local") == 0;
    enum status status = names_hosts(m) ? STATUS_OK : read_network(m, err);

    if (status != STATUS_OK)
        return status;
    m->inputs.load = load->cost;
    m->inputs.job = (struct cost_job){.ranks = (unsigned)m->mode->nproc,
                                      .ranks_per_host = ranks_per_host_of(m),
                                      .is_two_level = is_two_level(m),
                                      .buckets = load->buckets,
                                      .bucket_count = load->bucket_count};
    m->inputs.side = is_allreduce(m)  ? COST_ALLREDUCE
                     : is_plain_ps(m) ? COST_SERVERS
                                      : COST_CONTROL;
    m->is_known = (m->inputs.side != COST_CONTROL || is_local) && !names_hosts(m) &&
                  !is_set(m, "network-jitter") && !is_set(m, "network-loss") &&
                  !is_set(m, "fault-schedule") &&
                  m->inputs.job.ranks % cost_ranks_per_host(&m->inputs.job) == 0;
    return m->inputs.side == COST_SERVERS ? read_servers(m, err) : STATUS_OK;
}

/* ---- predicting */

static enum status simulate(const struct mode_costs *m, const struct simulation_size *size,
                            struct cost *c, struct error *err)
{
    struct shard_map map = {0};
    uint32_t *weights = NULL;
    double step_s = 0;
    enum status status = make_weights(m, &weights, err);

    if (status == STATUS_OK)
        status = simulation_make_map(size, bytes_of(m), weights, &map, err);
    if (status == STATUS_OK)
        status = simulation_run(&m->inputs, &map, size, SEED, &step_s, err);
    if (status == STATUS_OK)
        cost_set_step(&m->inputs.load, step_s, c);
    shard_map_release(&map);
    free(weights);
    return status;
}

enum status mode_costs_predict(struct mode_costs *m, struct cost *ret, struct error *err)
{
    const struct cost_job *job = &m->inputs.job;
    const bool has_closed_form =
        !is_placed(m, "mixed") && consistency_is_lockstep(&job->consistency);
    struct simulation_size size;

    if (!m->is_known)
        return STATUS_OK;
    *ret = cost_of(&m->inputs);
    if (m->inputs.side != COST_SERVERS)
        return STATUS_OK;
    if (simulation_size_of(job, bytes_of(m), !has_closed_form, &size))
        return simulate(m, &size, ret, err);
    m->is_known = has_closed_form;
    return STATUS_OK;
}

static double step_of(const struct cost_inputs *in, void *user)
{
    struct mode_costs m = *(const struct mode_costs *)user;
    struct cost c = {.step_s = (double)NAN};

    m.inputs = *in;
    return mode_costs_predict(&m, &c, NULL) == STATUS_OK ? c.step_s : (double)NAN;
}

void mode_costs_sensitivities(const struct mode_costs *m, double step_s, double ret[COST_PARTS])
{
    struct mode_costs copy = *m;

    cost_sensitivities(&m->inputs, step_s, step_of, &copy, ret);
}
