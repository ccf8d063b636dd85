/*
 * test_echo: unary and stream calls between our own client and server: contents, statuses,
 * deadlines, releases, and that every call ends exactly once.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define DEADLINE_MS 20000
#define EXPIRING_DEADLINE_MS                                                                       \
    4000 /* a deadline that expires in the test; it also bounds the connection attempt */

static struct echo echo;
static struct rpc_client *client;
static struct error err;

static void open_pair(void)
{
    echo_open(&echo, 2);
    client = client_open(rpc_server_port(echo.server));
}

static void close_pair(void)
{
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
    ck_assert_uint_eq(echo.sent, echo.released);
}

static enum status call_unary(const char *path, const char *text, int64_t timeout_ms,
                              uint8_t **ret_reply, size_t *ret_size)
{
    uint8_t request[130];
    size_t size = make_text(request, text);

    return rpc_client_unary(client, path, request, size, clock_deadline_ns(timeout_ms), ret_reply,
                            ret_size, &err);
}

START_TEST(unary_returns_the_reply)
{
    open_pair();
    for (int i = 0; i < 100; i++) {
        uint8_t wanted[130];
        size_t wanted_size = make_text(wanted, "hello");
        uint8_t *reply = NULL;
        size_t size = 0;

        assert_ok(call_unary(ECHO_UNARY, "hello", DEADLINE_MS, &reply, &size));
        ck_assert_uint_eq(size, wanted_size);
        ck_assert_mem_eq(reply, wanted, size);
        free(reply);
    }
    close_pair();
    ck_assert_uint_eq(echo.closed, 100);
    ck_assert_uint_eq(echo.cancelled, 0);
}
END_TEST

static void assert_option(int fd, bool within_host)
{
    char control[16] = "";
    int unsent = 0;
    socklen_t control_length = sizeof(control), unsent_length = sizeof(unsent);

    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &control_length), 0);
    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, &unsent_length), 0);
    if (within_host)
        ck_assert_str_eq(control, "reno");
    ck_assert_int_eq(unsent == NET_UNSENT, !within_host);
}

/* Core's own sockets: a listener, and both ends of a connection.  Within this host they are not
 * paced; between hosts, which 0.0.0.0 may be, the kernel takes little that it cannot send. */
START_TEST(options_of_sockets)
{
    const bool within_host = _i == 0;
    const char *address = within_host ? "127.0.0.1" : "0.0.0.0";
    struct rpc_client_config config = {.target = {.port = 0}};
    uint8_t *reply = NULL;
    size_t size = 0, found = 0;

    if (strncmp(rpc_library_version(), "29.", 3) != 0) { /* see socket_options.c */
        printf("skipped: gRPC core is %s, and its sockets are as it makes them\n",
               rpc_library_version());
        return;
    }
    (void)snprintf(config.target.host, sizeof(config.target.host), "%s", address);
    echo_open_with(&echo, &(struct rpc_server_config){.listen = config.target,
                                                      .listen_origin = "the test",
                                                      .security.insecure = true,
                                                      .threads = 2});
    config.target.port = rpc_server_port(echo.server);
    assert_ok(rpc_client_open(&config, &client, &err));
    assert_ok(call_unary(ECHO_UNARY, "hello", DEADLINE_MS, &reply, &size));
    free(reply);
    for (int fd = 0; fd < 256; fd++) {
        int protocol = 0;
        socklen_t length = sizeof(protocol);

        if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 ||
            protocol != IPPROTO_TCP)
            continue;
        assert_option(fd, within_host);
        found++;
    }
    ck_assert_uint_ge(found, 3);
    close_pair();
}
END_TEST

START_TEST(unary_with_empty_and_large_messages)
{
    static uint8_t request[1 << 20];
    size_t sizes[] = {0, sizeof(request)};

    open_pair();
    request[0] = 1 << 3 | 2; /* length as a varint of 3 bytes: 2^20 - 4 */
    request[1] = 0xfc;
    request[2] = 0xff;
    request[3] = 0x3f;
    for (size_t i = 0; i < 2; i++) {
        uint8_t *reply = NULL;
        size_t size = 1;

        assert_ok(rpc_client_unary(client, ECHO_UNARY, request, sizes[i],
                                   clock_deadline_ns(DEADLINE_MS), &reply, &size, &err));
        ck_assert_uint_eq(size, sizes[i]);
        ck_assert_int_eq(memcmp(reply, request, size), 0);
        free(reply);
    }
    close_pair();
}
END_TEST

START_TEST(status_is_transferred_by_name)
{
    uint8_t *reply;
    size_t size;

    open_pair();
    assert_fails(call_unary(ECHO_FAIL, "shapes differ", DEADLINE_MS, &reply, &size),
                 STATUS_MISMATCH, "shapes differ");
    close_pair();
}
END_TEST

