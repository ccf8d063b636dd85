/*
 * The interface of replication to the service: forwards calls for a job to its replica stream (on
 * the primary) or its replica, and the stream's call-backs to the job table.
 *
 * Locking: replication.h states for each function whether the table's lock is held; the call-backs
 * come without it and take it.
 */
#include "server/replication/replication.h"

#include "common/base/clock.h"
#include "server/replication/replica.h"
#include "server/replication/replica_stream.h"

#include <stdlib.h>

static void send_reply(struct replication *p, struct job *j, const struct held_reply *reply)
{
    p->reply(p->user, j, reply);
}

static void end_superseded_job(struct replication *p, struct job *j, const struct error *why)
{
    struct job_table *t = p->table;
    bool first;

    (void)pthread_mutex_lock(&t->lock);
    j->role = JOB_SUPERSEDED;
    first = job_table_begin_end(t, j, why);
    (void)pthread_mutex_unlock(&t->lock);
    if (first)
        job_table_finish_end(t, j, why);
}

static void wake_supervisor(struct replication *p)
{
    (void)pthread_mutex_lock(&p->table->lock);
    (void)pthread_cond_broadcast(&p->table->changed);
    (void)pthread_mutex_unlock(&p->table->lock);
}

/* The earliest deadline of the pending joins.  Lock held. */
static int64_t first_join_deadline(const struct job *j)
{
    int64_t deadline_ns = INT64_MAX;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (j->ranks[rank].join && j->ranks[rank].join_deadline_ns < deadline_ns)
            deadline_ns = j->ranks[rank].join_deadline_ns;
    return deadline_ns;
}

static enum status read_join_sessions(const struct job *j, uint64_t *ret, struct error *err)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        ret[rank] = j->ranks[rank].join_session;
        if (ret[rank] == 0 || j->terms.reconnect_ms == 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "a replica is for ranks that can come back (--reconnect-ms), and rank "
                             "%u cannot",
                             rank);
    }
    return STATUS_OK;
}

/* *terms gets a shallow copy of the job's terms, with the manifest. */
static struct replica_stream_config make_stream_config(struct replication *p, struct job *j,
                                                       struct join_request *terms, uint64_t epoch,
                                                       const uint64_t *sessions)
{
    const struct member *first = &j->members.members[0];

    *terms = j->terms;
    terms->manifest = first->manifest.text + first->terms_bytes;
    return (struct replica_stream_config){.security = p->security,
                                          .terms = terms,
                                          .sessions = sessions,
                                          .epoch = epoch,
                                          .shard = &j->shard,
                                          .outstanding = &j->outstanding,
                                          .send_reply = send_reply,
                                          .on_superseded = end_superseded_job,
                                          .on_membership_acknowledged = wake_supervisor,
                                          .owner = p,
                                          .job = j};
}

enum status replication_open(struct replication *p, struct job *j, struct error *err)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];
    struct join_request terms;
    struct replica_stream_config config = make_stream_config(p, j, &terms, 1, sessions);
    struct replica_stream *stream = NULL;
    int64_t deadline_ns;
    enum status status;

    (void)pthread_mutex_lock(&p->table->lock);
    deadline_ns = first_join_deadline(j);
    status = read_join_sessions(j, sessions, err);
    (void)pthread_mutex_unlock(&p->table->lock);
    if (deadline_ns == INT64_MAX)
        deadline_ns = clock_deadline_ns(p->table->timeout_ms);
    if (status == STATUS_OK)
        status = replica_stream_open(&config, deadline_ns, &stream, err);
    (void)pthread_mutex_lock(&p->table->lock); /* stats also reads jobs in BUILDING */
    j->replica_stream = stream;
    (void)pthread_mutex_unlock(&p->table->lock);
    return status;
}

/* The session of each joined rank, 0 for the others.  Lock held. */
static void read_joined_sessions(const struct job *j, uint64_t *ret)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        ret[rank] = j->members.members[rank].state == MEMBER_JOINED ? j->ranks[rank].session.id : 0;
}

