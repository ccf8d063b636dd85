/*
 * The policy when connections break, ranks leave and are replaced, and the server crashes: every
 * state that up to 4 ranks can reach, and in each state every event, with and without `again`,
 * against the reference model of policy_model.h.  Invariants of each state:
 *
 *   - no deadlock: while a rank waits, some rank that is not vacant can act;
 *   - a rank contributes to a round at most once, for all its sessions and resends together;
 *   - a round is complete exactly when all ranks that are not vacant (but b) have contributed, and
 *     reports their number;
 *   - a reply is due exactly when the definition of the mode allows it;
 *   - the restored state is the saved one without contributions that were not acknowledged.
 */
#include "tests/server/shard/policy_model.h"
#include "tests/support/support.h"

#include <string.h>

#define STATES_MAX (1u << 21)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS 3u /* a quarter of a minute instead of one */
#else
#define ROUNDS 4u
#endif

struct state {
    struct model model; /* first: the part that states are compared by */
    struct policy policy;
    struct policy_rank ranks[RANKS_MAX];
};

static struct explored states;
static size_t outcomes[POLICY_AGAIN_WAITS + 1]; /* how often each was seen */

/* ------------------------------------------------------------------ states */

static void copy_state(struct state *to, const struct state *from)
{
    *to = *from;
    to->policy.ranks = to->ranks;
}

static void check_rank(const struct model *m, const struct policy_rank *r, unsigned rank)
{
    enum policy_read read = mask_has(m->got, rank)       ? POLICY_READ_DONE
                            : mask_has(m->asked, rank)   ? POLICY_READ_PARKED
                            : mask_has(m->unknown, rank) ? POLICY_READ_UNKNOWN
                                                         : POLICY_READ_NONE;

    REQUIRE(r->clock == m->clock[rank]);
    REQUIRE(r->vacant == mask_has(m->vacant, rank));
    REQUIRE(r->finished == mask_has(m->finished, rank));
    REQUIRE(r->inherited == mask_has(m->inherited, rank));
    REQUIRE(r->parked == mask_has(m->waiting | m->wants_final, rank));
    REQUIRE(r->vacant || r->read == read);
}

/* The policy's state follows from the model, so comparing states by the model is enough. */
static void check_state(const struct state *s)
{
    const struct model *m = &s->model;
    uint64_t slowest = UINT64_MAX;

    REQUIRE(s->policy.steps == m->steps);
    REQUIRE(s->policy.initialised == m->set);
    REQUIRE(s->policy.arrived == mask_count(m->arrived));
    REQUIRE(s->policy.inactive == mask_count(m->finished | m->vacant));
    REQUIRE(s->policy.inactive_arrived == mask_count(m->arrived & (m->finished | m->vacant)));
    REQUIRE(!model_in_rounds() || !model_is_complete(m));
    for (unsigned rank = 0; rank < world.ranks; rank++) {
        check_rank(m, &s->ranks[rank], rank);
        if (mask_has(model_present(m), rank) && m->clock[rank] < slowest)
            slowest = m->clock[rank];
    }
    REQUIRE(model_in_rounds() || world.consistency.staleness == 0 || s->policy.slowest == slowest);
}

static void visit(const struct state *s)
{
    check_state(s);
    (void)explored_add(&states, s);
}

/* The policy answers exactly the ranks that the definitions allow, each once, in ascending
 * order. */
static void take_replies(struct state *s)
{
    struct model *m = &s->model;
    unsigned next = 0;

    for (unsigned rank = 0; rank < world.ranks; rank++) {
        bool reads = mask_has(m->waiting, rank) && model_may_read(m, rank);
        bool ends = mask_has(m->wants_final, rank) && model_present(m) == 0;
        unsigned answered = next;

        if (!reads && !ends)
            continue;
        REQUIRE(policy_next_reply(&s->policy, &answered));
        REQUIRE(answered == rank);
        next = rank + 1;
        mask_drop(&m->waiting, rank);
        mask_drop(&m->wants_final, rank);
    }
    next = 0;
    REQUIRE(!policy_next_reply(&s->policy, &next));
}

/* ------------------------------------------------------------------ events */

static void try_push(const struct state *from, unsigned rank, unsigned round, bool again)
{
    struct state s;
    unsigned contributions = 0;
    enum policy_outcome expected;

    copy_state(&s, from);
    expected = model_push(&s.model, rank, round, again, &contributions);
    if (expected != POLICY_COMPLETE || !model_in_rounds())
        REQUIRE(policy_check(&s.policy, rank, round, again) == expected);
    REQUIRE(policy_push(&s.policy, rank, round, again) == expected);
    outcomes[expected]++;
    if (expected == POLICY_COMPLETE)
        REQUIRE(s.policy.contributions == contributions);
    if (expected == POLICY_LATE || expected == POLICY_AGAIN)
        policy_mark_replied(&s.policy, rank);
    take_replies(&s);
    visit(&s);
}

