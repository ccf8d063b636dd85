/*
 * What becomes of a copy: it begins, its primary's ranks come to it, or nobody does.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/persistence/persistence.h"

#include <inttypes.h>
#include <stdio.h>

enum status replica_admit(struct job *j, const struct join_request *request, struct error *err)
{
    struct replica *p = &j->replica;

    switch (succession_replica_join(&p->succession, request->resume && !request->follows)) {
    case SUCCESSION_REFUSED:
        return error_set(err, STATUS_UNAVAILABLE,
                         "job '%s': this server keeps a copy for a primary that serves rank %u",
                         j->members.job, request->rank);
    case SUCCESSION_PROMOTES:
        p->promoted_ns = clock_now_ns();
        break;
    case SUCCESSION_FOLLOWS:
        break;
    }
    return STATUS_OK;
}

/* No lock. */
static void tell_superseded(uint64_t epoch, struct rpc_call *stream)
{
    struct record_reply m = {.epoch = epoch, .superseded = true};
    char text[128];

    (void)snprintf(text, sizeof(text), "superseded by epoch %" PRIu64, m.epoch);
    replica_reply(stream, &m);
    rpc_call_finish(stream, STATUS_PEER_LOST, text);
}

void replica_start(struct service *s, struct job *j)
{
    struct record_reply ready = {.epoch = j->replica.succession.epoch};
    struct rpc_call *stream = j->replica.stream;

    j->epoch = j->replica.succession.epoch;
    job_send_away(j, REPLICA_AWAY, INT64_MAX, clock_now_ns());
    persistence_members(s, j); /* before the primary acknowledges anything */
    if (stream)
        rpc_call_ref(stream);
    (void)pthread_mutex_unlock(&s->lock);
    log_info("job '%s': a copy of %zu of %zu partitions, for the primary at %s", j->members.job,
             j->shard.length, j->map.length, j->members.members[0].peer);
    if (stream) {
        replica_reply(stream, &ready);
        rpc_call_receive(stream);
        rpc_call_unref(stream);
    }
    (void)pthread_mutex_lock(&s->lock);
}

/* From here on it is a job like any other whose ranks are away.  The primary is told once that is
 * kept, because it removes what it has; what cannot be kept is not taken over.  Lock held on entry
 * and return. */
static void take_over(struct service *s, struct job *j)
{
    int64_t now_ns = clock_now_ns();
    int64_t grace_ms = (int64_t)j->terms.reconnect_ms + j->terms.heartbeat_timeout_ms;
    struct rpc_call *stream = j->replica.stream;
    uint64_t epoch = j->replica.succession.epoch;
    struct error err = {0};
    enum status status;

    job_restore(j, now_ns); /* no record comes any more, and no rank is here */
    j->replica.is_kept = false;
    j->epoch = j->replica.succession.epoch;
    job_send_away(j, "its primary was lost", now_ns + grace_ms * 1000000, now_ns);
    status = persistence_told_members(j, &err);
    if (stream)
        rpc_call_ref(stream);
    log_warning("job '%s': a worker has lost its primary; this server takes over in epoch %" PRIu64
                ", behind round %" PRIu64,
                j->members.job, j->epoch, j->totals.rounds);
    j->users++;
    (void)pthread_mutex_unlock(&s->lock);
    if (status != STATUS_OK)
        service_end_job(s, j, &err);
    else
        rank_recovery_take_out(s, j);
    if (stream && status == STATUS_OK)
        tell_superseded(epoch, stream);
    if (stream)
        rpc_call_unref(stream);
    service_drop_job(s, j);
    (void)pthread_mutex_lock(&s->lock);
}

void replica_restore(struct job *j, bool promoted, int64_t now_ns)
{
    j->replica = (struct replica){.is_copy = true,
                                  .is_kept = !promoted,
                                  .succession = {.epoch = j->epoch, .promoted = promoted},
                                  .gone_ns = now_ns,
                                  .gone_how = "this server was started again"};
}

bool replica_look(struct service *s)
{
    struct job *j = s->current;
    struct error err = {0};

    if (!j || j->state != JOB_RUNNING || !j->replica.is_kept || j->replica.applying)
        return false;
    if (j->replica.promoted_ns != 0) {
        take_over(s, j);
        return true;
    }
    if (j->replica.stream || j->replica.gone_ns == 0 ||
        clock_now_ns() - j->replica.gone_ns < s->timeout_ms * 1000000)
        return false;
    (void)error_set(&err, STATUS_PEER_LOST,
                    "the primary of this copy was lost (%s), and no worker has come within %.1f s",
                    j->replica.gone_how, (double)s->timeout_ms * 1e-3);
    (void)pthread_mutex_unlock(&s->lock);
    service_end_job(s, j, &err);
    (void)pthread_mutex_lock(&s->lock);
    return true;
}

void replica_end(struct service *s, struct job *j, const struct error *failure)
{
    struct rpc_call *stream;

    (void)pthread_mutex_lock(&s->lock);
    stream = j->replica.stream;
    if (stream)
        rpc_call_ref(stream);
    (void)pthread_mutex_unlock(&s->lock);
    if (!stream)
        return;
    rpc_call_finish(stream, failure->status, failure->text);
    rpc_call_unref(stream);
}
