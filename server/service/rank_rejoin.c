/*
 * Rejoin of ranks: carries out the decision of rank_recovery.c about a waiting join (refuse,
 * resume, occupy).
 *
 * A session that takes a rank becomes the rank's session at once; the reply to its join is sent
 * only when the replica, if there is one, has acknowledged the change.  Otherwise a replica
 * that takes over could refuse a session that already takes part.
 *
 * Locking: rank_rejoin_prepare and rank_rejoin_detach_pending under the table's lock, the others
 * without.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/service/exchange.h"
#include "server/service/rank_recovery.h"

#include <inttypes.h>

#define RANK_TAKEN "its place is another session's, or vacant, by now"

struct rpc_call *rank_rejoin_detach_pending(struct job_rank *r)
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

void rank_rejoin_refuse_pending(struct rpc_call *call)
{
    end_pending(call, RANK_TAKEN);
}

static void finish_join(struct recovery *r, const struct error *why)
{
    rpc_call_finish(r->join, why->status, why->text);
    rpc_call_unref(r->join);
}

/* The reason to refuse the join of this rank. */
static void describe_join_refusal(const struct recovery *r, struct error *err)
{
    const struct job *j = r->job;
    const struct job_rank *target = &j->ranks[r->rank];
    const struct rank_session *session = &target->session;

    if (target->join_kind == JOIN_OCCUPY && session->state == RANK_HELD)
        (void)error_set(err, STATUS_EXISTS,
                        "job '%s': rank %u has joined from %s; %s is a second one", j->members.job,
                        r->rank, j->members.members[r->rank].peer, r->joining.peer);
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

void rank_rejoin_prepare(struct recovery *r)
{
    struct job_rank *target = &r->job->ranks[r->rank];

    r->epoch = r->job->epoch;
    if (r->action == RECOVERY_REPLY) {
        r->join = rank_rejoin_detach_pending(target);
        target->session.held_ns = clock_now_ns(); /* the time to open its lanes starts now */
        return;
    }
    r->join = target->join; /* the rank may get another join after unlock */
    rpc_call_ref(r->join);
    r->joining = (struct joining_session){.session = target->join_session,
                                          .lanes = target->join_lanes,
                                          .peer = rpc_call_peer(r->join)};
    target->join = NULL;
    r->round = target->join_round;
    r->replaces = target->session.state == RANK_LOST;
    if (r->action == RECOVERY_REFUSE)
        describe_join_refusal(r, &r->err);
    if (r->action == RECOVERY_OCCUPY)
        r->displaced = rank_rejoin_detach_pending(target);
}

void rank_rejoin_refuse(struct recovery *r)
{
    finish_join(r, &r->err);
}

/* The session resumes as the rank.  If the reply to its earlier join is still pending, the reply to
 * this join becomes pending instead. */
void rank_rejoin_resume(struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    struct job_rank *target = &j->ranks[r->rank];
    struct rpc_call *earlier;
    uint64_t clock_here;
    int64_t now_ns;

    shard_suspend(&j->shard, r->rank);
    replication_drop_held(j, r->rank);
    clock_here = shard_clock(&j->shard, r->rank);
    if (r->round > clock_here) { /* this server did not send it that round */
        (void)error_set(&r->err, STATUS_DATA,
                        "rank %u has completed round %" PRIu64 ", but here it has only "
                        "contributed to round %" PRIu64,
                        r->rank, r->round, clock_here);
        finish_join(r, &r->err);
        job_table_end(&s->table, j, &r->err);
        return;
    }
    (void)pthread_mutex_lock(&s->table.lock);
    now_ns = clock_now_ns();
    earlier = rank_rejoin_detach_pending(target);
    if (target->session.state != RANK_HELD) /* else it rejoined before its loss was detected */
        job_add_incident(j, r->rank, INCIDENT_BACK, now_ns);
    rank_session_hold(&target->session, r->joining.session, r->joining.lanes, now_ns);
    job_update_pause(j, now_ns);
    target->heard_ns = now_ns;
    target->parked = 0; /* it repeats every request that it waits for */
    if (earlier) {
        rpc_call_ref(r->join);
        target->pending_join_reply = r->join;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    if (earlier)
        end_pending(earlier, "its session has joined again");
    else
        join_send_reply(s, j, r->rank, r->join, r->epoch, clock_here);
    rpc_call_unref(r->join);
}

/* The job has ended meanwhile, and the end did not include this join: send its reason. */
static void finish_late_join(struct recovery *r, struct error *failure)
{
    if (failure->status == STATUS_OK)
        (void)error_set(failure, STATUS_NOT_FOUND, "job '%s' is done", r->job->members.job);
    finish_join(r, failure);
}

/* Another session becomes the rank: replacing a rank that the job waited for, or joining the
 * current round. */
void rank_rejoin_occupy(struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    struct error err = {0};
    uint64_t epoch, clock;

    rank_rejoin_refuse_pending(r->displaced);
    if (exchange_occupy_rank(j, r->rank, r->replaces, &err) != STATUS_OK)
        job_table_end(&s->table, j, &err);
    replication_drop_held(j, r->rank); /* held replies are for the previous session */
    clock = shard_clock(&j->shard, r->rank);
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state != JOB_RUNNING) {
        err = j->failure;
        (void)pthread_mutex_unlock(&s->table.lock);
        finish_late_join(r, &err);
        return;
    }
    j->replacement_pending = false;
    job_occupy(j, r->rank, &r->joining, clock, clock_now_ns());
    (void)job_table_persist_members(&s->table, j, NULL);
    j->ranks[r->rank].pending_join_reply = r->join;
    j->ranks[r->rank].pending_join_change = replication_send_membership(j);
    epoch = j->epoch;
    (void)pthread_mutex_unlock(&s->table.lock);
    log_info("job '%s': %s takes the place of rank %u, epoch %" PRIu64, j->members.job,
             r->joining.peer, r->rank, epoch);
}

void rank_rejoin_reply(struct service *s, struct recovery *r)
{
    join_send_reply(s, r->job, r->rank, r->join, r->epoch, shard_clock(&r->job->shard, r->rank));
    rpc_call_unref(r->join);
}