static void try_pull(const struct state *from, unsigned rank, bool again)
{
    struct state s;
    struct model *m = &s.model;
    enum policy_outcome expected;
    bool came, taken;

    copy_state(&s, from);
    came = mask_has(m->asked, rank);
    expected = mask_has(m->vacant, rank) ? POLICY_VACANT
               : came && !again          ? POLICY_TWICE
               : came                    ? (m->set ? POLICY_AGAIN : POLICY_AGAIN_WAITS)
                                         : (m->set ? POLICY_COMPLETE : POLICY_ACCEPTED);
    taken = expected != POLICY_VACANT && expected != POLICY_TWICE;
    REQUIRE(policy_pull(&s.policy, rank, again) == expected);
    if (taken) {
        m->asked |= mask_bit(rank);
        m->got |= m->set ? mask_bit(rank) : 0;
        mask_drop(&m->unknown, rank);
    }
    visit(&s);
}

/* Setting round 0 answers exactly the ranks that pulled before and have not been vacated. */
static void try_set(const struct state *from)
{
    struct state s;
    unsigned rank;

    copy_state(&s, from);
    REQUIRE(policy_set(&s.policy) == (s.model.set ? POLICY_TWICE : POLICY_COMPLETE));
    s.model.set = true;
    while (policy_next_parked(&s.policy, &rank)) {
        REQUIRE(mask_has(s.model.asked, rank) && !mask_has(s.model.got, rank));
        s.model.got |= mask_bit(rank);
    }
    REQUIRE(s.model.asked == s.model.got);
    visit(&s);
}

static void try_finish(const struct state *from, unsigned rank, bool wants_final, bool again)
{
    struct state s;
    struct model *m = &s.model;
    enum policy_outcome expected = POLICY_ACCEPTED;

    copy_state(&s, from);
    if (mask_has(m->vacant, rank))
        expected = POLICY_VACANT;
    else if (mask_has(m->finished, rank))
        expected = again ? POLICY_AGAIN_WAITS : POLICY_FINISHED;
    if (expected != POLICY_VACANT && expected != POLICY_FINISHED) {
        m->finished |= mask_bit(rank);
        mask_drop(&m->waiting, rank);
        mask_drop(&m->wants_final, rank);
        m->wants_final |= wants_final ? mask_bit(rank) : 0;
        if (expected == POLICY_ACCEPTED && model_complete(m) > 0)
            expected = POLICY_COMPLETE;
    }
    REQUIRE(policy_finish(&s.policy, rank, wants_final, again) == expected);
    outcomes[expected]++;
    take_replies(&s);
    visit(&s);
}

static void try_vacate(const struct state *from, unsigned rank)
{
    struct state s;
    unsigned contributions = 0;
    enum policy_outcome outcome;

    copy_state(&s, from);
    if (!mask_has(s.model.vacant, rank)) {
        model_forget(&s.model, rank);
        if (mask_has(s.model.inherited, rank)) {
            s.model.arrived |= mask_bit(rank);
            s.model.clock[rank]++;
        }
        mask_drop(&s.model.inherited, rank);
        s.model.vacant |= mask_bit(rank);
        contributions = model_complete(&s.model);
    }
    outcome = policy_vacate(&s.policy, rank);
    REQUIRE(outcome == (contributions > 0 ? POLICY_COMPLETE : POLICY_ACCEPTED));
    REQUIRE(contributions == 0 || s.policy.contributions == contributions);
    take_replies(&s);
    visit(&s);
}

static void try_occupy(const struct state *from, unsigned rank)
{
    struct state s;

    copy_state(&s, from);
    if (mask_has(s.model.vacant, rank)) {
        mask_drop(&s.model.vacant, rank);
        model_inherit(&s.model, rank);
        if (!mask_has(s.model.finished, rank))
            s.model.clock[rank] = model_start(&s.model, rank);
    }
    policy_occupy(&s.policy, rank);
    visit(&s);
}

/* The connection breaks: pending replies are cancelled. */
static void try_suspend(const struct state *from, unsigned rank)
{
    struct state s;
    struct model *m = &s.model;

    copy_state(&s, from);
    mask_drop(&m->waiting, rank);
    mask_drop(&m->wants_final, rank);
    if (!mask_has(m->got, rank))
        mask_drop(&m->asked, rank);
    policy_suspend(&s.policy, rank);
    visit(&s);
}

static void try_replace(const struct state *from, unsigned rank)
{
    struct state s;

    copy_state(&s, from);
    if (mask_has(s.model.vacant, rank))
        return;
    model_forget(&s.model, rank);
    model_inherit(&s.model, rank);
    policy_replace(&s.policy, rank);
    visit(&s);
}

