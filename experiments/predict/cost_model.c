/*
 * cost_model: recurrences over buckets or partitions, in the order in which they become ready.
 */
#include "experiments/predict/cost_model.h"

#include "common/collective/hier/hier_chunk.h"

#include <math.h>

#define SERVERS_TRIED 16   /* of more than that, some */
#define HIDDEN_SHARE  0.05 /* of the step: communication below it is no limit */

double cost_ready_at(const struct cost_load *load, double bytes)
{
    for (size_t i = 0; i < load->ready_count; i++)
        if (load->ready[i].bytes >= bytes)
            return load->ready[i].at_s;
    return load->compute_s;
}

double cost_compute_s(const struct cost_load *load, size_t rank, size_t step)
{
    if (!load->computes || rank >= load->compute_ranks)
        return load->compute_s;
    return load->computes[rank * load->compute_steps + step % load->compute_steps];
}

/* By how much a step is longer than one with compute_s, on average over steps: with that of the
 * slowest rank of each, or with the mean of all ranks. */
static double more_compute_s(const struct cost_load *load, bool is_lockstep)
{
    double sum_s = 0;

    for (size_t step = 0; step < load->compute_steps; step++) {
        double last_s = 0, mean_s = 0;

        for (size_t rank = 0; rank < load->compute_ranks; rank++) {
            const double compute_s = cost_compute_s(load, rank, step);

            last_s = fmax(last_s, compute_s);
            mean_s += compute_s / (double)load->compute_ranks;
        }
        sum_s += is_lockstep ? last_s : mean_s;
    }
    return load->compute_steps > 0 ? sum_s / (double)load->compute_steps - load->compute_s : 0;
}

static double all_bytes(const struct cost_load *load)
{
    return load->ready_count > 0 ? load->ready[load->ready_count - 1].bytes : 0;
}

/* The step whose communication ends at `end_s` (0: there is none) and takes `messages_s` for
 * latency alone, `bytes_s` for bytes alone; cpu_s is the processor time of all processes for it. */
static struct cost make_cost(const struct cost_load *load, const struct cost_job *job, double end_s,
                             double messages_s, double bytes_s, double cpu_s)
{
    struct cost c = {.exposed_s = fmax(0, end_s - load->compute_s)};

    c.step_s = load->compute_s + more_compute_s(load, end_s > 0) + c.exposed_s + load->other_s;
    if (job->cores > 0)
        c.processor_s = (job->ranks * load->cpu_s + cpu_s) / job->cores;
    if (c.exposed_s > HIDDEN_SHARE * c.step_s)
        c.limit = messages_s > bytes_s ? COST_MESSAGES : COST_BYTES;
    if (c.processor_s > c.step_s) {
        c.step_s = c.processor_s;
        c.limit = COST_PROCESSORS;
    }
    return c;
}

/* A rank passes on what it receives piece by piece, so either its link is never idle, and only the
 * last message's way is added, or every message waits for the one before. */
static double ring_seconds(double messages, double message_s, double chunk_s)
{
    return fmax(messages * chunk_s + message_s, messages * message_s + chunk_s);
}

unsigned cost_ranks_per_host(const struct cost_job *job)
{
    return job->ranks_per_host > 0 ? job->ranks_per_host : 1;
}

unsigned cost_hosts(const struct cost_job *job)
{
    return job->ranks / cost_ranks_per_host(job);
}

struct cost cost_of_ring(const struct cost_machine *m, const struct cost_network *n,
                         const struct cost_load *load, const struct cost_job *job)
{
    const double ranks = job->ranks, messages = 2 * (ranks - 1);
    const double hosts = cost_hosts(job), links = hosts > 1 ? hosts : 0; /* that the ring crosses */
    const double message_s = m->ring_message_s + links / ranks * n->latency_s;
    const double byte_s = fmax(m->ring_byte_s, links > 0 ? n->byte_s : 0);
    double end_s = 0, bytes = 0;

    for (size_t i = 0; i < job->bucket_count && messages > 0; i++) {
        bytes += job->buckets[i];
        end_s = fmax(end_s, cost_ready_at(load, bytes)) +
                ring_seconds(messages, message_s, job->buckets[i] / ranks * byte_s);
    }
    return make_cost(load, job, end_s, (double)job->bucket_count * messages * message_s,
                     messages / ranks * bytes * byte_s,
                     messages * (ranks * (double)job->bucket_count * m->ring_cpu_s +
                                 bytes * m->ring_cpu_byte_s));
}

