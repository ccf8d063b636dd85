/*
 * End points and sockets: parsing, ports in use, peers that are slow, unresponsive or closed.
 */
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/base/net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct endpoint any_port = {.host = "127.0.0.1", .port = 0};

START_TEST(endpoint_texts)
{
    struct error err = {0};
    struct endpoint e;
    char text[300];

    assert_ok(endpoint_parse("node-1:29500", "--master", &e, &err));
    ck_assert_str_eq(e.host, "node-1");
    ck_assert_uint_eq(e.port, 29500);
    assert_ok(endpoint_parse("[fe80::1]:0", "--master", &e, &err));
    ck_assert_str_eq(e.host, "fe80::1");
    endpoint_format(&e, text, sizeof(text));
    ck_assert_str_eq(text, "[fe80::1]:0");
    ck_assert_ptr_null(endpoint_unix_path(&e));
    assert_ok(endpoint_parse("unix:/run/sparring/ps-0.sock", "--listen", &e, &err));
    ck_assert_str_eq(endpoint_unix_path(&e), "/run/sparring/ps-0.sock");
    ck_assert_uint_eq(e.port, 0);
    ck_assert(endpoint_is_loopback(&e));
    endpoint_format(&e, text, sizeof(text));
    ck_assert_str_eq(text, "unix:/run/sparring/ps-0.sock");
    assert_ok(endpoint_parse("unix:///a", "--listen", &e, &err));
    ck_assert_str_eq(e.host, "unix:/a");
    assert_ok(endpoint_parse("unix:80", "--listen", &e, &err)); /* a host of that name */
    ck_assert_ptr_null(endpoint_unix_path(&e));
}
END_TEST

static const char *const bad_texts[] = {
    "",       "host",    ":80",      "host:",     "host:65536", "host:-1",    "host:8x",  "::1:80",
    "[::1]",  "[::1]80", "[]:80",    "[::1:80",   "a:b:1",      "host: 8080", "host:+80", "unix:",
    "unix:a", "unix:/",  "unix:/a/", "unix:/a,b", "unix:/%",    "unix:/a b",  "unix://a"};

START_TEST(malformed_endpoints_fail)
{
    struct error err = {0};
    struct endpoint e = {.host = "kept", .port = 1};

    assert_fails(endpoint_parse(bad_texts[_i], "--listen", &e, &err), STATUS_CONFIG, "--listen");
    ck_assert_ptr_nonnull(strstr(err.text, bad_texts[_i]));
    ck_assert_str_eq(e.host, "kept");
}
END_TEST

START_TEST(long_host_fails)
{
    struct error err = {0};
    struct endpoint e;
    char text[300];

    memset(text, 'h', 256);
    (void)snprintf(text + 256, sizeof(text) - 256, ":1");
    assert_fails(endpoint_parse(text, "--listen", &e, &err), STATUS_CONFIG, "256 characters");
}
END_TEST

START_TEST(long_path_fails)
{
    struct error err = {0};
    struct endpoint e;
    char text[300];

    memset(text, 'p', sizeof(text));
    memcpy(text, "unix:/", 6);
    text[5 + 107] = '\0';
    assert_ok(endpoint_parse(text, "--listen", &e, &err)); /* the longest that the kernel accepts */
    text[5 + 107] = 'p';
    text[5 + 108] = '\0';
    assert_fails(endpoint_parse(text, "--listen", &e, &err), STATUS_CONFIG,
                 "has 108 bytes, a Unix socket's may have 107");
}
END_TEST

START_TEST(bytes_over_a_unix_socket)
{
    struct error err = {0};
    struct endpoint e = {.port = 0};
    uint16_t port = 1;
    char got[6] = "";
    int listener, client, server;

    (void)snprintf(e.host, sizeof(e.host), "unix:%s", support_path("s"));
    assert_fails(net_connect(&e, clock_deadline_ns(100), &client, &err), STATUS_UNREACHABLE,
                 "No such file");
    assert_ok(net_listen(&e, "test", &listener, &port, &err));
    ck_assert_uint_eq(port, 0);
    assert_ok(net_connect(&e, clock_deadline_ns(20000), &client, &err));
    assert_ok(net_accept(listener, clock_deadline_ns(20000), &server, &err));
    assert_ok(net_send_all(client, "hello", 6, clock_deadline_ns(20000), &err));
    assert_ok(net_recv_all(server, got, 6, clock_deadline_ns(20000), &err));
    ck_assert_str_eq(got, "hello");
    assert_fails(net_listen(&e, "test", &server, &port, &err), STATUS_IO, "in use");
}
END_TEST

START_TEST(loopback_addresses)
{
    static const char *const yes[] = {"127.0.0.1", "127.9.9.9",     "::1",
                                      "localhost", "/run/s.socket", "::ffff:127.0.0.1"};
    static const char *const no[] = {"10.0.0.1", "0.0.0.0", "::", "node", "128.0.0.1", "fe80::1"};
    struct endpoint e = {.port = 1};

    for (size_t i = 0; i < 6; i++) {
        (void)snprintf(e.host, sizeof(e.host), "%s", yes[i]);
        ck_assert_msg(endpoint_is_loopback(&e), "%s", yes[i]);
        (void)snprintf(e.host, sizeof(e.host), "%s", no[i]);
        ck_assert_msg(!endpoint_is_loopback(&e), "%s", no[i]);
    }
}
END_TEST

