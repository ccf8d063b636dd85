/*
 * fault_proxy: every fault that the fault tests use, between two sockets of this process.
 */
#include "tests/support/fault_proxy.h"
#include "tests/support/support.h"

#include "common/base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_MS    20000
#define QUIET_MS   100 /* bytes that are not held arrive earlier */
#define SLOW_BYTES ((size_t)3 << 20)

struct proxied_link {
    int listener;
    struct fault_proxy *proxy;
    int client, server; /* both ends of the link */
};

static int listen_any(uint16_t *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *ret_port = ntohs(address.sin_port);
    return fd;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static struct proxied_link open_link(void)
{
    struct proxied_link l;
    uint16_t port;

    l.listener = listen_any(&port);
    l.proxy = fault_proxy_open(port, 7);
    l.client = connect_to(fault_proxy_port(l.proxy));
    l.server = accept(l.listener, NULL, NULL);
    ck_assert_int_ge(l.server, 0);
    return l;
}

static void close_link(struct proxied_link *l)
{
    fault_proxy_close(l->proxy);
    (void)close(l->client);
    (void)close(l->server);
    (void)close(l->listener);
}

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};

    return poll(&wait, 1, timeout_ms) > 0;
}

static void expect_text(int fd, const char *text)
{
    char got[64] = "";
    size_t length = 0;

    while (length < strlen(text)) {
        ssize_t size;

        ck_assert_msg(is_readable(fd, WAIT_MS), "'%s' does not arrive", text);
        size = recv(fd, got + length, sizeof(got) - 1 - length, 0);
        ck_assert_int_gt(size, 0);
        length += (size_t)size;
    }
    ck_assert_str_eq(got, text);
}

