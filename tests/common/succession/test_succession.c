/*
 * Every state that a primary, its replica and up to three workers can reach, with the real rules of
 * succession deciding.  A message is a fact that its sender has made true for good; it is delivered
 * at any later moment, as often as one likes, or never: so losses, delays, repeats, any order,
 * partitions and servers that stop and wake up are all among the runs.  The primary may also die
 * and be started again, with what it left on its disk: its history, who has left and, unless it was
 * alone, no stream to its replica any more.  The replica, started again, is as if it had slept.
 *
 * Two explorations:
 *   safety    anybody may believe at any moment that another is lost, right or wrong.  In each
 *             state: never a primary alone beside a promoted replica; what two workers have been
 *             told is one history, of which one may have more than the other; and whoever goes on
 *             has all of it.
 *   progress  at most one failure (a server or worker that dies, a primary that is started again, a
 *             pair that is cut off), and only
 *             who is lost is believed to be.  In each state in which nothing happens any more all
 *             workers that live have all steps.
 *
 * A history is made of entries, steps and one change of membership (the slot of worker 0 becomes
 * vacant); each entry is marked with the server that made it.
 */
#include "common/succession/succession.h"

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

#define WORKERS_MAX 3u
#define STEPS_MAX   2u
#define ENTRIES_MAX (STEPS_MAX + 1)
#define STATES_MAX  (1u << 22)
#define NEVER       UINT8_MAX

/* One server's history: `length` entries; which are the replica's own, and which, if any, vacates
 * the slot of worker 0. */
struct history {
    uint8_t length, own, vacates; /* own: mask of entries; vacates: index or NEVER */
};

struct worker {
    uint8_t vote;      /* enum succession_vote */
    uint8_t at;        /* 0 the primary, 1 the replica */
    uint8_t asks;      /* the replica: 1 to follow others, 2 to take over */
    uint8_t left;      /* in order, behind its last step */
    uint8_t pushed;    /* newest step that it has sent a push of to the primary */
    struct history is; /* what it has been told */
};

/* Compared as bytes: no padding, nothing but uint8_t.  Masks have one bit per worker. */
struct state {
    uint8_t role, settled, acknowledged; /* the primary's; acknowledged: entries, by the replica */
    uint8_t primary_sum;                 /* who has pushed to its next step */
    uint8_t restarted; /* the primary: it hears its replica no more, but asks it */
    uint8_t forgot;    /* and that it was alone */
    struct history primary;
    uint8_t promoted, taken; /* the replica's; taken: entries from the primary's records */
    uint8_t joined;          /* who has come to the replica */
    uint8_t replica_sum;
    struct history replica;
    uint8_t dead;     /* progress: workers; then primary, replica */
    uint8_t cut;      /* progress: worker k - primary, worker k - replica, primary - replica */
    uint8_t failures; /* progress */
    struct worker workers[WORKERS_MAX];
};

#define DEAD_PRIMARY (1u << WORKERS_MAX)
#define DEAD_REPLICA (2u << WORKERS_MAX)
#define CUT_PRIMARY  0u          /* + worker */
#define CUT_REPLICA  WORKERS_MAX /* + worker */
#define CUT_SERVERS  (2 * WORKERS_MAX)

static struct world {
    unsigned workers, steps;
    bool vacates;  /* the slot of worker 0 may become vacant */
    bool progress; /* else safety */
} world;

static struct state *states;
static uint32_t *table; /* of state index + 1, by hash */
static size_t state_count;
static const struct state *origin; /* explored now */
static bool moved;                 /* something leads from it to another state */
static size_t seen_lone, seen_promoted, seen_both_votes, seen_succeeded, seen_vacant;
static size_t seen_again; /* alone after a restart */

/* ------------------------------------------------------------------ the real rules */

static struct succession_primary primary_of(const struct state *s, bool *settled)
{
    struct succession_primary p;

    succession_primary_init(&p, 1, world.workers, settled);
    p.role = (enum succession_role)s->role;
    p.epoch = 1 + (s->role == SUCCESSION_LONE);
    for (unsigned k = 0; k < world.workers; k++)
        settled[k] = s->settled >> k & 1;
    return p;
}

static void keep_primary(struct state *s, const struct succession_primary *p)
{
    s->role = (uint8_t)p->role;
    s->settled = 0;
    for (unsigned k = 0; k < world.workers; k++)
        s->settled |= (uint8_t)(p->settled[k] << k);
}

