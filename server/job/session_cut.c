/*
 * session_cut: marks the session of a broken connection as AWAY and cancels its calls.
 *
 * The supervisor of server/service decides what follows: it waits for a reconnect or declares the
 * rank lost.  Only a job that cannot continue without the rank ends here.  The lock is released
 * before calls are cancelled.
 */
#include "server/job/session_cut.h"

#include "common/base/clock.h"

#include <inttypes.h>

#define OPEN_MS_MIN 2000

/* The session cannot reconnect and the job cannot continue without it: end it at once.  Lock
 * held. */
static bool must_end_job(const struct job *j, const struct rank_session *session)
{
    return j->terms.on_loss == WORKER_LOSS_FAIL && (session->id == 0 || j->terms.reconnect_ms == 0);
}

size_t session_cut_locked(struct job_table *t, struct job *j, unsigned rank, const char *how,
                          struct rpc_call **ret_calls)
{
    struct rank_session *session = &j->ranks[rank].session;

    rank_session_cut(session, how, j->terms.reconnect_ms, clock_now_ns());
    j->totals.disconnects++;
    job_update_pause(j, session->cut_ns);
    (void)pthread_cond_broadcast(&t->changed);
    return rank_session_ref_calls(session, ret_calls);
}

void session_end_calls(struct rpc_call **calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rpc_call_cancel(calls[i]);
        rpc_call_unref(calls[i]);
    }
}

void session_cut(struct job_table *t, struct job *j, unsigned rank, uint64_t connection,
                 const char *how)
{
    const struct rank_session *session = &j->ranks[rank].session;
    struct rpc_call *calls[RANK_SESSION_CALLS_MAX];
    struct error err = {0};
    size_t count = 0;
    bool cut;

    (void)pthread_mutex_lock(&t->lock);
    cut = j->state == JOB_RUNNING && j->members.members[rank].state != MEMBER_LEFT &&
          session->connection == connection && session->state == RANK_HELD;
    if (cut && must_end_job(j, session))
        (void)error_set(&err, STATUS_PEER_LOST, WIRE_RANK_LOST "%s in round %" PRIu64 ")", rank,
                        how, job_round(j));
    else if (cut)
        count = session_cut_locked(t, j, rank, how, calls);
    (void)pthread_mutex_unlock(&t->lock);
    if (err.status != STATUS_OK)
        job_table_end(t, j, &err);
    session_end_calls(calls, count);
}

int64_t session_open_ms(const struct job *j)
{
    return j->terms.reconnect_ms > OPEN_MS_MIN ? j->terms.reconnect_ms : OPEN_MS_MIN;
}
