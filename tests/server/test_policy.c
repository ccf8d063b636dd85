/*
 * Every state that 1 to 3 ranks can reach within three rounds, and in each of them every event,
 * good and bad, against a model that only remembers who did what.
 */
#include "server/policy.h"

#include "tests/support/support.h"

#include <string.h>

#define RANKS_MAX  3u
#define ROUNDS_MAX 3u
#define STATES_MAX 4096u

struct model {
    bool set;
    bool asked[RANKS_MAX], got[RANKS_MAX];
    bool in[RANKS_MAX][ROUNDS_MAX + 2]; /* [rank][round] */
};

struct state {
    struct model model;
    struct policy policy;
    struct policy_rank ranks[RANKS_MAX];
};

static unsigned world_size;
static struct state states[STATES_MAX];
static size_t state_count;
static size_t verdicts[POLICY_AHEAD + 1]; /* how often each was seen */

static unsigned contributions(const struct model *m, uint64_t round)
{
    unsigned sum = 0;

    for (unsigned rank = 0; rank < world_size; rank++)
        sum += m->in[rank][round];
    return sum;
}

static uint64_t rounds_done(const struct model *m)
{
    uint64_t round = 0;

    while (round < ROUNDS_MAX && contributions(m, round + 1) == world_size)
        round++;
    return round;
}

static enum policy_verdict model_push(struct model *m, unsigned rank, uint64_t round)
{
    uint64_t done = rounds_done(m);

    if (round <= done)
        return POLICY_STALE;
    if (round > done + 1)
        return POLICY_AHEAD;
    if (!m->got[rank])
        return POLICY_UNINITIALISED;
    if (m->in[rank][round])
        return POLICY_TWICE;
    m->in[rank][round] = true;
    return contributions(m, round) == world_size ? POLICY_COMPLETE : POLICY_ACCEPTED;
}

static enum policy_verdict model_pull(struct model *m, unsigned rank)
{
    if (m->asked[rank])
        return POLICY_TWICE;
    m->asked[rank] = true;
    m->got[rank] = m->set;
    return m->set ? POLICY_COMPLETE : POLICY_ACCEPTED;
}

static void copy_state(struct state *to, const struct state *from)
{
    *to = *from;
    to->policy.ranks = to->ranks;
}

/* The fast one says what the model says about every rank and round. */
static void check_same(const struct state *s)
{
    ck_assert_uint_eq(s->policy.round, rounds_done(&s->model));
    ck_assert_uint_eq(s->policy.arrived, contributions(&s->model, s->policy.round + 1));
    ck_assert_int_eq(s->policy.initialised, s->model.set);
    for (unsigned rank = 0; rank < world_size; rank++) {
        uint64_t clock = s->ranks[rank].clock;

        ck_assert(clock == s->policy.round || clock == s->policy.round + 1);
        ck_assert(clock == 0 || s->model.in[rank][clock]);
        ck_assert(!s->model.in[rank][clock + 1]);
        ck_assert_int_eq(s->ranks[rank].read == POLICY_READ_DONE, s->model.got[rank]);
        ck_assert_int_eq(s->ranks[rank].read != POLICY_READ_NONE, s->model.asked[rank]);
    }
}

/* Remember the state unless it is known or beyond the last round. */
static void visit(const struct state *s)
{
    check_same(s);
    for (size_t i = 0; i < state_count; i++)
        if (memcmp(&states[i].model, &s->model, sizeof(s->model)) == 0)
            return;
    ck_assert_uint_lt(state_count, STATES_MAX);
    copy_state(&states[state_count++], s);
}

static void try_push(const struct state *from, unsigned rank, uint64_t round)
{
    struct state s;
    enum policy_verdict wanted, check;

    copy_state(&s, from);
    wanted = model_push(&s.model, rank, round);
    check = policy_check(&s.policy, rank, round);
    check_same(from);
    ck_assert_int_eq(check, wanted);
    ck_assert_int_eq(policy_push(&s.policy, rank, round), wanted);
    verdicts[wanted]++;
    visit(&s);
}

static void try_pull(const struct state *from, unsigned rank)
{
    struct state s;
    enum policy_verdict wanted;

    copy_state(&s, from);
    wanted = model_pull(&s.model, rank);
    ck_assert_int_eq(policy_pull(&s.policy, rank), wanted);
    visit(&s);
}

/* Setting wakes exactly the ranks that asked before. */
static void try_set(const struct state *from)
{
    struct state s;
    unsigned rank;

    copy_state(&s, from);
    ck_assert(s.model.set || !policy_next_parked(&s.policy, &rank));
    ck_assert_int_eq(policy_set(&s.policy), s.model.set ? POLICY_TWICE : POLICY_COMPLETE);
    s.model.set = true;
    while (policy_next_parked(&s.policy, &rank)) {
        ck_assert(s.model.asked[rank] && !s.model.got[rank]);
        s.model.got[rank] = true;
    }
    visit(&s);
}

static void explore(void)
{
    struct state start = {0};

    state_count = 0;
    policy_init(&start.policy, world_size, start.ranks);
    visit(&start);
    for (size_t i = 0; i < state_count; i++) {
        try_set(&states[i]);
        for (unsigned rank = 0; rank < world_size; rank++) {
            try_pull(&states[i], rank);
            if (rounds_done(&states[i].model) == ROUNDS_MAX)
                continue;
            for (uint64_t round = 0; round <= ROUNDS_MAX; round++)
                try_push(&states[i], rank, round);
        }
    }
}

START_TEST(test_every_state)
{
    for (world_size = 1; world_size <= RANKS_MAX; world_size++) {
        explore();
        ck_assert_uint_gt(state_count, 5u * world_size);
    }
    for (int verdict = 0; verdict <= POLICY_AHEAD; verdict++)
        ck_assert_msg(verdicts[verdict] > 0, "never: %s",
                      policy_verdict_text((enum policy_verdict)verdict));
}
END_TEST

START_TEST(test_far_rounds)
{
    struct policy_rank ranks[2];
    struct policy p;

    policy_init(&p, 2, ranks);
    (void)policy_set(&p);
    (void)policy_pull(&p, 0);
    ck_assert_int_eq(policy_push(&p, 0, UINT64_MAX), POLICY_AHEAD);
    ck_assert_int_eq(policy_push(&p, 1, 1), POLICY_UNINITIALISED);
    ck_assert_int_eq(policy_push(&p, 0, 1), POLICY_ACCEPTED);
    ck_assert_int_eq(policy_push(&p, 0, 2), POLICY_AHEAD);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy");
    TCase *tests = tcase_create("policy");

    tcase_add_test(tests, test_every_state);
    tcase_add_test(tests, test_far_rounds);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
