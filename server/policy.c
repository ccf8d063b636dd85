#include "server/policy.h"

#include <string.h>

void policy_init(struct policy *p, unsigned world_size, struct policy_rank *ranks)
{
    *p = (struct policy){.world_size = world_size, .ranks = ranks};
    memset(ranks, 0, world_size * sizeof(*ranks));
}

enum policy_verdict policy_check(const struct policy *p, unsigned rank, uint64_t round)
{
    const struct policy_rank *r = &p->ranks[rank];

    if (round <= p->round)
        return POLICY_STALE;
    if (round != p->round + 1)
        return POLICY_AHEAD;
    if (r->read != POLICY_READ_DONE)
        return POLICY_UNINITIALISED;
    if (r->clock == round)
        return POLICY_TWICE;
    return p->arrived + 1 == p->world_size ? POLICY_COMPLETE : POLICY_ACCEPTED;
}

enum policy_verdict policy_push(struct policy *p, unsigned rank, uint64_t round)
{
    enum policy_verdict verdict = policy_check(p, rank, round);

    if (verdict != POLICY_ACCEPTED && verdict != POLICY_COMPLETE)
        return verdict;
    p->ranks[rank].clock = round;
    p->arrived++;
    if (verdict == POLICY_COMPLETE) {
        p->round = round;
        p->arrived = 0;
    }
    return verdict;
}

enum policy_verdict policy_set(struct policy *p)
{
    if (p->initialised)
        return POLICY_TWICE;
    p->initialised = true;
    return POLICY_COMPLETE;
}

enum policy_verdict policy_pull(struct policy *p, unsigned rank)
{
    struct policy_rank *r = &p->ranks[rank];

    if (r->read != POLICY_READ_NONE)
        return POLICY_TWICE;
    r->read = p->initialised ? POLICY_READ_DONE : POLICY_READ_PARKED;
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

const char *policy_verdict_text(enum policy_verdict verdict)
{
    switch (verdict) {
    case POLICY_ACCEPTED:
        return "was accepted";
    case POLICY_COMPLETE:
        return "completed its round";
    case POLICY_UNINITIALISED:
        return "came before this rank has read the initial values";
    case POLICY_TWICE:
        return "came twice";
    case POLICY_STALE:
        return "belongs to a round that is complete";
    case POLICY_AHEAD:
        return "belongs to a round that cannot have begun";
    }
    return "is unknown";
}
