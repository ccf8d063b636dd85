/*
 * The end of a job with parameter servers without reconnection: a rank that fails, is missing or is
 * silent; servers that stop, stall or do not exist.  The error of every other rank names the cause,
 * in time.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/support/process.h"
#include "tests/support/support.h"
#include "tests/worker/sync/ps_team.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    EXPIRING_TIMEOUT_MS = 4000, /* of timeouts that must expire; they also limit the join */
};

/* ------------------------------------------------------------------ two ranks */

static void *start_rank(void *user)
{
    struct team_rank *r = user;

    r->status = team_start_rank(r);
    return NULL;
}

/* Start two ranks, whose steps the test's thread runs. */
static void pair_open(struct team *t, int64_t timeout_ms)
{
    team_init_plain(t, 2, 2, 1);
    t->update = false;
    t->timeout_ms = timeout_ms;
    team_open(t);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&t->ranks[i].thread, NULL, start_rank, &t->ranks[i]), 0);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(t->ranks[i].thread, NULL), 0);
        ck_assert_msg(t->ranks[i].status == STATUS_OK, "%s", t->ranks[i].err.text);
    }
}

/* Check that rank 0's step fails with `wanted` and a text that contains `part`. */
static void assert_step_fails(struct team *t, enum status wanted, const char *part)
{
    struct team_rank *r = &t->ranks[0];
    struct error err;

    (void)team_step(r, 1);
    err = r->err;
    assert_fails(err.status, wanted, part);
}

START_TEST(test_a_failed_rank_is_named)
{
    struct team t;
    struct error reason = {0};

    pair_open(&t, 20000);
    (void)error_set(&reason, STATUS_NO_SPACE, "the disk is full");
    sync_close(t.ranks[1].sync, &reason);
    t.ranks[1].sync = NULL;
    assert_step_fails(&t, STATUS_PEER_LOST, "rank 1 failed: the disk is full");
    ck_assert_ptr_nonnull(strstr(t.ranks[0].err.text, "--servers"));
    team_close(&t);
}
END_TEST

START_TEST(test_a_silent_rank_is_named)
{
    struct team t;
    int64_t before_ns;

    pair_open(&t, EXPIRING_TIMEOUT_MS);
    before_ns = clock_now_ns();
    assert_step_fails(&t, STATUS_TIMEOUT, "in round 1 for rank 1");
    ck_assert_int_lt(clock_now_ns() - before_ns, (EXPIRING_TIMEOUT_MS + INT64_C(10000)) * 1000000);
    ck_assert_int_eq(team_step(&t.ranks[1], 1), STATUS_TIMEOUT);
    team_close(&t);
}
END_TEST

START_TEST(test_a_stopped_server_is_named)
{
    struct team t;

    pair_open(&t, 20000);
    service_close(t.servers.services[1]);
    t.servers.services[1] = NULL;
    assert_step_fails(&t, STATUS_UNAVAILABLE, "is stopping (0 rounds were complete)");
    ck_assert_ptr_nonnull(strstr(t.ranks[0].err.text, strchr(t.servers.addresses, ',') + 1));
    team_close(&t);
}
END_TEST

/* ------------------------------------------------------------------ one rank */

static void *close_well(void *user)
{
    sync_close(user, NULL);
    return NULL;
}

