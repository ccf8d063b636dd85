/*
 * Every state that the ranks can reach in each mode, and in each state every valid and invalid
 * event, against a reference model that stores which rank did what and decides by the definitions:
 * bsp, backup workers, ssp, asp.  Each state is explored once.  Invariants of each:
 *
 *   - no deadlock: while a rank has rounds left, some rank can act;
 *   - each contribution is applied once or dropped once, never both;
 *   - ssp: a rank reads at clock c only when every other has pushed c - s times, so no rank is ever
 *     more than s + 1 pushes ahead;
 *   - the staleness of a contribution is the number of steps since its rank's read.
 */
#include "server/shard/policy.h"

#include "tests/support/explore.h"
#include "tests/support/support.h"

#include <string.h>

#define RANKS_MAX  4u
#define ROUNDS_MAX 4u
#define STATES_MAX (1u << 20)

/* Masks have one bit per rank.  Kept without padding, so that states can be compared as bytes. */
struct model {
    uint8_t set;
    uint8_t asked, got;               /* round 0 */
    uint8_t applied[ROUNDS_MAX + 1];  /* [round]: ranks whose contribution is in a sum or a step */
    uint8_t dropped[ROUNDS_MAX + 1];  /* [round]: ranks whose contribution was late */
    uint8_t waiting;                  /* for the reply to a contribution */
    uint8_t finished, wants_final;    /* contributes no more; waits for the final values */
    uint8_t final;                    /* has them */
    uint8_t clock[RANKS_MAX];         /* last round that the rank contributed to, late or not */
    uint8_t steps;                    /* optimizer steps */
    uint8_t folded;                   /* complete rounds whose masks are cleared */
    uint8_t steps_at_read[RANKS_MAX]; /* of the values that the rank has */
};

struct state {
    struct model model; /* first: the part that states are compared by */
    struct policy policy;
    struct policy_rank ranks[RANKS_MAX];
};

/* The configuration that is explored. */
struct world {
    struct consistency consistency;
    unsigned ranks, rounds;
    bool leaves;    /* ranks may finish at any point, not only after their last round */
    bool staleness; /* compare states by what each rank has read, too: more states */
};

static struct world world;
static struct explored states;
static size_t outcomes[POLICY_FINISHED + 1]; /* how often each was seen */

/* ------------------------------------------------------------------ the model */

static bool in_rounds(void) /* in rounds, as opposed to each contribution a step */
{
    return world.consistency.mode == CONSISTENCY_BSP ||
           (world.consistency.mode == CONSISTENCY_SSP && world.consistency.staleness == 0);
}

/* In rounds: is the round's sum complete?  All ranks but b, or all that can still contribute. */
static bool is_complete(const struct model *m, unsigned round)
{
    uint8_t all = (uint8_t)((1u << world.ranks) - 1);
    uint8_t cannot_come = m->finished & (uint8_t)~m->applied[round];
    unsigned expected = world.ranks - world.consistency.backup;
    unsigned possible = mask_count(all & (uint8_t)~cannot_come);

    if (round <= m->folded)
        return true;
    return m->applied[round] != 0 &&
           mask_count(m->applied[round]) >= (expected < possible ? expected : possible);
}

/* May the rank, which waits at its clock, get its reply? */
static bool may_read(const struct model *m, unsigned rank)
{
    unsigned clock = m->clock[rank];

    if (world.consistency.mode == CONSISTENCY_ASP)
        return true;
    if (in_rounds())
        return clock <= m->steps;
    for (unsigned other = 0; other < world.ranks; other++)
        if (!mask_has(m->finished, other) && m->clock[other] + world.consistency.staleness < clock)
            return false;
    return true;
}

static enum policy_outcome model_check(const struct model *m, unsigned rank, unsigned round)
{
    unsigned clock = m->clock[rank];

    if (mask_has(m->finished, rank))
        return POLICY_FINISHED;
    if (in_rounds() && round <= m->steps && (world.consistency.backup == 0 || round == 0))
        return POLICY_PAST;
    if (round > (in_rounds() ? m->steps : clock) + 1u)
        return POLICY_AHEAD;
    if (!mask_has(m->got, rank))
        return POLICY_UNINITIALISED;
    if (round <= clock)
        return POLICY_TWICE;
    if (mask_has(m->waiting, rank))
        return POLICY_AHEAD;
    if (!in_rounds())
        return POLICY_COMPLETE;
    if (round <= m->steps)
        return POLICY_LATE;
    return POLICY_ACCEPTED; /* model_push finds COMPLETE */
}

