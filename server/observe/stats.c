/*
 * One consistent reading of a server's jobs, under their table's lock; packing and printing follow
 * without it.
 *
 * table->past has the counters of jobs that have ended.  Each reading adds those of the current
 * job, its unfinished round included, so no counter ever decreases.
 */
#include "server/observe/stats.h"

#include "common/base/clock.h"
#include "common/base/host.h"
#include "common/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *state_name(enum job_state state)
{
    static const char *const names[] = {[JOB_GATHERING] = "gathering",
                                        [JOB_BUILDING] = "building",
                                        [JOB_RUNNING] = "running",
                                        [JOB_OVER] = "over"};

    return names[state];
}

/* Partitions pushed in this round and all before it, as if none had been skipped. */
static uint64_t count_pushed_partitions(const struct job *j, unsigned rank)
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
    uint64_t most_pushed = 0;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (count_pushed_partitions(j, rank) > most_pushed)
            most_pushed = count_pushed_partitions(j, rank);
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
                              : (double)(most_pushed - count_pushed_partitions(j, rank)) /
                                    (double)j->shard.length,
            .silent_seconds = (double)(now_ns - r->heard_ns) * 1e-9,
        };
    }
}

/* The role among the servers that hold the shard, and the other one's address. */
static void read_role(const struct job *j, const struct job_figures *f, struct stats_job *ret)
{
    const struct replica_stream_figures *c = &f->stream;
    enum succession_role role = c->role;
    bool sends = role == SUCCESSION_PRIMARY || role == SUCCESSION_PROPOSING;
    const char *peer = "";

    if (j->state == JOB_RUNNING && !c->is_primary) /* taken over, or restored */
        role = SUCCESSION_STANDALONE;
    ret->role = j->terms.replica[0] ? succession_role_name(role) : "single";
    if (j->role == JOB_REPLICA)
        ret->role = "replica";
    if (j->role == JOB_REPLICA && f->is_replica_connected)
        peer = j->members.members[0].peer;
    else if (c->is_primary && sends)
        peer = j->terms.replica;
    (void)snprintf(ret->peer, sizeof(ret->peer), "%s", peer);
    if (c->is_primary && sends) {
        ret->replica_lag_records = c->records - c->acknowledged_records;
        ret->replica_lag_bytes = c->bytes - c->acknowledged_bytes;
    }
}

static void read_job(const struct job *j, const struct job_figures *figures, int64_t now_ns,
                     struct server_stats *ret)
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
    read_role(j, figures, s);
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

/* Replies that the transport has not released, also of ended jobs.  Lock held. */
static uint64_t replies_in_flight(const struct job_table *t)
{
    uint64_t sum = t->current ? atomic_load(&t->current->outstanding) : 0;

    for (struct job *j = t->over; j; j = j->next)
        sum += atomic_load(&j->outstanding);
    return sum;
}

enum status stats_read(struct job_table *t, struct server_stats **ret_stats, struct error *err)
{
    struct job_figures figures = {0};
    struct server_stats *stats;
    enum status status = mem_calloc(1, sizeof(*stats), "statistics", &stats, err);

    if (status != STATUS_OK)
        return status;
    stats->version = SPARRING_VERSION;
    stats->grpc_version = rpc_library_version();
    stats->cpu_seconds = host_cpu_seconds();
    stats->resident_bytes = host_rss_bytes();
    (void)pthread_mutex_lock(&t->lock);
    stats->draining = t->draining;
    stats->jobs_ok = t->jobs_ok;
    stats->jobs_failed = t->jobs_failed;
    stats->counters = t->past;
    stats->answers_in_flight = replies_in_flight(t);
    if (t->current) {
        job_table_add_counters(t, t->current, &stats->counters);
        t->hooks.count(t->hooks.user, t->current, &figures);
        read_job(t->current, &figures, clock_now_ns(), stats);
    }
    (void)pthread_mutex_unlock(&t->lock);
    *ret_stats = stats;
    return STATUS_OK;
}
