/*
 * policy_ranks: ranks that finish, are vacated, occupied, replaced or suspended; save and restore.
 *
 * Pure functions of one struct policy; the caller holds the partition's lock.  A rank that finishes
 * or is vacated may complete the round under way.  policy.h describes loss and return.
 */
#include "server/shard/policy_internal.h"

#include <assert.h>

/* Has it contributed to the round under way? */
static bool has_arrived(const struct policy *p, const struct policy_rank *r)
{
    return !consistency_steps_per_push(&p->consistency) && r->clock > p->steps;
}

/* The rank becomes inactive.  COMPLETE: the round under way was waiting for this rank only. */
static enum policy_outcome stop_waiting_for_rank(struct policy *p, const struct policy_rank *r)
{
    p->inactive++;
    p->inactive_arrived += has_arrived(p, r);
    policy_update_slowest(p);
    if (p->arrived == 0 || p->arrived < policy_required(p))
        return POLICY_ACCEPTED;
    policy_count_step(p, p->arrived);
    return POLICY_COMPLETE;
}

enum policy_outcome policy_finish(struct policy *p, unsigned rank, bool wants_final, bool again)
{
    struct policy_rank *r = &p->ranks[rank];

    assert(!consistency_is_lockstep(&p->consistency));
    if (r->vacant)
        return POLICY_VACANT;
    if (r->finished && !again)
        return POLICY_FINISHED;
    r->parked = wants_final;
    if (r->finished)
        return POLICY_AGAIN_WAITS;
    r->finished = true;
    return stop_waiting_for_rank(p, r);
}

/* In lockstep the round under way must not complete before the new session has read: so it waits
 * for the session's own contribution, although the rank's is in the sum. */
static void inherit_contribution(struct policy *p, struct policy_rank *r)
{
    if (!consistency_is_lockstep(&p->consistency) || !has_arrived(p, r))
        return;
    p->arrived--;
    r->clock = p->steps;
    r->inherited = true;
}

enum policy_outcome policy_vacate(struct policy *p, unsigned rank)
{
    struct policy_rank *r = &p->ranks[rank];

    if (r->vacant)
        return POLICY_ACCEPTED;
    if (r->inherited) { /* the contribution stays, and no session has to read first any more */
        p->arrived++;
        r->clock = p->steps + 1;
        r->inherited = false;
    }
    r->vacant = true;
    r->parked = false;
    r->read = POLICY_READ_NONE;
    return r->finished ? POLICY_ACCEPTED : stop_waiting_for_rank(p, r);
}

/* The clock of a new session: it delays no other rank, and the rank contributes to no round twice.
 */
static uint64_t first_clock(const struct policy *p, const struct policy_rank *r)
{
    uint64_t others = p->steps;

    if (consistency_steps_per_push(&p->consistency)) {
        others = UINT64_MAX;
        for (unsigned rank = 0; rank < p->world_size; rank++) {
            const struct policy_rank *other = &p->ranks[rank];

            if (other != r && !other->finished && !other->vacant && other->clock < others)
                others = other->clock;
        }
        if (others == UINT64_MAX) /* no other active rank */
            return r->clock;
    }
    return r->clock > others ? r->clock : others;
}

void policy_occupy(struct policy *p, unsigned rank)
{
    struct policy_rank *r = &p->ranks[rank];

    if (!r->vacant)
        return;
    r->vacant = false;
    r->read = POLICY_READ_NONE;
    if (r->finished)
        return;
    p->inactive--;
    p->inactive_arrived -= has_arrived(p, r);
    inherit_contribution(p, r);
    if (!r->held)
        r->clock = first_clock(p, r);
    policy_update_slowest(p);
}

void policy_suspend(struct policy *p, unsigned rank)
{
    struct policy_rank *r = &p->ranks[rank];

    r->parked = false;
    if (r->read == POLICY_READ_PARKED)
        r->read = POLICY_READ_NONE;
}

void policy_replace(struct policy *p, unsigned rank)
{
    policy_suspend(p, rank);
    p->ranks[rank].read = POLICY_READ_NONE;
    inherit_contribution(p, &p->ranks[rank]);
}

/* ------------------------------------------------------------------ what outlives a server */

void policy_save(const struct policy *p, uint64_t *clocks, uint64_t *seen, uint8_t *flags)
{
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        const struct policy_rank *r = &p->ranks[rank];

        clocks[rank] = has_arrived(p, r) ? p->steps : policy_applied_clock(r);
        if (seen)
            seen[rank] = r->seen;
        flags[rank] = (uint8_t)((r->finished ? POLICY_SAVED_FINISHED : 0) |
                                (r->vacant ? POLICY_SAVED_VACANT : 0));
    }
}

static bool is_valid_state(const struct policy *p, uint64_t steps, const uint64_t *clocks,
                           const uint64_t *seen, const uint8_t *flags)
{
    bool steps_each = consistency_steps_per_push(&p->consistency);
    unsigned known = consistency_is_lockstep(&p->consistency) /* where no rank finishes */
                         ? POLICY_SAVED_VACANT
                         : POLICY_SAVED_FINISHED | POLICY_SAVED_VACANT;

    for (unsigned rank = 0; rank < p->world_size; rank++)
        if ((!steps_each && clocks[rank] > steps) || (seen && seen[rank] > steps) ||
            (flags[rank] & ~known) != 0)
            return false;
    return !p->exact;
}

bool policy_restore(struct policy *p, uint64_t steps, const uint64_t *clocks, const uint64_t *seen,
                    const uint8_t *flags)
{
    if (!is_valid_state(p, steps, clocks, seen, flags))
        return false;
    p->steps = steps;
    p->arrived = p->inactive = p->inactive_arrived = 0;
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        struct policy_rank *r = &p->ranks[rank];
        uint64_t known = clocks[rank] != r->clock ? steps : r->seen;

        *r = (struct policy_rank){.clock = clocks[rank],
                                  .seen = seen ? seen[rank] : known,
                                  .read = p->initialised ? POLICY_READ_UNKNOWN : POLICY_READ_NONE,
                                  .finished = flags[rank] & POLICY_SAVED_FINISHED,
                                  .vacant = flags[rank] & POLICY_SAVED_VACANT};
        p->inactive += r->finished || r->vacant;
    }
    policy_update_slowest(p);
    return true;
}
