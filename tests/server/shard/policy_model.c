/*
 * policy_model: the reference model's decisions, each written directly from the definition of the
 * mode, by loops over all ranks instead of counters.
 */
#include "tests/server/shard/policy_model.h"

struct world world;

uint8_t model_all(void)
{
    return (uint8_t)((1u << world.ranks) - 1);
}

uint8_t model_present(const struct model *m)
{
    return model_all() & (uint8_t) ~(m->finished | m->vacant);
}

bool model_in_rounds(void)
{
    return !consistency_steps_per_push(&world.consistency);
}

bool model_is_complete(const struct model *m)
{
    unsigned quorum = world.ranks - world.consistency.backup;
    unsigned possible = mask_count(model_present(m) | m->arrived);

    return m->arrived != 0 && mask_count(m->arrived) >= (quorum < possible ? quorum : possible);
}

unsigned model_complete(struct model *m)
{
    unsigned contributions = model_is_complete(m) ? mask_count(m->arrived) : 0;

    if (contributions > 0) {
        m->steps++;
        m->arrived = 0;
    }
    return contributions;
}

bool model_may_read(const struct model *m, unsigned rank)
{
    if (model_in_rounds())
        return m->clock[rank] <= m->steps;
    if (world.consistency.mode == CONSISTENCY_ASP)
        return true;
    for (unsigned other = 0; other < world.ranks; other++)
        if (mask_has(model_present(m), other) &&
            m->clock[other] + world.consistency.staleness < m->clock[rank])
            return false;
    return true;
}

enum policy_outcome model_check(const struct model *m, unsigned rank, unsigned round, bool again)
{
    unsigned clock = m->clock[rank];
    bool read = mask_has(m->got | m->unknown, rank);

    if (mask_has(m->vacant, rank))
        return POLICY_VACANT;
    if (mask_has(m->finished, rank))
        return POLICY_FINISHED;
    if (again && round > 0 && round <= clock && read)
        return model_may_read(m, rank) ? POLICY_AGAIN : POLICY_AGAIN_WAITS;
    if (model_in_rounds() && round <= m->steps && (world.consistency.backup == 0 || round == 0))
        return POLICY_PAST;
    if (round > (model_in_rounds() ? m->steps : clock) + 1u)
        return POLICY_AHEAD;
    if (!read)
        return POLICY_UNINITIALISED;
    if (round <= clock)
        return POLICY_TWICE;
    if (mask_has(m->waiting, rank))
        return POLICY_AHEAD;
    if (!model_in_rounds())
        return POLICY_COMPLETE;
    return round <= m->steps ? POLICY_LATE : POLICY_ACCEPTED; /* model_push finds COMPLETE */
}

enum policy_outcome model_push(struct model *m, unsigned rank, unsigned round, bool again,
                               unsigned *ret_contributions)
{
    enum policy_outcome outcome = model_check(m, rank, round, again);

    if (outcome == POLICY_AGAIN_WAITS)
        m->waiting |= mask_bit(rank);
    if (outcome == POLICY_AGAIN)
        mask_drop(&m->waiting, rank);
    if (outcome != POLICY_ACCEPTED && outcome != POLICY_COMPLETE && outcome != POLICY_LATE)
        return outcome;
    REQUIRE(round > m->clock[rank] && !mask_has(m->arrived, rank));
    m->clock[rank] = (uint8_t)round;
    mask_drop(&m->inherited, rank);
    if (outcome == POLICY_LATE)
        return outcome;
    m->waiting |= mask_bit(rank);
    *ret_contributions = 1;
    if (outcome == POLICY_COMPLETE) {
        m->steps++;
        return outcome;
    }
    m->arrived |= mask_bit(rank);
    *ret_contributions = model_complete(m);
    return *ret_contributions > 0 ? POLICY_COMPLETE : POLICY_ACCEPTED;
}

uint8_t model_start(const struct model *m, unsigned rank)
{
    uint8_t slowest = UINT8_MAX;

    for (unsigned other = 0; other < world.ranks; other++)
        if (other != rank && mask_has(model_present(m), other) && m->clock[other] < slowest)
            slowest = m->clock[other];
    if (model_in_rounds())
        slowest = m->steps;
    return slowest != UINT8_MAX && slowest > m->clock[rank] ? slowest : m->clock[rank];
}

void model_forget(struct model *m, unsigned rank)
{
    mask_drop(&m->waiting, rank);
    mask_drop(&m->wants_final, rank);
    mask_drop(&m->asked, rank);
    mask_drop(&m->got, rank);
    mask_drop(&m->unknown, rank);
}

void model_inherit(struct model *m, unsigned rank)
{
    if (!consistency_is_lockstep(&world.consistency) || !mask_has(m->arrived, rank))
        return;
    mask_drop(&m->arrived, rank);
    m->inherited |= mask_bit(rank);
    m->clock[rank]--;
}