/* Half of an all-reduce inside a host. */
static double local_seconds(const struct cost_machine *m, double bytes)
{
    return (m->local_s + bytes * m->local_byte_s) / 2;
}

struct cost cost_of_two_level(const struct cost_machine *m, const struct cost_network *n,
                              const struct cost_load *load, const struct cost_job *job)
{
    const double local_ranks = cost_ranks_per_host(job), hosts = cost_hosts(job);
    const double messages = 2 * (hosts - 1), message_s = m->ring_message_s + n->latency_s;
    const double byte_s = fmax(m->ring_byte_s / local_ranks, n->byte_s);
    const double chunk_max = local_ranks * (double)HIER_SLICE_BYTES;
    double end_s = 0, bytes = 0, chunks = 0;

    for (size_t i = 0; i < job->bucket_count; i++) {
        double left = job->buckets[i], in_s; /* in_s: when a chunk is reduced inside the hosts */

        bytes += left;
        in_s = end_s = fmax(end_s, cost_ready_at(load, bytes));
        while (left > 0) {
            const double chunk = fmin(left, chunk_max);

            in_s += local_seconds(m, chunk);
            end_s = fmax(end_s, in_s);
            if (hosts > 1)
                end_s += ring_seconds(messages, message_s, chunk / hosts * byte_s);
            if (left <= chunk_max)
                end_s += local_seconds(m, chunk);
            left -= chunk;
            chunks++;
        }
    }
    return make_cost(
        load, job, end_s, chunks * messages * message_s, messages / hosts * bytes * byte_s,
        job->ranks * (chunks * (messages * m->ring_cpu_s + m->local_cpu_s) +
                      bytes * (messages / job->ranks * m->ring_cpu_byte_s + m->local_cpu_byte_s)));
}

/* Partition i of all ranks goes to server i mod K. */
struct pushes {
    const struct cost_load *load;
    double servers, partition_bytes, total;
    double rank_byte_s;   /* of a rank's own link, or of software */
    double server_byte_s; /* of a server's link, for a byte of every rank */
};

static double bytes_before(const struct pushes *p, double i)
{
    return fmin(p->total, i * p->partition_bytes);
}

static double size_of(const struct pushes *p, double i)
{
    return bytes_before(p, i + 1) - bytes_before(p, i);
}

/* When a server has partition i from a flow that has `share` of its equal share of the server's
 * link; the server had the one before at before_s, and the rank's own link has sent it at link_s.
 */
static double pushed_at(const struct pushes *p, double i, double share, double before_s,
                        double link_s)
{
    const double ready_s = cost_ready_at(p->load, bytes_before(p, i + 1));

    return fmax(link_s, fmax(before_s, ready_s) + size_of(p, i) * p->server_byte_s / share);
}

static double sent_at(const struct pushes *p, double i, double before_s)
{
    return fmax(before_s, cost_ready_at(p->load, bytes_before(p, i + 1))) +
           size_of(p, i) * p->rank_byte_s;
}

/* The replies to all ranks; those of the other servers come to a rank meanwhile. */
static double pull_seconds(const struct pushes *p, double i)
{
    return fmax(size_of(p, i) * p->server_byte_s,
                (bytes_before(p, i + p->servers) - bytes_before(p, i)) * p->rank_byte_s);
}

/* The slowest of n flows.  The others end earlier than with equal shares; then it has the link for
 * itself, but no more of it than `alone`, which its window allows. */
struct slowest {
    double share, alone;
    double others; /* shares of the others */
};

