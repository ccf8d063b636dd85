/*
 * Return of ranks: what is done about a join that waits, once rank_recovery.c has judged it.  Who
 * takes another session's place hears of it in two steps: it has the place at once, and the reply
 * when a replica knows that it has.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/service/exchange.h"
#include "server/service/rank_recovery.h"

#include <inttypes.h>

#define PLACE_GONE "its place is another session's, or vacant, by now"

struct rpc_call *rank_return_take_pending(struct job_rank *r)
{
    struct rpc_call *call = r->pending_join_reply;

    r->pending_join_reply = NULL;
    return call;
}

static void end_pending(struct rpc_call *call, const char *why)
{
    if (!call)
        return;
    rpc_call_finish(call, STATUS_UNAVAILABLE, why);
    rpc_call_unref(call);
}

void rank_return_end_pending(struct rpc_call *call)
{
    end_pending(call, PLACE_GONE);
}

static void finish_join(struct recovery *r, const struct error *why)
{
    rpc_call_finish(r->join, why->status, why->text);
    rpc_call_unref(r->join);
}

/* Why the join of this rank is refused. */
static void describe_refusal(const struct recovery *r, struct error *err)
{
    const struct job *j = r->job;
    const struct job_rank *of = &j->ranks[r->rank];
    const struct rank_session *session = &of->session;

    if (of->join_kind == JOIN_TAKE && session->state == RANK_HELD)
        (void)error_set(err, STATUS_EXISTS,
                        "job '%s': rank %u has joined from %s; %s is a second one", j->members.job,
                        r->rank, j->members.members[r->rank].peer, r->by.peer);
    else if (session->state == RANK_AWAY || session->state == RANK_LOST)
        (void)error_set(err, STATUS_UNAVAILABLE, "job '%s': rank %u is %s (%s)%s", j->members.job,
                        r->rank, rank_session_state_name(session->state), session->how,
                        rank_session_is_quiet(session) ? ""
                                                       : ", and calls of it have not ended yet");
    else
        (void)error_set(err, STATUS_PEER_LOST,
                        "job '%s': " WIRE_RANK_LOST "%s); its place is %s since epoch %" PRIu64,
                        j->members.job, r->rank, session->how,
                        session->state == RANK_VACANT ? "vacant" : "another session's", j->epoch);
}

void rank_return_note(struct recovery *r)
{
    struct job_rank *of = &r->job->ranks[r->rank];

    r->epoch = r->job->epoch;
    if (r->act == RECOVERY_REPLY) {
        r->join = rank_return_take_pending(of);
        of->session.held_ns = clock_now_ns(); /* it can open its lanes from now on */
        return;
    }
    r->join = of->join; /* the rank may get another one meanwhile */
    rpc_call_ref(r->join);
    r->by = (struct job_newcomer){
        .session = of->join_session, .lanes = of->join_lanes, .peer = rpc_call_peer(r->join)};
    of->join = NULL;
    r->round = of->join_round;
    r->replaces = of->session.state == RANK_LOST;
    if (r->act == RECOVERY_REFUSE)
        describe_refusal(r, &r->err);
    if (r->act == RECOVERY_TAKE)
        r->displaced = rank_return_take_pending(of);
}

void rank_return_refuse(struct recovery *r)
{
    finish_join(r, &r->err);
}

/* Its session holds the place again, as if nothing had happened: where it waits to hear that it is
 * in, it still does. */
void rank_return_bring_back(struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    struct job_rank *of = &j->ranks[r->rank];
    struct rpc_call *earlier;
    uint64_t here;
    int64_t now_ns;

    shard_suspend(&j->shard, r->rank);
    replication_forget(j, r->rank);
    here = shard_clock(&j->shard, r->rank);
    if (r->round > here) { /* this server is not the one that told it so */
        (void)error_set(&r->err, STATUS_DATA,
                        "rank %u has completed round %" PRIu64 ", but here it has only "
                        "contributed to round %" PRIu64,
                        r->rank, r->round, here);
        finish_join(r, &r->err);
        job_table_end(&s->table, j, &r->err);
        return;
    }
    (void)pthread_mutex_lock(&s->table.lock);
    now_ns = clock_now_ns();
    earlier = rank_return_take_pending(of);
    if (of->session.state != RANK_HELD) /* it may have been quicker than the news of its loss */
        job_note_incident(j, r->rank, INCIDENT_BACK, now_ns);
    rank_session_hold(&of->session, r->by.session, r->by.lanes, now_ns);
    job_resume_watch(j, now_ns);
    of->heard_ns = now_ns;
    of->parked = 0; /* it asks again for all that it waits for */
    if (earlier) {
        rpc_call_ref(r->join);
        of->pending_join_reply = r->join;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    if (earlier)
        end_pending(earlier, "its session has joined again");
    else
        join_answer(s, j, r->rank, r->join, r->epoch, here);
    rpc_call_unref(r->join);
}

/* The job has ended meanwhile, and whoever ended it did not see the join: say how it did. */
static void end_late_join(struct recovery *r, struct error *failure)
{
    if (failure->status == STATUS_OK)
        (void)error_set(failure, STATUS_NOT_FOUND, "job '%s' is done", r->job->members.job);
    finish_join(r, failure);
}

/* Another session takes the place: of one that was waited for, or in the round under way. */
void rank_return_take(struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    struct error err = {0};
    uint64_t epoch, clock;

    rank_return_end_pending(r->displaced);
    if (exchange_occupy_rank(j, r->rank, r->replaces, &err) != STATUS_OK)
        job_table_end(&s->table, j, &err);
    replication_forget(j, r->rank); /* what waits is for whoever was here before */
    clock = shard_clock(&j->shard, r->rank);
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state != JOB_RUNNING) {
        err = j->failure;
        (void)pthread_mutex_unlock(&s->table.lock);
        end_late_join(r, &err);
        return;
    }
    j->takeover_pending = false;
    job_occupy(j, r->rank, &r->by, clock, clock_now_ns());
    (void)job_table_keep_members(&s->table, j, NULL);
    j->ranks[r->rank].pending_join_reply = r->join;
    j->ranks[r->rank].pending_join_change = replication_change_members(j);
    epoch = j->epoch;
    (void)pthread_mutex_unlock(&s->table.lock);
    log_info("job '%s': %s takes the place of rank %u, epoch %" PRIu64, j->members.job, r->by.peer,
             r->rank, epoch);
}

void rank_return_reply(struct service *s, struct recovery *r)
{
    join_answer(s, r->job, r->rank, r->join, r->epoch, shard_clock(&r->job->shard, r->rank));
    rpc_call_unref(r->join);
}
