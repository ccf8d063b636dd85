/*
 * Checks and book-keeping for calls that are bound to a rank's session.
 *
 * A claim is checked in this order: the job runs, the rank exists, its session is the current one,
 * the rank is a member, the connection is the current one.  call_binding.h lists the statuses; a
 * worker ends or joins again according to them.  Locking: see call_binding.h.
 */
#include "server/service/call_binding.h"

#include <inttypes.h>

uint64_t call_binding_connection_number(const struct service *s, const struct rank_session *session)
{
    return s->connection_base + session->connection;
}

/* Check the connection of a claim whose session is the current one.  Lock held. */
static enum status check_connection(const struct service *s, const struct rank_session *session,
                                    const struct call_claim *claim, struct error *err)
{
    if (session->state != RANK_HELD)
        return error_set(err, STATUS_UNAVAILABLE, "rank %u was cut off meanwhile (%s)", claim->rank,
                         session->how);
    if (claim->connection != 0 && claim->connection != call_binding_connection_number(s, session))
        return error_set(err, STATUS_UNAVAILABLE,
                         "rank %u %s on another connection than its present one", claim->rank,
                         claim->what);
    return STATUS_OK;
}

enum status call_binding_check(const struct service *s, const struct call_claim *claim,
                               struct error *err)
{
    const struct job *j = s->table.current;
    unsigned rank = claim->rank;
    const char *what = claim->what;
    const struct rank_session *session;

    if (!j || j->state != JOB_RUNNING)
        return error_set(err, claim->session == 0 ? STATUS_PROTOCOL : STATUS_UNAVAILABLE,
                         "rank %u %s, but no job runs here", rank, what);
    if (rank >= j->members.world_size)
        return error_set(err, STATUS_PROTOCOL, "rank %u %s, but is not in job '%s'", rank, what,
                         j->members.job);
    session = &j->ranks[rank].session;
    if (claim->session != 0 && (session->id != claim->session || session->state == RANK_VACANT))
        return error_set(err, STATUS_PEER_LOST,
                         "the place of rank %u in job '%s' is %s (epoch %" PRIu64 ")", rank,
                         j->members.job,
                         session->state == RANK_VACANT ? "vacant" : "another session's", j->epoch);
    if (j->members.members[rank].state != MEMBER_JOINED)
        return error_set(err, STATUS_PROTOCOL, "rank %u %s, but is not in job '%s'", rank, what,
                         j->members.job);
    if (session->id != claim->session)
        return error_set(err, STATUS_PROTOCOL, "rank %u did not say which session it is", rank);
    return check_connection(s, session, claim, err);
}

void call_binding_bind(struct call_binding *b, struct job *j, unsigned rank, struct rpc_call *call)
{
    struct rank_session *session = &j->ranks[rank].session;

    b->job = j;
    b->rank = rank;
    b->connection = session->connection;
    j->users++;
    session->calls++;
    rpc_call_ref(call);
}

bool call_binding_is_current(const struct call_binding *b)
{
    const struct rank_session *session = &b->job->ranks[b->rank].session;

    return session->connection == b->connection && session->state == RANK_HELD;
}

void call_binding_release(struct call_binding *b, struct rpc_call *call,
                          struct rpc_call **session_call)
{
    (void)pthread_mutex_lock(&b->service->table.lock);
    if (*session_call == call)
        *session_call = NULL;
    b->job->ranks[b->rank].session.calls--;
    (void)pthread_mutex_unlock(&b->service->table.lock);
    job_table_unref(&b->service->table, b->job); /* wakes the supervisor */
    rpc_call_unref(call);
}

void call_binding_cut(const struct call_binding *b, const char *how)
{
    session_cut(&b->service->table, b->job, b->rank, b->connection, how);
}
