/*
 * The policy where connections break, ranks go and others come, and the server itself dies: every
 * state that up to 4 ranks can reach, and in each of them every event, marked as sent again and
 * not, against a model that only remembers who did what.  Invariants of each state:
 *
 *   - no deadlock: while somebody waits, somebody who holds a slot can move;
 *   - a slot contributes to a round at most once, whoever holds it and however often it is sent;
 *   - a round is complete exactly when all who hold a slot (but b) are in it, and says how many;
 *   - nobody is answered before the definition of the mode allows it, and nobody is forgotten;
 *   - what is restored is what was saved, less what nobody was told of.
 */
#include "server/policy.h"

#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

/* Check's own assertions each write to a pipe: too slow for hundreds of millions of them. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

#define RANKS_MAX  4u
#define STATES_MAX (1u << 21)

/* Masks have one bit per rank.  Kept without padding, so that states can be compared as bytes. */
struct model {
    uint8_t set;
    uint8_t asked, got;            /* round 0, by who holds the slot now */
    uint8_t unknown;               /* the server was restored: they may have it */
    uint8_t waiting;               /* for the answer to a contribution */
    uint8_t finished, wants_final; /* contributes no more; waits for the final values */
    uint8_t vacant;
    uint8_t arrived;          /* together: who is in the round under way */
    uint8_t inherited;        /* lockstep: the slot's last holder is in it, this one has not read */
    uint8_t clock[RANKS_MAX]; /* last round that the slot contributed to, or was put at */
    uint8_t steps;
};

struct state {
    struct model model;
    struct policy policy;
    struct policy_rank ranks[RANKS_MAX];
};

static struct world {
    struct consistency consistency;
    unsigned ranks, rounds;
    bool finish, crash; /* with these events */
} world;

static struct state *states;
static uint32_t *table; /* of state index + 1, by hash */
static size_t state_count;
static size_t verdicts[POLICY_AGAIN_WAITS + 1]; /* how often each was seen */

/* ------------------------------------------------------------------ the model */

static bool has(uint8_t mask, unsigned rank)
{
    return mask >> rank & 1;
}

static uint8_t bit(unsigned rank)
{
    return (uint8_t)(1u << rank);
}

static void drop(uint8_t *mask, unsigned rank)
{
    *mask &= (uint8_t)~bit(rank);
}

static unsigned count(uint8_t mask)
{
    return (unsigned)__builtin_popcount(mask);
}

static uint8_t all(void)
{
    return (uint8_t)((1u << world.ranks) - 1);
}

static uint8_t present(const struct model *m)
{
    return all() & (uint8_t) ~(m->finished | m->vacant);
}

static bool together(void)
{
    return !consistency_steps_each(&world.consistency);
}

static bool is_whole(const struct model *m)
{
    unsigned wanted = world.ranks - world.consistency.backup;
    unsigned possible = count(present(m) | m->arrived);

    return m->arrived != 0 && count(m->arrived) >= (wanted < possible ? wanted : possible);
}

/* Complete the round under way if it is whole: how many it took, or 0. */
static unsigned complete(struct model *m)
{
    unsigned contributions = is_whole(m) ? count(m->arrived) : 0;

    if (contributions > 0) {
        m->steps++;
        m->arrived = 0;
    }
    return contributions;
}

/* Of a slot that has contributed up to its clock: are the values there that it waits for? */
static bool may_read(const struct model *m, unsigned rank)
{
    if (together())
        return m->clock[rank] <= m->steps;
    if (world.consistency.mode == CONSISTENCY_ASP)
        return true;
    for (unsigned other = 0; other < world.ranks; other++)
        if (has(present(m), other) &&
            m->clock[other] + world.consistency.staleness < m->clock[rank])
            return false;
    return true;
}

static enum policy_verdict model_check(const struct model *m, unsigned rank, unsigned round,
                                       bool again)
{
    unsigned clock = m->clock[rank];
    bool read = has(m->got | m->unknown, rank);

    if (has(m->vacant, rank))
        return POLICY_VACANT;
    if (has(m->finished, rank))
        return POLICY_FINISHED;
    if (again && round > 0 && round <= clock && read)
        return may_read(m, rank) ? POLICY_AGAIN : POLICY_AGAIN_WAITS;
    if (together() && round <= m->steps && (world.consistency.backup == 0 || round == 0))
        return POLICY_STALE;
    if (round > (together() ? m->steps : clock) + 1u)
        return POLICY_AHEAD;
    if (!read)
        return POLICY_UNINITIALISED;
    if (round <= clock)
        return POLICY_TWICE;
    if (has(m->waiting, rank))
        return POLICY_AHEAD;
    if (!together())
        return POLICY_COMPLETE;
    return round <= m->steps ? POLICY_LATE : POLICY_ACCEPTED; /* or COMPLETE, says the sum */
}

