/*
 * Writing of a server's run log: one JSON line per record through common/metrics; run_log.h lists
 * the kinds of lines and METRICS.md defines their figures.
 *
 * A folder of NULL writes nothing.  After a failure to open the file the job's other lines are
 * skipped.  One thread; the table's lock is taken only by job_table_count.
 */
#include "server/observe/run_log.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/host.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void run_log_init(struct run_log *r, const char *folder, const struct run_log_settings *settings)
{
    memset(r, 0, sizeof(*r));
    r->folder = folder;
    r->settings = *settings;
}

/* is_resumed: an earlier process began this job and its lines. */
static enum status open_log_file(struct run_log *r, const struct job *j, bool is_resumed,
                                 struct error *err)
{
    bool is_replica = j->replica != NULL;
    unsigned index = j->terms.server_index;
    bool *written = &r->written[is_replica][index % 64];
    char name[64], path[4096];
    enum status status;

    if (!r->folder)
        return metrics_open(&r->metrics, NULL, err);
    (void)snprintf(name, sizeof(name), "%s%u.jsonl", is_replica ? "replica" : "server", index);
    status = file_make_folder(r->folder, err);
    if (status == STATUS_OK)
        status = file_join(path, sizeof(path), r->folder, name, err);
    if (status != STATUS_OK)
        return status;
    if (!*written && !is_resumed && unlink(path) != 0 && errno != ENOENT)
        return error_set_errno(err, errno, "cannot replace '%s' of an earlier run", path);
    *written = true;
    return metrics_open(&r->metrics, path, err);
}

static void add_settings(struct metrics *m, const struct run_log_settings *s)
{
    struct strbuf environment = STRBUF_INIT;

    host_add_environment(&environment);
    metrics_add_int(m, "threads", s->threads);
    metrics_add_int(m, "share_memory", s->shares_memory);
    metrics_add_int(m, "tls", s->has_tls);
    metrics_add_int(m, "token", s->has_token);
    metrics_add_int(m, "durable", s->is_durable);
    metrics_add_text(m, "environment", strbuf_ok(&environment) ? environment.text : "");
    strbuf_release(&environment);
}

enum status run_log_start(struct run_log *r, struct job_table *table, const struct job *j,
                          struct error *err)
{
    const struct join_request *t = &j->terms;
    struct metrics *m = &r->metrics;
    struct host_info host;
    struct job_figures figures;
    enum status status;

    job_table_count(table, j, &figures);
    status = open_log_file(r, j, figures.counters.restored_jobs > 0, err);

    if (status != STATUS_OK)
        return status;
    r->open = true;
    host_info_read(&host);
    metrics_begin(m, "start");
    metrics_add_text(m, "job", j->members.job);
    metrics_add_int(m, "server", t->server_index);
    metrics_add_int(m, "pid", getpid());
    metrics_add_text(m, "host", host.name);
    metrics_add_text(m, "processors", host.processors);
    metrics_add_int(m, "world_size", t->world_size);
    metrics_add_int(m, "servers", t->server_count);
    add_settings(m, &r->settings);
    metrics_add_text(m, "update", t->update == 0 ? "server" : "worker");
    metrics_add_text(m, "order", t->order == 0 ? "arrival" : "rank");
    metrics_add_text(m, "consistency", consistency_name(t->consistency.mode));
    metrics_add_int(m, "staleness_bound", t->consistency.staleness);
    metrics_add_int(m, "backup_workers", t->consistency.backup);
    metrics_add_int(m, "partition_bytes", (int64_t)t->partition_bytes);
    metrics_add_int(m, "partitions", (int64_t)j->shard.length);
    metrics_add_int(m, "elements", (int64_t)j->shard.count);
    metrics_add_int(m, "shard_bytes", (int64_t)shard_bytes(&j->shard.config));
    metrics_add_int(m, "weight", t->weight_count > 0 ? t->weights[t->server_index] : 0);
    metrics_add_double(m, "load_max_over_mean", shard_map_imbalance(&j->map));
    return metrics_end(m, err);
}

