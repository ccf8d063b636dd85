/*
 * test_health: grpc.health.v1 as our client and as a stock client (Python's grpcio, where it is
 * installed) see it, and that the stock client can exchange tensor chunks.
 */
#include "tests/common/rpc/rpc_support.h"
#include "tests/support/process.h"

#include "common/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK       "/grpc.health.v1.Health/Check"
#define WATCH       "/grpc.health.v1.Health/Watch"
#define DEADLINE_MS 20000

enum { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };

static struct error err;
static struct echo echo;
static struct rpc_client *client;

static void open_pair(void)
{
    echo_open(&echo, 2);
    client = client_open(rpc_server_port(echo.server));
}

/* HealthCheckResponse: field 1, a varint. */
static unsigned read_state(const uint8_t *bytes, size_t size)
{
    ck_assert_uint_eq(size, 2);
    ck_assert_uint_eq(bytes[0], 1 << 3);
    return bytes[1];
}

static enum status call_check(const char *service, unsigned *ret_state)
{
    uint8_t request[130];
    uint8_t *reply;
    size_t size = make_text(request, service);
    enum status status = rpc_client_unary(client, CHECK, request, service[0] ? size : 0,
                                          clock_deadline_ns(DEADLINE_MS), &reply, &size, &err);

    if (status == STATUS_OK) {
        *ret_state = read_state(reply, size);
        free(reply);
    }
    return status;
}

START_TEST(check_replies_for_each_service)
{
    unsigned state = 0;

    open_pair();
    assert_ok(call_check("", &state));
    ck_assert_uint_eq(state, SERVING);
    assert_ok(call_check("test.v1.Echo", &state));
    ck_assert_uint_eq(state, SERVING);
    assert_fails(call_check("test.v1.Other", &state), STATUS_NOT_FOUND, "unknown service");
    rpc_server_drain(echo.server);
    assert_ok(call_check("test.v1.Echo", &state)); /* health checks are served while draining */
    ck_assert_uint_eq(state, NOT_SERVING);
    assert_fails(call_check("a\xff", &state), STATUS_DATA, "field 'service'");
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

static void keep_state(struct seen *seen, struct rpc_message *message)
{
    size_t size;
    const uint8_t *bytes = rpc_message_head(message, &size);

    *(unsigned *)seen->user = read_state(bytes, size);
}

static struct rpc_call *start_watch(struct seen *seen, const char *service, unsigned *state)
{
    uint8_t request[130];
    size_t size = make_text(request, service);
    struct rpc_call *call;

    seen_init(seen);
    seen->on_message = keep_state;
    seen->user = state;
    assert_ok(rpc_client_call(client, WATCH, INT64_MAX, &seen_handler, seen, &call, &err));
    ck_assert_int_eq(rpc_call_send(call, request, size, NULL), STATUS_OK);
    rpc_call_send_done(call);
    rpc_call_receive(call);
    return call;
}

START_TEST(watch_reports_every_change)
{
    struct seen known;
    struct seen unknown;
    struct rpc_call *calls[2];
    unsigned known_state = 0;
    unsigned unknown_state = 0;
    int64_t before;

    open_pair();
    calls[0] = start_watch(&known, "test.v1.Echo", &known_state);
    calls[1] = start_watch(&unknown, "test.v1.Other", &unknown_state);
    seen_wait_messages(&known, 1);
    seen_wait_messages(&unknown, 1);
    ck_assert_uint_eq(known_state, SERVING);
    ck_assert_uint_eq(unknown_state, SERVICE_UNKNOWN);
    rpc_server_drain(echo.server);
    rpc_server_drain(echo.server); /* repeated: not a change */
    seen_wait_messages(&known, 2);
    ck_assert_uint_eq(known_state, NOT_SERVING);
    before = clock_now_ns();
    echo_close(&echo, DEADLINE_MS); /* watches do not use up the grace period */
    ck_assert_int_lt(clock_now_ns() - before, (int64_t)DEADLINE_MS * 1000000 / 2);
    for (int i = 0; i < 2; i++) {
        struct seen *seen = i ? &unknown : &known;

        seen_wait_closed(seen);
        ck_assert_int_eq(seen->result.status, STATUS_UNAVAILABLE);
        ck_assert_str_eq(seen->result.text, "the server is closing");
        ck_assert_uint_eq(seen->messages, i ? 1 : 2);
        rpc_call_unref(calls[i]);
    }
    rpc_client_close(client);
}
END_TEST

/* A watch without a request must not delay the server's close. */
START_TEST(watch_without_a_request_ends_with_the_server)
{
    struct seen seen;
    struct rpc_call *call;
    unsigned state = 0;
    int64_t before;

    open_pair();
    seen_init(&seen);
    assert_ok(rpc_client_call(client, WATCH, INT64_MAX, &seen_handler, &seen, &call, &err));
    assert_ok(
        call_check("", &state)); /* after the watch on the same connection: the watch has arrived */
    before = clock_now_ns();
    echo_close(&echo, DEADLINE_MS);
    ck_assert_int_lt(clock_now_ns() - before, (int64_t)DEADLINE_MS * 1000000 / 2);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_UNAVAILABLE);
    ck_assert_str_eq(seen.result.text, "the server is closing");
    rpc_call_unref(call);
    rpc_client_close(client);
}
END_TEST

START_TEST(watches_may_be_cancelled)
{
    struct seen seen[10];
    unsigned state[10];
    struct rpc_call *calls[10];

    open_pair();
    for (size_t i = 0; i < 10; i++)
        calls[i] = start_watch(&seen[i], "", &state[i]);
    for (size_t i = 0; i < 10; i++)
        seen_wait_messages(&seen[i], 1);
    for (size_t i = 0; i < 10; i += 2)
        rpc_call_cancel(calls[i]);
    for (size_t i = 0; i < 10; i += 2)
        seen_wait_closed(&seen[i]);
    rpc_server_drain(echo.server);
    for (size_t i = 1; i < 10; i += 2)
        seen_wait_messages(&seen[i], 2);
    rpc_client_close(client);
    for (size_t i = 0; i < 10; i++)
        rpc_call_unref(calls[i]);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(stock_client)
{
    const char *python = support_python();
    struct process probe;
    char port[8];

    process_start(&probe, NULL, ARGS(python, "-c", "import grpc"));
    if (process_wait(&probe, 60000) != 0) {
        (void)printf("skipped: stock_client needs Python's grpc module (python3-grpcio)\n");
        return;
    }
    echo_open(&echo, 2);
    (void)snprintf(port, sizeof(port), "%u", rpc_server_port(echo.server));
    ck_assert_ptr_nonnull(
        strstr(process_run(0, 60000, NULL,
                           ARGS(python, support_source("tests/common/rpc/stock_client.py"), port)),
               "stock client: all answers as expected"));
    echo_close(&echo, DEADLINE_MS);
    ck_assert_uint_eq(echo.sent, echo.released);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_health", 100, TEST(check_replies_for_each_service),
                       TEST(watch_reports_every_change),
                       TEST(watch_without_a_request_ends_with_the_server),
                       TEST(watches_may_be_cancelled), TEST(stock_client));
}