static bool may_acknowledge(const struct state *s, unsigned entry)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(s, settled);

    return succession_may_acknowledge(&p, entry < s->acknowledged && !s->restarted);
}

/* ------------------------------------------------------------------ histories */

/* Entries that the first `steps` steps end with. */
static unsigned entries_of(const struct history *h, unsigned steps)
{
    return steps + (h->vacates < steps ? 1 : 0);
}

static unsigned steps_of(const struct history *h)
{
    return (unsigned)h->length - (h->vacates < h->length ? 1 : 0);
}

static bool is_part(const struct history *less, const struct history *more)
{
    uint8_t mask = (uint8_t)((1u << less->length) - 1);

    return less->length <= more->length && (more->own & mask) == less->own &&
           (less->vacates == more->vacates ||
            (less->vacates == NEVER && more->vacates >= less->length));
}

static void append(struct history *h, bool own, bool vacates)
{
    if (vacates)
        h->vacates = h->length;
    h->own |= (uint8_t)(own << h->length);
    h->length++;
}

/* The vacancy is in force: the replica has it, or nobody else counts. */
static bool is_vacant(const struct state *s)
{
    return s->primary.vacates != NEVER &&
           (s->primary.vacates < s->acknowledged || may_acknowledge(s, s->primary.vacates));
}

static uint8_t all_workers(bool vacant)
{
    return (uint8_t)(((1u << world.workers) - 1) & ~(unsigned)vacant);
}

/* ------------------------------------------------------------------ states */

static void check_safety(const struct state *s)
{
    const struct history *holder = s->promoted ? &s->replica : &s->primary;

    REQUIRE((s->role != SUCCESSION_LONE && !s->forgot) || !s->promoted);
    for (unsigned k = 0; k < world.workers; k++) {
        const struct history *mine = &s->workers[k].is;

        REQUIRE(is_part(mine, holder));
        if (s->role != SUCCESSION_LONE && !s->forgot) /* either of them may die */
            REQUIRE(is_part(mine, &s->replica));
        for (unsigned other = 0; other < k; other++)
            REQUIRE(is_part(mine, &s->workers[other].is) || is_part(&s->workers[other].is, mine));
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
    seen_lone += s->role == SUCCESSION_LONE;
    seen_promoted += s->promoted;
    seen_succeeded += s->role == SUCCESSION_SUCCEEDED;
    seen_vacant += is_vacant(s);
    seen_again += s->restarted && s->role == SUCCESSION_LONE;
}

static uint32_t hash(const struct state *s)
{
    const unsigned char *bytes = (const unsigned char *)s;
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < sizeof(*s); i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

/* Remember the state unless it is known. */
static void visit(const struct state *s)
{
    uint32_t at = hash(s) % (2 * STATES_MAX);

    moved = moved || !origin || memcmp(origin, s, sizeof(*s)) != 0;
    while (table[at]) {
        if (memcmp(&states[table[at] - 1], s, sizeof(*s)) == 0)
            return;
        at = (at + 1) % (2 * STATES_MAX);
    }
    REQUIRE(state_count < STATES_MAX);
    check_safety(s);
    count_state(s);
    table[at] = (uint32_t)state_count + 1;
    states[state_count++] = *s;
}

/* ------------------------------------------------------------------ failures */

static bool lives(const struct state *s, unsigned bit)
{
    return (s->dead & bit) == 0;
}

static bool linked(const struct state *s, unsigned pair)
{
    return (s->cut >> pair & 1) == 0;
}

/* May one side of the pair believe that `bit` is lost? */
static bool may_suspect(const struct state *s, unsigned bit, unsigned pair)
{
    return !world.progress || !lives(s, bit) || !linked(s, pair);
}

static void let_fail(const struct state *from)
{
    unsigned bits = WORKERS_MAX + 2, pairs = 2 * WORKERS_MAX + 1;

    if (!world.progress || from->failures > 0)
        return;
    for (unsigned i = 0; i < bits; i++) {
        struct state s = *from;

        /* Without its slot being vacated a dead worker ends the job. */
        if (i < WORKERS_MAX && (i > 0 || !world.vacates))
            continue;
        s.dead = (uint8_t)(1u << i);
        s.failures = 1;
        visit(&s);
    }
    for (unsigned i = 0; i < pairs; i++) {
        struct state s = *from;

        if (i < 2 * WORKERS_MAX && i % WORKERS_MAX >= world.workers)
            continue;
        s.cut = (uint8_t)(1u << i);
        s.failures = 1;
        visit(&s);
    }
}

/* ------------------------------------------------------------------ the primary */

static void sum_at_primary(const struct state *from, unsigned k)
{
    struct state s = *from;
    bool vacant = is_vacant(from);
    bool pending = from->primary.vacates != NEVER && !vacant;
    unsigned step = steps_of(&from->primary) + 1;

    if (step > world.steps || pending || from->role == SUCCESSION_SUCCEEDED ||
        from->workers[k].pushed < step || (k == 0 && vacant) || !linked(from, CUT_PRIMARY + k))
        return;
    s.primary_sum |= (uint8_t)(1u << k);
    if ((s.primary_sum | vacant) == all_workers(false)) {
        append(&s.primary, false, false);
        s.primary_sum = 0;
    }
    visit(&s);
}

/* The primary finds worker 0 lost and would go on without it. */
static void vacate_at_primary(const struct state *from)
{
    struct state s = *from;

    if (!world.vacates || from->primary.vacates != NEVER || from->role == SUCCESSION_SUCCEEDED ||
        !may_suspect(from, 1, CUT_PRIMARY))
        return;
    append(&s.primary, false, true);
    s.primary_sum &= (uint8_t)~1u;
    visit(&s);
}

static void answer_from_primary(const struct state *from, unsigned k)
{
    struct state s = *from;
    struct worker *w = &s.workers[k];
    unsigned step = steps_of(&w->is) + 1;
    unsigned end = entries_of(&from->primary, step);

    if (w->at != 0 || w->asks == 2 || w->left || end > from->primary.length ||
        !may_acknowledge(from, end - 1) || !linked(from, CUT_PRIMARY + k) || !lives(from, 1u << k))
        return;
    w->is = from->primary;
    w->is.length = (uint8_t)end;
    w->is.own &= (uint8_t)((1u << end) - 1);
    if (w->is.vacates >= end)
        w->is.vacates = NEVER;
    w->pushed = (uint8_t)(step < world.steps ? step + 1 : step);
    visit(&s);
}

static void take_acknowledgement(const struct state *from)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (from->acknowledged >= from->taken || from->restarted || !linked(from, CUT_SERVERS))
        return;
    if (from->acknowledged == from->primary.vacates) {
        succession_change(&p, p.epoch, 0, false);
        (void)succession_settle(&p, 0);
        keep_primary(&s, &p);
    }
    s.acknowledged++;
    visit(&s);
}

static void suspect_replica(const struct state *from)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (!may_suspect(from, DEAD_REPLICA, CUT_SERVERS))
        return;
    (void)succession_lose_replica(&p);
    keep_primary(&s, &p);
    visit(&s);
}

