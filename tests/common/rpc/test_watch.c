/*
 * test_watch: a unary call with keepalive ends when health checks stay unanswered, and not before.
 * A stop that interrupts waits ends any call.
 */
#include "tests/common/rpc/rpc_support.h"
#include "tests/support/fault_proxy.h"

#include "common/base/clock.h"
#include "common/base/stop.h"

#include <signal.h>

#define DEADLINE_MS INT64_C(60000) /* must not be reached */

static struct error err;

static struct rpc_client *watching_client(uint16_t port)
{
    struct rpc_client_config config = {
        .target = {"127.0.0.1", port},
        .keepalive = {.interval_ms = 300, .timeout_ms = 1200, .option = "--patience"}};
    struct rpc_client *client;

    assert_ok(rpc_client_open(&config, &client, &err));
    return client;
}

START_TEST(unanswered_checks_end_a_call)
{
    struct rpc_client *client;
    struct fault_proxy *proxy;
    struct echo echo;
    int64_t before_ns;

    echo_open(&echo, 1);
    proxy = fault_proxy_open(rpc_server_port(echo.server), 1);
    client = watching_client(fault_proxy_port(proxy));
    ck_assert_int_eq(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err), STATUS_OK);
    fault_proxy_freeze(proxy, 0, _i == 0);
    before_ns = clock_now_ns();
    assert_fails(echo_ask(client, _i == 1 ? ECHO_UNARY : ECHO_HOLD, DEADLINE_MS, &err),
                 STATUS_PEER_LOST, "nothing was heard of 127.0.0.1:");
    assert_fails(err.status, STATUS_PEER_LOST, " for 1200 ms (--patience) while /test.v1.Echo/");
    ck_assert_int_ge(clock_now_ns() - before_ns, INT64_C(1200000000));
    ck_assert_int_lt(clock_now_ns() - before_ns, INT64_C(15000000000)); /* keepalive: 30 s */
    rpc_client_close(client);
    fault_proxy_close(proxy);
    echo_close(&echo, 0);
}
END_TEST

/* The server is alive: its call may be held until the deadline. */
START_TEST(held_call_with_answered_checks_continues)
{
    struct rpc_client *client;
    struct echo echo;

    echo_open(&echo, 1);
    client = watching_client(rpc_server_port(echo.server));
    ck_assert_int_eq(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err), STATUS_OK);
    assert_fails(echo_ask(client, ECHO_HOLD, 3000, &err), STATUS_TIMEOUT, "/test.v1.Echo/Hold");
    rpc_server_drain(echo.server); /* an error reply also proves that it is alive */
    assert_fails(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err), STATUS_UNAVAILABLE,
                 "the server is draining");
    rpc_client_close(client);
    echo_close(&echo, 0);
}
END_TEST

/* Without a connection nothing counts as unanswered: the server may start later. */
START_TEST(no_connection_does_not_count_as_unanswered)
{
    struct rpc_client *client = watching_client(support_port());

    assert_fails(echo_ask(client, ECHO_UNARY, 2000, &err), STATUS_UNREACHABLE, "cannot reach");
    rpc_client_close(client);
}
END_TEST

START_TEST(stop_interrupts_waits_when_allowed)
{
    struct rpc_client *client = _i == 0 ? watching_client(support_port()) : NULL;
    struct rpc_client_config plain = {.target = {"127.0.0.1", support_port()}};

    if (!client)
        assert_ok(rpc_client_open(&plain, &client, &err));
    assert_ok(stop_install(&err));
    stop_set_waits(STOP_WAITS_NOW);
    assert_fails(echo_ask(client, ECHO_UNARY, 300, &err), STATUS_UNREACHABLE, "cannot reach");
    ck_assert_int_eq(raise(SIGTERM), 0);
    assert_fails(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err), STATUS_CANCELLED,
                 "stopped by signal 15 while /test.v1.Echo/");
    stop_set_waits(STOP_WAITS_LATE); /* as while waiting for departures */
    assert_fails(echo_ask(client, ECHO_UNARY, 300, &err), STATUS_UNREACHABLE, "cannot reach");
    rpc_client_close(client);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_watch", 100, LOOP_TEST(unanswered_checks_end_a_call, 0, 2),
                       TEST(held_call_with_answered_checks_continues),
                       TEST(no_connection_does_not_count_as_unanswered),
                       LOOP_TEST(stop_interrupts_waits_when_allowed, 0, 2));
}
