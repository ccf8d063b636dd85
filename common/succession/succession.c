/*
 * The transitions of the takeover protocol, one section per party: worker, primary, replica.  Pure
 * functions on the caller's structs, no locks.  tests/common/succession explores all interleavings
 * of a model of it.
 */
#include "common/succession/succession.h"

#include <string.h>

/* ------------------------------------------------------------------ a worker */

uint64_t succession_worker_propose(struct succession_worker *w, uint64_t epoch)
{
    if (w->vote == SUCCESSION_REPLICA)
        return 0;
    w->vote = SUCCESSION_ALONE;
    return epoch;
}

bool succession_worker_leave(struct succession_worker *w)
{
    if (w->vote == SUCCESSION_NO_VOTE)
        w->vote = SUCCESSION_REPLICA;
    return w->vote == SUCCESSION_REPLICA;
}

void succession_worker_withdraw(struct succession_worker *w)
{
    if (w->vote == SUCCESSION_REPLICA)
        w->vote = SUCCESSION_NO_VOTE;
}

/* ------------------------------------------------------------------ the primary */

const char *succession_role_name(enum succession_role role)
{
    static const char *const names[] = {[SUCCESSION_PRIMARY] = "primary",
                                        [SUCCESSION_PROPOSING] = "proposing",
                                        [SUCCESSION_STANDALONE] = "alone",
                                        [SUCCESSION_SUPERSEDED] = "superseded"};

    return names[role];
}

void succession_primary_init(struct succession_primary *p, uint64_t epoch, unsigned world_size,
                             bool *settled)
{
    *p = (struct succession_primary){
        .role = SUCCESSION_PRIMARY, .epoch = epoch, .world_size = world_size, .settled = settled};
    memset(settled, 0, world_size * sizeof(*settled));
}

void succession_primary_restore(struct succession_primary *p, uint64_t epoch, unsigned world_size,
                                bool *settled)
{
    *p = (struct succession_primary){
        .role = SUCCESSION_PROPOSING, .epoch = epoch, .world_size = world_size, .settled = settled};
}

bool succession_may_acknowledge(const struct succession_primary *p, bool replica_has_it)
{
    return p->role == SUCCESSION_STANDALONE || (p->role != SUCCESSION_SUPERSEDED && replica_has_it);
}

static bool count_votes(struct succession_primary *p)
{
    if (p->role != SUCCESSION_PROPOSING)
        return false;
    for (unsigned rank = 0; rank < p->world_size; rank++)
        if (!p->settled[rank])
            return false;
    p->role = SUCCESSION_STANDALONE;
    p->epoch++;
    return true;
}

bool succession_lose_replica(struct succession_primary *p)
{
    if (p->role == SUCCESSION_PRIMARY)
        p->role = SUCCESSION_PROPOSING;
    return count_votes(p);
}

bool succession_count_vote(struct succession_primary *p, unsigned rank, uint64_t epoch)
{
    if (p->role != SUCCESSION_PROPOSING || epoch == 0 || epoch > p->epoch + 1)
        return false;
    p->settled[rank] = true;
    return count_votes(p);
}

bool succession_mark_settled(struct succession_primary *p, unsigned rank)
{
    p->settled[rank] = true;
    return count_votes(p);
}

void succession_membership_changed(struct succession_primary *p, uint64_t epoch, unsigned rank,
                                   bool held)
{
    p->epoch = epoch;
    p->settled[rank] = !held;
}

void succession_supersede(struct succession_primary *p)
{
    p->role = SUCCESSION_SUPERSEDED;
}

/* ------------------------------------------------------------------ the replica */

bool succession_replica_record(struct succession_replica *r, uint64_t epoch)
{
    if (r->promoted)
        return false;
    r->epoch = epoch;
    return true;
}

enum succession_join succession_replica_join(struct succession_replica *r, bool may_promote)
{
    if (r->promoted)
        return SUCCESSION_FOLLOWS;
    if (!may_promote)
        return SUCCESSION_REFUSED;
    r->promoted = true;
    r->epoch++;
    return SUCCESSION_PROMOTES;
}