static struct slowest slowest_of(double flows, bool is_equal, const struct cost_network *n)
{
    struct slowest s = {.share = 2.0 / 3 + 2.0 / 3 / (flows + 1)};
    const double trip_s = fmax(2 * n->latency_s, 1e-9);

    if (n->queue_s <= 0 && is_equal)
        return (struct slowest){1, 1, 1};
    s.others = 1 + (1 - s.share) / fmax(1, flows - 1);
    /* All windows are on average 3/4 of what the link and its queue hold.  No flow is slower alone
     * than beside the others. */
    s.alone = s.share / flows * fmax(1, 0.75 * (1 + n->queue_s / trip_s));
    s.alone = n->queue_s > 0 ? fmin(1, s.alone) : 1;
    return s;
}

/* When the slowest flow has pushed all, in place of `equal_s`. */
static double last_push_s(const struct slowest *s, double flows, double begin_s, double equal_s,
                          double own_share_s)
{
    const double rest = (1 - s->share / s->others) / (flows * s->alone);

    return fmin(own_share_s, equal_s + (equal_s - begin_s) * fmax(0, 1 / s->others + rest - 1));
}

/* When all ranks have the replies of server k, which moves `*bytes_s` seconds of bytes each way. */
static double server_end_s(const struct pushes *p, const struct slowest *s, double flows, double k,
                           double way_s, double *bytes_s)
{
    const double begin_s = cost_ready_at(p->load, bytes_before(p, k + 1));
    double link_s = 0, equal_s = 0, own_s = 0, last_s, left_s = 0, pull_s = 0;

    *bytes_s = 0;
    for (double i = 0; i * p->partition_bytes < p->total; i++) {
        link_s = sent_at(p, i, link_s);
        if (fmod(i, p->servers) != k)
            continue;
        equal_s = pushed_at(p, i, 1, equal_s, link_s);
        own_s = pushed_at(p, i, s->share, own_s, link_s);
        left_s += size_of(p, i) * p->server_byte_s;
        *bytes_s += pull_seconds(p, i);
    }
    last_s = last_push_s(s, flows, begin_s, equal_s, own_s);
    link_s = own_s = 0;
    for (double i = 0; i * p->partition_bytes < p->total; i++) {
        link_s = sent_at(p, i, link_s);
        if (fmod(i, p->servers) != k)
            continue;
        own_s = pushed_at(p, i, s->share, own_s, link_s);
        left_s -= size_of(p, i) * p->server_byte_s;
        pull_s = fmax(pull_s, fmin(own_s, last_s - left_s / (flows * s->alone)) + way_s) +
                 pull_seconds(p, i);
    }
    return pull_s + way_s;
}

struct cost cost_of_servers(const struct cost_machine *m, const struct cost_network *n,
                            const struct cost_load *load, const struct cost_job *job)
{
    const double ranks = job->ranks;
    const struct pushes p = {
        .load = load,
        .servers = job->servers > 0 ? job->servers : ranks,
        .partition_bytes = job->partition_bytes,
        .total = all_bytes(load),
        .rank_byte_s =
            fmax(m->exchange_byte_s, job->is_colocated ? 0 : cost_ranks_per_host(job) * n->byte_s),
        .server_byte_s = job->is_colocated ? (ranks - 1) * n->byte_s : ranks * n->server_byte_s};
    const double partitions = ceil(p.total / p.partition_bytes);
    const double way_s = m->exchange_s / 2 + n->latency_s;
    const double stride = ceil(p.servers / SERVERS_TRIED);
    const struct slowest s = slowest_of(ranks, p.servers <= 1, n);
    double end_s = 0, bytes_s = 0;

    for (size_t i = 0; (double)i * stride < fmin(p.servers, partitions); i++) {
        const double k = fmin(p.servers, partitions) - 1 - (double)i * stride;
        double own_bytes_s;

        end_s = fmax(end_s, server_end_s(&p, &s, ranks, k, way_s, &own_bytes_s));
        bytes_s = fmax(bytes_s, own_bytes_s);
    }
    if (job->is_colocated) { /* a host's link carries pushes and replies in each direction */
        bytes_s *= 2;
        end_s = fmax(end_s, cost_ready_at(load, bytes_before(&p, 1)) + bytes_s + way_s);
    }
    return make_cost(load, job, end_s, 2 * way_s, bytes_s,
                     ranks * (partitions * m->exchange_cpu_s + p.total * m->exchange_cpu_byte_s));
}

