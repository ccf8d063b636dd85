#include "server/tie.h"

#include <inttypes.h>

enum status tie_check(const struct job *j, unsigned rank, uint64_t session, const char *what,
                      struct error *err)
{
    const struct slot *slot;

    if (!j || j->state != JOB_RUNNING)
        return error_set(err, session == 0 ? STATUS_PROTOCOL : STATUS_UNAVAILABLE,
                         "rank %u %s, but no job runs here", rank, what);
    if (rank >= j->members.world_size)
        return error_set(err, STATUS_PROTOCOL, "rank %u %s, but is not in job '%s'", rank, what,
                         j->members.job);
    slot = &j->ranks[rank].slot;
    if (session != 0 && (slot->session != session || slot->state == SLOT_VACANT))
        return error_set(err, STATUS_PEER_LOST,
                         "the place of rank %u in job '%s' is %s (epoch %" PRIu64 ")", rank,
                         j->members.job,
                         slot->state == SLOT_VACANT ? "vacant" : "another session's", j->epoch);
    if (j->members.members[rank].state != MEMBER_JOINED)
        return error_set(err, STATUS_PROTOCOL, "rank %u %s, but is not in job '%s'", rank, what,
                         j->members.job);
    if (slot->session != session)
        return error_set(err, STATUS_PROTOCOL, "rank %u did not say which session it is", rank);
    if (slot->state != SLOT_HELD)
        return error_set(err, STATUS_UNAVAILABLE, "rank %u was cut off meanwhile (%s)", rank,
                         slot->how);
    return STATUS_OK;
}

void tie_bind(struct tie *t, struct job *j, unsigned rank, struct rpc_call *call)
{
    struct slot *slot = &j->ranks[rank].slot;

    t->job = j;
    t->rank = rank;
    t->connection = slot->connection;
    j->users++;
    slot->calls++;
    rpc_call_ref(call);
}

bool tie_holds(const struct tie *t)
{
    const struct slot *slot = &t->job->ranks[t->rank].slot;

    return slot->connection == t->connection && slot->state == SLOT_HELD;
}

void tie_release(struct tie *t, struct rpc_call *call, struct rpc_call **place)
{
    (void)pthread_mutex_lock(&t->service->lock);
    if (*place == call)
        *place = NULL;
    t->job->ranks[t->rank].slot.calls--;
    (void)pthread_mutex_unlock(&t->service->lock);
    service_drop_job(t->service, t->job); /* wakes the keeper */
    rpc_call_unref(call);
}

void tie_cut(const struct tie *t, const char *how)
{
    loss_cut(t->service, t->job, t->rank, t->connection, how);
}