static void send_text(int fd, const char *text)
{
    ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void expect_reset(int fd)
{
    char byte;

    ck_assert(is_readable(fd, WAIT_MS));
    ck_assert_int_eq(recv(fd, &byte, 1, 0), -1);
    ck_assert_int_eq(errno, ECONNRESET);
}

static void expect_end(int fd)
{
    char byte;

    ck_assert(is_readable(fd, WAIT_MS));
    ck_assert_int_eq(recv(fd, &byte, 1, 0), 0);
}

START_TEST(test_forwards_and_resets)
{
    struct proxied_link l = open_link();
    int again;

    send_text(l.client, "up");
    expect_text(l.server, "up");
    send_text(l.server, "down");
    expect_text(l.client, "down");
    ck_assert_uint_eq(fault_proxy_bytes(l.proxy, FAULT_UP), 2);
    ck_assert_uint_eq(fault_proxy_bytes(l.proxy, FAULT_DOWN), 4);
    fault_proxy_reset(l.proxy);
    expect_reset(l.client);
    expect_reset(l.server);
    again = connect_to(fault_proxy_port(l.proxy)); /* later connections are not reset */
    (void)close(l.server);
    l.server = accept(l.listener, NULL, NULL);
    send_text(again, "again");
    expect_text(l.server, "again");
    fault_proxy_refuse(l.proxy, true);
    (void)close(again);
    expect_end(l.server);
    again = connect_to(fault_proxy_port(l.proxy));
    expect_reset(again);
    ck_assert_uint_eq(fault_proxy_accepted(l.proxy), 2);
    (void)close(again);
    close_link(&l);
}
END_TEST

START_TEST(test_holds_and_releases)
{
    struct proxied_link l = open_link();

    fault_proxy_hold(l.proxy, FAULT_UP, true);
    send_text(l.client, "late");
    ck_assert(!is_readable(l.server, QUIET_MS));
    send_text(l.server, "other way");
    expect_text(l.client, "other way");
    fault_proxy_hold(l.proxy, FAULT_UP, false);
    expect_text(l.server, "late");
    close_link(&l);
}
END_TEST

START_TEST(test_half_closes)
{
    struct proxied_link l = open_link();

    fault_proxy_half_close(l.proxy, FAULT_DOWN);
    expect_end(l.client);
    send_text(l.server, "lost");
    send_text(l.client, "received");
    expect_text(l.server, "received");
    close_link(&l);
}
END_TEST

/* A slow link loses and changes no bytes, and has the rate and delay that were set. */
START_TEST(test_slow_and_late)
{
    struct proxied_link l = open_link();
    uint8_t *sent = malloc(SLOW_BYTES), *got = malloc(SLOW_BYTES);
    size_t out = 0, in = 0;
    int64_t begin_ns = clock_now_ns();

    for (size_t i = 0; i < SLOW_BYTES; i++)
        sent[i] = (uint8_t)(i * 2654435761u >> 13);
    fault_proxy_throttle(l.proxy, 6 << 20);
    fault_proxy_delay(l.proxy, 1, 5);
    while (in < SLOW_BYTES) {
        ssize_t size =
            out < SLOW_BYTES ? send(l.client, sent + out, SLOW_BYTES - out, MSG_DONTWAIT) : 0;

        out += size > 0 ? (size_t)size : 0;
        if (!is_readable(l.server, out < SLOW_BYTES ? 1 : WAIT_MS))
            continue;
        size = recv(l.server, got + in, SLOW_BYTES - in, 0);
        ck_assert_int_gt(size, 0);
        in += (size_t)size;
    }
    ck_assert_mem_eq(sent, got, SLOW_BYTES);
    ck_assert_int_ge(clock_now_ns() - begin_ns, 450 * INT64_C(1000000)); /* 3 MiB at 6 MiB/s */
    free(sent);
    free(got);
    close_link(&l);
}
END_TEST

struct call_position {
    struct fault_proxy *proxy;
    atomic_uint_fast64_t at;
};

static void reset_at_byte(void *user)
{
    struct call_position *s = user;

    atomic_store(&s->at, fault_proxy_bytes(s->proxy, FAULT_UP));
    fault_proxy_reset(s->proxy);
}

/* When the call is made, exactly the requested bytes have been forwarded. */
START_TEST(test_calls_at_exact_byte)
{
    struct proxied_link l = open_link();
    struct call_position s = {.proxy = l.proxy};
    char data[4 * 4096] = "";
    size_t in = 0;
    ssize_t size;

    fault_proxy_call_at(l.proxy, FAULT_UP, 5000, reset_at_byte, &s);
    ck_assert_int_eq(send(l.client, data, sizeof(data), MSG_NOSIGNAL), (ssize_t)sizeof(data));
    while (is_readable(l.server, WAIT_MS) && (size = recv(l.server, data, sizeof(data), 0)) > 0)
        in += (size_t)size;
    ck_assert_uint_le(in, 5000); /* a reset may discard unread bytes */
    ck_assert_uint_eq(atomic_load(&s.at), 5000);
    expect_reset(l.client);
    close_link(&l);
}
END_TEST

START_TEST(test_retargets)
{
    struct proxied_link l = open_link();
    uint16_t port;
    int other = listen_any(&port), client, server;

    fault_proxy_retarget(l.proxy, port);
    client = connect_to(fault_proxy_port(l.proxy));
    server = accept(other, NULL, NULL);
    send_text(client, "new");
    expect_text(server, "new");
    send_text(l.client, "old");
    expect_text(l.server, "old");
    (void)close(server);
    expect_end(client);
    (void)close(client);
    (void)close(other);
    client = connect_to(fault_proxy_port(l.proxy)); /* no listener on that port */
    expect_reset(client);
    (void)close(client);
    close_link(&l);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("fault_proxy", 0, TEST(test_forwards_and_resets),
                       TEST(test_holds_and_releases), TEST(test_half_closes),
                       TEST(test_slow_and_late), TEST(test_calls_at_exact_byte),
                       TEST(test_retargets));
}