/* The primary proposes, and the worker's answer comes. */
static void vote_alone(const struct state *from, unsigned k)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;
    struct worker *w = &s.workers[k];
    struct succession_worker voter = {.vote = (enum succession_vote)w->vote};
    uint64_t vote;

    if (from->role != SUCCESSION_PROPOSING || w->at != 0 || w->left || !lives(from, 1u << k) ||
        !linked(from, CUT_PRIMARY + k))
        return;
    vote = succession_worker_propose(&voter, p.epoch + 1);
    w->vote = (uint8_t)voter.vote;
    visit(&s); /* decided, and the answer is late or lost */
    (void)succession_take_vote(&p, k, vote);
    keep_primary(&s, &p);
    visit(&s);
}

static void leave_in_order(const struct state *from, unsigned k)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (steps_of(&from->workers[k].is) < world.steps || from->workers[k].at != 0 ||
        from->workers[k].asks == 2 || !lives(from, 1u << k))
        return;
    s.workers[k].left = true;
    visit(&s);
    if (!linked(from, CUT_PRIMARY + k))
        return;
    (void)succession_settle(&p, k);
    keep_primary(&s, &p);
    visit(&s);
}

/* It died and reads its disk.  `alone`: that says so. */
static void start_again(const struct state *from, bool alone)
{
    bool known = from->primary.vacates == NEVER || from->primary.vacates < from->acknowledged;
    bool settled[WORKERS_MAX];
    struct succession_primary p;
    struct state s = *from;

    if (alone && from->role != SUCCESSION_LONE)
        return;
    s.restarted = true;
    s.forgot = from->forgot || (from->role == SUCCESSION_LONE && !alone);
    s.primary_sum = 0;
    if (!alone && !known) { /* the disk does not say who votes: it does not go on */
        s.dead |= DEAD_PRIMARY;
    } else if (!alone) {
        for (unsigned k = 0; k < world.workers; k++)
            settled[k] = (s.settled >> k & 1) &&
                         (s.workers[k].left || (k == 0 && s.primary.vacates != NEVER));
        succession_primary_restore(&p, 1, world.workers, settled);
        keep_primary(&s, &p);
    }
    if (world.progress)
        s.failures = 1;
    visit(&s);
}

