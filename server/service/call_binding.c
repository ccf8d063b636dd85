#include "server/service/call_binding.h"

#include <inttypes.h>

uint64_t tie_number(const struct service *s, const struct slot *slot)
{
    return s->connections_from + slot->connection;
}

/* The session is right: so is the connection?  Lock held. */
static enum status check_connection(const struct service *s, const struct slot *slot,
                                    const struct tie_claim *claim, struct error *err)
{
    if (slot->state != SLOT_HELD)
        return error_set(err, STATUS_UNAVAILABLE, "rank %u was cut off meanwhile (%s)", claim->rank,
                         slot->how);
    if (claim->connection != 0 && claim->connection != tie_number(s, slot))
        return error_set(err, STATUS_UNAVAILABLE,
                         "rank %u %s on another connection than its present one", claim->rank,
                         claim->what);
    return STATUS_OK;
}

enum status tie_check(const struct service *s, const struct tie_claim *claim, struct error *err)
{
    const struct job *j = s->current;
    unsigned rank = claim->rank;
    uint64_t session = claim->session;
    const char *what = claim->what;
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
    return check_connection(s, slot, claim, err);
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
