/*
 * stats: one snapshot of the service, taken under its lock; packing and printing come after.
 *
 * Counters of jobs that are over are kept in service->past, those of the current one are added to
 * them at each look, with what its round under way has counted so far: so no counter ever falls.
 */
#include "server/observe/stats.h"

#include "common/base/clock.h"
#include "common/base/host.h"
#include "common/base/memory.h"
#include "server/service/service_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the job has written to its folder. */
static void add_files(const struct job *j, struct stats_counters *sum)
{
    struct job_log_figures f;

    if (!j->log)
        return;
    job_log_count(j->log, &f);
    sum->restored_jobs += f.restored;
    sum->journal_records += f.journal_records;
    sum->journal_bytes += f.journal_bytes;
    sum->journal_ns += f.journal_ns;
    sum->snapshots += f.snapshots;
    sum->snapshot_bytes += f.snapshot_bytes;
    sum->snapshots_failed += f.snapshots_failed;
    sum->snapshot_ns += f.snapshot_ns;
}

/* What it has told its replica, and its primary has told it. */
static void add_copies(const struct job *j, struct stats_counters *sum)
{
    struct replica_stream_counts c;

    replica_stream_count(j->replica_stream, &c);
    sum->promotions += j->replica.promoted_ns != 0;
    sum->replicas_lost += c.lost_ns != 0;
    sum->replica_records += c.records;
    sum->replica_bytes += c.bytes;
    sum->acknowledged_records += c.acknowledged_records;
    sum->acknowledged_bytes += c.acknowledged_bytes;
    sum->copied_records += j->replica.records;
    sum->copied_bytes += j->replica.bytes;
}

void stats_add_job(const struct job *j, struct stats_counters *sum)
{
    const struct job_totals *t = &j->totals;

    sum->rounds += t->rounds;
    sum->rx_payload_bytes += t->rx_payload_bytes;
    sum->tx_payload_bytes += t->tx_payload_bytes;
    sum->initial_rx_payload_bytes += t->initial_rx_payload_bytes;
    sum->initial_tx_payload_bytes += t->initial_tx_payload_bytes;
    sum->final_tx_payload_bytes += t->final_tx_payload_bytes;
    sum->rx_reference_bytes += t->rx_reference_bytes;
    sum->tx_reference_bytes += t->tx_reference_bytes;
    sum->late_pushes += t->late;
    sum->records_dropped += t->unrecorded;
    sum->retries += t->retries;
    sum->disconnects += t->cut;
    sum->reconnects += t->back;
    sum->lost_ranks += t->lost;
    sum->taken_places += t->taken;
    sum->detect_ns += t->detect_ns;
    sum->recover_ns += t->recover_ns;
    add_files(j, sum);
    add_copies(j, sum);
    sum->sum_ns += t->sum_ns;
    sum->wait_ns += t->wait_ns;
    for (size_t i = 0; i <= STATS_STALENESS_BOUNDS; i++)
        sum->staleness.counts[i] += t->staleness.counts[i];
    sum->staleness.sum += t->staleness.sum;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        sum->pushes += j->ranks[rank].pushes;
    sum->rx_payload_bytes += j->current.rx_payload_bytes;
    sum->tx_payload_bytes += j->current.tx_payload_bytes;
    sum->sum_ns += j->current.sum_ns;
    sum->wait_ns += j->current.wait_ns;
}

static const char *state_name(enum job_state state)
{
    static const char *const names[] = {[JOB_GATHERING] = "gathering",
                                        [JOB_BUILDING] = "building",
                                        [JOB_RUNNING] = "running",
                                        [JOB_OVER] = "over"};

    return names[state];
}

/* Pushes of this and all rounds before it, as if none had been left out. */
static uint64_t progress(const struct job *j, unsigned rank)
{
    const struct job_rank *r = &j->ranks[rank];

    return r->round == 0 ? 0 : (r->round - 1) * j->shard.length + r->round_pushes;
}

static bool is_connected(const struct rank_session *session)
{
    bool any = false;

    for (unsigned lane = 0; lane < session->lanes && lane < WIRE_LANES_MAX; lane++)
        any = any || session->streams[lane] != NULL;
    return any;
}

static void read_workers(const struct job *j, int64_t now_ns, struct server_stats *ret)
{
    uint64_t most = 0;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (progress(j, rank) > most)
            most = progress(j, rank);
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        const struct job_rank *r = &j->ranks[rank];

        if (j->members.members[rank].state != MEMBER_JOINED)
            continue;
        ret->workers[ret->worker_count++] = (struct stats_worker){
            .rank = rank,
            .connected = is_connected(&r->session),
            .pushes = r->pushes,
            .late_pushes = r->late,
            .staleness_sum = r->staleness.sum,
            .lag_rounds = r->finished || j->shard.length == 0
                              ? 0
                              : (double)(most - progress(j, rank)) / (double)j->shard.length,
            .silent_seconds = (double)(now_ns - r->heard_ns) * 1e-9,
        };
    }
}

