/*
 * Opens the worker of a parameter server: parses the server list, makes the terms of the joins and
 * the shard map, joins every server that holds a partition, opens the streams, starts the monitor.
 *
 * Runs on the training thread and takes no lock: no other thread uses the struct before the streams
 * are open.
 * A failure at any point releases everything through ps_close.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/base/wait.h"
#include "worker/sync/ps.h"
#include "worker/sync/ps_worker_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define HEARTBEAT_MS_MAX 500
#define JOIN_PAUSE_NS    50000000

/* Parse "host:port,host:port" into links. */
static enum status parse_servers(struct sync_ps *s, const struct sync_config *config,
                                 struct error *err)
{
    const char *origin = config->servers_origin ? config->servers_origin : "servers";
    const char *text = config->servers ? config->servers : "";
    const unsigned count = text[0] != '\0' ? parse_list_length(text) : 1;
    enum status status = mem_calloc(count, sizeof(*s->links), "server connections", &s->links, err);
    if (status == STATUS_OK)
        s->link_count = count;
    for (unsigned k = 0; status == STATUS_OK && k < s->link_count; k++) {
        struct ps_link *l = &s->links[k];
        char entry[301];

        text = parse_list_next(text, entry, sizeof(entry));
        status = endpoint_parse(entry, origin, &l->server, err);
        for (unsigned other = 0; status == STATUS_OK && other < k; other++)
            if (s->links[other].server.port == l->server.port &&
                strcmp(s->links[other].server.host, l->server.host) == 0)
                status = error_set(err, STATUS_INVALID, "%s: '%s' is there twice", origin, entry);
        (void)snprintf(l->name, sizeof(l->name), "parameter server %.300s (%.60s)", entry, origin);
        l->index = k;
        l->rank = s->rank;
        l->lane_count = s->terms.lanes;
        if (consistency_is_lockstep(&s->consistency))
            l->ahead_max = (config->pushes_ahead + l->lane_count - 1) / l->lane_count;
        l->security = config->security;
        l->keepalive = (struct rpc_keepalive){.interval_ms = s->heartbeat_ms,
                                              .timeout_ms = s->heartbeat_timeout_ms,
                                              .option = "--heartbeat-timeout-ms"};
        l->owner = (struct ps_link_owner){.take_chunk = ps_take_chunk,
                                          .take_heartbeat = ps_take_heartbeat,
                                          .stream_closed = ps_link_closed,
                                          .user = s};
        (void)pthread_mutex_init(&l->lock, NULL);
        l->handover_fd = -1;
    }
    return status;
}

/* The first join, which blocks until every rank has made it; a connection that breaks meanwhile, or
 * cannot be made, is replaced. */
static enum status join_first(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns,
                              struct error *err)
{
    const struct timespec pause = {.tv_nsec = JOIN_PAUSE_NS};
    struct error first = {0}, last;
    char address[sizeof(l->server) + 8];
    struct wait wait;
    enum status status;

    if (ps_replica_find(s, l, deadline_ns))
        return STATUS_OK;
    endpoint_format(&l->server, address, sizeof(address));
    wait_begin(&wait, deadline_ns, "server %s", address);
    wait_note(&wait, "all %u ranks must join it", s->world_size);
    status = ps_link_open(l, err);
    if (status == STATUS_OK)
        status = ps_join(s, l, false, deadline_ns, err);
    while (!l->failed_by_peer && ps_link_may_return(status, false) && s->reconnect_ms > 0 &&
           !stop_ends_waits() && clock_now_ns() + JOIN_PAUSE_NS < deadline_ns) {
        if (first.status == STATUS_OK)
            first = *err;
        ps_link_shut(l);
        (void)nanosleep(&pause, NULL);
        status = ps_link_open(l, err);
        if (status == STATUS_OK)
            status = ps_join(s, l, false, deadline_ns, err);
    }
    wait_end(&wait);
    if (status == STATUS_OK || first.status == STATUS_OK)
        return status;
    last = *err;
    return error_set(err, status, "%s (after: %s)", last.text, first.text);
}

