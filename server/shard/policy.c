/*
 * policy: decides on each contribution and finds the ranks that may be answered; exact staleness.
 *
 * Pure functions of one struct policy; the caller holds the partition's lock.  policy.h defines the
 * modes.  policy_check decides without changing anything; policy_push applies the same decision.
 */
#include "server/shard/policy_internal.h"

#include <assert.h>
#include <string.h>

void policy_init(struct policy *p, const struct consistency *consistency, unsigned world_size,
                 struct policy_rank *ranks)
{
    *p = (struct policy){.consistency = *consistency, .world_size = world_size, .ranks = ranks};
    memset(ranks, 0, world_size * sizeof(*ranks));
}

unsigned policy_required(const struct policy *p)
{
    unsigned quorum = p->world_size - p->consistency.backup;
    unsigned possible = p->world_size - p->inactive + p->inactive_arrived;

    return quorum < possible ? quorum : possible;
}

/* Has the rank read round 0?  A restored rank may have. */
static bool has_read(const struct policy_rank *r)
{
    return r->read == POLICY_READ_DONE || r->read == POLICY_READ_UNKNOWN;
}

/* May a rank that has contributed read the current values? */
static bool may_read(const struct policy *p, const struct policy_rank *r)
{
    if (r->held)
        return false;
    switch (p->consistency.mode) {
    case CONSISTENCY_BSP:
        return r->clock <= p->steps;
    case CONSISTENCY_SSP:
        if (p->consistency.staleness == 0)
            return r->clock <= p->steps;
        return r->clock <= p->consistency.staleness ||
               r->clock - p->consistency.staleness <= p->slowest;
    case CONSISTENCY_ASP:
        return true;
    }
    return false;
}

/* In lockstep and with backup workers. */
static enum policy_outcome check_round(const struct policy *p, const struct policy_rank *r,
                                       uint64_t round)
{
    if (round <= p->steps && (p->consistency.backup == 0 || round == 0))
        return POLICY_PAST;
    if (round > p->steps + 1)
        return POLICY_AHEAD;
    if (!has_read(r))
        return POLICY_UNINITIALISED;
    if (round <= r->clock)
        return POLICY_TWICE;
    if (r->parked)
        return POLICY_AHEAD;
    if (round <= p->steps)
        return POLICY_LATE;
    return p->arrived + 1 == policy_required(p) ? POLICY_COMPLETE : POLICY_ACCEPTED;
}

/* Where each contribution is a step. */
static enum policy_outcome check_single_push(const struct policy_rank *r, uint64_t round)
{
    if (round > r->clock + 1)
        return POLICY_AHEAD;
    if (!has_read(r))
        return POLICY_UNINITIALISED;
    if (round <= r->clock)
        return POLICY_TWICE;
    return r->parked ? POLICY_AHEAD : POLICY_COMPLETE; /* or held, if exact */
}

enum policy_outcome policy_check(const struct policy *p, unsigned rank, uint64_t round, bool again)
{
    const struct policy_rank *r = &p->ranks[rank];
    enum policy_outcome outcome;

    if (r->vacant)
        return POLICY_VACANT;
    if (r->finished)
        return POLICY_FINISHED;
    if (again && round > 0 && round <= r->clock && has_read(r))
        return may_read(p, r) ? POLICY_AGAIN : POLICY_AGAIN_WAITS;
    if (!consistency_steps_per_push(&p->consistency))
        return check_round(p, r, round);
    outcome = check_single_push(r, round);
    return outcome == POLICY_COMPLETE && p->exact ? POLICY_ACCEPTED : outcome;
}

void policy_count_step(struct policy *p, unsigned contributions)
{
    p->steps++;
    p->contributions = contributions;
    p->arrived = 0;
    p->inactive_arrived = 0;
}

uint64_t policy_applied_clock(const struct policy_rank *r)
{
    return r->clock - r->held;
}

void policy_update_slowest(struct policy *p)
{
    p->slowest = UINT64_MAX;
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        const struct policy_rank *r = &p->ranks[rank];

        if (!r->finished && !r->vacant && policy_applied_clock(r) < p->slowest)
            p->slowest = policy_applied_clock(r);
    }
}

enum policy_outcome policy_push(struct policy *p, unsigned rank, uint64_t round, bool again)
{
    struct policy_rank *r = &p->ranks[rank];
    enum policy_outcome outcome = policy_check(p, rank, round, again);
    bool was_slowest = r->clock == p->slowest;

    if (outcome == POLICY_AGAIN_WAITS)
        r->parked = true;
    if (outcome != POLICY_ACCEPTED && outcome != POLICY_COMPLETE && outcome != POLICY_LATE)
        return outcome;
    r->clock = round;
    r->inherited = false;
    r->parked = true;
    r->held = p->exact;
    if (outcome == POLICY_LATE || r->held)
        return outcome;
    if (outcome == POLICY_COMPLETE)
        policy_count_step(p, p->arrived + 1);
    else
        p->arrived++;
    if (p->consistency.staleness > 0 && was_slowest)
        policy_update_slowest(p);
    return outcome;
}