/* Which of the servers that keep the shard this one is. */
static void read_role(const struct job *j, struct stats_job *ret)
{
    const char *peer = "";
    struct replica_stream_counts c;

    replica_stream_count(j->replica_stream, &c);
    if (j->state == JOB_RUNNING && !j->replica_stream) /* taken over, or restored */
        c.role = SUCCESSION_LONE;
    ret->role = j->terms.replica[0] ? succession_role_name(c.role) : "single";
    if (j->replica.is_kept)
        ret->role = "replica";
    if (j->replica.is_kept && j->replica.stream)
        peer = j->members.members[0].peer;
    else if (j->replica_stream && (c.role == SUCCESSION_PRIMARY || c.role == SUCCESSION_PROPOSING))
        peer = j->terms.replica;
    (void)snprintf(ret->peer, sizeof(ret->peer), "%s", peer);
    if (c.role == SUCCESSION_PRIMARY || c.role == SUCCESSION_PROPOSING) {
        ret->replica_lag_records = c.records - c.acknowledged_records;
        ret->replica_lag_bytes = c.bytes - c.acknowledged_bytes;
    }
}

void stats_read_job(const struct job *j, int64_t now_ns, struct server_stats *ret)
{
    struct stats_job *s = &ret->job;

    ret->has_job = true;
    *s = (struct stats_job){.state = state_name(j->state),
                            .runs = j->state == JOB_RUNNING,
                            .mode = consistency_name(j->terms.consistency.mode),
                            .staleness_bound = j->terms.consistency.staleness,
                            .backup_workers = j->terms.consistency.backup,
                            .server_index = j->terms.server_index,
                            .server_count = j->terms.server_count,
                            .world_size = j->members.world_size,
                            .joined = j->members.joined,
                            .left = j->members.left};
    memcpy(s->name, j->members.job, sizeof(s->name));
    read_role(j, s);
    if (!s->runs)
        return; /* the supervisor may be building the shard */
    s->round = job_round(j);
    s->epoch = j->epoch;
    s->partitions = j->shard.length;
    s->elements = j->shard.count;
    s->shard_bytes = shard_bytes(&j->shard.config);
    s->load_max_over_mean = shard_map_imbalance(&j->map);
    s->waiting_pushes = job_waiting(j);
    s->waiting_records = j->records_count;
    read_workers(j, now_ns, ret);
}

/* Every answer that the transport still holds, also of jobs that are over.  Lock held. */
static uint64_t answers_in_flight(struct service *s)
{
    uint64_t sum = s->current ? atomic_load(&s->current->outstanding) : 0;

    for (struct job *j = s->over; j; j = j->next)
        sum += atomic_load(&j->outstanding);
    return sum;
}

static void read_service(struct service *s, struct server_stats *ret)
{
    const struct rpc_server *rpc;

    (void)pthread_mutex_lock(&s->lock);
    rpc = s->rpc;
    ret->start_time_seconds = s->start_time_seconds;
    ret->draining = s->draining;
    ret->jobs_ok = s->jobs_ok;
    ret->jobs_failed = s->jobs_failed;
    ret->counters = s->past;
    ret->answers_in_flight = answers_in_flight(s);
    if (s->current) {
        stats_add_job(s->current, &ret->counters);
        stats_read_job(s->current, clock_now_ns(), ret);
    }
    (void)pthread_mutex_unlock(&s->lock);
    while (rpc && ret->method_count < rpc_server_method_count(rpc) &&
           ret->method_count < STATS_METHODS_MAX) {
        rpc_server_counts(rpc, ret->method_count, &ret->methods[ret->method_count]);
        ret->method_count++;
    }
}

enum status service_stats(struct service *s, struct server_stats **ret_stats, struct error *err)
{
    struct server_stats *stats;
    enum status status = mem_calloc(1, sizeof(*stats), "statistics", &stats, err);

    if (status != STATUS_OK)
        return status;
    stats->version = SPARRING_VERSION;
    stats->grpc_version = rpc_library_version();
    stats->cpu_seconds = host_cpu_seconds();
    stats->resident_bytes = host_rss_bytes();
    read_service(s, stats);
    *ret_stats = stats;
    return STATUS_OK;
}

/* ------------------------------------------------------------------ the Stats call */

static void stats_start(struct rpc_call *call, void *user)
{
    (void)user; /* stays the call's pointer */
    rpc_call_receive(call);
}

/* The request has no fields. */
static void stats_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct server_stats *stats = NULL;
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size;
    enum status status;

    if (!message)
        status = error_set(&err, STATUS_PROTOCOL, "Stats needs one request");
    else
        status = service_stats(user, &stats, &err);
    if (status == STATUS_OK)
        status = wire_pack_stats(stats, &bytes, &size, &err);
    if (status == STATUS_OK)
        (void)rpc_call_send(call, bytes, size, NULL);
    rpc_call_finish(call, status, err.text);
    free(bytes);
    free(stats);
}

static void stats_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

const struct rpc_handler stats_handler = {
    .start = stats_start, .message = stats_message, .closed = stats_closed};