/* Every rank joins the servers in the same order, so the waits cannot cross. */
static enum status open_links(struct sync_ps *s, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(s->timeout_ms);
    uint64_t pushed_round = 0;
    enum status status = STATUS_OK;

    for (unsigned k = 0; status == STATUS_OK && k < s->link_count; k++) {
        struct ps_link *l = &s->links[k];

        if (s->map.server_elements[k] == 0)
            continue; /* more servers than partitions: this one holds none */
        status = join_first(s, l, deadline_ns, err);
        l->state = l->joined ? PS_LINK_UP : PS_LINK_IDLE; /* no other thread exists yet */
        l->connection_count = 1;
        s->catching_up = s->catching_up || l->epoch > 1;
        if (l->pushed_round > pushed_round)
            pushed_round = l->pushed_round;
    }
    s->sends_initial = s->rank == 0 && pushed_round == 0;
    for (unsigned k = 0; status == STATUS_OK && k < s->link_count; k++)
        if (s->links[k].joined)
            status = ps_link_start(&s->links[k], err);
    return status == STATUS_OK ? ps_monitor_start(s, err) : status;
}

/* The terms of the joins, the same for every server. */
static enum status make_terms(struct sync_ps *s, const struct sync_config *config,
                              struct error *err)
{
    const char *job = config->job ? config->job : "default";
    char no_manifest[1] = "";
    struct join_request *r = &s->terms;
    enum status status;

    if (strlen(job) >= sizeof(r->job))
        return error_set(err, STATUS_CONFIG, "the job's name has %zu characters, %zu are allowed",
                         strlen(job), sizeof(r->job) - 1);
    (void)snprintf(r->job, sizeof(r->job), "%s", job);
    r->rank = s->rank;
    r->world_size = s->world_size;
    r->element_count = s->count;
    r->partition_bytes = config->partition_bytes;
    r->update = config->update_on_server ? 0 : 1;
    r->order = config->order == REDUCE_REPRODUCIBLE ? 1 : 0;
    r->optimizer = config->optimizer;
    r->steps_before = config->update_on_server ? config->steps_before : 0;
    r->consistency = config->consistency;
    r->dtype_up = (uint32_t)config->compression.up.kind;
    r->dtype_down = (uint32_t)config->compression.down.kind;
    r->top_k_ppm = config->compression.up.top_k_ppm;
    r->lanes = config->connections > 0 ? config->connections : 1;
    r->in_order = !config->priority;
    r->on_loss = (uint32_t)config->on_rank_loss;
    r->reconnect_ms = (uint32_t)s->reconnect_ms;
    r->heartbeat_ms = (uint32_t)s->heartbeat_ms;
    r->heartbeat_timeout_ms = (uint32_t)s->heartbeat_timeout_ms;
    status = mem_strdup(config->manifest ? config->manifest : no_manifest, &r->manifest, err);
    if (status == STATUS_OK && config->rule_count > 0)
        status = mem_calloc(config->rule_count, sizeof(*r->rules), "rules", &r->rules, err);
    if (status == STATUS_OK && config->rule_count > 0) {
        memcpy(r->rules, config->rules, config->rule_count * sizeof(*r->rules));
        r->rule_count = config->rule_count;
    }
    if (status == STATUS_OK)
        status = ps_worker_memory_init(s, config, err);
    while (status == STATUS_OK && r->session == 0)
        if (getrandom(&r->session, sizeof(r->session), 0) != (ssize_t)sizeof(r->session))
            return error_set_errno(err, errno, "cannot draw a session's number");
    return status;
}

static enum status make_shard_map(struct sync_ps *s, const struct sync_config *config,
                                  struct error *err)
{
    enum status status = STATUS_OK;