enum status run_log_round(struct run_log *r, const struct round_record *round, struct error *err)
{
    struct metrics *m = &r->metrics;

    if (!r->open)
        return STATUS_OK; /* the job's file could not be opened */
    metrics_begin(m, "round");
    metrics_add_int(m, "round", (int64_t)round->round);
    metrics_add_int(m, "rx_payload_bytes", (int64_t)round->rx_payload_bytes);
    metrics_add_int(m, "tx_payload_bytes", (int64_t)round->tx_payload_bytes);
    metrics_add_double(m, "begin_wall", clock_wall_seconds_at(round->begin_ns));
    metrics_add_int(m, "round_ns", round->end_ns - round->begin_ns);
    metrics_add_int(m, "sum_ns", round->sum_ns);
    metrics_add_int(m, "wait_ns", round->wait_ns);
    return metrics_end(m, err);
}

enum status run_log_incident(struct run_log *r, const struct incident *i, struct error *err)
{
    static const char *const ends[] = {[INCIDENT_BACK] = "back",
                                       [INCIDENT_VACATED] = "vacated",
                                       [INCIDENT_REPLACED] = "replaced",
                                       [INCIDENT_FAILED] = "failed"};
    struct metrics *m = &r->metrics;

    if (!r->open)
        return STATUS_OK;
    metrics_begin(m, "disconnect");
    metrics_add_int(m, "rank", i->rank);
    metrics_add_text(m, "how", i->how);
    metrics_add_text(m, "end", ends[i->end]);
    metrics_add_int(m, "round", (int64_t)i->round);
    metrics_add_int(m, "epoch", (int64_t)i->epoch);
    metrics_add_double(m, "detect_ms", (double)i->detect_ns * 1e-6);
    metrics_add_double(m, "recover_ms", (double)i->recover_ns * 1e-6);
    return metrics_end(m, err);
}

static void add_staleness(struct metrics *m, const struct stats_staleness *s)
{
    uint64_t used = 0;

    for (size_t i = 0; i <= STATS_STALENESS_BOUNDS; i++)
        used += s->counts[i];
    metrics_add_int(m, "used_pushes", (int64_t)used);
    metrics_add_int(m, "staleness_sum", (int64_t)s->sum);
    metrics_add_counts(m, "staleness_pushes", s->counts, STATS_STALENESS_BOUNDS + 1);
}

/* Pushes of each rank and their staleness; no lines in lockstep, where all are alike. */
static enum status write_rank_lines(struct run_log *r, const struct job *j, struct error *err)
{
    struct metrics *m = &r->metrics;
    enum status status = STATUS_OK;

    for (unsigned rank = 0; status == STATUS_OK && rank < j->members.world_size; rank++) {
        const struct job_rank *of = &j->ranks[rank];

        if (job_is_lockstep(j))
            return STATUS_OK;
        metrics_begin(m, "rank");
        metrics_add_int(m, "rank", rank);
        metrics_add_int(m, "round", (int64_t)of->round);
        metrics_add_int(m, "pushes", (int64_t)of->pushes);
        metrics_add_int(m, "late_pushes", (int64_t)of->late);
        add_staleness(m, &of->staleness);
        status = metrics_end(m, err);
    }
    return status;
}

