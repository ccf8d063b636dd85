/*
 * test_counts: a server's counters of calls, by method and by status.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_MS 20000

static struct error err;
static struct echo echo;
static struct rpc_client *client;

static struct rpc_call_counts counts_of(const char *path)
{
    struct rpc_call_counts counts;

    for (size_t i = 0; i < rpc_server_method_count(echo.server); i++) {
        rpc_server_counts(echo.server, i, &counts);
        if (strcmp(counts.path, path) == 0)
            return counts;
    }
    ck_abort_msg("no counts of '%s'", path);
    return counts;
}

static uint64_t all_ended(const struct rpc_call_counts *counts)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < STATUS_COUNT; i++)
        sum += counts->ended[i];
    return sum;
}

/* The client sees the end of its call before the server has closed it. */
static struct rpc_call_counts wait_for_ended(const char *path, uint64_t wanted)
{
    int64_t deadline_ns = clock_deadline_ns(DEADLINE_MS);
    struct rpc_call_counts counts = counts_of(path);

    while (all_ended(&counts) < wanted) {
        ck_assert_msg(clock_now_ns() < deadline_ns, "'%s' never ended", path);
        (void)sched_yield();
        counts = counts_of(path);
    }
    ck_assert_uint_eq(all_ended(&counts), wanted);
    return counts;
}

static enum status call_unary(const char *path)
{
    uint8_t request[130];
    uint8_t *reply = NULL;
    size_t size = make_text(request, "words");
    enum status status = rpc_client_unary(client, path, request, size,
                                          clock_deadline_ns(DEADLINE_MS), &reply, &size, &err);

    free(reply);
    return status;
}

START_TEST(every_end_is_counted_once)
{
    struct rpc_call_counts counts;

    echo_open(&echo, 2);
    client = client_open(rpc_server_port(echo.server));
    counts = counts_of(ECHO_UNARY);
    ck_assert_uint_eq(counts.started, 0);
    ck_assert_uint_eq(all_ended(&counts), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_ok(call_unary(ECHO_UNARY));
    assert_fails(call_unary(ECHO_FAIL), STATUS_MISMATCH, "words");
    assert_fails(call_unary("/test.v1.Echo/Nothing"), STATUS_UNSUPPORTED, "no method");
    assert_fails(call_unary("/nobody"), STATUS_UNSUPPORTED, "no method");
    assert_ok(call_unary("/grpc.health.v1.Health/Check") == STATUS_NOT_FOUND ? STATUS_OK
                                                                             : STATUS_INTERNAL);
    counts = wait_for_ended(ECHO_UNARY, 3);
    ck_assert_uint_eq(counts.started, 3);
    ck_assert_uint_eq(counts.ended[-STATUS_OK], 3);
    counts = wait_for_ended(ECHO_FAIL, 1);
    ck_assert_uint_eq(counts.ended[-STATUS_MISMATCH], 1);
    counts = wait_for_ended("other", 2);
    ck_assert_uint_eq(counts.ended[-STATUS_UNSUPPORTED], 2);
    counts = wait_for_ended("/grpc.health.v1.Health/Check", 1);
    ck_assert_uint_eq(counts.ended[-STATUS_NOT_FOUND], 1);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(an_open_call_is_started_and_not_ended)
{
    struct rpc_call_counts counts;
    struct seen seen;
    struct rpc_call *held;

    echo_open(&echo, 1);
    client = client_open(rpc_server_port(echo.server));
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_HOLD, INT64_MAX, &seen_handler, &seen, &held, &err));
    echo_wait(&echo, &echo.held, 1);
    counts = counts_of(ECHO_HOLD);
    ck_assert_uint_eq(counts.started, 1);
    ck_assert_uint_eq(all_ended(&counts), 0);
    rpc_call_cancel(held);
    counts = wait_for_ended(ECHO_HOLD, 1);
    ck_assert_uint_eq(counts.ended[-STATUS_PEER_LOST], 1);
    seen_wait_closed(&seen);
    rpc_call_unref(held);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(rejected_call_is_counted)
{
    struct rpc_server_config config = {
        .listen = {"127.0.0.1", 0}, .listen_origin = "the test", .threads = 1, .max_calls = 1};
    struct rpc_call_counts counts;
    struct seen seen;
    struct rpc_call *held;

    echo_open_with(&echo, &config);
    client = client_open(rpc_server_port(echo.server));
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_HOLD, INT64_MAX, &seen_handler, &seen, &held, &err));
    echo_wait(&echo, &echo.held, 1);
    ck_assert_int_ne(call_unary(ECHO_UNARY), STATUS_OK);
    counts = wait_for_ended(ECHO_UNARY, 1);
    ck_assert_uint_eq(counts.started, 1);
    ck_assert_uint_eq(counts.ended[-STATUS_NO_MEMORY], 1);
    rpc_call_cancel(held);
    seen_wait_closed(&seen);
    rpc_call_unref(held);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_counts", 100, TEST(every_end_is_counted_once),
                       TEST(an_open_call_is_started_and_not_ended), TEST(rejected_call_is_counted));
}