/* A server that is stopped for a while, as on a busy host, when its rank leaves. */
START_TEST(test_a_slow_server_receives_the_leave)
{
    const struct timespec away = {.tv_sec = 2, .tv_nsec = 500000000};
    const char *listening;
    struct team t;
    struct team_rank *r = &t.ranks[0];
    struct process server;

    team_init_plain(&t, 1, 0, 1);
    team_open(&t);
    process_start(&server, NULL,
                  ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0"));
    process_wait_output(&server, "serving on 127.0.0.1:", 20000);
    listening = strstr(process_output(&server), "127.0.0.1:");
    (void)snprintf(r->servers, sizeof(r->servers), "%.*s", (int)strcspn(listening, "\n"),
                   listening);
    ck_assert_msg(team_start_rank(r) == STATUS_OK && team_step(r, 1) == STATUS_OK, "%s",
                  r->err.text);
    process_signal(&server, SIGSTOP);
    ck_assert_int_eq(pthread_create(&r->thread, NULL, close_well, r->sync), 0);
    r->sync = NULL;
    (void)nanosleep(&away, NULL);
    process_signal(&server, SIGCONT);
    ck_assert_int_eq(pthread_join(r->thread, NULL), 0);
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, 20000), 0);
    ck_assert_msg(strstr(process_output(&server), "job 'test' is done") != NULL, "%s",
                  process_output(&server));
    team_close(&t);
}
END_TEST

START_TEST(test_a_missing_rank_is_named)
{
    struct team t;
    struct error err;

    team_init_plain(&t, 3, 1, 1);
    t.timeout_ms = EXPIRING_TIMEOUT_MS;
    team_open(&t);
    (void)team_start_rank(&t.ranks[1]);
    err = t.ranks[1].err;
    assert_fails(err.status, STATUS_TIMEOUT, "2 of 3 ranks: 0, 2 are missing");
    team_close(&t);
}
END_TEST

/* Check that the start of a worker with these --servers fails; no test server is open. */
static void assert_start_fails(const char *servers, int64_t timeout_ms, enum status wanted,
                               const char *part)
{
    struct team t;
    struct error err;

    team_init_plain(&t, 1, 0, 1);
    t.timeout_ms = timeout_ms;
    team_open(&t);
    (void)snprintf(t.ranks[0].servers, sizeof(t.ranks[0].servers), "%s", servers);
    (void)team_start_rank(&t.ranks[0]);
    err = t.ranks[0].err;
    assert_fails(err.status, wanted, part);
    team_close(&t);
}

START_TEST(test_a_missing_server_is_named)
{
    assert_start_fails("127.0.0.1:1", 300, STATUS_UNREACHABLE,
                       "rank 0, parameter server 127.0.0.1:1 (--servers)");
}
END_TEST

START_TEST(test_bad_server_lists)
{
    static const struct {
        const char *servers, *text;
        enum status wanted;
    } cases[] = {
        {"", "--servers", STATUS_CONFIG},
        {"127.0.0.1", "'127.0.0.1' is not host:port", STATUS_CONFIG},
        {"127.0.0.1:1,", "--servers: ''", STATUS_CONFIG},
        {"127.0.0.1:1,127.0.0.1:1", "'127.0.0.1:1' is there twice", STATUS_INVALID},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_start_fails(cases[i].servers, 20000, cases[i].wanted, cases[i].text);
}
END_TEST

/* More servers than partitions: no call is made to those without a partition. */
START_TEST(test_more_servers_than_partitions)
{
    struct team t;
    struct team_rank *r = &t.ranks[0];
    size_t used;

    team_init_plain(&t, 1, 1, 1);
    t.table.count = TEAM_PARTITION_BYTES / sizeof(float) / 2; /* one partition */
    team_open(&t);
    used = strlen(r->servers);
    for (unsigned port = 1; port <= 7; port++) /* no server listens there */
        used +=
            (size_t)snprintf(r->servers + used, sizeof(r->servers) - used, ",127.0.0.1:%u", port);
    ck_assert_msg(team_start_rank(r) == STATUS_OK, "%s", r->err.text);
    team_close(&t);
}
END_TEST

int main(void)
{
    log_set_level(LOG_QUIET); /* the services log why their jobs end */
    return SUPPORT_RUN("ps_ends", 30, TEST(test_a_failed_rank_is_named),
                       TEST(test_a_silent_rank_is_named), TEST(test_a_stopped_server_is_named),
                       TEST(test_a_slow_server_receives_the_leave),
                       TEST(test_a_missing_rank_is_named), TEST(test_a_missing_server_is_named),
                       TEST(test_bad_server_lists), TEST(test_more_servers_than_partitions));
}