START_TEST(unknown_method_fails_at_once)
{
    uint8_t *reply;
    size_t size;
    int64_t before = clock_now_ns();

    open_pair();
    for (int i = 0; i < 20; i++)
        assert_fails(call_unary("/test.v1.Echo/Missing", "", DEADLINE_MS, &reply, &size),
                     STATUS_UNSUPPORTED, "no method '/test.v1.Echo/Missing'");
    ck_assert_int_lt(clock_now_ns() - before, (int64_t)DEADLINE_MS * 1000000 / 2);
    close_pair();
}
END_TEST

START_TEST(deadline_ends_a_held_call)
{
    uint8_t *reply;
    size_t size;
    int64_t before;

    open_pair();
    before = clock_now_ns();
    assert_fails(call_unary(ECHO_HOLD, "", EXPIRING_DEADLINE_MS, &reply, &size), STATUS_TIMEOUT,
                 "did not end within");
    ck_assert_int_lt(clock_now_ns() - before, (EXPIRING_DEADLINE_MS + INT64_C(10000)) * 1000000);
    echo_wait(&echo, &echo.closed, 1);
    ck_assert_uint_eq(echo.cancelled, 1);
    close_pair();
}
END_TEST

#define CHUNK_BYTES (1 << 20)
#define CHUNKS      24

static void check_payload(struct seen *seen, struct rpc_message *message)
{
    static uint8_t copy[CHUNK_BYTES];
    size_t size = rpc_message_payload_size(message);
    struct error failure = {0};
    size_t head_size;

    ck_assert_uint_le(size, sizeof(copy));
    ck_assert_int_eq(rpc_message_copy(message, copy, size, &failure), STATUS_OK);
    ck_assert_int_eq(memcmp(copy, seen->user, size), 0);
    ck_assert_int_eq(rpc_message_copy(message, copy, size + 1, &failure), STATUS_DATA);
    ck_assert_mem_eq(rpc_message_head(message, &head_size), "\x08\x07", 2);
    ck_assert_uint_eq(head_size, 2);
}

START_TEST(stream_echoes_large_payloads)
{
    uint8_t *data = malloc(CHUNK_BYTES);
    atomic_uint released = 0;
    size_t sent_bytes = 0;
    struct rpc_call *call;
    struct seen seen;

    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < CHUNK_BYTES; i++)
        data[i] = (uint8_t)(support_random() * 256);
    open_pair();
    seen_init(&seen);
    seen.on_message = check_payload;
    seen.user = data;
    assert_ok(rpc_client_call(client, ECHO_STREAM, clock_deadline_ns(DEADLINE_MS), &seen_handler,
                              &seen, &call, &err));
    rpc_call_receive(call);
    for (unsigned i = 0; i < CHUNKS; i++) {
        size_t size = i % 3 == 0 ? CHUNK_BYTES : (size_t)(support_random() * CHUNK_BYTES);
        struct rpc_payload payload = {data, size, count_release, &released};

        sent_bytes += size;
        ck_assert_int_eq(rpc_call_send(call, (const uint8_t *)"\x08\x07", 2, &payload), STATUS_OK);
    }
    rpc_call_send_done(call);
    seen_wait_closed(&seen);
    ck_assert_msg(seen.result.status == STATUS_OK, "%s", seen.result.text);
    ck_assert_uint_eq(seen.messages, CHUNKS);
    ck_assert_uint_eq(seen.payload_bytes, sent_bytes);
    wait_for_count(&released, CHUNKS);
    ck_assert_int_eq(
        rpc_call_send(call, NULL, 0, &(struct rpc_payload){data, 4, count_release, &released}),
        STATUS_CANCELLED);
    ck_assert_uint_eq(atomic_load(&released), CHUNKS + 1);
    close_pair();
    ck_assert_uint_eq(seen.closed, 1);
    ck_assert_uint_eq(echo.sent, CHUNKS);
    ck_assert_uint_eq(echo.ends, 1);
    rpc_call_unref(call); /* after its client was closed: allowed */
    free(data);
}
END_TEST

START_TEST(many_concurrent_calls)
{
    enum { CALLS = 60, MESSAGES = 20 };
    static struct seen seen[CALLS];
    static float ones[1024];
    struct rpc_call *calls[CALLS];
    atomic_uint released = 0;

    for (size_t i = 0; i < 1024; i++)
        ones[i] = 1;
    open_pair();
    for (size_t i = 0; i < CALLS; i++) {
        seen_init(&seen[i]);
        assert_ok(rpc_client_call(client, ECHO_STREAM, clock_deadline_ns(DEADLINE_MS),
                                  &seen_handler, &seen[i], &calls[i], &err));
        rpc_call_receive(calls[i]);
    }
    for (size_t m = 0; m < MESSAGES; m++)
        for (size_t i = 0; i < CALLS; i++)
            ck_assert_int_eq(
                rpc_call_send(calls[i], NULL, 0,
                              &(struct rpc_payload){ones, 4 * i, count_release, &released}),
                STATUS_OK);
    for (size_t i = 0; i < CALLS; i++)
        rpc_call_send_done(calls[i]);
    for (size_t i = 0; i < CALLS; i++) {
        seen_wait_closed(&seen[i]);
        ck_assert_msg(seen[i].result.status == STATUS_OK, "%s", seen[i].result.text);
        ck_assert_uint_eq(seen[i].messages, MESSAGES);
        ck_assert_uint_eq(seen[i].payload_bytes, MESSAGES * 4 * i);
        rpc_call_unref(calls[i]);
    }
    close_pair();
    ck_assert_uint_eq(atomic_load(&released), CALLS * MESSAGES);
}
END_TEST