static enum policy_verdict model_push(struct model *m, unsigned rank, unsigned round, bool again,
                                      unsigned *ret_contributions)
{
    enum policy_verdict verdict = model_check(m, rank, round, again);

    if (verdict == POLICY_AGAIN_WAITS)
        m->waiting |= bit(rank);
    if (verdict == POLICY_AGAIN)
        drop(&m->waiting, rank);
    if (verdict != POLICY_ACCEPTED && verdict != POLICY_COMPLETE && verdict != POLICY_LATE)
        return verdict;
    REQUIRE(round > m->clock[rank] && !has(m->arrived, rank));
    m->clock[rank] = (uint8_t)round;
    drop(&m->inherited, rank);
    if (verdict == POLICY_LATE)
        return verdict;
    m->waiting |= bit(rank);
    *ret_contributions = 1;
    if (verdict == POLICY_COMPLETE) {
        m->steps++;
        return verdict;
    }
    m->arrived |= bit(rank);
    *ret_contributions = complete(m);
    return *ret_contributions > 0 ? POLICY_COMPLETE : POLICY_ACCEPTED;
}

/* Where a newcomer goes on: with the round under way, or behind the slowest of the others. */
static uint8_t model_start(const struct model *m, unsigned rank)
{
    uint8_t slowest = UINT8_MAX;

    for (unsigned other = 0; other < world.ranks; other++)
        if (other != rank && has(present(m), other) && m->clock[other] < slowest)
            slowest = m->clock[other];
    if (together())
        slowest = m->steps;
    return slowest != UINT8_MAX && slowest > m->clock[rank] ? slowest : m->clock[rank];
}

/* ------------------------------------------------------------------ states */

static void copy_state(struct state *to, const struct state *from)
{
    *to = *from;
    to->policy.ranks = to->ranks;
}

static void check_rank(const struct model *m, const struct policy_rank *r, unsigned rank)
{
    enum policy_read read = has(m->got, rank)       ? POLICY_READ_DONE
                            : has(m->asked, rank)   ? POLICY_READ_PARKED
                            : has(m->unknown, rank) ? POLICY_READ_UNKNOWN
                                                    : POLICY_READ_NONE;

    REQUIRE(r->clock == m->clock[rank]);
    REQUIRE(r->vacant == has(m->vacant, rank));
    REQUIRE(r->finished == has(m->finished, rank));
    REQUIRE(r->inherited == has(m->inherited, rank));
    REQUIRE(r->parked == has(m->waiting | m->wants_final, rank));
    REQUIRE(r->vacant || r->read == read);
}

/* All that the policy remembers follows from the model: states that look the same are the same. */
static void check_state(const struct state *s)
{
    const struct model *m = &s->model;
    uint64_t slowest = UINT64_MAX;

    REQUIRE(s->policy.steps == m->steps);
    REQUIRE(s->policy.initialised == m->set);
    REQUIRE(s->policy.arrived == count(m->arrived));
    REQUIRE(s->policy.gone == count(m->finished | m->vacant));
    REQUIRE(s->policy.gone_arrived == count(m->arrived & (m->finished | m->vacant)));
    REQUIRE(!together() || !is_whole(m));
    for (unsigned rank = 0; rank < world.ranks; rank++) {
        check_rank(m, &s->ranks[rank], rank);
        if (has(present(m), rank) && m->clock[rank] < slowest)
            slowest = m->clock[rank];
    }
    REQUIRE(together() || world.consistency.staleness == 0 || s->policy.slowest == slowest);
}

static void visit(struct state *s)
{
    const unsigned char *bytes = (const unsigned char *)&s->model;
    uint32_t at = 2166136261u;

    check_state(s);
    for (size_t i = 0; i < sizeof(s->model); i++)
        at = (at ^ bytes[i]) * 16777619u;
    for (at %= 2 * STATES_MAX; table[at]; at = (at + 1) % (2 * STATES_MAX))
        if (memcmp(&states[table[at] - 1].model, &s->model, sizeof(s->model)) == 0)
            return;
    REQUIRE(state_count < STATES_MAX);
    table[at] = (uint32_t)state_count + 1;
    copy_state(&states[state_count++], s);
}

/* The policy answers exactly whom the definitions allow, each once, in rising order. */
static void take_answers(struct state *s)
{
    struct model *m = &s->model;
    unsigned next = 0;

    for (unsigned rank = 0; rank < world.ranks; rank++) {
        bool reads = has(m->waiting, rank) && may_read(m, rank);
        bool ends = has(m->wants_final, rank) && present(m) == 0;
        unsigned answered = next;

        if (!reads && !ends)
            continue;
        REQUIRE(policy_next_answer(&s->policy, &answered));
        REQUIRE(answered == rank);
        next = rank + 1;
        drop(&m->waiting, rank);
        drop(&m->wants_final, rank);
    }
    next = 0;
    REQUIRE(!policy_next_answer(&s->policy, &next));
}