/* A connected pair over loopback TCP. */
static void make_pair(int fds[2])
{
    struct error err = {0};
    struct endpoint e = any_port;
    int64_t deadline_ns = clock_deadline_ns(20000);
    int listen_fd;

    assert_ok(net_listen(&e, "test", &listen_fd, &e.port, &err));
    assert_ok(net_connect(&e, deadline_ns, &fds[0], &err));
    assert_ok(net_accept(listen_fd, deadline_ns, &fds[1], &err));
    (void)close(listen_fd);
}

START_TEST(sockets_do_not_block_and_close_on_exec)
{
    int fds[2];
    struct error err = {0};
    char host[64];

    make_pair(fds);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_ne(fcntl(fds[i], F_GETFL) & O_NONBLOCK, 0);
        ck_assert_int_ne(fcntl(fds[i], F_GETFD) & FD_CLOEXEC, 0);
        assert_ok(net_local_host(fds[i], host, sizeof(host), &err));
        ck_assert_str_eq(host, "127.0.0.1");
    }
}
END_TEST

START_TEST(local_connections_are_not_paced)
{
    int fds[2];

    make_pair(fds);
    for (int i = 0; i < 2; i++) {
        char control[16] = "";
        socklen_t size = sizeof(control);

        ck_assert_int_eq(getsockopt(fds[i], IPPROTO_TCP, TCP_CONGESTION, control, &size), 0);
        ck_assert_str_eq(control, "reno");
        (void)close(fds[i]);
    }
}
END_TEST

START_TEST(taken_port_names_its_holder)
{
    struct error err = {0};
    struct endpoint e = {.host = "127.0.0.1", .port = support_port()};
    char wanted[64];
    int first;
    int second;

    assert_ok(net_listen(&e, "--listen", &first, &e.port, &err));
    (void)snprintf(wanted, sizeof(wanted), "taken by pid %ld (", (long)getpid());
    assert_fails(net_listen(&e, "MASTER_PORT", &second, &e.port, &err), STATUS_EXISTS, wanted);
    ck_assert_ptr_nonnull(strstr(err.text, "MASTER_PORT"));
    (void)close(first);
    assert_ok(net_listen(&e, "--listen", &first, &e.port, &err));
}
END_TEST

START_TEST(listen_on_a_foreign_address_fails)
{
    struct error err = {0};
    struct endpoint e = {.host = "203.0.113.1", .port = 0}; /* TEST-NET-3 */
    int fd;

    assert_fails(net_listen(&e, "--listen", &fd, &e.port, &err), STATUS_IO, "203.0.113.1:0");
}
END_TEST

START_TEST(connect_times_out)
{
    struct error err = {0};
    struct endpoint e = {.host = "127.0.0.1",
                         .port = support_port()}; /* no process listens there */
    int64_t start_ns = clock_now_ns();
    int fd;

    assert_fails(net_connect(&e, clock_deadline_ns(50), &fd, &err), STATUS_UNREACHABLE, "refused");
    ck_assert_int_ge(clock_now_ns() - start_ns, 50 * 1000000);
    ck_assert_int_lt(clock_now_ns() - start_ns, (int64_t)10000 * 1000000);
}
END_TEST

struct late_listener {
    struct endpoint e;
    int fd;
};

static void *listen_late(void *argument)
{
    struct late_listener *late = argument;
    struct error err = {0};

    assert_ok(net_listen(&late->e, "test", &late->fd, &late->e.port, &err));
    return NULL;
}

START_TEST(connect_retries_while_refused)
{
    struct error err = {0};
    struct endpoint e = {.host = "127.0.0.1", .port = support_port()};
    struct late_listener late = {.e = e};
    pthread_t thread;
    int fd;

    ck_assert_int_eq(pthread_create(&thread, NULL, listen_late, &late), 0);
    assert_ok(net_connect(&e, clock_deadline_ns(10000), &fd, &err));
    (void)pthread_join(thread, NULL);
}
END_TEST

START_TEST(accept_times_out)
{
    struct error err = {0};
    struct endpoint e = any_port;
    int listen_fd;
    int fd;

    assert_ok(net_listen(&e, "test", &listen_fd, &e.port, &err));
    assert_fails(net_accept(listen_fd, clock_deadline_ns(20), &fd, &err), STATUS_TIMEOUT, "nobody");
}
END_TEST

static void *send_big(void *argument)
{
    static char data[8 << 20];
    struct error err = {0};
    const int *fd = argument;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7);
    assert_ok(net_send_all(*fd, data, sizeof(data), clock_deadline_ns(20000), &err));
    (void)close(*fd);
    return NULL;
}

