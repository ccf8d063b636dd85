#include "server/shard/policy_internal.h"

#include <assert.h>

/* Has it contributed to the round under way? */
static bool has_arrived(const struct policy *p, const struct policy_rank *r)
{
    return !consistency_steps_per_push(&p->consistency) && r->clock > p->steps;
}

/* Nobody waits for it any more.  COMPLETE: the round under way was waiting for it only. */
static enum policy_verdict go(struct policy *p, const struct policy_rank *r)
{
    p->gone++;
    p->gone_arrived += has_arrived(p, r);
    policy_find_slowest(p);
    if (p->arrived == 0 || p->arrived < policy_required(p))
        return POLICY_ACCEPTED;
    policy_complete(p, p->arrived);
    return POLICY_COMPLETE;
}

enum policy_verdict policy_finish(struct policy *p, unsigned rank, bool wants_final, bool again)
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
    return go(p, r);
}

/* In lockstep the round under way is not complete before the newcomer has read and says so with its
 * own contribution. */
static void inherit(struct policy *p, struct policy_rank *r)
{
    if (!consistency_is_lockstep(&p->consistency) || !has_arrived(p, r))
        return;
    p->arrived--;
    r->clock = p->steps;
    r->inherited = true;
}

enum policy_verdict policy_vacate(struct policy *p, unsigned rank)
{
    struct policy_rank *r = &p->ranks[rank];

    if (r->vacant)
        return POLICY_ACCEPTED;
    if (r->inherited) { /* it stays, and nobody is to come who reads first */
        p->arrived++;
        r->clock = p->steps + 1;
        r->inherited = false;
    }
    r->vacant = true;
    r->parked = false;
    r->read = POLICY_READ_NONE;
    return r->finished ? POLICY_ACCEPTED : go(p, r);
}

/* Where the newcomer goes on: nobody is ever held back by it, and the slot contributes to no round
 * twice. */
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
        if (others == UINT64_MAX) /* nobody to keep up with */
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
    p->gone--;
    p->gone_arrived -= has_arrived(p, r);
    inherit(p, r);
    if (!r->held)
        r->clock = first_clock(p, r);
    policy_find_slowest(p);
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
    inherit(p, &p->ranks[rank]);
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

static bool can_be(const struct policy *p, uint64_t steps, const uint64_t *clocks,
                   const uint64_t *seen, const uint8_t *flags)
{
    bool steps_each = consistency_steps_per_push(&p->consistency);
    unsigned known = consistency_is_lockstep(&p->consistency) /* there nobody finishes */
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
    if (!can_be(p, steps, clocks, seen, flags))
        return false;
    p->steps = steps;
    p->arrived = p->gone = p->gone_arrived = 0;
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        struct policy_rank *r = &p->ranks[rank];
        uint64_t known = clocks[rank] != r->clock ? steps : r->seen;

        *r = (struct policy_rank){.clock = clocks[rank],
                                  .seen = seen ? seen[rank] : known,
                                  .read = p->initialised ? POLICY_READ_UNKNOWN : POLICY_READ_NONE,
                                  .finished = flags[rank] & POLICY_SAVED_FINISHED,
                                  .vacant = flags[rank] & POLICY_SAVED_VACANT};
        p->gone += r->finished || r->vacant;
    }
    policy_find_slowest(p);
    return true;
}