/* What it was when it was alone is on the disk, at the latest, when somebody goes or comes. */
static void restart_primary(const struct state *from)
{
    bool lately = from->primary.vacates == NEVER || from->primary.vacates < from->acknowledged;

    if (!lives(from, DEAD_PRIMARY) || (world.progress && from->failures > 0))
        return;
    start_again(from, true);
    if (from->role != SUCCESSION_LONE || lately)
        start_again(from, false);
}

/* ------------------------------------------------------------------ the replica */

static void take_record(const struct state *from)
{
    struct succession_replica r = {.epoch = 1, .promoted = from->promoted};
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (!linked(from, CUT_SERVERS))
        return;
    if (!succession_replica_record(&r, 1)) {
        succession_succeed(&p); /* the refusal comes */
        keep_primary(&s, &p);
        visit(&s);
        return;
    }
    if (from->taken >= from->primary.length || from->restarted)
        return; /* what was on its way may as well have come before */
    append(&s.replica, false, from->primary.vacates == from->taken);
    s.taken++;
    visit(&s);
}

static void come_to_replica(const struct state *from, unsigned k)
{
    struct succession_replica r = {.epoch = 1, .promoted = from->promoted};
    struct state s = *from;
    const struct worker *w = &from->workers[k];
    bool promotes = w->asks == 2;

    if (w->asks == 0 || (k == 0 && from->replica.vacates != NEVER) ||
        !linked(from, CUT_REPLICA + k))
        return;
    if (succession_replica_join(&r, promotes) == SUCCESSION_REFUSED)
        return;
    s.promoted = r.promoted;
    s.joined |= (uint8_t)(1u << k);
    visit(&s);
    if (!lives(from, 1u << k) || w->left)
        return;
    s.workers[k].at = 1; /* it has its answer */
    visit(&s);
}

static void sum_at_replica(const struct state *from, unsigned k)
{
    struct state s = *from;
    bool vacant = from->replica.vacates != NEVER;

    if (!from->promoted || from->workers[k].at != 1 || !linked(from, CUT_REPLICA + k) ||
        steps_of(&from->workers[k].is) != steps_of(&from->replica) ||
        steps_of(&from->replica) >= world.steps || (k == 0 && vacant))
        return;
    s.replica_sum |= (uint8_t)(1u << k);
    if ((s.replica_sum | vacant) == all_workers(false)) {
        append(&s.replica, true, false);
        s.replica_sum = 0;
    }
    visit(&s);
}

static void vacate_at_replica(const struct state *from)
{
    struct state s = *from;

    if (!world.vacates || !from->promoted || from->replica.vacates != NEVER ||
        !may_suspect(from, 1, CUT_REPLICA))
        return;
    append(&s.replica, true, true);
    s.replica_sum &= (uint8_t)~1u;
    visit(&s);
}

static void answer_from_replica(const struct state *from, unsigned k)
{
    struct state s = *from;
    struct worker *w = &s.workers[k];
    unsigned step = steps_of(&w->is) + 1;
    unsigned end = entries_of(&from->replica, step);

    if (!from->promoted || w->at != 1 || end > from->replica.length ||
        !linked(from, CUT_REPLICA + k) || !lives(from, 1u << k))
        return;
    w->is = from->replica;
    w->is.length = (uint8_t)end;
    w->is.own &= (uint8_t)((1u << end) - 1);
    if (w->is.vacates >= end)
        w->is.vacates = NEVER;
    visit(&s);
}

/* ------------------------------------------------------------------ the workers */

/* The primary is lost to this worker, or says that it has been succeeded. */
static void leave_primary(const struct state *from, unsigned k)
{
    struct state s = *from;
    struct worker *w = &s.workers[k];
    struct succession_worker voter = {.vote = (enum succession_vote)w->vote};
    bool told = from->role == SUCCESSION_SUCCEEDED && linked(from, CUT_PRIMARY + k);
    bool stuck = from->role == SUCCESSION_PROPOSING && w->vote == SUCCESSION_ALONE;

    if (w->at != 0 || w->left || !lives(from, 1u << k) ||
        (!told && !stuck && !from->restarted && !may_suspect(from, DEAD_PRIMARY, CUT_PRIMARY + k)))
        return;
    w->asks = succession_worker_leave(&voter) ? 2 : 1;
    w->vote = (uint8_t)voter.vote;
    visit(&s);
}

