/*
 * test_reach: connecting to a server: one that is down, or not up yet; the origin of a failure;
 * listening addresses; resources of a client and a server without calls.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEADLINE_MS 20000
#define EXPIRING_DEADLINE_MS                                                                       \
    4000 /* a deadline that expires in the test, after a probe of the server */

static struct error err;

/* ------------------------------------------------------------------ reaching a server */

START_TEST(connect_without_a_listener_fails)
{
    struct rpc_client *client = client_open(1);
    int64_t before = clock_now_ns();

    assert_fails(echo_ask(client, ECHO_UNARY, EXPIRING_DEADLINE_MS, &err), STATUS_UNREACHABLE,
                 "cannot reach 127.0.0.1:1 within");
    ck_assert_ptr_nonnull(strstr(err.text, "Connection refused"));
    ck_assert_int_ge(clock_now_ns() - before, (int64_t)EXPIRING_DEADLINE_MS * 1000000);
    ck_assert_int_lt(clock_now_ns() - before, (EXPIRING_DEADLINE_MS + INT64_C(10000)) * 1000000);
    rpc_client_close(client);
}
END_TEST

START_TEST(unknown_host_name_fails)
{
    struct rpc_client_config config = {.target = {"no-such-host.invalid", 4711}};
    struct rpc_client *client;

    assert_ok(rpc_client_open(&config, &client, &err));
    assert_fails(echo_ask(client, ECHO_UNARY, 500, &err), STATUS_UNREACHABLE,
                 "cannot reach no-such-host.invalid:4711 within");
    rpc_client_close(client);
}
END_TEST

static void *ask_in_thread(void *user)
{
    ck_assert_msg(echo_ask(user, ECHO_UNARY, DEADLINE_MS, &err) == STATUS_OK, "%s", err.text);
    return NULL;
}

START_TEST(client_waits_for_a_later_server)
{
    uint16_t port = support_port();
    struct rpc_client *client = client_open(port);
    struct rpc_server_config config = {.listen = {"127.0.0.1", port}, .listen_origin = "the test"};
    struct echo echo;
    pthread_t thread;

    assert_fails(echo_ask(client, ECHO_UNARY, 150, &err), STATUS_UNREACHABLE, "cannot reach");
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_in_thread, client), 0);
    echo_open_with(&echo, &config);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* The origin of a failure: sent by the server, or caused by the connection. */
static enum status ask_for(struct rpc_client *client, const char *path, int64_t deadline_ns,
                           bool *ret_by_peer)
{
    uint8_t request[130];
    size_t size = make_text(request, "x");
    uint8_t *reply = NULL;
    enum status status = rpc_client_unary_with_origin(client, path, request, size, deadline_ns,
                                                      &reply, &size, ret_by_peer, &err);

    free(reply);
    return status;
}

START_TEST(failure_reports_its_origin)
{
    struct echo echo;
    struct rpc_client *client;
    enum status status;
    bool by_peer = true;

    echo_open(&echo, 1);
    client = client_open(rpc_server_port(echo.server));
    assert_ok(ask_for(client, ECHO_UNARY, clock_deadline_ns(DEADLINE_MS), &by_peer));
    ck_assert(!by_peer);
    assert_fails(ask_for(client, ECHO_FAIL, clock_deadline_ns(DEADLINE_MS), &by_peer),
                 STATUS_MISMATCH, "x");
    ck_assert(by_peer);
    assert_fails(ask_for(client, ECHO_HOLD, clock_deadline_ns(EXPIRING_DEADLINE_MS), &by_peer),
                 STATUS_TIMEOUT, "did not end within");
    ck_assert(!by_peer);
    echo_close(&echo, 0);
    /* The first call may still be sent on the ending connection, and is lost with it. */
    status = ask_for(client, ECHO_UNARY, clock_deadline_ns(500), &by_peer);
    ck_assert(status == STATUS_PEER_LOST || status == STATUS_UNREACHABLE);
    ck_assert(!by_peer);
    assert_fails(ask_for(client, ECHO_UNARY, clock_deadline_ns(500), &by_peer), STATUS_UNREACHABLE,
                 "cannot reach");
    ck_assert(!by_peer);
    rpc_client_close(client);
}
END_TEST

