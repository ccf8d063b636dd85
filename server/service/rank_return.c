/*
 * Return of ranks: the answers to a join that waits, once rank_recovery.c has judged it.  Who takes
 * another session's place is told in two steps: it has the slot at once, and hears of it when a
 * replica knows that it has.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/persistence/persistence.h"
#include "server/service/exchange.h"
#include "server/service/rank_recovery_internal.h"

#include <inttypes.h>

/* A reference to the join that waits, which is answered now, and who it is: the rank may get
 * another one meanwhile.  Lock held. */
static struct rpc_call *take_join(struct job_rank *r, struct job_newcomer *ret)
{
    struct rpc_call *call = r->join;

    rpc_call_ref(call);
    *ret = (struct job_newcomer){
        .session = r->join_session, .lanes = r->join_lanes, .peer = rpc_call_peer(call)};
    r->join = NULL;
    return call;
}

struct rpc_call *rank_recovery_take_pending(struct job_rank *r)
{
    struct rpc_call *call = r->pending_join_reply;

    r->pending_join_reply = NULL;
    return call;
}

void rank_recovery_end_pending(struct rpc_call *call, const char *why)
{
    if (!call)
        return;
    rpc_call_finish(call, STATUS_UNAVAILABLE, why);
    rpc_call_unref(call);
}

void rank_recovery_refuse_join(struct service *s, struct job *j, unsigned rank)
{
    struct job_rank *r = &j->ranks[rank];
    struct job_newcomer by;
    struct rpc_call *call = take_join(r, &by);
    struct error err = {0};

    if (r->join_kind == JOIN_TAKE && r->session.state == RANK_HELD)
        (void)error_set(&err, STATUS_EXISTS,
                        "job '%s': rank %u has joined from %s; %s is a second one", j->members.job,
                        rank, j->members.members[rank].peer, by.peer);
    else if (r->session.state == RANK_AWAY || r->session.state == RANK_LOST)
        (void)error_set(
            &err, STATUS_UNAVAILABLE, "job '%s': rank %u is %s (%s)%s", j->members.job, rank,
            rank_session_state_name(r->session.state), r->session.how,
            rank_session_is_quiet(&r->session) ? "" : ", and calls of it have not ended yet");
    else
        (void)error_set(&err, STATUS_PEER_LOST,
                        "job '%s': " WIRE_RANK_LOST "%s); its place is %s since epoch %" PRIu64,
                        j->members.job, rank, r->session.how,
                        r->session.state == RANK_VACANT ? "vacant" : "another session's", j->epoch);
    (void)pthread_mutex_unlock(&s->lock);
    rpc_call_finish(call, err.status, err.text);
    rpc_call_unref(call);
    (void)pthread_mutex_lock(&s->lock);
}

void rank_recovery_bring_back(struct service *s, struct job *j, unsigned rank)
{
    struct job_rank *r = &j->ranks[rank];
    struct job_newcomer by;
    struct rpc_call *call = take_join(r, &by);
    uint64_t completed = r->join_round, epoch = j->epoch, here;

    (void)pthread_mutex_unlock(&s->lock);
    shard_suspend(&j->shard, rank);
    replica_stream_forget(j->replica_stream, rank);
    here = shard_clock(&j->shard, rank);
    (void)pthread_mutex_lock(&s->lock);
    if (completed > here) { /* this server is not the one that told it so */
        struct error err = {0};

        (void)error_set(&err, STATUS_DATA,
                        "rank %u has completed round %" PRIu64 ", but here it has only "
                        "contributed to round %" PRIu64,
                        rank, completed, here);
        (void)pthread_mutex_unlock(&s->lock);
        rpc_call_finish(call, err.status, err.text);
        service_end_job(s, j, &err);
    } else {
        int64_t now_ns = clock_now_ns();
        struct rpc_call *earlier = rank_recovery_take_pending(r);

        if (r->session.state != RANK_HELD) /* it may have been quicker than the news of its loss */
            job_note_incident(j, rank, INCIDENT_BACK, now_ns);
        rank_session_hold(&r->session, by.session, by.lanes, now_ns);
        job_resume_watch(j, now_ns);
        r->heard_ns = now_ns;
        r->parked = 0; /* it asks again for all that it waits for */
        if (earlier) {
            rpc_call_ref(call);
            r->pending_join_reply = call;
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (earlier)
            rank_recovery_end_pending(earlier, "its session has joined again");
        else
            join_answer(s, j, rank, call, epoch, here);
    }
    rpc_call_unref(call);
    (void)pthread_mutex_lock(&s->lock);
}

void rank_recovery_take_slot(struct service *s, struct job *j, unsigned rank)
{
    struct job_rank *r = &j->ranks[rank];
    struct job_newcomer by;
    struct rpc_call *call = take_join(r, &by);
    bool replaces = r->session.state == RANK_LOST;
    struct rpc_call *earlier = rank_recovery_take_pending(r);
    struct error err = {0};
    uint64_t epoch, clock;

    (void)pthread_mutex_unlock(&s->lock);
    rank_recovery_end_pending(earlier, RECOVERY_PLACE_GONE);
    if (exchange_occupy_rank(j, rank, replaces, &err) != STATUS_OK)
        service_end_job(s, j, &err);
    replica_stream_forget(j->replica_stream, rank); /* what waits is for whoever was here before */
    clock = shard_clock(&j->shard, rank);
    (void)pthread_mutex_lock(&s->lock);
    if (j->state != JOB_RUNNING) { /* whoever ended it meanwhile did not see the call */
        err = j->failure;
        (void)pthread_mutex_unlock(&s->lock);
        if (err.status == STATUS_OK)
            (void)error_set(&err, STATUS_NOT_FOUND, "job '%s' is done", j->members.job);
        rpc_call_finish(call, err.status, err.text);
        rpc_call_unref(call);
        (void)pthread_mutex_lock(&s->lock);
        return;
    }
    j->takeover_pending = false;
    job_occupy(j, rank, &by, clock, clock_now_ns());
    persistence_members(s, j);
    r->pending_join_reply = call;
    r->pending_join_change = primary_members(j);
    epoch = j->epoch;
    (void)pthread_mutex_unlock(&s->lock);
    log_info("job '%s': %s takes the place of rank %u, epoch %" PRIu64, j->members.job, by.peer,
             rank, epoch);
    (void)pthread_mutex_lock(&s->lock);
}

void rank_recovery_reply(struct service *s, struct job *j, unsigned rank)
{
    struct rpc_call *call = j->ranks[rank].pending_join_reply;
    uint64_t epoch = j->epoch;

    j->ranks[rank].pending_join_reply = NULL;
    j->ranks[rank].session.held_ns = clock_now_ns(); /* it can open its lanes from now on */
    (void)pthread_mutex_unlock(&s->lock);
    join_answer(s, j, rank, call, epoch, shard_clock(&j->shard, rank));
    rpc_call_unref(call);
    (void)pthread_mutex_lock(&s->lock);
}