static enum policy_outcome model_push(struct model *m, unsigned rank, unsigned round)
{
    enum policy_outcome outcome = model_check(m, rank, round);

    if (outcome == POLICY_LATE) {
        m->dropped[round] |= mask_bit(rank);
        m->clock[rank] = (uint8_t)round;
        return outcome; /* answered at once */
    }
    if (outcome != POLICY_ACCEPTED && outcome != POLICY_COMPLETE)
        return outcome;
    REQUIRE(!mask_has(m->applied[round] | m->dropped[round], rank));
    m->applied[round] |= mask_bit(rank);
    m->clock[rank] = (uint8_t)round;
    m->waiting |= mask_bit(rank);
    if (outcome == POLICY_ACCEPTED && is_complete(m, round))
        outcome = POLICY_COMPLETE;
    m->steps = (uint8_t)(m->steps + (outcome == POLICY_COMPLETE));
    return outcome;
}

/* ------------------------------------------------------------------ states */

static void copy_state(struct state *to, const struct state *from)
{
    *to = *from;
    to->policy.ranks = to->ranks;
}

static unsigned sum_of_masks(const uint8_t *masks)
{
    unsigned sum = 0;

    for (unsigned round = 1; round <= world.rounds; round++)
        sum += mask_count(masks[round]);
    return sum;
}

/* The policy agrees with the model about every rank, and the invariants hold. */
static void check_state(const struct state *s)
{
    const struct model *m = &s->model;
    unsigned fastest = 0, slowest = UINT32_MAX;

    REQUIRE(s->policy.steps == m->steps);
    REQUIRE(s->policy.initialised == m->set);
    for (unsigned round = 1; round <= world.rounds; round++) {
        REQUIRE((m->applied[round] & m->dropped[round]) == 0);
        if (in_rounds())
            REQUIRE(is_complete(m, round) == (round <= m->steps));
    }
    if (!in_rounds())
        REQUIRE(sum_of_masks(m->applied) == m->steps);
    for (unsigned rank = 0; rank < world.ranks; rank++) {
        const struct policy_rank *r = &s->ranks[rank];
        unsigned clock = m->clock[rank];

        REQUIRE(r->clock == clock);
        REQUIRE((r->read == POLICY_READ_DONE) == mask_has(m->got, rank));
        REQUIRE((r->read != POLICY_READ_NONE) == mask_has(m->asked, rank));
        REQUIRE(r->finished == mask_has(m->finished, rank));
        REQUIRE(r->parked == mask_has(m->waiting | (m->wants_final & (uint8_t)~m->final), rank));
        fastest = clock > fastest ? clock : fastest;
        if (!mask_has(m->finished, rank) && clock < slowest)
            slowest = clock;
    }
    if (world.consistency.mode == CONSISTENCY_SSP && slowest != UINT32_MAX && !m->finished)
        REQUIRE(fastest - slowest <= (world.consistency.staleness + 1));
}

/* Clear the contributors of complete rounds, which affect no decision any more. */
static void forget_complete_rounds(struct model *m)
{
    while (in_rounds() && m->folded < m->steps && m->folded < ROUNDS_MAX)
        m->applied[++m->folded] = 0;
    for (unsigned round = 0; round <= m->folded; round++)
        m->dropped[round] = 0;
}

static void visit(struct state *s)
{
    check_state(s);
    if (!world.staleness)
        memset(s->model.steps_at_read, 0, sizeof(s->model.steps_at_read));
    forget_complete_rounds(&s->model);
    (void)explored_add(&states, s);
}

/* ------------------------------------------------------------------ events */

static void note_read(struct state *s, unsigned rank)
{
    s->model.steps_at_read[rank] = s->model.steps;
    REQUIRE(policy_staleness(&s->policy, rank) == 0);
}

/* The policy answers exactly the ranks that the definitions allow, each once, in ascending
 * order. */
static void take_replies(struct state *s)
{
    struct model *m = &s->model;
    uint8_t all = (uint8_t)((1u << world.ranks) - 1);
    unsigned next = 0;

    for (unsigned rank = 0; rank < world.ranks; rank++) {
        bool reads = mask_has(m->waiting, rank) && may_read(m, rank);
        bool ends = mask_has(m->wants_final & (uint8_t)~m->final, rank) && m->finished == all;
        unsigned answered = next;

        if (!reads && !ends)
            continue;
        REQUIRE(policy_next_reply(&s->policy, &answered));
        REQUIRE(answered == rank);
        next = rank + 1;
        mask_drop(&m->waiting, rank);
        if (ends)
            m->final |= mask_bit(rank);
        note_read(s, rank);
    }
    REQUIRE(!policy_next_reply(&s->policy, &next));
    next = 0;
    REQUIRE(!policy_next_reply(&s->policy, &next));
}