/* The server crashes and another one restores the saved state; pending replies are cancelled. */
static void try_crash(const struct state *from)
{
    struct state s;
    struct model *m = &s.model;
    uint64_t clocks[RANKS_MAX], seen[RANKS_MAX];
    uint8_t flags[RANKS_MAX];

    copy_state(&s, from);
    policy_save(&s.policy, clocks, seen, flags);
    policy_init(&s.policy, &world.consistency, world.ranks, s.ranks);
    if (m->set)
        (void)policy_set(&s.policy);
    REQUIRE(policy_restore(&s.policy, m->steps, clocks, seen, flags));
    for (unsigned rank = 0; model_in_rounds() && rank < world.ranks; rank++)
        if (m->clock[rank] > m->steps)
            m->clock[rank] = m->steps;
    m->arrived = m->inherited = m->waiting = m->wants_final = m->asked = m->got = 0;
    m->unknown = m->set ? model_all() & (uint8_t)~m->vacant : 0;
    visit(&s);
}

/* ------------------------------------------------------------------ exploring */

static void check_no_deadlock(const struct model *m)
{
    uint8_t busy = m->waiting | m->wants_final;

    REQUIRE((busy & m->vacant) == 0);
    REQUIRE(busy == 0 || (model_present(m) & (uint8_t)~m->waiting) != 0);
}

static void try_rank(const struct state *from, unsigned rank)
{
    bool may_end = from->model.steps < world.rounds || !model_in_rounds();

    for (int again = 0; again < 2; again++) {
        try_pull(from, rank, again != 0);
        for (unsigned round = 0; round <= world.rounds; round++)
            if (may_end || round <= from->model.steps)
                try_push(from, rank, round, again != 0);
        for (int final = 0; world.finish && final < 2; final++)
            if (!consistency_is_lockstep(&world.consistency))
                try_finish(from, rank, final != 0, again != 0);
    }
    try_vacate(from, rank);
    try_occupy(from, rank);
    try_suspend(from, rank);
    try_replace(from, rank);
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
        if (world.crash)
            try_crash(&from);
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
    {.mode = CONSISTENCY_ASP},
};

#define MODES (sizeof(modes) / sizeof(modes[0]))

static void explore_world(const struct consistency *mode, unsigned ranks, unsigned rounds,
                          bool finish, bool crash)
{
    world = (struct world){*mode, ranks, rounds, finish, crash};
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

START_TEST(test_every_loss_and_rejoin)
{
    for (unsigned ranks = 1; ranks <= RANKS_MAX; ranks++)
        explore_world(&modes[_i], ranks, ROUNDS, false, false);
}
END_TEST

START_TEST(test_every_crash)
{
    for (unsigned ranks = 1; ranks <= (consistency_is_lockstep(&modes[_i]) ? 4u : 3u); ranks++)
        explore_world(&modes[_i], ranks, 3, true, true);
}
END_TEST

START_TEST(test_every_outcome)
{
    for (size_t i = 0; i < MODES; i++)
        explore_world(&modes[i], 2, 2, true, true);
    for (int outcome = 0; outcome <= POLICY_AGAIN_WAITS; outcome++)
        ck_assert_msg(outcomes[outcome] > 0, "never: %s",
                      policy_outcome_text((enum policy_outcome)outcome));
}
END_TEST

/* A state that no policy can have saved is refused. */
START_TEST(test_what_cannot_be_restored)
{
    struct policy_rank ranks[2];
    struct policy p;
    const uint64_t clocks[2] = {3, 2}, ahead[2] = {4, 2}, seen[2] = {3, 3};
    const uint8_t flags[2] = {0}, odd[2] = {4, 0}, finished[2] = {POLICY_SAVED_FINISHED, 0};

    policy_init(&p, &modes[0], 2, ranks);
    ck_assert(!policy_restore(&p, 3, ahead, NULL, flags));
    ck_assert(!policy_restore(&p, 3, clocks, ahead, flags));
    ck_assert(!policy_restore(&p, 3, clocks, seen, odd));
    ck_assert(!policy_restore(&p, 3, clocks, seen, finished)); /* in lockstep */
    ck_assert_uint_eq(p.steps, 0);
    ck_assert(policy_restore(&p, 3, clocks, seen, flags));
    policy_init(&p, &modes[6], 2, ranks);
    ck_assert(policy_restore(&p, 3, ahead, seen, flags));
    ck_assert_uint_eq(policy_staleness(&p, 0), 0);
    policy_init(&p, &modes[6], 2, ranks);
    policy_make_exact(&p);
    ck_assert(!policy_restore(&p, 3, clocks, seen, flags));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("policy_elastic", 240, CHECKED_FIXTURE(open_states, close_states),
                       LOOP_TEST(test_every_loss_and_rejoin, 0, MODES),
                       LOOP_TEST(test_every_crash, 0, MODES), TEST(test_every_outcome),
                       TEST(test_what_cannot_be_restored));
}
