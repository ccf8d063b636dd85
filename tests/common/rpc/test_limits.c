/*
 * test_limits: a server's limits for its peers: open calls, message sizes, memory of all
 * connections.  Calls beyond a limit fail, and other calls are served as before.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

#define DEADLINE_MS         20000
#define MAX_CALLS           32u
#define MAX_UNAUTHENTICATED 3u /* a sixteenth, and one */

static struct error err;
static struct echo echo;

static void open_echo(const struct rpc_server_config *limits)
{
    struct rpc_server_config config = *limits;

    config.listen = (struct endpoint){"127.0.0.1", 0};
    config.listen_origin = "the test";
    echo_open_with(&echo, &config);
}

static struct rpc_call *open_call(struct rpc_client *client, const char *path, struct seen *seen)
{
    struct rpc_call *call;

    seen_init(seen);
    assert_ok(rpc_client_call(client, path, clock_deadline_ns(DEADLINE_MS), &seen_handler, seen,
                              &call, &err));
    rpc_call_receive(call);
    return call;
}

START_TEST(open_calls_have_a_limit)
{
    static struct seen seen[MAX_CALLS], watches[MAX_UNAUTHENTICATED];
    struct rpc_call *calls[MAX_CALLS], *watching[MAX_UNAUTHENTICATED];
    struct rpc_client *client;

    open_echo(&(struct rpc_server_config){.max_calls = MAX_CALLS});
    client = client_open(rpc_server_port(echo.server));
    for (unsigned i = 0; i < MAX_CALLS; i++)
        calls[i] = open_call(client, ECHO_HOLD, &seen[i]);
    echo_wait(&echo, &echo.held, MAX_CALLS);
    assert_fails(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err), STATUS_PROTOCOL,
                 "as many calls open as it allows");

    /* Health checks have a separate limit. */
    assert_ok(echo_ask(client, "/grpc.health.v1.Health/Check", DEADLINE_MS, &err));
    for (unsigned i = 0; i < MAX_UNAUTHENTICATED; i++) {
        watching[i] = open_call(client, "/grpc.health.v1.Health/Watch", &watches[i]);
        ck_assert_int_eq(rpc_call_send(watching[i], (const uint8_t *)"", 0, NULL), STATUS_OK);
        seen_wait_messages(&watches[i], 1);
    }
    assert_fails(echo_ask(client, "/grpc.health.v1.Health/Check", DEADLINE_MS, &err),
                 STATUS_PROTOCOL, "as many calls open as it allows");

    rpc_call_cancel(calls[0]); /* makes room for one, once the server has processed it */
    echo_wait(&echo, &echo.closed, 1);
    while (echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err) !=
           STATUS_OK) /* `closed` runs just before the count is decremented */
        ck_assert_int_eq(err.status, STATUS_PROTOCOL);
    rpc_client_close(client);
    for (unsigned i = 0; i < MAX_CALLS; i++)
        rpc_call_unref(calls[i]);
    for (unsigned i = 0; i < MAX_UNAUTHENTICATED; i++)
        rpc_call_unref(watching[i]);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* One message far above the message limit fills core's buffers: the memory limit ends it, and the
 * server continues to serve. */
START_TEST(memory_has_an_emergency_limit)
{
    const size_t large = (size_t)1 << 30;
    void *zeros = calloc(large, 1); /* never written, so it costs no memory */
    struct rpc_client *client;
    struct rpc_call *call;
    struct seen seen;

    ck_assert_ptr_nonnull(zeros);
    open_echo(&(struct rpc_server_config){.max_memory_bytes = 64 << 20});
    client = client_open(rpc_server_port(echo.server));
    call = open_call(client, ECHO_STREAM, &seen);
    ck_assert_int_eq(rpc_call_send(call, NULL, 0, &(struct rpc_payload){zeros, large, NULL, NULL}),
                     STATUS_OK);
    seen_wait_closed(&seen);
    ck_assert_msg(strstr(seen.result.text, "RST_STREAM with error code 11") != NULL, "%s",
                  seen.result.text);
    rpc_call_unref(call);
    assert_ok(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err));
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
    free(zeros);
}
END_TEST

/* A message above core's message limit, but below its memory limit, fails with a text. */
START_TEST(messages_have_a_limit)
{
    static uint8_t data[6 << 20];
    struct rpc_client *client;
    struct rpc_call *call;
    struct seen seen;

    open_echo(&(struct rpc_server_config){0});
    client = client_open(rpc_server_port(echo.server));
    call = open_call(client, ECHO_STREAM, &seen);
    ck_assert_int_eq(
        rpc_call_send(call, NULL, 0, &(struct rpc_payload){data, sizeof(data), NULL, NULL}),
        STATUS_OK);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_PROTOCOL);
    ck_assert_uint_eq(seen.messages, 0);
    rpc_call_unref(call);
    assert_ok(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err));
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_limits", 100, TEST(open_calls_have_a_limit),
                       TEST(memory_has_an_emergency_limit), TEST(messages_have_a_limit));
}