/* For a job with a replica, on either server. */
static enum status write_replica_line(struct run_log *r, const struct job *j,
                                      const struct job_figures *f, struct error *err)
{
    const struct replica_stream_figures *c = &f->stream;
    struct metrics *m = &r->metrics;

    if (!c->is_primary && !j->replica)
        return STATUS_OK;
    metrics_begin(m, "replica");
    metrics_add_text(m, "role",
                     c->is_primary            ? succession_role_name(c->role)
                     : j->role == JOB_REPLICA ? "copy"
                                              : "took over");
    metrics_add_int(m, "records",
                    (int64_t)(c->is_primary ? c->records : f->counters.copied_records));
    metrics_add_int(m, "record_bytes",
                    (int64_t)(c->is_primary ? c->bytes : f->counters.copied_bytes));
    metrics_add_int(m, "held_answers", (int64_t)c->held);
    metrics_add_double(m, "held_seconds", (double)c->held_ns * 1e-9);
    metrics_add_double(m, "detect_ms", (double)c->detect_ns * 1e-6);
    metrics_add_double(m, "recover_ms", (double)c->recover_ns * 1e-6);
    return metrics_end(m, err);
}

/* For a job with a state folder. */
static enum status write_state_line(struct run_log *r, const struct job *j,
                                    const struct stats_counters *c, struct error *err)
{
    struct metrics *m = &r->metrics;

    if (!j->log)
        return STATUS_OK;
    metrics_begin(m, "state");
    metrics_add_int(m, "restored", (int64_t)c->restored_jobs);
    metrics_add_int(m, "journal_records", (int64_t)c->journal_records);
    metrics_add_int(m, "journal_bytes", (int64_t)c->journal_bytes);
    metrics_add_double(m, "journal_seconds", (double)c->journal_ns * 1e-9);
    metrics_add_int(m, "snapshots", (int64_t)c->snapshots);
    metrics_add_int(m, "snapshot_bytes", (int64_t)c->snapshot_bytes);
    metrics_add_double(m, "snapshot_seconds", (double)c->snapshot_ns * 1e-9);
    metrics_add_int(m, "snapshots_failed", (int64_t)c->snapshots_failed);
    return metrics_end(m, err);
}

enum status run_log_end(struct run_log *r, struct job_table *table, const struct job *j,
                        struct error *err)
{
    struct job_figures figures;
    const struct stats_counters *t = &j->totals;
    struct metrics *m = &r->metrics;
    uint64_t bounds[STATS_STALENESS_BOUNDS];
    enum status status;

    if (!r->open)
        return STATUS_OK;
    job_table_count(table, j, &figures);
    status = write_rank_lines(r, j, err);
    if (status == STATUS_OK)
        status = write_replica_line(r, j, &figures, err);
    if (status == STATUS_OK)
        status = write_state_line(r, j, &figures.counters, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < STATS_STALENESS_BOUNDS; i++)
        bounds[i] = stats_staleness_bound(i);
    metrics_begin(m, "end");
    metrics_add_text(m, "job", j->members.job);
    metrics_add_text(m, "status",
                     j->failure.status == STATUS_OK ? "ok" : status_text(j->failure.status));
    metrics_add_text(m, "error", j->failure.text);
#define X(field, help) metrics_add_int(m, #field, (int64_t)t->field);
    STATS_JOB_COUNTERS(X)
#undef X
#define X(name, help) metrics_add_double(m, #name "_seconds", (double)t->name##_ns * 1e-9);
    STATS_JOB_TIMES(X)
#undef X
    metrics_add_int(m, "rounds_unrecorded", (int64_t)t->records_dropped);
    metrics_add_int(m, "missed_rules", (int64_t)j->missed_rules);
    metrics_add_int(m, "epoch", (int64_t)j->epoch);
    add_staleness(m, &t->staleness);
    metrics_add_counts(m, "staleness_bounds", bounds, STATS_STALENESS_BOUNDS);
    metrics_add_double(m, "load_max_over_mean", shard_map_imbalance(&j->map));
    metrics_add_int(m, "peak_rss_bytes", (int64_t)host_peak_rss_bytes());
    metrics_add_double(m, "cpu_seconds", host_cpu_seconds() - j->cpu_seconds_before);
    return metrics_end(m, err);
}

void run_log_close(struct run_log *r)
{
    if (r->open)
        metrics_close(&r->metrics);
    r->open = false;
}