struct cost cost_of_control(const struct cost_load *load, const struct cost_job *job)
{
    return make_cost(load, job, 0, 0, 0, 0);
}

struct cost cost_of(const struct cost_inputs *in)
{
    struct cost c;

    switch (in->side) {
    case COST_ALLREDUCE:
        c = (in->job.is_two_level ? cost_of_two_level : cost_of_ring)(&in->machine, &in->network,
                                                                      &in->load, &in->job);
        break;
    case COST_SERVERS:
        c = cost_of_servers(&in->machine, &in->network, &in->load, &in->job);
        break;
    default:
        c = cost_of_control(&in->load, &in->job);
        break;
    }
    return c;
}

void cost_set_step(const struct cost_load *load, double step_s, struct cost *c)
{
    c->exposed_s = fmax(0, step_s - load->compute_s - load->other_s);
    c->step_s = fmax(step_s, c->processor_s);
    if (c->processor_s > step_s)
        c->limit = COST_PROCESSORS;
    else if (c->limit == COST_PROCESSORS)
        c->limit = c->exposed_s > HIDDEN_SHARE * step_s ? COST_BYTES : COST_COMPUTE;
}

static void scale(double *time_s, double factor, bool *has_changed)
{
    *has_changed = *has_changed || *time_s != 0;
    *time_s *= factor;
}

/* Whether there is any. */
static bool scale_part(struct cost_inputs *in, enum cost_part part, double factor)
{
    double *const links[] = {&in->network.byte_s, &in->network.server_byte_s, &in->network.queue_s};
    double *const software[] = {&in->machine.ring_message_s, &in->machine.ring_byte_s,
                                &in->machine.ring_cpu_s,     &in->machine.ring_cpu_byte_s,
                                &in->machine.local_s,        &in->machine.local_byte_s,
                                &in->machine.local_cpu_s,    &in->machine.local_cpu_byte_s,
                                &in->machine.exchange_s,     &in->machine.exchange_byte_s,
                                &in->machine.exchange_cpu_s, &in->machine.exchange_cpu_byte_s};
    bool has_changed = false;

    for (size_t i = 0; part == COST_PART_LINKS && i < sizeof(links) / sizeof(links[0]); i++)
        scale(links[i], factor, &has_changed);
    for (size_t i = 0; part == COST_PART_SOFTWARE && i < sizeof(software) / sizeof(software[0]);
         i++)
        scale(software[i], factor, &has_changed);
    if (part == COST_PART_DELAY)
        scale(&in->network.latency_s, factor, &has_changed);
    return has_changed;
}

void cost_sensitivities(const struct cost_inputs *in, double step_s, cost_step_fn *step_of,
                        void *user, double ret[COST_PARTS])
{
    const double more = 0.01;

    ret[COST_PART_COMPUTE] = 1; /* a step of times that are twice as long takes twice as long */
    for (enum cost_part part = 0; part < COST_PART_COMPUTE; part++) {
        struct cost_inputs scaled = *in;

        ret[part] = 0;
        if (scale_part(&scaled, part, 1 + more))
            ret[part] = (step_of(&scaled, user) / step_s - 1) / more;
        ret[COST_PART_COMPUTE] -= ret[part];
    }
}

const char *cost_limit_text(enum cost_limit limit)
{
    static const char *const texts[] = {[COST_COMPUTE] = "computation",
                                        [COST_MESSAGES] = "messages one after the other",
                                        [COST_BYTES] = "bytes on the links",
                                        [COST_PROCESSORS] = "processors"};

    return texts[limit];
}
