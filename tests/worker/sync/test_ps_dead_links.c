/*
 * Connections that die without a word while a call on them waits: of a first join, of the join that
 * brings a link back, and of the calls beside the streams.  Each is noticed by the beats, not by
 * core's keepalive, which takes 30 s, nor by the deadline, and the call is made again.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/support/support.h"
#include "tests/worker/sync/ps_team.h"

#include <inttypes.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRIALS      8u
#define STEP_BYTES  22u /* so they reach from the connection's first bytes to the answer's last */
#define SETTLE_MS   INT64_C(15000)
#define PATIENCE_MS INT64_C(60000) /* of what must not be waited for */

/* A team of one rank, whose connection is struck. */
struct trial {
    struct team team;
    pthread_t thread;
    bool both; /* ways */
    uint64_t byte;
    sem_t struck;      /* once it is ... */
    int64_t struck_ns; /* ... when */
    sem_t called;      /* once a connection behind one of strike_and_listen says anything */
    int64_t back_ms;   /* from then on */
};

static struct fault_proxy *proxy_of(struct trial *t)
{
    return t->team.ranks[0].proxies[0];
}

static void strike(void *trial)
{
    struct trial *t = trial;

    fault_proxy_freeze(proxy_of(t), fault_proxy_accepted(proxy_of(t)) - 1, t->both);
    t->struck_ns = clock_now_ns();
    (void)sem_post(&t->struck);
}

static void note_call(void *trial)
{
    struct trial *t = trial;

    (void)sem_post(&t->called);
}

static void strike_and_listen(void *trial)
{
    struct trial *t = trial;

    strike(t);
    fault_proxy_at(proxy_of(t), FAULT_UP, fault_proxy_bytes(proxy_of(t), FAULT_UP) + 1, note_call,
                   t);
}

static void note_back(struct trial *t)
{
    t->back_ms = (clock_now_ns() - t->struck_ns) / 1000000;
}

/* The connection is cut, and the next one is to be struck. */
static void cut(void *trial)
{
    struct trial *t = trial;
    uint64_t now = fault_proxy_bytes(proxy_of(t), FAULT_DOWN);

    fault_proxy_reset(proxy_of(t));
    fault_proxy_at(proxy_of(t), FAULT_DOWN, now + t->byte, strike, t);
}

static void start_ok(struct team_rank *r)
{
    ck_assert_msg(team_start_rank(r) == STATUS_OK, "rank %u: %s", r->index, r->err.text);
}

static void step_ok(struct team_rank *r, uint64_t round)
{
    ck_assert_msg(team_step(r, round) == STATUS_OK, "rank %u: %s", r->index, r->err.text);
}

static void close_ok(struct team_rank *r)
{
    sync_close(r->sync, NULL);
    r->sync = NULL;
}

static void open_trial(struct trial *t, unsigned ranks, bool both)
{
    memset(t, 0, sizeof(*t));
    (void)sem_init(&t->struck, 0, 0);
    (void)sem_init(&t->called, 0, 0);
    t->both = both;
    team_init(&t->team, ranks, 1, 2);
    t->team.timeout_ms = PATIENCE_MS;
    t->team.reconnect_ms = PATIENCE_MS;
    t->team.heartbeat_timeout_ms = 900;
    team_open(&t->team);
}

static void *join_first(void *trial)
{
    struct trial *t = trial;
    struct team_rank *r = &t->team.ranks[0];

    fault_proxy_at(proxy_of(t), FAULT_DOWN, t->byte, strike, t);
    start_ok(r);
    if (sem_trywait(&t->struck) == 0)
        note_back(t);
    step_ok(r, 1);
    step_ok(r, 2);
    close_ok(r);
    return NULL;
}

static void *join_again(void *trial)
{
    struct trial *t = trial;
    struct team_rank *r = &t->team.ranks[0];

    start_ok(r);
    step_ok(r, 1);
    fault_proxy_at(proxy_of(t), FAULT_DOWN, fault_proxy_bytes(proxy_of(t), FAULT_DOWN) + 1, cut, t);
    ck_assert_int_eq(sem_wait(&t->struck), 0);
    step_ok(r, 2);
    note_back(t);
    close_ok(r);
    return NULL;
}