/* ------------------------------------------------------------------ exact staleness */

void policy_make_exact(struct policy *p)
{
    assert(consistency_steps_per_push(&p->consistency));
    p->exact = true;
    for (unsigned rank = 0; rank < p->world_size; rank++)
        p->ranks[rank].target = POLICY_NO_TARGET;
}

void policy_set_target(struct policy *p, unsigned rank, uint64_t steps)
{
    p->ranks[rank].target = steps == POLICY_NO_TARGET ? steps : p->steps + steps;
}

/* Candidates for the next contribution to apply. */
struct apply_candidates {
    const struct policy_rank *reserved; /* the next step is its target */
    const struct policy_rank *any;      /* held, without a target that is still ahead */
    const struct policy_rank *nearest;  /* held, with the least target */
    bool all_waiting;                   /* no rank can contribute before a reply is sent */
};

static struct apply_candidates find_candidates(const struct policy *p)
{
    struct apply_candidates t = {.all_waiting = true};

    for (unsigned rank = 0; rank < p->world_size; rank++) {
        const struct policy_rank *r = &p->ranks[rank];

        if ((r->finished || r->vacant) && !r->held)
            continue;
        t.all_waiting = t.all_waiting && (r->parked || r->held);
        if (!t.reserved && r->target == p->steps)
            t.reserved = r;
        if (!r->held)
            continue;
        if (!t.any && (r->target == POLICY_NO_TARGET || r->target < p->steps))
            t.any = r;
        if (!t.nearest || r->target < t.nearest->target)
            t.nearest = r;
    }
    return t;
}

bool policy_next_apply(struct policy *p, unsigned *ret_rank)
{
    struct apply_candidates t = find_candidates(p);
    const struct policy_rank *next = t.any;
    struct policy_rank *r;

    if (t.reserved)
        next = t.reserved->held ? t.reserved : NULL;
    else if (!next && t.all_waiting)
        next = t.nearest;
    if (!next)
        return false;
    *ret_rank = (unsigned)(next - p->ranks);
    r = &p->ranks[*ret_rank];
    r->held = false;
    r->target = POLICY_NO_TARGET;
    policy_count_step(p, 1);
    policy_update_slowest(p);
    return true;
}

/* ------------------------------------------------------------------ replies */

uint64_t policy_staleness(const struct policy *p, unsigned rank)
{
    return p->steps - p->ranks[rank].seen;
}

static bool may_reply(const struct policy *p, const struct policy_rank *r)
{
    if (!r->parked)
        return false;
    return r->finished ? !r->held && p->inactive == p->world_size : may_read(p, r);
}

void policy_mark_replied(struct policy *p, unsigned rank)
{
    p->ranks[rank].parked = false;
    p->ranks[rank].seen = p->steps;
}

bool policy_next_reply(struct policy *p, unsigned *rank)
{
    for (unsigned r = *rank; r < p->world_size; r++)
        if (may_reply(p, &p->ranks[r])) {
            policy_mark_replied(p, r);
            *rank = r;
            return true;
        }
    return false;
}

enum policy_outcome policy_set(struct policy *p)
{
    if (p->initialised)
        return POLICY_TWICE;
    p->initialised = true;
    return POLICY_COMPLETE;
}

enum policy_outcome policy_pull(struct policy *p, unsigned rank, bool again)
{
    struct policy_rank *r = &p->ranks[rank];
    bool came = r->read == POLICY_READ_PARKED || r->read == POLICY_READ_DONE;

    if (r->vacant)
        return POLICY_VACANT;
    if (came && !again)
        return POLICY_TWICE;
    r->read = p->initialised ? POLICY_READ_DONE : POLICY_READ_PARKED;
    r->seen = p->steps;
    if (came)
        return p->initialised ? POLICY_AGAIN : POLICY_AGAIN_WAITS;
    return p->initialised ? POLICY_COMPLETE : POLICY_ACCEPTED;
}

bool policy_next_parked(struct policy *p, unsigned *ret_rank)
{
    for (unsigned rank = 0; p->initialised && rank < p->world_size; rank++)
        if (p->ranks[rank].read == POLICY_READ_PARKED) {
            p->ranks[rank].read = POLICY_READ_DONE;
            *ret_rank = rank;
            return true;
        }
    return false;
}

const char *policy_outcome_text(enum policy_outcome outcome)
{
    switch (outcome) {
    case POLICY_ACCEPTED:
        return "was accepted";
    case POLICY_COMPLETE:
        return "completed its round";
    case POLICY_LATE:
        return "came late";
    case POLICY_UNINITIALISED:
        return "came before this rank has read the initial values";
    case POLICY_TWICE:
        return "came twice";
    case POLICY_PAST:
        return "belongs to a round that is complete";
    case POLICY_AHEAD:
        return "belongs to a round that cannot have begun";
    case POLICY_FINISHED:
        return "came after the rank's last one";
    case POLICY_VACANT:
        return "came from a rank that is no longer in the job";
    case POLICY_AGAIN:
    case POLICY_AGAIN_WAITS:
        return "was taken before";
    }
    return "is unknown";
}
