/*
 * cost_model: recurrences over buckets or partitions, in the order in which they become ready.
 */
#include "experiments/predict/cost_model.h"

#include <math.h>

#define HIDDEN_SHARE 0.05 /* of the step: communication below it is no limit */

static double ready_at(const struct cost_load *load, double bytes)
{
    for (size_t i = 0; i < load->ready_count; i++)
        if (load->ready[i].bytes >= bytes)
            return load->ready[i].at_s;
    return load->compute_s;
}

static double all_bytes(const struct cost_load *load)
{
    return load->ready_count > 0 ? load->ready[load->ready_count - 1].bytes : 0;
}

/* The step whose communication ends at `end_s` and takes `messages_s` for latency alone, `bytes_s`
 * for bytes alone; cpu_s is the processor time of all processes for it. */
static struct cost make_cost(const struct cost_load *load, const struct cost_job *job, double end_s,
                             double messages_s, double bytes_s, double cpu_s)
{
    struct cost c = {.exposed_s = fmax(0, end_s - load->compute_s)};

    c.step_s = load->compute_s + c.exposed_s + load->other_s;
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

struct cost cost_of_ring(const struct cost_machine *m, const struct cost_network *n,
                         const struct cost_load *load, const struct cost_job *job)
{
    const double ranks = job->ranks, messages = 2 * (ranks - 1);
    const double message_s = m->ring_message_s + n->latency_s;
    const double byte_s = fmax(m->ring_byte_s, n->byte_s);
    double end_s = 0, bytes = 0;

    for (size_t i = 0; i < job->bucket_count && messages > 0; i++) {
        bytes += job->buckets[i];
        end_s = fmax(end_s, ready_at(load, bytes)) +
                ring_seconds(messages, message_s, job->buckets[i] / ranks * byte_s);
    }
    return make_cost(load, job, end_s, (double)job->bucket_count * messages * message_s,
                     messages / ranks * bytes * byte_s,
                     messages * (ranks * (double)job->bucket_count * m->ring_cpu_s +
                                 bytes * m->ring_cpu_byte_s));
}

struct cost cost_of_servers(const struct cost_machine *m, const struct cost_network *n,
                            const struct cost_load *load, const struct cost_job *job)
{
    const double ranks = job->ranks, servers = job->is_colocated ? ranks : job->servers;
    const double total = all_bytes(load), partitions = ceil(total / job->partition_bytes);
    /* The server with the most partitions has so many times its equal part. */
    const double imbalance = partitions > 0 ? ceil(partitions / servers) * servers / partitions : 1;
    const double link_s = job->is_colocated
                              ? (ranks - 1) / ranks * imbalance * n->byte_s
                              : fmax(n->byte_s, imbalance * ranks / servers * n->server_byte_s);
    const double byte_s = fmax(link_s, m->exchange_byte_s);
    const double way_s = m->exchange_s / 2 + n->latency_s;
    double push_end_s = 0, pull_end_s = 0, bytes = 0;

    while (bytes < total) {
        const double size = fmin(job->partition_bytes, total - bytes);

        bytes += size;
        push_end_s = fmax(push_end_s, ready_at(load, bytes)) + size * byte_s;
        pull_end_s = fmax(pull_end_s, push_end_s + way_s) + size * byte_s;
    }
    return make_cost(load, job, total > 0 ? pull_end_s + way_s : 0, 2 * way_s, total * byte_s,
                     ranks * (partitions * m->exchange_cpu_s + total * m->exchange_cpu_byte_s));
}

struct cost cost_of_control(const struct cost_load *load, const struct cost_job *job)
{
    return make_cost(load, job, 0, 0, 0, 0);
}

const char *cost_limit_text(enum cost_limit limit)
{
    static const char *const texts[] = {[COST_COMPUTE] = "computation",
                                        [COST_MESSAGES] = "messages one after the other",
                                        [COST_BYTES] = "bytes on the links",
                                        [COST_PROCESSORS] = "processors"};

    return texts[limit];
}