struct held_ask {
    struct rpc_client *client;
    enum status status;
    bool by_peer;
};

static void *ask_held(void *user)
{
    struct held_ask *a = user;

    a->status = ask_for(a->client, ECHO_HOLD, clock_deadline_ns(DEADLINE_MS), &a->by_peer);
    return NULL;
}

/* From another thread; the client remains usable. */
START_TEST(open_calls_are_cancelled)
{
    struct echo echo;
    struct held_ask a = {.by_peer = true};
    pthread_t thread;

    echo_open(&echo, 1);
    a.client = client_open(rpc_server_port(echo.server));
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_held, &a), 0);
    echo_wait(&echo, &echo.held, 1);
    rpc_client_cancel(a.client);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    assert_fails(a.status, STATUS_CANCELLED, "was cancelled");
    ck_assert(!a.by_peer);
    ck_assert_msg(echo_ask(a.client, ECHO_UNARY, DEADLINE_MS, &err) == STATUS_OK, "%s", err.text);
    rpc_client_close(a.client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* ------------------------------------------------------------------ binding */

START_TEST(second_server_on_a_port_names_the_holder)
{
    struct rpc_server_config config = {.listen = {"127.0.0.1", support_port()},
                                       .listen_origin = "--listen"};
    struct echo first;
    struct echo second;
    char holder[64];

    echo_open_with(&first, &config);
    assert_fails(echo_try_open(&second, &config, &err), STATUS_IO, "(from --listen)");
    (void)snprintf(holder, sizeof(holder), "in use by pid %d", (int)getpid());
    ck_assert_msg(strstr(err.text, holder), "'%s' lacks '%s'", err.text, holder);
    echo_close(&first, 0);
    echo_open_with(&second, &config); /* and free again */
    echo_close(&second, 0);
}
END_TEST

START_TEST(plaintext_stays_on_loopback)
{
    struct rpc_server_config config = {.listen = {"0.0.0.0", 0}, .listen_origin = "--listen"};
    struct echo echo;

    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID,
                 "refusing to listen on 0.0.0.0:0 (from --listen) without encryption");
    config.listen = (struct endpoint){"::", 0};
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID, "refusing to listen");
    config.security.insecure = true;
    config.listen = (struct endpoint){"0.0.0.0", 0};
    echo_open_with(&echo, &config);
    ck_assert_uint_ne(rpc_server_port(echo.server), 0);
    echo_close(&echo, 0);
    config = (struct rpc_server_config){.listen = {"localhost", 0}, .listen_origin = "--listen"};
    echo_open_with(&echo, &config);
    echo_close(&echo, 0);
}
END_TEST

START_TEST(bad_addresses_and_methods)
{
    struct rpc_server_config config = {.listen = {"no-such-host.invalid", 0},
                                       .listen_origin = "--listen"};
    const struct rpc_method twice[] = {{.path = "/a.B/C", .handler = &seen_handler},
                                       {.path = "/a.B/C", .handler = &seen_handler}};
    struct echo echo;
    struct rpc_server *server;

    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID,
                 "cannot listen on 'no-such-host.invalid' (from --listen)");
    config.listen = (struct endpoint){"192.0.2.1", 0}; /* TEST-NET-1: not a local address */
    config.security.insecure = true;
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_IO, "cannot listen on 192.0.2.1:0");
    config.listen = (struct endpoint){"127.0.0.1", 0};
    config.methods = twice;
    config.method_count = 2;
    assert_fails(rpc_server_open(&config, &server, &err), STATUS_INVALID,
                 "method '/a.B/C' is given twice");
    config.methods = &(const struct rpc_method){.path = "Check", .handler = &seen_handler};
    config.method_count = 1;
    assert_fails(rpc_server_open(&config, &server, &err), STATUS_INVALID, "'Check'");
}
END_TEST