START_TEST(bytes_arrive_whole_then_the_end_is_seen)
{
    static char data[8 << 20];
    struct error err = {0};
    size_t wrong = 0;
    pthread_t thread;
    int fds[2];

    make_pair(fds);
    ck_assert_int_eq(pthread_create(&thread, NULL, send_big, &fds[0]), 0);
    assert_ok(net_recv_all(fds[1], data, sizeof(data), clock_deadline_ns(20000), &err));
    for (size_t i = 0; i < sizeof(data); i++)
        wrong += data[i] != (char)(i * 7);
    ck_assert_uint_eq(wrong, 0);
    assert_fails(net_recv_all(fds[1], data, 5, clock_deadline_ns(20000), &err), STATUS_PEER_LOST,
                 "0 of 5 bytes");
    (void)pthread_join(thread, NULL);
}
END_TEST

START_TEST(silent_peer_times_out)
{
    static char data[64 << 20];
    struct error err = {0};
    int fds[2];

    make_pair(fds);
    assert_ok(net_send_all(fds[0], "abc", 3, clock_deadline_ns(1000), &err));
    assert_fails(net_recv_all(fds[1], data, 5, clock_deadline_ns(1000), &err), STATUS_TIMEOUT,
                 "3 of 5 bytes");
    assert_fails(net_send_all(fds[0], data, sizeof(data), clock_deadline_ns(20), &err),
                 STATUS_TIMEOUT, "of 67108864 bytes");
}
END_TEST

START_TEST(reset_is_peer_lost)
{
    struct linger hard = {.l_onoff = 1, .l_linger = 0};
    struct error err = {0};
    char data[4];
    int fds[2];

    make_pair(fds);
    ck_assert_int_eq(setsockopt(fds[0], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
    (void)close(fds[0]);
    assert_fails(net_recv_all(fds[1], data, 4, clock_deadline_ns(5000), &err), STATUS_PEER_LOST,
                 "closed");
    assert_fails(net_send_all(fds[1], data, 4, clock_deadline_ns(5000), &err), STATUS_PEER_LOST,
                 "closed");
}
END_TEST

static int window_of(int fd)
{
    int window = 0;
    socklen_t length = sizeof(window);

    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, &length), 0);
    return window;
}

/* The limit is set again when the bytes received pass a multiple, and only then. */
START_TEST(local_window_is_limited_at_each_multiple)
{
    const uint64_t every = NET_LOCAL_WINDOW_EVERY;
    const struct {
        uint64_t before, after;
        bool is_said;
    } cases[] = {{0, 0, false},
                 {0, every - 1, false},
                 {0, every, true},
                 {every - 1, every, true},
                 {every, 2 * every - 1, false},
                 {every + 1, 5 * every, true},
                 {4096 * every - 1, 4096 * every, true}};
    const int other = NET_LOCAL_WINDOW / 2;
    int fds[2];

    make_pair(fds);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_int_eq(setsockopt(fds[0], IPPROTO_TCP, TCP_WINDOW_CLAMP, &other, sizeof(other)),
                         0);
        ck_assert_int_eq(window_of(fds[0]), other);
        net_limit_local_window(fds[0], cases[i].before, cases[i].after);
        ck_assert_int_eq(window_of(fds[0]), cases[i].is_said ? NET_LOCAL_WINDOW : other);
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
}
END_TEST

/* The peer does not read: what it has room for is sent, and not much more is taken. */
START_TEST(little_is_taken_before_it_can_be_sent)
{
    static const char bytes[16 << 10];
    int fds[2], unsent = 0;

    make_pair(fds);
    net_limit_unsent(fds[0]);
    while (send(fds[0], bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        ;
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_int_eq(ioctl(fds[0], SIOCOUTQNSD, &unsent), 0);
    ck_assert_int_le(unsent, NET_UNSENT + (64 << 10)); /* one write of the kernel more */
    (void)close(fds[0]);
    (void)close(fds[1]);
}
END_TEST

START_TEST(unused_port_has_no_known_holder)
{
    char text[128];

    net_port_holder(support_port(), text, sizeof(text));
    ck_assert_str_eq(text, "another process");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "net", 0, TEST(endpoint_texts),
        LOOP_TEST(malformed_endpoints_fail, 0, sizeof(bad_texts) / sizeof(bad_texts[0])),
        TEST(long_host_fails), TEST(long_path_fails), TEST(bytes_over_a_unix_socket),
        TEST(loopback_addresses), TEST(sockets_do_not_block_and_close_on_exec),
        TEST(local_connections_are_not_paced), TEST(taken_port_names_its_holder),
        TEST(listen_on_a_foreign_address_fails), TEST(connect_times_out),
        TEST(connect_retries_while_refused), TEST(accept_times_out),
        TEST(bytes_arrive_whole_then_the_end_is_seen), TEST(silent_peer_times_out),
        TEST(reset_is_peer_lost), TEST(local_window_is_limited_at_each_multiple),
        TEST(little_is_taken_before_it_can_be_sent), TEST(unused_port_has_no_known_holder));
}
