/*
 * The life of a replica outside the Replicate call: it starts, is promoted by the first rank that
 * resumes its session here and takes over from the primary, or ends because the primary was lost
 * and no rank came within the table's timeout.
 *
 * replica_admit marks the promotion in a join's handler; the supervisor completes the takeover
 * once no record is being applied.  Lock: the job table's.
 */
#include "server/replication/replica.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"

#include <inttypes.h>
#include <stdio.h>

enum status replica_admit(struct job *j, const struct join_request *request, struct error *err)
{
    struct replica *r = j->replica;

    switch (succession_replica_join(&r->succession, request->resume && !request->follows)) {
    case SUCCESSION_REFUSED:
        return error_set(err, STATUS_UNAVAILABLE,
                         "job '%s': this server keeps a copy for a primary that serves rank %u",
                         j->members.job, request->rank);
    case SUCCESSION_PROMOTES:
        r->promoted_ns = clock_now_ns();
        break;
    case SUCCESSION_FOLLOWS:
        break;
    }
    return STATUS_OK;
}

void replica_start(struct replication *p, struct job *j)
{
    j->epoch = j->replica->succession.epoch;
    job_mark_away(j, REPLICA_AWAY_REASON, INT64_MAX, clock_now_ns());
    /* Before the primary replies to any rank. */
    (void)job_table_persist_members(p->table, j, NULL);
}

/* A reference to the primary's stream, or NULL; and the replica's epoch.  No lock. */
static struct rpc_call *ref_stream(struct job_table *t, const struct job *j, uint64_t *ret_epoch)
{
    struct rpc_call *stream;

    (void)pthread_mutex_lock(&t->lock);
    *ret_epoch = j->replica->succession.epoch;
    stream = j->replica->stream;
    if (stream)
        rpc_call_ref(stream);
    (void)pthread_mutex_unlock(&t->lock);
    return stream;
}

void replica_request_records(struct replication *p, struct job *j)
{
    struct record_reply ready = {0};
    struct rpc_call *stream = ref_stream(p->table, j, &ready.epoch);

    log_info("job '%s': a copy of %zu of %zu partitions, for the primary at %s", j->members.job,
             j->shard.length, j->map.length, j->members.members[0].peer);
    if (!stream)
        return;
    replica_send_record_reply(stream, &ready);
    rpc_call_receive(stream);
    rpc_call_unref(stream);
}

enum replica_event replica_poll(const struct replication *p, struct job *j, struct error *err)
{
    const struct replica *r = j->replica;
    int64_t timeout_ms = p->table->timeout_ms;

    if (j->state != JOB_RUNNING || j->role != JOB_REPLICA || r->applying)
        return REPLICA_NO_EVENT;
    if (r->promoted_ns != 0)
        return REPLICA_TAKEOVER_DUE;
    if (r->stream || r->stream_ended_ns == 0 ||
        clock_now_ns() - r->stream_ended_ns < timeout_ms * 1000000)
        return REPLICA_NO_EVENT;
    (void)error_set(err, STATUS_PEER_LOST,
                    "the primary of this copy was lost (%s), and no worker has come within %.1f s",
                    r->stream_end_reason, (double)timeout_ms * 1e-3);
    return REPLICA_TAKEOVER_TIMEOUT;
}

/* Persist the takeover before the primary is notified, because the primary then removes its files.
 * If that fails the job ends. */
bool replica_take_over(struct replication *p, struct job *j)
{
    struct job_table *t = p->table;
    int64_t now_ns = clock_now_ns();
    int64_t grace_ms = (int64_t)j->terms.reconnect_ms + j->terms.heartbeat_timeout_ms;
    struct error err = {0};
    uint64_t epoch, rounds;
    enum status status;

    (void)pthread_mutex_lock(&t->lock);
    if (j->state != JOB_RUNNING) {
        (void)pthread_mutex_unlock(&t->lock);
        return false;
    }
    job_restore(j, now_ns); /* no record is applied any more, and no rank is connected */
    j->role = JOB_PROMOTED;
    epoch = j->epoch = j->replica->succession.epoch;
    rounds = j->totals.rounds;
    job_mark_away(j, "its primary was lost", now_ns + grace_ms * 1000000, now_ns);
    status = job_table_persist_members(t, j, &err);
    (void)pthread_mutex_unlock(&t->lock);
    log_warning("job '%s': a worker has lost its primary; this server takes over in epoch %" PRIu64
                ", behind round %" PRIu64,
                j->members.job, epoch, rounds);
    if (status != STATUS_OK)
        job_table_end(t, j, &err);
    return status == STATUS_OK;
}

void replica_send_superseded(struct replication *p, struct job *j)
{
    struct record_reply m = {.superseded = true};
    struct rpc_call *stream = ref_stream(p->table, j, &m.epoch);
    char text[128];

    if (!stream)
        return;
    (void)snprintf(text, sizeof(text), "superseded by epoch %" PRIu64, m.epoch);
    replica_send_record_reply(stream, &m);
    rpc_call_finish(stream, STATUS_PEER_LOST, text);
    rpc_call_unref(stream);
}

enum status replica_restore(struct job *j, int64_t now_ns, struct error *err)
{
    enum status status = mem_calloc(1, sizeof(*j->replica), "replica", &j->replica, err);

    if (status == STATUS_OK)
        *j->replica =
            (struct replica){.succession = {.epoch = j->epoch, .promoted = j->role == JOB_PROMOTED},
                             .stream_ended_ns = now_ns,
                             .stream_end_reason = "this server was started again"};
    return status;
}

void replica_send_failure(struct job_table *t, struct job *j, const struct error *failure)
{
    uint64_t epoch;
    struct rpc_call *stream = ref_stream(t, j, &epoch);

    if (!stream)
        return;
    rpc_call_finish(stream, failure->status, failure->text);
    rpc_call_unref(stream);
}