/* ------------------------------------------------------------------ connections */

/* Connections of this process to `port`: the clients' ends.  Not those of the whole host: the
 * client of another process may have this port number at its end. */
static unsigned count_connections(uint16_t port)
{
    unsigned found = 0;

    for (int fd = 0; fd < (int)sysconf(_SC_OPEN_MAX) && fd < 4096; fd++) {
        union {
            struct sockaddr any;
            struct sockaddr_in v4;
            struct sockaddr_in6 v6;
        } peer = {.any.sa_family = AF_UNSPEC};
        socklen_t length = sizeof(peer);

        if (getpeername(fd, &peer.any, &length) != 0)
            continue;
        found += (peer.any.sa_family == AF_INET && ntohs(peer.v4.sin_port) == port) ||
                 (peer.any.sa_family == AF_INET6 && ntohs(peer.v6.sin6_port) == port);
    }
    return found;
}

START_TEST(each_client_has_its_own_connection)
{
    struct rpc_client *clients[4];
    struct echo echo;

    echo_open(&echo, 2);
    for (size_t i = 0; i < 4; i++) {
        clients[i] = client_open(rpc_server_port(echo.server));
        assert_ok(echo_ask(clients[i], ECHO_UNARY, DEADLINE_MS, &err));
        assert_ok(echo_ask(clients[i], ECHO_UNARY, DEADLINE_MS, &err));
        ck_assert_uint_eq(count_connections(rpc_server_port(echo.server)), i + 1);
    }
    for (size_t i = 0; i < 4; i++)
        rpc_client_close(clients[i]);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(unused_client_and_server_close)
{
    struct echo echo;

    echo_open(&echo, 0);
    rpc_client_close(client_open(rpc_server_port(echo.server)));
    rpc_client_close(NULL);
    echo_close(&echo, DEADLINE_MS);
    rpc_server_close(NULL, 0);
    ck_assert_uint_gt(strspn(rpc_library_version(), "0123456789."), 2);
}
END_TEST

START_TEST(failed_allocations_while_opening)
{
    struct rpc_server_config config = {
        .listen = {"127.0.0.1", 0}, .listen_origin = "the test", .threads = 2};
    struct rpc_client_config target = {.target = {"127.0.0.1", 1}};
    enum status status = STATUS_NO_MEMORY;
    size_t failed = 0;

    for (size_t n = 1; status != STATUS_OK; n++) {
        struct echo echo;

        mem_fail_nth(n);
        status = echo_try_open(&echo, &config, &err);
        mem_fail_nth(0);
        ck_assert(status == STATUS_OK || status == STATUS_NO_MEMORY);
        failed += status != STATUS_OK;
        if (status == STATUS_OK)
            echo_close(&echo, 0);
    }
    ck_assert_uint_gt(failed, 10);
    for (size_t n = 1; n <= 2; n++) {
        struct rpc_client *client = NULL;
        struct rpc_call *call;
        struct seen seen;

        mem_fail_nth(n);
        status = rpc_client_open(&target, &client, &err);
        ck_assert_int_eq(status, n == 1 ? STATUS_NO_MEMORY : STATUS_OK);
        if (status == STATUS_OK)
            assert_fails(
                rpc_client_call(client, ECHO_HOLD, INT64_MAX, &seen_handler, &seen, &call, &err),
                STATUS_NO_MEMORY, "call");
        mem_fail_nth(0);
        rpc_client_close(client);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "rpc_reach", 60, TEST(connect_without_a_listener_fails), TEST(unknown_host_name_fails),
        TEST(client_waits_for_a_later_server), TEST(failure_reports_its_origin),
        TEST(open_calls_are_cancelled), TEST(second_server_on_a_port_names_the_holder),
        TEST(plaintext_stays_on_loopback), TEST(bad_addresses_and_methods),
        TEST(each_client_has_its_own_connection), TEST(unused_client_and_server_close),
        TEST(failed_allocations_while_opening));
}