static void try_push(const struct state *from, unsigned rank, unsigned round)
{
    struct state s;
    enum policy_outcome expected, check;

    copy_state(&s, from);
    if (world.staleness)
        REQUIRE(policy_staleness(&s.policy, rank) ==
                (uint64_t)(s.model.steps - s.model.steps_at_read[rank]));
    expected = model_push(&s.model, rank, round);
    check = policy_check(&s.policy, rank, round, false);
    REQUIRE(check == expected);
    REQUIRE(policy_push(&s.policy, rank, round, false) == expected);
    outcomes[expected]++;
    if (expected == POLICY_LATE) {
        policy_mark_replied(&s.policy, rank);
        note_read(&s, rank);
    } else {
        take_replies(&s);
    }
    visit(&s);
}

static void try_pull(const struct state *from, unsigned rank)
{
    struct state s;
    enum policy_outcome expected;
    struct model *m = &s.model;

    copy_state(&s, from);
    expected = mask_has(m->asked, rank) ? POLICY_TWICE : m->set ? POLICY_COMPLETE : POLICY_ACCEPTED;
    REQUIRE(policy_pull(&s.policy, rank, false) == expected);
    m->asked |= mask_bit(rank);
    if (expected == POLICY_COMPLETE) {
        m->got |= mask_bit(rank);
        note_read(&s, rank);
    }
    visit(&s);
}

/* Setting round 0 answers exactly the ranks that pulled before. */
static void try_set(const struct state *from)
{
    struct state s;
    unsigned rank;

    copy_state(&s, from);
    REQUIRE(s.model.set || !policy_next_parked(&s.policy, &rank));
    REQUIRE(policy_set(&s.policy) == (s.model.set ? POLICY_TWICE : POLICY_COMPLETE));
    s.model.set = true;
    while (policy_next_parked(&s.policy, &rank)) {
        REQUIRE(mask_has(s.model.asked, rank) && !mask_has(s.model.got, rank));
        s.model.got |= mask_bit(rank);
    }
    REQUIRE(s.model.asked == s.model.got);
    visit(&s);
}

static void try_finish(const struct state *from, unsigned rank, bool wants_final)
{
    struct state s;
    struct model *m = &s.model;
    enum policy_outcome expected = POLICY_ACCEPTED;

    copy_state(&s, from);
    if (mask_has(m->finished, rank)) {
        REQUIRE(policy_finish(&s.policy, rank, wants_final, false) == POLICY_FINISHED);
        check_state(from);
        return;
    }
    m->finished |= mask_bit(rank);
    mask_drop(&m->waiting, rank);
    m->wants_final |= wants_final ? mask_bit(rank) : 0;
    if (in_rounds() && m->steps < world.rounds && is_complete(m, m->steps + 1u)) {
        expected = POLICY_COMPLETE;
        m->steps++;
    }
    REQUIRE(policy_finish(&s.policy, rank, wants_final, false) == expected);
    take_replies(&s);
    visit(&s);
}

/* ------------------------------------------------------------------ exploring */

/* Some rank can act, or all have made all their rounds. */
static void check_no_deadlock(const struct model *m)
{
    bool busy = false, movable = !m->set;

    for (unsigned rank = 0; rank < world.ranks; rank++) {
        bool idle = mask_has(m->finished, rank)
                        ? !mask_has(m->wants_final, rank) || mask_has(m->final, rank)
                        : m->clock[rank] == world.rounds && !mask_has(m->waiting, rank);

        busy = busy || !idle;
        if (mask_has(m->finished, rank) || mask_has(m->waiting, rank))
            continue;
        movable = movable || !idle || m->wants_final != 0; /* it may finish, too */
    }
    REQUIRE(!busy || movable);
}

static bool lockstep(void)
{
    return in_rounds() && world.consistency.backup == 0;
}