/* At many bytes of the answer, each in a team of its own, all at once. */
START_TEST(test_a_join_whose_answer_never_comes)
{
    static struct trial trials[TRIALS];
    uint64_t shift = (uint64_t)(support_random() * STEP_BYTES);

    for (unsigned i = 0; i < TRIALS; i++) {
        open_trial(&trials[i], 1, i % 2 == 0);
        trials[i].byte = 1 + shift + i * STEP_BYTES;
        ck_assert_int_eq(
            pthread_create(&trials[i].thread, NULL, _i == 0 ? join_first : join_again, &trials[i]),
            0);
    }
    for (unsigned i = 0; i < TRIALS; i++) {
        struct trial *t = &trials[i];

        ck_assert_int_eq(pthread_join(t->thread, NULL), 0);
        ck_assert_msg(t->back_ms < SETTLE_MS, "byte %" PRIu64 ": back after %" PRId64 " ms",
                      t->byte, t->back_ms);
        team_check(&t->team);
        team_close(&t->team);
    }
}
END_TEST

/* The server holds the join until all ranks are there; meanwhile its connection dies. */
START_TEST(test_a_join_that_is_held)
{
    static struct trial t;
    struct team_rank *r;
    int64_t before_ns;

    open_trial(&t, 2, true);
    r = t.team.ranks;
    fault_proxy_at(r->proxies[0], FAULT_UP, 300, strike_and_listen, &t);
    before_ns = clock_now_ns();
    team_run_rank(&r[0]);
    ck_assert_int_eq(sem_wait(&t.called), 0);
    ck_assert_int_lt(clock_now_ns() - before_ns, SETTLE_MS * 1000000);
    team_run_rank(&r[1]);
    team_join_rank(&r[0]);
    team_join_rank(&r[1]);
    team_check(&t.team);
    team_close(&t.team);
}
END_TEST

/* One whose connection lives may be held for long. */
START_TEST(test_a_join_that_waits_is_not_dead)
{
    static struct trial t;
    struct team_rank *r;

    open_trial(&t, 2, true);
    t.team.heartbeat_timeout_ms = 2000; /* of which a busy host must not use up all */
    r = t.team.ranks;
    team_run_rank(&r[0]);
    (void)nanosleep(&(struct timespec){.tv_sec = 3}, NULL); /* what a rank may be late */
    team_run_rank(&r[1]);
    team_join_rank(&r[0]);
    team_join_rank(&r[1]);
    team_check(&t.team);
    ck_assert_uint_eq(fault_proxy_accepted(r->proxies[0]), 1);
    team_close(&t.team);
}
END_TEST

/* Its servers' optimizer has one. */
static void start_with_moment(struct team_rank *r, float *velocity)
{
    struct sync_config config = team_config(r);
    float *const moments[1] = {velocity};

    config.moment_count = 1;
    config.moments = moments;
    ck_assert_msg(sync_open(&config, &r->sync, &r->err) == STATUS_OK, "%s", r->err.text);
    ck_assert_msg(sync_start(r->sync, &r->err) == STATUS_OK, "%s", r->err.text);
}

/* The tender sees to calls that are under way beside the streams. */
START_TEST(test_a_call_beside_the_streams)
{
    static struct trial t;
    struct team_rank *r;
    float *values = ps_slab_new(TEAM_COUNT), *velocity = ps_slab_new(TEAM_COUNT);
    float *const moments[2] = {velocity, NULL};
    uint64_t steps = 0;

    open_trial(&t, 1, _i == 0);
    t.team.rounds = 1;
    r = t.team.ranks;
    start_with_moment(r, velocity);
    step_ok(r, 1);
    strike(&t);
    if (_i == 0) {
        ck_assert_msg(sync_fetch_state(r->sync, values, moments, &steps, &r->err) == STATUS_OK,
                      "%s", r->err.text);
        ck_assert_uint_eq(steps, 1);
        ck_assert(ps_same_bits(values, r->params, TEAM_COUNT));
        note_back(&t);
        close_ok(r);
    } else {
        close_ok(r);
        note_back(&t);
    }
    ck_assert_int_lt(t.back_ms, SETTLE_MS);
    ck_assert_uint_gt(fault_proxy_accepted(r->proxies[0]), 1);
    team_check(&t.team);
    team_close(&t.team);
    free(values);
    free(velocity);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ps_dead_links");
    TCase *tests = tcase_create("dead links");

    log_set_level(LOG_QUIET);
    tcase_set_timeout(tests, 100); /* beyond PATIENCE_MS: its ends are what is to be told */
    tcase_add_loop_test(tests, test_a_join_whose_answer_never_comes, 0, 2);
    tcase_add_test(tests, test_a_join_that_is_held);
    tcase_add_test(tests, test_a_join_that_waits_is_not_dead);
    tcase_add_loop_test(tests, test_a_call_beside_the_streams, 0, 2);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
