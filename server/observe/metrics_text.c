/*
 * The text of the metrics page: tables for metrics of one number, a function for each family with
 * labels.  Every family is written once, with its samples together, as the format requires.  No
 * state, no locks.
 */
#include "server/observe/metrics_text.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#define PREFIX       "sparring_server_"
#define FIELD(field) offsetof(struct server_stats, field)

enum value_kind { KIND_UINT32, KIND_UINT64, KIND_BOOL, KIND_DOUBLE, KIND_NS };

/* A family of one sample without labels. */
struct metric {
    const char *name, *type, *help;
    enum value_kind kind;
    size_t offset; /* in struct server_stats */
};

static const struct metric server_metrics[] = {
    {PREFIX "start_time_seconds", "gauge", "Unix time at which the service began.", KIND_DOUBLE,
     FIELD(start_time_seconds)},
    {"process_cpu_seconds_total", "counter", "User and system time of the process.", KIND_DOUBLE,
     FIELD(cpu_seconds)},
    {"process_resident_memory_bytes", "gauge", "Resident memory of the process.", KIND_UINT64,
     FIELD(resident_bytes)},
    {PREFIX "draining", "gauge", "1 while the server is stopping.", KIND_BOOL, FIELD(draining)},
    {PREFIX "answers_in_flight", "gauge", "Replies that the transport has not released.",
     KIND_UINT64, FIELD(answers_in_flight)},
#define X(field, help)                                                                             \
    {PREFIX #field "_total", "counter", help, KIND_UINT64, FIELD(counters.field)},
    STATS_COUNTERS(X)
#undef X
#define X(name, help)                                                                              \
    {PREFIX #name "_seconds_total", "counter", help, KIND_NS, FIELD(counters.name##_ns)},
        STATS_TIMES(X)
#undef X
};

static const struct metric job_metrics[] = {
    {PREFIX "job_world_size", "gauge", "Ranks of the job.", KIND_UINT32, FIELD(job.world_size)},
    {PREFIX "job_staleness_bound", "gauge", "Rounds that a rank may be ahead in ssp.", KIND_UINT32,
     FIELD(job.staleness_bound)},
    {PREFIX "job_backup_workers", "gauge", "Contributions that a round of bsp does without.",
     KIND_UINT32, FIELD(job.backup_workers)},
    {PREFIX "job_joined_ranks", "gauge", "Ranks that are in.", KIND_UINT32, FIELD(job.joined)},
    {PREFIX "job_left_ranks", "gauge", "Ranks that have finished or are lost.", KIND_UINT32,
     FIELD(job.left)},
};

/* Once the job runs. */
static const struct metric running_metrics[] = {
    {PREFIX "job_round", "gauge", "The round under way, or next.", KIND_UINT64, FIELD(job.round)},
    {PREFIX "job_epoch", "gauge", "Of the membership, from 1.", KIND_UINT64, FIELD(job.epoch)},
    {PREFIX "job_partitions", "gauge", "Partitions held here.", KIND_UINT64, FIELD(job.partitions)},
    {PREFIX "job_elements", "gauge", "Parameters held here.", KIND_UINT64, FIELD(job.elements)},
    {PREFIX "job_shard_bytes", "gauge", "Memory allocated for them.", KIND_UINT64,
     FIELD(job.shard_bytes)},
    {PREFIX "job_load_max_over_mean", "gauge",
     "Parameters on the server that holds most over the mean of all servers.", KIND_DOUBLE,
     FIELD(job.load_max_over_mean)},
    {PREFIX "job_waiting_pushes", "gauge", "Contributions in sums that wait for other ranks.",
     KIND_UINT64, FIELD(job.waiting_pushes)},
    {PREFIX "job_waiting_records", "gauge", "Round records that are not written yet.", KIND_UINT64,
     FIELD(job.waiting_records)},
    {PREFIX "job_replica_lag_records", "gauge", "Records that the replica has not acknowledged.",
     KIND_UINT64, FIELD(job.replica_lag_records)},
    {PREFIX "job_replica_lag_bytes", "gauge", "Bytes of payload in them.", KIND_UINT64,
     FIELD(job.replica_lag_bytes)},
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* ------------------------------------------------------------------ the format */

static void add_family(struct strbuf *out, const char *name, const char *type, const char *help)
{
    strbuf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* name="value" with the three escapes of the format. */
static void add_label(struct strbuf *out, const char *name, const char *value)
{
    strbuf_addf(out, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\\' || *c == '"')
            strbuf_addf(out, "\\%c", *c);
        else if (*c == '\n')
            strbuf_add(out, "\\n");
        else
            strbuf_add_bytes(out, c, 1);
    }
    strbuf_add(out, "\"");
}

static void add_uint(struct strbuf *out, uint64_t value)
{
    strbuf_addf(out, " %" PRIu64 "\n", value);
}

static void add_double(struct strbuf *out, double value)
{
    strbuf_add(out, " ");
    strbuf_add_double(out, value);
    strbuf_add(out, "\n");
}

static void add_sample_value(struct strbuf *out, enum value_kind kind, const void *value)
{
    switch (kind) {
    case KIND_UINT32:
        add_uint(out, *(const uint32_t *)value);
        break;
    case KIND_UINT64:
        add_uint(out, *(const uint64_t *)value);
        break;
    case KIND_BOOL:
        add_uint(out, *(const bool *)value);
        break;
    case KIND_DOUBLE:
        add_double(out, *(const double *)value);
        break;
    case KIND_NS:
        add_double(out, (double)*(const int64_t *)value * 1e-9);
        break;
    }
}

static void add_table(struct strbuf *out, const struct metric *table, size_t count,
                      const struct server_stats *s)
{
    for (size_t i = 0; i < count; i++) {
        add_family(out, table[i].name, table[i].type, table[i].help);
        strbuf_add(out, table[i].name);
        add_sample_value(out, table[i].kind, (const char *)s + table[i].offset);
    }
}

/* ------------------------------------------------------------------ families with labels */

static void add_build(struct strbuf *out, const struct server_stats *s)
{
    add_family(out, PREFIX "build_info", "gauge", "What runs here; always 1.");
    strbuf_add(out, PREFIX "build_info{");
    add_label(out, "version", s->version);
    strbuf_add(out, ",");
    add_label(out, "grpc_version", s->grpc_version);
    strbuf_add(out, "} 1\n");
}

static void add_jobs(struct strbuf *out, const struct server_stats *s)
{
    add_family(out, PREFIX "jobs_total", "counter", "Jobs that are over, by how they ended.");
    strbuf_addf(out, PREFIX "jobs_total{result=\"ok\"} %" PRIu64 "\n", s->jobs_ok);
    strbuf_addf(out, PREFIX "jobs_total{result=\"failed\"} %" PRIu64 "\n", s->jobs_failed);
}

static void add_staleness(struct strbuf *out, const struct stats_staleness *s)
{
    const char *name = PREFIX "push_staleness_steps";
    uint64_t cumulative = 0;

    add_family(out, name, "histogram",
               "Steps of the optimizer between a rank's read and the use of its push.");
    for (size_t i = 0; i < STATS_STALENESS_BOUNDS; i++) {
        cumulative += s->counts[i];
        strbuf_addf(out, "%s_bucket{le=\"%" PRIu64 "\"} %" PRIu64 "\n", name,
                    stats_staleness_bound(i), cumulative);
    }
    cumulative += s->counts[STATS_STALENESS_BOUNDS];
    strbuf_addf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, cumulative);
    strbuf_addf(out, "%s_sum %" PRIu64 "\n%s_count %" PRIu64 "\n", name, s->sum, name, cumulative);
}

/* "name{method="...", without the closing brace. */
static void add_method_label(struct strbuf *out, const char *name, const struct rpc_call_counts *m)
{
    strbuf_addf(out, "%s{", name);
    add_label(out, "method", m->path[0] == '/' ? m->path + 1 : m->path);
}

static uint64_t count_ended(const struct rpc_call_counts *m)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < STATUS_COUNT; i++)
        sum += m->ended[i];
    return sum;
}

static void add_methods(struct strbuf *out, const struct server_stats *s)
{
    add_family(out, PREFIX "calls_started_total", "counter", "Calls of each method.");
    for (size_t i = 0; i < s->method_count; i++) {
        add_method_label(out, PREFIX "calls_started_total", &s->methods[i]);
        strbuf_addf(out, "} %" PRIu64 "\n", s->methods[i].started);
    }
    add_family(out, PREFIX "calls_open", "gauge", "Calls that have not ended.");
    for (size_t i = 0; i < s->method_count; i++) {
        add_method_label(out, PREFIX "calls_open", &s->methods[i]);
        strbuf_addf(out, "} %" PRIu64 "\n", s->methods[i].started - count_ended(&s->methods[i]));
    }
    add_family(out, PREFIX "calls_ended_total", "counter", "Calls by how they ended.");
    for (size_t i = 0; i < s->method_count; i++)
        for (size_t k = 0; k < STATUS_COUNT; k++) {
            if (k > 0 && s->methods[i].ended[k] == 0)
                continue; /* OK always, others only if they occurred */
            add_method_label(out, PREFIX "calls_ended_total", &s->methods[i]);
            strbuf_add(out, ",");
            add_label(out, "status", status_name((enum status)(-(int)k)));
            strbuf_addf(out, "} %" PRIu64 "\n", s->methods[i].ended[k]);
        }
}

static void add_job(struct strbuf *out, const struct stats_job *j)
{
    add_family(out, PREFIX "job_info", "gauge", "The job that is served; always 1.");
    strbuf_add(out, PREFIX "job_info{");
    add_label(out, "job", j->name);
    strbuf_add(out, ",");
    add_label(out, "state", j->state);
    strbuf_add(out, ",");
    add_label(out, "mode", j->mode);
    strbuf_add(out, ",");
    add_label(out, "role", j->role);
    strbuf_add(out, ",");
    add_label(out, "peer", j->peer);
    strbuf_addf(out, ",server=\"%" PRIu32 "\",servers=\"%" PRIu32 "\"} 1\n", j->server_index,
                j->server_count);
}

static const struct metric worker_metrics[] = {
    {PREFIX "worker_connected", "gauge", "1 while the rank's stream is open.", KIND_BOOL,
     offsetof(struct stats_worker, connected)},
    {PREFIX "worker_pushes_total", "counter", "Contributions received from the rank in this job.",
     KIND_UINT64, offsetof(struct stats_worker, pushes)},
    {PREFIX "worker_late_pushes_total", "counter", "Contributions of the rank that were dropped.",
     KIND_UINT64, offsetof(struct stats_worker, late_pushes)},
    {PREFIX "worker_staleness_steps_total", "counter",
     "Staleness of its contributions that were used, summed.", KIND_UINT64,
     offsetof(struct stats_worker, staleness_sum)},
    {PREFIX "worker_lag_rounds", "gauge",
     "Rounds behind the rank that is furthest; parts of a round count.", KIND_DOUBLE,
     offsetof(struct stats_worker, lag_rounds)},
    {PREFIX "worker_silent_seconds", "gauge", "Time since the rank's last message.", KIND_DOUBLE,
     offsetof(struct stats_worker, silent_seconds)},
};

static void add_workers(struct strbuf *out, const struct server_stats *s)
{
    for (size_t i = 0; i < COUNT(worker_metrics) && s->worker_count > 0; i++) {
        const struct metric *m = &worker_metrics[i];

        add_family(out, m->name, m->type, m->help);
        for (size_t k = 0; k < s->worker_count; k++) {
            strbuf_addf(out, "%s{rank=\"%" PRIu32 "\"}", m->name, s->workers[k].rank);
            add_sample_value(out, m->kind, (const char *)&s->workers[k] + m->offset);
        }
    }
}

void metrics_text(const struct server_stats *stats, struct strbuf *out)
{
    add_build(out, stats);
    add_table(out, server_metrics, COUNT(server_metrics), stats);
    add_jobs(out, stats);
    add_staleness(out, &stats->counters.staleness);
    add_methods(out, stats);
    if (!stats->has_job)
        return;
    add_job(out, &stats->job);
    add_table(out, job_metrics, COUNT(job_metrics), stats);
    if (!stats->job.runs)
        return;
    add_table(out, running_metrics, COUNT(running_metrics), stats);
    add_workers(out, stats);
}