/* ------------------------------------------------------------------ events */

static void try_push(const struct state *from, unsigned rank, unsigned round, bool again)
{
    struct state s;
    unsigned contributions = 0;
    enum policy_verdict wanted;

    copy_state(&s, from);
    wanted = model_push(&s.model, rank, round, again, &contributions);
    if (wanted != POLICY_COMPLETE || !together())
        REQUIRE(policy_check(&s.policy, rank, round, again) == wanted);
    REQUIRE(policy_push(&s.policy, rank, round, again) == wanted);
    verdicts[wanted]++;
    if (wanted == POLICY_COMPLETE)
        REQUIRE(s.policy.contributions == contributions);
    if (wanted == POLICY_LATE || wanted == POLICY_AGAIN)
        policy_answer(&s.policy, rank);
    take_answers(&s);
    visit(&s);
}

static void try_pull(const struct state *from, unsigned rank, bool again)
{
    struct state s;
    struct model *m = &s.model;
    enum policy_verdict wanted;
    bool came, taken;

    copy_state(&s, from);
    came = has(m->asked, rank);
    wanted = has(m->vacant, rank) ? POLICY_VACANT
             : came && !again     ? POLICY_TWICE
             : came               ? (m->set ? POLICY_AGAIN : POLICY_AGAIN_WAITS)
                                  : (m->set ? POLICY_COMPLETE : POLICY_ACCEPTED);
    taken = wanted != POLICY_VACANT && wanted != POLICY_TWICE;
    REQUIRE(policy_pull(&s.policy, rank, again) == wanted);
    if (taken) {
        m->asked |= bit(rank);
        m->got |= m->set ? bit(rank) : 0;
        drop(&m->unknown, rank);
    }
    visit(&s);
}

/* Setting wakes exactly the ranks that asked before and are still there. */
static void try_set(const struct state *from)
{
    struct state s;
    unsigned rank;

    copy_state(&s, from);
    REQUIRE(policy_set(&s.policy) == (s.model.set ? POLICY_TWICE : POLICY_COMPLETE));
    s.model.set = true;
    while (policy_next_parked(&s.policy, &rank)) {
        REQUIRE(has(s.model.asked, rank) && !has(s.model.got, rank));
        s.model.got |= bit(rank);
    }
    REQUIRE(s.model.asked == s.model.got);
    visit(&s);
}

static void try_finish(const struct state *from, unsigned rank, bool wants_final, bool again)
{
    struct state s;
    struct model *m = &s.model;
    enum policy_verdict wanted = POLICY_ACCEPTED;

    copy_state(&s, from);
    if (has(m->vacant, rank))
        wanted = POLICY_VACANT;
    else if (has(m->finished, rank))
        wanted = again ? POLICY_AGAIN_WAITS : POLICY_FINISHED;
    if (wanted != POLICY_VACANT && wanted != POLICY_FINISHED) {
        m->finished |= bit(rank);
        drop(&m->waiting, rank);
        drop(&m->wants_final, rank);
        m->wants_final |= wants_final ? bit(rank) : 0;
        if (wanted == POLICY_ACCEPTED && complete(m) > 0)
            wanted = POLICY_COMPLETE;
    }
    REQUIRE(policy_finish(&s.policy, rank, wants_final, again) == wanted);
    verdicts[wanted]++;
    take_answers(&s);
    visit(&s);
}

/* Whoever held the slot has gone, and all that is known of him. */
static void forget(struct model *m, unsigned rank)
{
    drop(&m->waiting, rank);
    drop(&m->wants_final, rank);
    drop(&m->asked, rank);
    drop(&m->got, rank);
    drop(&m->unknown, rank);
}

static void try_vacate(const struct state *from, unsigned rank)
{
    struct state s;
    unsigned contributions = 0;
    enum policy_verdict verdict;

    copy_state(&s, from);
    if (!has(s.model.vacant, rank)) {
        forget(&s.model, rank);
        if (has(s.model.inherited, rank)) {
            s.model.arrived |= bit(rank);
            s.model.clock[rank]++;
        }
        drop(&s.model.inherited, rank);
        s.model.vacant |= bit(rank);
        contributions = complete(&s.model);
    }
    verdict = policy_vacate(&s.policy, rank);
    REQUIRE(verdict == (contributions > 0 ? POLICY_COMPLETE : POLICY_ACCEPTED));
    REQUIRE(contributions == 0 || s.policy.contributions == contributions);
    take_answers(&s);
    visit(&s);
}

/* A newcomer has to read and contribute before the round can be complete. */
static void inherit(struct model *m, unsigned rank)
{
    if (!consistency_is_lockstep(&world.consistency) || !has(m->arrived, rank))
        return;
    drop(&m->arrived, rank);
    m->inherited |= bit(rank);
    m->clock[rank]--;
}