enum status replication_restore(struct replication *p, struct job *j, struct error *err)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];
    bool settled[MEMBERSHIP_RANKS_MAX];
    struct join_request terms;
    struct replica_stream_config config = make_stream_config(p, j, &terms, j->epoch, sessions);

    read_joined_sessions(j, sessions);
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        settled[rank] = sessions[rank] == 0;
    return replica_stream_restore(&config, settled, &j->replica_stream, err);
}

void replication_update_role(struct job *j)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];

    if (!j->replica_stream || j->role == JOB_SUPERSEDED)
        return;
    read_joined_sessions(j, sessions);
    j->role = replica_stream_role(j->replica_stream, sessions);
}

void replication_tick(struct job *j)
{
    replica_stream_tick(j->replica_stream, clock_now_ns());
}

/* epoch != 0: all ranks agreed to continue here without the replica. */
static void store_standalone_epoch(struct replication *p, struct job *j, uint64_t epoch)
{
    if (epoch == 0)
        return;
    (void)pthread_mutex_lock(&p->table->lock);
    j->epoch = epoch;
    (void)job_table_persist_members(p->table, j, NULL);
    (void)pthread_mutex_unlock(&p->table->lock);
}

void replication_vote(struct replication *p, struct job *j, unsigned rank, uint64_t vote,
                      uint64_t *ret_propose)
{
    uint64_t epoch = 0;

    if (!j->replica_stream)
        return;
    if (vote != 0)
        replica_stream_vote(j->replica_stream, rank, vote, &epoch);
    store_standalone_epoch(p, j, epoch);
    *ret_propose = replica_stream_proposal(j->replica_stream);
}

void replication_mark_settled(struct replication *p, struct job *j, unsigned rank)
{
    uint64_t epoch;

    replica_stream_mark_settled(j->replica_stream, rank, &epoch);
    store_standalone_epoch(p, j, epoch);
}

uint64_t replication_send_membership(struct job *j)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];

    if (!j->replica_stream)
        return 0;
    read_joined_sessions(j, sessions);
    return replica_stream_send_membership(j->replica_stream, j->epoch, sessions);
}

bool replication_membership_acknowledged(const struct job *j, uint64_t change)
{
    return replica_stream_membership_acknowledged(j->replica_stream, change);
}

bool replication_hold(struct job *j, const struct held_reply *reply)
{
    return replica_stream_hold(j->replica_stream, reply);
}

void replication_drop_held(struct job *j, unsigned rank)
{
    replica_stream_drop_held(j->replica_stream, rank);
}

/* A server that stops leaves the job to its replica; any other end also ends the replica's job. */
void replication_end(struct replication *p, struct job *j, const struct error *failure)
{
    if (failure && failure->status == STATUS_UNAVAILABLE)
        replica_stream_cancel(j->replica_stream);
    else
        replica_stream_end(j->replica_stream, failure ? failure->status : STATUS_OK);
    if (failure && j->replica)
        replica_send_failure(p->table, j, failure);
}

void replication_cancel(struct job *j)
{
    replica_stream_cancel(j->replica_stream);
}

void replication_count(const struct job *j, struct job_figures *ret)
{
    const struct replica *r = j->replica;
    struct replica_stream_figures *stream = &ret->stream;
    struct stats_counters *c = &ret->counters;

    replica_stream_count(j->replica_stream, stream);
    c->replicas_lost = stream->lost_ns != 0;
    c->replica_records = stream->records;
    c->replica_bytes = stream->bytes;
    c->acknowledged_records = stream->acknowledged_records;
    c->acknowledged_bytes = stream->acknowledged_bytes;
    ret->is_replica_connected = r && r->stream;
    c->promotions = r && r->promoted_ns != 0;
    c->copied_records = r ? r->records : 0;
    c->copied_bytes = r ? r->bytes : 0;
}

void replication_release(struct job *j)
{
    replica_stream_close(j->replica_stream);
    free(j->replica);
}
