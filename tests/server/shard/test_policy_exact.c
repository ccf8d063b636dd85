/*
 * Exact staleness: every order in which up to 3 ranks can push 3 rounds, under every choice of one
 * rule per rank (none, or 0 to 3 steps), in asp and ssp.  Checked in each state:
 *
 *   - no deadlock: while a rank has rounds left or waits, some rank can act;
 *   - each push is applied exactly once;
 *   - where only one rank has a rule, a push is never applied too late, and too early only when all
 *     other ranks were waiting or had finished, so that no push could precede it.
 */
#include "server/shard/policy.h"

#include "tests/support/explore.h"
#include "tests/support/support.h"

#include <string.h>

#define RANKS_MAX  3u
#define ROUNDS     3u
#define CHOICES    5u /* no rule, 0, 1, 2, 3 */
#define STATES_MAX (1u << 16)

/* Kept without padding, so that states can be compared as bytes. */
struct model {
    uint8_t pushed[RANKS_MAX];  /* rounds */
    uint8_t applied[RANKS_MAX]; /* of them */
    uint8_t read_at[RANKS_MAX]; /* steps in the values that the rank has */
    uint8_t waiting[RANKS_MAX];
    uint8_t finished[RANKS_MAX];
    uint8_t steps;
};

struct state {
    struct model model; /* first: the part that states are compared by */
    struct policy policy;
    struct policy_rank ranks[RANKS_MAX];
};

static struct consistency consistency;
static unsigned ranks, ruled; /* ruled: ranks with a rule */
static uint64_t rule[RANKS_MAX];
static struct explored states;
static size_t missed, kept;

static void copy_state(struct state *to, const struct state *from)
{
    *to = *from;
    to->policy.ranks = to->ranks;
}

static void visit(const struct state *s)
{
    (void)explored_add(&states, s);
}

/* Are all other ranks waiting or finished, so that no push can precede that of `rank`? */
static bool all_others_wait(const struct model *m, unsigned rank)
{
    for (unsigned other = 0; other < ranks; other++)
        if (other != rank && !m->waiting[other] && !m->finished[other])
            return false;
    return true;
}

static void apply_push(struct state *s, unsigned rank)
{
    struct model *m = &s->model;
    uint64_t staleness = m->steps - m->read_at[rank];

    REQUIRE(m->applied[rank] + 1 == m->pushed[rank]);
    if (rule[rank] != POLICY_NO_TARGET && staleness != rule[rank]) {
        missed++;
        REQUIRE(ruled > 1 || (staleness < rule[rank] && all_others_wait(m, rank)));
    } else if (rule[rank] != POLICY_NO_TARGET) {
        kept++;
    }
    m->applied[rank]++;
    m->steps++;
}

static bool may_read(const struct model *m, unsigned rank)
{
    if (m->applied[rank] < m->pushed[rank])
        return false;
    for (unsigned other = 0; consistency.mode == CONSISTENCY_SSP && other < ranks; other++)
        if (!m->finished[other] && m->applied[other] + consistency.staleness < m->pushed[rank])
            return false;
    return true;
}

/* After every event, as the server does: apply and answer until nothing changes. */
static void apply_and_reply(struct state *s)
{
    struct model *m = &s->model;
    bool found = true;

    while (found) {
        unsigned rank;

        found = policy_next_apply(&s->policy, &rank);
        if (found)
            apply_push(s, rank);
        for (rank = 0; policy_next_reply(&s->policy, &rank); rank++) {
            REQUIRE(m->waiting[rank] && may_read(m, rank));
            m->waiting[rank] = 0;
            m->read_at[rank] = m->steps;
            policy_set_target(&s->policy, rank, rule[rank]);
        }
    }
    for (unsigned rank = 0; rank < ranks; rank++)
        REQUIRE(!m->waiting[rank] || !may_read(m, rank));
    REQUIRE(s->policy.steps == m->steps);
    visit(s);
}

static void try_push(const struct state *from, unsigned rank)
{
    struct state s;

    copy_state(&s, from);
    s.model.pushed[rank]++;
    s.model.waiting[rank] = 1;
    REQUIRE(policy_push(&s.policy, rank, s.model.pushed[rank], false) == POLICY_ACCEPTED);
    REQUIRE(policy_push(&s.policy, rank, s.model.pushed[rank], false) == POLICY_TWICE);
    apply_and_reply(&s);
}

static void try_finish(const struct state *from, unsigned rank)
{
    struct state s;

    copy_state(&s, from);
    s.model.finished[rank] = 1;
    s.model.waiting[rank] = 0; /* for a reply; its held push is still applied */
    REQUIRE(policy_finish(&s.policy, rank, false, false) == POLICY_ACCEPTED);
    apply_and_reply(&s);
}

/* Every rank that waits is waiting for one that can act. */
static void explore_from(const struct state *from)
{
    const struct model *m = &from->model;
    unsigned movable = 0, busy = 0;

    for (unsigned rank = 0; rank < ranks; rank++) {
        busy += m->waiting[rank] || m->applied[rank] < m->pushed[rank];
        if (m->finished[rank])
            continue;
        try_finish(from, rank);
        if (m->waiting[rank])
            continue;
        movable++;
        if (m->pushed[rank] < ROUNDS)
            try_push(from, rank);
    }
    REQUIRE(!busy || movable);
}

static void explore(void)
{
    struct state start;
    struct state from;

    memset(&start, 0, sizeof(start));
    explored_clear(&states);
    policy_init(&start.policy, &consistency, ranks, start.ranks);
    policy_make_exact(&start.policy);
    REQUIRE(policy_set(&start.policy) == POLICY_COMPLETE);
    for (unsigned rank = 0; rank < ranks; rank++) {
        REQUIRE(policy_pull(&start.policy, rank, false) == POLICY_COMPLETE);
        policy_set_target(&start.policy, rank, rule[rank]);
    }
    visit(&start);
    for (size_t i = 0; i < states.count; i++) {
        copy_state(&from, explored_at(&states, i));
        explore_from(&from);
    }
}

/* The choice-th combination of rules. */
static void choose_rules(unsigned choice)
{
    ruled = 0;
    for (unsigned rank = 0; rank < ranks; rank++, choice /= CHOICES) {
        rule[rank] = choice % CHOICES == 0 ? POLICY_NO_TARGET : choice % CHOICES - 1;
        ruled += choice % CHOICES != 0;
    }
}

START_TEST(test_every_order_under_every_rule)
{
    unsigned choices = 1;

    consistency = (struct consistency){.mode = _i == 0 ? CONSISTENCY_ASP : CONSISTENCY_SSP,
                                       .staleness = (uint32_t)_i};
    explored_open(&states, sizeof(struct state), sizeof(struct model), STATES_MAX);
    for (ranks = 1; ranks <= RANKS_MAX; ranks++) {
        choices *= CHOICES;
        for (unsigned choice = 0; choice < choices; choice++) {
            choose_rules(choice);
            explore();
        }
    }
    ck_assert(missed > 0 && kept > 1000);
    explored_close(&states);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("policy_exact", 120, LOOP_TEST(test_every_order_under_every_rule, 0, 3));
}