static void check_sum(struct seen *seen, struct rpc_message *message)
{
    float sum[1024];
    struct error failure = {0};

    ck_assert_int_eq(rpc_message_copy(message, sum, sizeof(sum), &failure), STATUS_OK);
    for (size_t i = 0; i < 1024; i++)
        ck_assert(sum[i] == 2 * ((const float *)seen->user)[i]);
}

START_TEST(floats_are_added_on_arrival)
{
    static float values[1024];
    struct rpc_call *call;
    struct seen seen;

    for (size_t i = 0; i < 1024; i++)
        values[i] = (float)support_random();
    open_pair();
    for (size_t bytes = sizeof(values); bytes >= sizeof(values) - 1; bytes--) {
        seen_init(&seen);
        seen.on_message = check_sum;
        seen.user = values;
        assert_ok(rpc_client_call(client, ECHO_ADD, clock_deadline_ns(DEADLINE_MS), &seen_handler,
                                  &seen, &call, &err));
        rpc_call_receive(call);
        ck_assert_int_eq(
            rpc_call_send(call, NULL, 0, &(struct rpc_payload){values, bytes, NULL, NULL}),
            STATUS_OK);
        seen_wait_closed(&seen);
        ck_assert_int_eq(seen.result.status, bytes == sizeof(values) ? STATUS_OK : STATUS_DATA);
        rpc_call_unref(call);
    }
    ck_assert_msg(strstr(seen.result.text, "payload of 4095 bytes where 1024 float32 belong"), "%s",
                  seen.result.text);
    close_pair();
}
END_TEST

START_TEST(cancel_ends_both_sides)
{
    struct rpc_call *call;
    struct seen seen;

    open_pair();
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_HOLD, INT64_MAX, &seen_handler, &seen, &call, &err));
    ck_assert_int_eq(rpc_call_deadline_ns(call), INT64_MAX);
    echo_wait(&echo, &echo.held, 1);
    rpc_call_cancel(call);
    rpc_call_cancel(call);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_CANCELLED);
    echo_wait(&echo, &echo.closed, 1);
    ck_assert_uint_eq(echo.cancelled, 1);
    rpc_call_cancel(call); /* ended: no effect */
    rpc_call_receive(call);
    rpc_call_send_done(call);
    rpc_call_unref(call);
    close_pair();
}
END_TEST

static const uint8_t malformed[] = {0x0f, 0xff, 0xff};

START_TEST(malformed_message_fails_with_its_name)
{
    uint8_t *reply;
    size_t size;

    open_pair();
    assert_fails(rpc_client_unary(client, ECHO_UNARY, malformed, sizeof(malformed),
                                  clock_deadline_ns(DEADLINE_MS), &reply, &size, &err),
                 STATUS_DATA, "malformed message: field at byte 0 of 3");
    close_pair();
}
END_TEST

START_TEST(message_above_the_limit_fails)
{
    static uint8_t big[6 << 20];
    atomic_uint released = 0;
    struct rpc_payload payload = {big, sizeof(big), count_release, &released};
    struct rpc_call *call;
    struct seen seen;

    open_pair();
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_STREAM, clock_deadline_ns(DEADLINE_MS), &seen_handler,
                              &seen, &call, &err));
    rpc_call_receive(call);
    ck_assert_int_eq(rpc_call_send(call, NULL, 0, &payload), STATUS_OK);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_PROTOCOL);
    ck_assert_msg(strstr(seen.result.text, "larger than max"), "%s", seen.result.text);
    payload.size = SIZE_MAX;
    ck_assert_int_eq(rpc_call_send(call, NULL, 0, &payload), STATUS_INVALID);
    rpc_call_unref(call);
    close_pair();
    ck_assert_uint_eq(atomic_load(&released), 2);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "rpc_echo", 60, TEST(unary_returns_the_reply), LOOP_TEST(options_of_sockets, 0, 2),
        TEST(unary_with_empty_and_large_messages), TEST(status_is_transferred_by_name),
        TEST(unknown_method_fails_at_once), TEST(deadline_ends_a_held_call),
        TEST_CASE("stream", 60), TEST(stream_echoes_large_payloads), TEST(many_concurrent_calls),
        TEST(floats_are_added_on_arrival), TEST(cancel_ends_both_sides),
        TEST(malformed_message_fails_with_its_name), TEST(message_above_the_limit_fails));
}