/* ------------------------------------------------------------------ exploring */

static void expand(const struct state *from)
{
    bool primary = lives(from, DEAD_PRIMARY), replica = lives(from, DEAD_REPLICA);

    if (!world.progress)
        restart_primary(from);
    if (primary) {
        vacate_at_primary(from);
        take_acknowledgement(from);
        suspect_replica(from);
    }
    if (primary && replica)
        take_record(from);
    if (replica)
        vacate_at_replica(from);
    for (unsigned k = 0; k < world.workers; k++) {
        leave_primary(from, k);
        if (primary) {
            sum_at_primary(from, k);
            answer_from_primary(from, k);
            vote_alone(from, k);
            leave_in_order(from, k);
        }
        if (replica) {
            come_to_replica(from, k);
            sum_at_replica(from, k);
            answer_from_replica(from, k);
        }
    }
}

/* Nothing more can happen: then all that live and have a slot have all steps. */
static void check_progress(const struct state *s)
{
    bool vacant = is_vacant(s) || (s->promoted && s->replica.vacates != NEVER);

    for (unsigned k = 0; k < world.workers; k++)
        if (lives(s, 1u << k) && !(k == 0 && vacant))
            REQUIRE(steps_of(&s->workers[k].is) == world.steps);
}

static void explore(void)
{
    struct state start;

    origin = NULL;
    memset(&start, 0, sizeof(start));
    memset(table, 0, 2 * STATES_MAX * sizeof(*table));
    state_count = 0;
    start.primary.vacates = start.replica.vacates = NEVER;
    for (unsigned k = 0; k < WORKERS_MAX; k++) {
        start.workers[k].is.vacates = NEVER;
        start.workers[k].pushed = 1;
    }
    visit(&start);
    for (size_t i = 0; i < state_count; i++) {
        struct state from = states[i];

        origin = &from;
        moved = false;
        expand(&from);
        if (world.progress && !moved)
            check_progress(&from);
        let_fail(&from);
        if (world.progress)
            restart_primary(&from);
    }
}

/* ------------------------------------------------------------------ tests */

static void setup(void)
{
    states = malloc(STATES_MAX * sizeof(*states));
    table = malloc(2 * STATES_MAX * sizeof(*table));
    ck_assert_ptr_nonnull(states);
    ck_assert_ptr_nonnull(table);
}

static void teardown(void)
{
    free(states);
    free(table);
}

/* _i: one to three workers. */
START_TEST(test_safety)
{
    for (int vacates = 0; vacates < 2; vacates++) {
        world = (struct world){.workers = (unsigned)_i, .steps = STEPS_MAX, .vacates = vacates};
        explore();
        printf("%d workers%s: %zu states\n", _i, vacates ? ", one may go" : "", state_count);
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
        printf("%d workers%s: %zu states\n", _i, vacates ? ", one may go" : "", state_count);
    }
    ck_assert_uint_gt(seen_lone, 0);
    ck_assert_uint_gt(seen_promoted, 0);
    ck_assert_uint_gt(seen_succeeded, 0);
}
END_TEST

/* What the exploration does not reach: words that were given before. */
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
    ck_assert(!succession_take_vote(&p, 0, 8)); /* nobody has asked */
    ck_assert(!succession_lose_replica(&p));
    ck_assert(!succession_take_vote(&p, 0, 0));
    ck_assert(!succession_take_vote(&p, 1, 9));
    ck_assert(!succession_take_vote(&p, 1, 8));
    ck_assert(!succession_may_acknowledge(&p, false));
    ck_assert(succession_take_vote(&p, 0, 8));
    ck_assert(succession_may_acknowledge(&p, false));
    ck_assert_uint_eq(p.epoch, 8);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("succession");
    TCase *model = tcase_create("every state"), *votes = tcase_create("votes");

    tcase_set_timeout(model, 200);
    tcase_add_checked_fixture(model, setup, teardown);
    tcase_add_loop_test(model, test_safety, 1, (int)WORKERS_MAX + 1);
    tcase_add_loop_test(model, test_progress, 1, (int)WORKERS_MAX + 1);
    tcase_add_test(votes, test_votes);
    suite_add_tcase(suite, model);
    suite_add_tcase(suite, votes);
    return support_run(suite);
}