static void try_rank(const struct state *from, unsigned rank)
{
    bool may_finish = world.leaves || (from->model.clock[rank] == world.rounds &&
                                       !mask_has(from->model.waiting, rank));

    try_pull(from, rank);
    for (unsigned round = 0; round <= world.rounds; round++)
        if (!in_rounds() || from->model.steps < world.rounds || round <= from->model.steps)
            try_push(from, rank, round);
    if (!lockstep() && may_finish)
        for (int wants_final = 0; wants_final < 2; wants_final++)
            try_finish(from, rank, wants_final != 0);
}

static void explore(void)
{
    struct state start;
    struct state from;

    memset(&start, 0, sizeof(start));
    explored_clear(&states);
    policy_init(&start.policy, &world.consistency, world.ranks, start.ranks);
    visit(&start);
    for (size_t i = 0; i < states.count; i++) {
        copy_state(&from, explored_at(&states, i));
        check_no_deadlock(&from.model);
        try_set(&from);
        for (unsigned rank = 0; rank < world.ranks; rank++)
            try_rank(&from, rank);
    }
}

static const struct consistency modes[] = {
    {.mode = CONSISTENCY_BSP},
    {.mode = CONSISTENCY_BSP, .backup = 1},
    {.mode = CONSISTENCY_BSP, .backup = 2},
    {.mode = CONSISTENCY_SSP, .staleness = 0},
    {.mode = CONSISTENCY_SSP, .staleness = 1},
    {.mode = CONSISTENCY_SSP, .staleness = 2},
    {.mode = CONSISTENCY_SSP, .staleness = 3},
    {.mode = CONSISTENCY_ASP},
};

#define MODES (sizeof(modes) / sizeof(modes[0]))

static void explore_world(const struct consistency *mode, unsigned ranks, unsigned rounds,
                          bool leaves, bool staleness)
{
    world = (struct world){*mode, ranks, rounds, leaves, staleness};
    if (mode->backup >= ranks)
        return;
    explore();
    ck_assert_uint_gt(states.count, 5u * ranks);
}

static void open_states(void)
{
    explored_open(&states, sizeof(struct state), sizeof(struct model), STATES_MAX);
}

static void close_states(void)
{
    explored_close(&states);
}

/* Up to 4 ranks make 4 rounds each, in every order. */
START_TEST(test_every_order)
{
    for (unsigned ranks = 1; ranks <= RANKS_MAX; ranks++)
        explore_world(&modes[_i], ranks, ROUNDS_MAX, false, false);
}
END_TEST

/* Ranks finish at every point, also in the middle of a round. */
START_TEST(test_every_leave)
{
    for (unsigned ranks = 1; ranks <= 3; ranks++)
        explore_world(&modes[_i], ranks, 3, true, false);
}
END_TEST

/* States differ by what each rank has read, so every possible staleness occurs. */
START_TEST(test_every_staleness)
{
    for (unsigned ranks = 1; ranks <= 3; ranks++)
        explore_world(&modes[_i], ranks, 3, false, true);
}
END_TEST

/* The exploration reaches all outcomes. */
START_TEST(test_every_outcome)
{
    for (size_t i = 0; i < MODES; i++)
        explore_world(&modes[i], 3, 2, true, false);
    for (int outcome = 0; outcome <= POLICY_FINISHED; outcome++)
        ck_assert_msg(outcomes[outcome] > 0, "never: %s",
                      policy_outcome_text((enum policy_outcome)outcome));
}
END_TEST

START_TEST(test_far_rounds)
{
    struct policy_rank ranks[2];
    struct policy p;

    for (size_t i = 0; i < MODES; i++) {
        if (modes[i].backup >= 2)
            continue;
        policy_init(&p, &modes[i], 2, ranks);
        (void)policy_set(&p);
        (void)policy_pull(&p, 0, false);
        ck_assert_int_eq(policy_push(&p, 0, UINT64_MAX, false), POLICY_AHEAD);
        ck_assert_int_eq(policy_push(&p, 1, 1, false), POLICY_UNINITIALISED);
        ck_assert_int_eq(policy_push(&p, 0, 1, false),
                         modes[i].backup || consistency_steps_per_push(&modes[i])
                             ? POLICY_COMPLETE
                             : POLICY_ACCEPTED);
        ck_assert_int_eq(policy_push(&p, 0, 2, false), POLICY_AHEAD);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("policy", 120, CHECKED_FIXTURE(open_states, close_states),
                       LOOP_TEST(test_every_order, 0, MODES), LOOP_TEST(test_every_leave, 0, MODES),
                       LOOP_TEST(test_every_staleness, 0, MODES), TEST(test_every_outcome),
                       TEST(test_far_rounds));
}