static void try_occupy(const struct state *from, unsigned rank)
{
    struct state s;

    copy_state(&s, from);
    if (has(s.model.vacant, rank)) {
        drop(&s.model.vacant, rank);
        inherit(&s.model, rank);
        if (!has(s.model.finished, rank))
            s.model.clock[rank] = model_start(&s.model, rank);
    }
    policy_occupy(&s.policy, rank);
    visit(&s);
}

/* Who waited asks again on another connection. */
static void try_suspend(const struct state *from, unsigned rank)
{
    struct state s;
    struct model *m = &s.model;

    copy_state(&s, from);
    drop(&m->waiting, rank);
    drop(&m->wants_final, rank);
    if (!has(m->got, rank))
        drop(&m->asked, rank);
    policy_suspend(&s.policy, rank);
    visit(&s);
}

static void try_replace(const struct state *from, unsigned rank)
{
    struct state s;

    copy_state(&s, from);
    if (has(s.model.vacant, rank))
        return;
    forget(&s.model, rank);
    inherit(&s.model, rank);
    policy_replace(&s.policy, rank);
    visit(&s);
}

/* The server dies; another one takes over what was saved.  Who waited has to ask again. */
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
    for (unsigned rank = 0; together() && rank < world.ranks; rank++)
        if (m->clock[rank] > m->steps)
            m->clock[rank] = m->steps;
    m->arrived = m->inherited = m->waiting = m->wants_final = m->asked = m->got = 0;
    m->unknown = m->set ? all() & (uint8_t)~m->vacant : 0;
    visit(&s);
}

/* ------------------------------------------------------------------ exploring */

static void check_alive(const struct model *m)
{
    uint8_t busy = m->waiting | m->wants_final;

    REQUIRE((busy & m->vacant) == 0);
    REQUIRE(busy == 0 || (present(m) & (uint8_t)~m->waiting) != 0);
}

static void try_rank(const struct state *from, unsigned rank)
{
    bool may_end = from->model.steps < world.rounds || !together();

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
    memset(table, 0, 2 * STATES_MAX * sizeof(*table));
    state_count = 0;
    policy_init(&start.policy, &world.consistency, world.ranks, start.ranks);
    visit(&start);
    for (size_t i = 0; i < state_count; i++) {
        copy_state(&from, &states[i]);
        check_alive(&from.model);
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
    ck_assert_uint_gt(state_count, 5u * ranks);
}

static void open_states(void)
{
    states = malloc(STATES_MAX * sizeof(*states));
    table = malloc(2 * STATES_MAX * sizeof(*table));
    ck_assert(states && table);
}

static void close_states(void)
{
    free(states);
    free(table);
}

START_TEST(test_every_loss_and_return)
{
    open_states();
    for (unsigned ranks = 1; ranks <= RANKS_MAX; ranks++)
        explore_world(&modes[_i], ranks, 4, false, false);
    close_states();
}
END_TEST

START_TEST(test_every_crash)
{
    open_states();
    for (unsigned ranks = 1; ranks <= (consistency_is_lockstep(&modes[_i]) ? 4u : 3u); ranks++)
        explore_world(&modes[_i], ranks, 3, true, true);
    close_states();
}
END_TEST

START_TEST(test_every_verdict)
{
    open_states();
    for (size_t i = 0; i < MODES; i++)
        explore_world(&modes[i], 2, 2, true, true);
    for (int verdict = 0; verdict <= POLICY_AGAIN_WAITS; verdict++)
        ck_assert_msg(verdicts[verdict] > 0, "never: %s",
                      policy_verdict_text((enum policy_verdict)verdict));
    close_states();
}
END_TEST

/* What no policy can have saved is not taken. */
START_TEST(test_what_cannot_be_restored)
{
    struct policy_rank ranks[2];
    struct policy p;
    const uint64_t clocks[2] = {3, 2}, ahead[2] = {4, 2}, seen[2] = {3, 3};
    const uint8_t flags[2] = {0}, odd[2] = {4, 0};

    policy_init(&p, &modes[0], 2, ranks);
    ck_assert(!policy_restore(&p, 3, ahead, NULL, flags));
    ck_assert(!policy_restore(&p, 3, clocks, ahead, flags));
    ck_assert(!policy_restore(&p, 3, clocks, seen, odd));
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
    Suite *suite = suite_create("policy_elastic");
    TCase *tests = tcase_create("policy_elastic");

    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, test_every_loss_and_return, 0, (int)MODES);
    tcase_add_loop_test(tests, test_every_crash, 0, (int)MODES);
    tcase_add_test(tests, test_every_verdict);
    tcase_add_test(tests, test_what_cannot_be_restored);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
