/*
 * Connections that die silently during a call: a first join, the join of a reconnection, and the
 * calls beside the streams.  Heartbeats must detect each one, not gRPC's keepalive, which takes 30
 * s, nor the deadline, and the call must be repeated.
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

#define TRIALS          8u
#define STEP_BYTES      22u /* covers the connection from its first byte to the reply's last one */
#define RECOVERY_MS_MAX INT64_C(15000)
#define LONG_TIMEOUT_MS INT64_C(60000) /* of deadlines that must not expire */

/* A team of one rank, whose connection is frozen. */
struct trial {
    struct team team;
    pthread_t thread;
    bool both;     /* directions */
    uint64_t byte; /* of the reply at which it is frozen */
    sem_t frozen;  /* posted when it is frozen, at ... */
    int64_t frozen_ns;
    sem_t retried;       /* posted when the next connection sends its first byte */
    int64_t recovery_ms; /* from frozen_ns */
};

static struct fault_proxy *proxy_of(struct trial *t)
{
    return t->team.ranks[0].proxies[0];
}

static void freeze_connection(void *trial)
{
    struct trial *t = trial;

    fault_proxy_freeze(proxy_of(t), fault_proxy_accepted(proxy_of(t)) - 1, t->both);
    t->frozen_ns = clock_now_ns();
    (void)sem_post(&t->frozen);
}

static void post_retried(void *trial)
{
    struct trial *t = trial;

    (void)sem_post(&t->retried);
}

static void freeze_and_watch(void *trial)
{
    struct trial *t = trial;

    freeze_connection(t);
    fault_proxy_call_at(proxy_of(t), FAULT_UP, fault_proxy_bytes(proxy_of(t), FAULT_UP) + 1,
                        post_retried, t);
}

static void set_recovery_time(struct trial *t)
{
    t->recovery_ms = (clock_now_ns() - t->frozen_ns) / 1000000;
}

/* Reset the connection, and arrange for the next one to be frozen. */
static void reset_then_freeze(void *trial)
{
    struct trial *t = trial;
    uint64_t now = fault_proxy_bytes(proxy_of(t), FAULT_DOWN);

    fault_proxy_reset(proxy_of(t));
    fault_proxy_call_at(proxy_of(t), FAULT_DOWN, now + t->byte, freeze_connection, t);
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
    (void)sem_init(&t->frozen, 0, 0);
    (void)sem_init(&t->retried, 0, 0);
    t->both = both;
    team_init(&t->team, ranks, 1, 2);
    t->team.timeout_ms = LONG_TIMEOUT_MS;
    t->team.reconnect_ms = LONG_TIMEOUT_MS;
    t->team.heartbeat_timeout_ms = 900;
    team_open(&t->team);
}

static void *join_first(void *trial)
{
    struct trial *t = trial;
    struct team_rank *r = &t->team.ranks[0];

    fault_proxy_call_at(proxy_of(t), FAULT_DOWN, t->byte, freeze_connection, t);
    start_ok(r);
    if (sem_trywait(&t->frozen) == 0)
        set_recovery_time(t);
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
    fault_proxy_call_at(proxy_of(t), FAULT_DOWN, fault_proxy_bytes(proxy_of(t), FAULT_DOWN) + 1,
                        reset_then_freeze, t);
    ck_assert_int_eq(sem_wait(&t->frozen), 0);
    step_ok(r, 2);
    set_recovery_time(t);
    close_ok(r);
    return NULL;
}

/* Frozen at many bytes of the reply, each in a team of its own, all in parallel. */
START_TEST(test_a_join_without_a_reply)
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
        ck_assert_msg(t->recovery_ms < RECOVERY_MS_MAX,
                      "byte %" PRIu64 ": back after %" PRId64 " ms", t->byte, t->recovery_ms);
        team_check(&t->team);
        team_close(&t->team);
    }
}
END_TEST

/* The server delays the join until all ranks have joined; meanwhile its connection dies. */
START_TEST(test_a_join_that_is_held)
{
    static struct trial t;
    struct team_rank *r;
    int64_t before_ns;

    open_trial(&t, 2, true);
    r = t.team.ranks;
    fault_proxy_call_at(r->proxies[0], FAULT_UP, 300, freeze_and_watch, &t);
    before_ns = clock_now_ns();
    team_run_rank(&r[0]);
    ck_assert_int_eq(sem_wait(&t.retried), 0);
    ck_assert_int_lt(clock_now_ns() - before_ns, RECOVERY_MS_MAX * 1000000);
    team_run_rank(&r[1]);
    team_join_rank(&r[0]);
    team_join_rank(&r[1]);
    team_check(&t.team);
    team_close(&t.team);
}
END_TEST

/* A join on a live connection may be delayed for a long time. */
START_TEST(test_a_join_that_waits_is_not_dead)
{
    static struct trial t;
    struct team_rank *r;

    open_trial(&t, 2, true);
    t.team.heartbeat_timeout_ms = 2000; /* longer than a busy host delays a rank */
    r = t.team.ranks;
    team_run_rank(&r[0]);
    (void)nanosleep(&(struct timespec){.tv_sec = 3}, NULL); /* delay of the second rank */
    team_run_rank(&r[1]);
    team_join_rank(&r[0]);
    team_join_rank(&r[1]);
    team_check(&t.team);
    ck_assert_uint_eq(fault_proxy_accepted(r->proxies[0]), 1);
    team_close(&t.team);
}
END_TEST

/* Start a rank whose optimizer has one slab of state. */
static void start_with_moment(struct team_rank *r, float *velocity)
{
    struct sync_config config = team_config(r);
    float *const moments[1] = {velocity};

    config.moment_count = 1;
    config.moments = moments;
    ck_assert_msg(sync_open(&config, &r->sync, &r->err) == STATUS_OK, "%s", r->err.text);
    ck_assert_msg(sync_start(r->sync, &r->err) == STATUS_OK, "%s", r->err.text);
}

/* The monitor interrupts calls beside the streams when the connection is dead. */
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
    freeze_connection(&t);
    if (_i == 0) {
        ck_assert_msg(sync_fetch_state(r->sync, values, moments, &steps, &r->err) == STATUS_OK,
                      "%s", r->err.text);
        ck_assert_uint_eq(steps, 1);
        ck_assert(ps_same_bits(values, r->params, TEAM_COUNT));
        set_recovery_time(&t);
        close_ok(r);
    } else {
        close_ok(r);
        set_recovery_time(&t);
    }
    ck_assert_int_lt(t.recovery_ms, RECOVERY_MS_MAX);
    ck_assert_uint_gt(fault_proxy_accepted(r->proxies[0]), 1);
    team_check(&t.team);
    team_close(&t.team);
    free(values);
    free(velocity);
}
END_TEST

int main(void)
{
    log_set_level(LOG_QUIET);
    return SUPPORT_RUN(
        "ps_dead_links", 100, /* above LONG_TIMEOUT_MS, so that its expiry is reported */
        LOOP_TEST(test_a_join_without_a_reply, 0, 2), TEST(test_a_join_that_is_held),
        TEST(test_a_join_that_waits_is_not_dead), LOOP_TEST(test_a_call_beside_the_streams, 0, 2));
}