    if (config->server_weights) {
        status = mem_calloc(s->link_count, sizeof(*s->terms.weights), "weights of servers",
                            &s->terms.weights, err);
        if (status != STATUS_OK)
            return status;
        s->terms.weight_count = s->link_count;
        memcpy(s->terms.weights, config->server_weights, s->link_count * sizeof(*s->terms.weights));
    }
    return shard_map_make_weighted(s->count, config->partition_bytes, s->link_count,
                                   s->terms.weights, &s->map, err);
}

static enum status open_parts(struct sync_ps *s, const struct sync_config *config,
                              struct error *err)
{
    enum status status = compression_check(&config->compression, err);

    if (status == STATUS_OK)
        status = compression_check_row_selection(&config->compression, &config->consistency,
                                                 config->update_on_server, err);
    if (status == STATUS_OK)
        status = make_terms(s, config, err);
    if (status == STATUS_OK)
        status = parse_servers(s, config, err);
    if (status == STATUS_OK)
        status = ps_replica_parse(s, config, err);
    if (status == STATUS_OK)
        status = make_shard_map(s, config, err);
    s->terms.server_count = s->link_count;
    if (status == STATUS_OK)
        status = ps_codec_init(&s->codec, &config->compression,
                               compression_mode(&config->compression, config->update_on_server),
                               &s->map, err);
    if (status == STATUS_OK)
        status = ps_row_selection_init(&s->selection, &config->compression.down, &s->map, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(s->map.length, sizeof(*s->partitions), "partitions", &s->partitions, err);
    if (status == STATUS_OK)
        status = open_links(s, err);
    return status;
}

/* At least three heartbeats without a message before a server counts as silent. */
static void set_timeouts(struct sync_ps *s, const struct sync_config *config)
{
    s->timeout_ms = config->timeout_ms;
    s->reconnect_ms = config->reconnect_ms;
    s->heartbeat_timeout_ms = config->heartbeat_timeout_ms;
    s->heartbeat_ms = s->heartbeat_timeout_ms / 3;
    if (s->heartbeat_ms > HEARTBEAT_MS_MAX)
        s->heartbeat_ms = HEARTBEAT_MS_MAX;
}

static void init_locks(struct sync_ps *s)
{
    condition_init(&s->changed);
    condition_init(&s->monitor_wake);
    (void)pthread_mutex_init(&s->lock, NULL);
    ps_channel_init(s);
}

enum status ps_open(const struct sync_config *config, struct sync **ret_sync, struct error *err)
{
    struct sync_ps *s;
    struct error failure = {0};
    enum status status = mem_calloc(1, sizeof(*s), "ps sync", &s, err);

    if (status != STATUS_OK)
        return status;
    s->base.yields = config->update_on_server ? SYNC_YIELDS_PARAMETERS : SYNC_YIELDS_GRADIENTS;
    s->params = config->params;
    s->grads = config->grads;
    s->arrived = config->arrived;
    s->user = config->user;
    s->states = config->moment_count;
    for (unsigned i = 0; i < s->states; i++)
        s->moments[i] = config->moments[i];
    s->count = config->table->count;
    s->consistency = config->consistency;
    s->overlaps = config->overlap_forward && config->update_on_server &&
                  consistency_is_lockstep(&s->consistency);
    s->scale = (float)(1.0 / consistency_divisor(&s->consistency, config->world_size));
    s->undivided = s->scale != 1.0f && config->compression.up.kind == CODEC_NONE;
    s->rank = config->rank;
    s->world_size = config->world_size;
    s->priority = config->priority;
    set_timeouts(s, config);
    init_locks(s);
    status = open_parts(s, config, &failure);
    if (status != STATUS_OK) {
        ps_close(&s->base, &failure);
        return error_set(err, status, "%s", failure.text);
    }
    *ret_sync = &s->base;
    return STATUS_OK;
}
