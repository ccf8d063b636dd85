/*
 * wire_stats: packs the reply of the Stats call.  protobuf-c requires pointers to the messages of a
 * repeated field, so both are kept in one block until the reply is packed.  No state, no locks.
 */
#include "common/wire/wire_stats.h"

#include "common/base/memory.h"
#include "common/wire/wire_internal.h"

#include "stats.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* The messages of the repeated fields. */
struct stats_parts {
    Sparring__V1__MethodStats methods[STATS_METHODS_MAX], *method_list[STATS_METHODS_MAX];
    Sparring__V1__EndStats ends[STATS_METHODS_MAX * STATUS_COUNT];
    Sparring__V1__EndStats
        *end_list[STATS_METHODS_MAX * STATUS_COUNT]; /* of all methods, consecutive */
    Sparring__V1__WorkerStats workers[STATS_WORKERS_MAX], *worker_list[STATS_WORKERS_MAX];
};

uint64_t stats_staleness_bound(size_t index)
{
    return index == 0 ? 0 : UINT64_C(1) << (index - 1);
}

void stats_count_staleness(struct stats_staleness *s, uint64_t staleness, uint64_t pushes)
{
    size_t i = 0;

    while (i < STATS_STALENESS_BOUNDS && staleness > stats_staleness_bound(i))
        i++;
    s->counts[i] += pushes;
    s->sum += staleness * pushes;
}

/* protobuf-c's text pointers are not const, but it only reads them. */
static char *remove_const(const char *text)
{
    union {
        const char *borrowed;
        char *text;
    } u = {.borrowed = text};

    return u.text;
}

static void fill_method(struct stats_parts *p, size_t index, const struct rpc_call_counts *counts)
{
    Sparring__V1__MethodStats *m = &p->methods[index];
    size_t first = index * STATUS_COUNT;

    sparring__v1__method_stats__init(m);
    p->method_list[index] = m;
    m->method = remove_const(counts->path);
    m->started = counts->started;
    m->ended = p->end_list + first;
    for (size_t i = 0; i < STATUS_COUNT; i++) {
        Sparring__V1__EndStats *e = &p->ends[first + m->n_ended];

        if (counts->ended[i] == 0)
            continue;
        sparring__v1__end_stats__init(e);
        e->status = remove_const(status_name((enum status)(-(int)i)));
        e->calls = counts->ended[i];
        m->ended[m->n_ended++] = e;
    }
}

static void fill_worker(struct stats_parts *p, size_t index, const struct stats_worker *from)
{
    Sparring__V1__WorkerStats *w = &p->workers[index];

    sparring__v1__worker_stats__init(w);
    p->worker_list[index] = w;
    w->rank = from->rank;
    w->connected = from->connected;
    w->pushes = from->pushes;
    w->late_pushes = from->late_pushes;
    w->staleness_sum = from->staleness_sum;
    w->lag_rounds = from->lag_rounds;
    w->silent_seconds = from->silent_seconds;
}

static void fill_job(Sparring__V1__JobStats *m, const struct server_stats *s, struct stats_parts *p)
{
    const struct stats_job *j = &s->job;

    sparring__v1__job_stats__init(m);
    m->job = remove_const(j->name);
    m->state = remove_const(j->state);
    m->mode = remove_const(j->mode);
    m->role = remove_const(j->role);
    m->peer = remove_const(j->peer);
    m->staleness_bound = j->staleness_bound;
    m->backup_workers = j->backup_workers;
    m->server_index = j->server_index;
    m->server_count = j->server_count;
    m->world_size = j->world_size;
    m->joined = j->joined;
    m->left = j->left;
    m->round = j->round;
    m->epoch = j->epoch;
    m->partitions = j->partitions;
    m->elements = j->elements;
    m->shard_bytes = j->shard_bytes;
    m->load_max_over_mean = j->load_max_over_mean;
    m->waiting_pushes = j->waiting_pushes;
    m->waiting_records = j->waiting_records;
    m->replica_lag_records = j->replica_lag_records;
    m->replica_lag_bytes = j->replica_lag_bytes;
    for (size_t i = 0; i < s->worker_count; i++)
        fill_worker(p, i, &s->workers[i]);
    m->n_workers = s->worker_count;
    m->workers = p->worker_list;
}

static void fill_counters(Sparring__V1__StatsCounters *m, const struct stats_counters *c)
{
    sparring__v1__stats_counters__init(m);
#define X(field, help) m->field = c->field;
    STATS_COUNTERS(X)
#undef X
#define X(name, help) m->name##_seconds = (double)c->name##_ns * 1e-9;
    STATS_TIMES(X)
#undef X
}

static void fill_reply(Sparring__V1__StatsReply *m, const struct server_stats *s,
                       struct stats_parts *p)
{
    sparring__v1__stats_reply__init(m);
    m->version = remove_const(s->version);
    m->grpc_version = remove_const(s->grpc_version);
    m->start_time_seconds = s->start_time_seconds;
    m->cpu_seconds = s->cpu_seconds;
    m->resident_bytes = s->resident_bytes;
    m->draining = s->draining;
    m->jobs_ok = s->jobs_ok;
    m->jobs_failed = s->jobs_failed;
    m->answers_in_flight = s->answers_in_flight;
    for (size_t i = 0; i < s->method_count; i++)
        fill_method(p, i, &s->methods[i]);
    m->n_methods = s->method_count;
    m->methods = p->method_list;
}

enum status wire_pack_stats(const struct server_stats *stats, uint8_t **ret_bytes, size_t *ret_size,
                            struct error *err)
{
    uint64_t bounds[STATS_STALENESS_BOUNDS], pushes[STATS_STALENESS_BOUNDS + 1];
    Sparring__V1__StatsReply reply;
    Sparring__V1__StatsCounters counters;
    Sparring__V1__Staleness staleness = SPARRING__V1__STALENESS__INIT;
    Sparring__V1__JobStats job;
    struct stats_parts *stats_parts;
    enum status status = mem_calloc(1, sizeof(*stats_parts), "statistics", &stats_parts, err);

    if (status != STATUS_OK)
        return status;
    fill_reply(&reply, stats, stats_parts);
    fill_counters(&counters, &stats->counters);
    reply.counters = &counters;
    for (size_t i = 0; i < STATS_STALENESS_BOUNDS; i++)
        bounds[i] = stats_staleness_bound(i);
    memcpy(pushes, stats->counters.staleness.counts, sizeof(pushes));
    staleness.n_bound = STATS_STALENESS_BOUNDS;
    staleness.bound = bounds;
    staleness.n_pushes = STATS_STALENESS_BOUNDS + 1;
    staleness.pushes = pushes;
    staleness.sum = stats->counters.staleness.sum;
    reply.staleness = &staleness;
    fill_job(&job, stats, stats_parts);
    reply.job = stats->has_job ? &job : NULL;
    status = wire_pack(&reply.base, WIRE_CONTROL_MAX, ret_bytes, ret_size, err);
    free(stats_parts);
    return status;
}
