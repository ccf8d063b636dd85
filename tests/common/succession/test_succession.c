/*
 * Explores every state that a primary, its replica and up to three workers can reach: the model
 * defines the events (succession_model.h), this file the invariants.
 *
 * Two explorations:
 *   safety    any party may suspect another at any time, rightly or wrongly.  In each state: never
 * a primary alone beside a promoted replica; the histories acknowledged to two workers are prefixes
 * of one history; and the server that continues has all of it. progress  at most one failure (a
 * crashed server or worker, a restarted primary, a disconnected pair), and only lost parties are
 * suspected.  In each final state all live workers have all steps.
 */
#include "tests/common/succession/succession_model.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#define STATES_MAX (1u << 22)

static struct explored states;
static const struct state *origin; /* the state being explored */
static bool moved;                 /* an event leads from it to another state */
static size_t seen_lone, seen_promoted, seen_both_votes, seen_succeeded, seen_vacant;
static size_t seen_again; /* alone after a restart */

/* ------------------------------------------------------------------ states */

static void check_safety(const struct state *s)
{
    const struct history *holder = s->promoted ? &s->replica : &s->primary;

    REQUIRE((s->role != SUCCESSION_STANDALONE && !s->forgot_alone) || !s->promoted);
    for (unsigned k = 0; k < world.workers; k++) {
        const struct history *mine = &s->workers[k].is;

        REQUIRE(model_is_part(mine, holder));
        if (s->role != SUCCESSION_STANDALONE && !s->forgot_alone) /* either of them may die */
            REQUIRE(model_is_part(mine, &s->replica));
        for (unsigned other = 0; other < k; other++)
            REQUIRE(model_is_part(mine, &s->workers[other].is) ||
                    model_is_part(&s->workers[other].is, mine));
    }
}

static void count_state(const struct state *s)
{
    unsigned alone = 0, replica = 0;

    for (unsigned k = 0; k < world.workers; k++) {
        alone += s->workers[k].vote == SUCCESSION_ALONE;
        replica += s->workers[k].vote == SUCCESSION_REPLICA;
    }
    seen_both_votes += alone > 0 && replica > 0;
    seen_lone += s->role == SUCCESSION_STANDALONE;
    seen_promoted += s->promoted;
    seen_succeeded += s->role == SUCCESSION_SUPERSEDED;
    seen_vacant += model_is_vacant(s);
    seen_again += s->restarted && s->role == SUCCESSION_STANDALONE;
}

void visit(const struct state *s)
{
    moved = moved || !origin || memcmp(origin, s, sizeof(*s)) != 0;
    if (!explored_add(&states, s))
        return;
    check_safety(s);
    count_state(s);
}

/* ------------------------------------------------------------------ exploring */

/* In a final state all live workers with a session have all steps. */
static void check_progress(const struct state *s)
{
    bool vacant = model_is_vacant(s) || (s->promoted && s->replica.vacates != NEVER);

    for (unsigned k = 0; k < world.workers; k++)
        if (model_lives(s, 1u << k) && !(k == 0 && vacant))
            REQUIRE(model_steps(&s->workers[k].is) == world.steps);
}

static void explore(void)
{
    struct state start;

    origin = NULL;
    explored_clear(&states);
    model_start(&start);
    visit(&start);
    for (size_t i = 0; i < states.count; i++) {
        struct state from;

        memcpy(&from, explored_at(&states, i), sizeof(from));
        origin = &from;
        moved = false;
        model_move(&from);
        if (world.progress && !moved)
            check_progress(&from);
        model_fail(&from);
    }
}

/* ------------------------------------------------------------------ tests */

static void setup(void)
{
    explored_open(&states, sizeof(struct state), sizeof(struct state), STATES_MAX);
}

static void teardown(void)
{
    explored_close(&states);
}

/* _i: one to three workers. */
START_TEST(test_safety)
{
    for (int vacates = 0; vacates < 2; vacates++) {
        world = (struct world){.workers = (unsigned)_i, .steps = STEPS_MAX, .vacates = vacates};
        explore();
        printf("%d workers%s: %zu states\n", _i, vacates ? ", one may go" : "", states.count);
    }
    ck_assert_uint_gt(seen_lone, 0);
    ck_assert_uint_gt(seen_promoted, 0);
    ck_assert_uint_gt(seen_succeeded, 0);
    ck_assert_uint_gt(seen_vacant, 0);
    ck_assert_uint_gt(seen_again, 0);
    if (_i > 1)
        ck_assert_uint_gt(seen_both_votes, 0);
}
END_TEST

START_TEST(test_progress)
{
    for (int vacates = 0; vacates < 2; vacates++) {
        world = (struct world){
            .workers = (unsigned)_i, .steps = STEPS_MAX, .vacates = vacates, .progress = true};
        explore();
        printf("%d workers%s: %zu states\n", _i, vacates ? ", one may go" : "", states.count);
    }
    ck_assert_uint_gt(seen_lone, 0);
    ck_assert_uint_gt(seen_promoted, 0);
    ck_assert_uint_gt(seen_succeeded, 0);
}
END_TEST

/* Cases that the exploration does not reach: earlier votes. */
START_TEST(test_votes)
{
    bool settled[2];
    struct succession_primary p;
    struct succession_worker w = {0};

    ck_assert(succession_worker_leave(&w));
    ck_assert_uint_eq(succession_worker_propose(&w, 7), 0);
    succession_worker_withdraw(&w);
    ck_assert_uint_eq(succession_worker_propose(&w, 7), 7);
    ck_assert_uint_eq(succession_worker_propose(&w, 8), 8);
    succession_worker_withdraw(&w);
    ck_assert(!succession_worker_leave(&w));

    succession_primary_init(&p, 7, 2, settled);
    ck_assert(!succession_count_vote(&p, 0, 8)); /* no vote was requested */
    ck_assert(!succession_lose_replica(&p));
    ck_assert(!succession_count_vote(&p, 0, 0));
    ck_assert(!succession_count_vote(&p, 1, 9));
    ck_assert(!succession_count_vote(&p, 1, 8));
    ck_assert(!succession_may_acknowledge(&p, false));
    ck_assert(succession_count_vote(&p, 0, 8));
    ck_assert(succession_may_acknowledge(&p, false));
    ck_assert_uint_eq(p.epoch, 8);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("succession", 200, CHECKED_FIXTURE(setup, teardown),
                       LOOP_TEST(test_safety, 1, WORKERS_MAX + 1),
                       LOOP_TEST(test_progress, 1, WORKERS_MAX + 1), TEST_CASE("votes", 0),
                       TEST(test_votes));
}
