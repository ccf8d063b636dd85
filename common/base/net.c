/*
 * TCP and Unix sockets with deadlines: every wait is a poll(2) against an absolute monotonic
 * deadline, so a signal or a slow peer cannot extend it.  One exception: getaddrinfo has no
 * deadline; an unresponsive name server delays a connect by the resolver's time-out.  No locks: a
 * socket belongs to its caller.
 */
#include "common/base/net.h"

#include "common/base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_BACKLOG     1024
#define RETRY_FIRST_MS     1
#define RETRY_MAX_MS       100
#define ENDPOINT_TEXT_SIZE 272

static void set_no_delay(int fd)
{
    int one = 1;

    /* Fails on a Unix socket, which has no Nagle delay. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* Wait for `events`: 1 ready, 0 deadline passed, -1 with errno. */
static int wait_for(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int left_ms = clock_left_ms(deadline_ns);
        int ready = poll(&p, 1, left_ms);

        if (ready > 0)
            return 1;
        if (ready < 0 && errno != EINTR)
            return -1;
        if (ready == 0 && left_ms == 0)
            return 0;
    }
}

/* The text of a getaddrinfo or getnameinfo code. */
static const char *resolve_error(int code)
{
    return code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code);
}

/* The addresses of an end point: those of a host name, or one Unix path. */
struct addresses {
    struct addrinfo *list; /* getaddrinfo's, or &single */
    struct addrinfo single;
    struct sockaddr_un path;
};

/* Returns 0 or a getaddrinfo code; release the addresses when 0. */
static int addresses_find(struct addresses *a, const struct endpoint *e, int flags)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    const char *path = endpoint_unix_path(e);
    char port[8];

    if (path) {
        a->path = (struct sockaddr_un){.sun_family = AF_UNIX};
        (void)snprintf(a->path.sun_path, sizeof(a->path.sun_path), "%.107s", path);
        a->single = (struct addrinfo){.ai_family = AF_UNIX,
                                      .ai_addr = (struct sockaddr *)&a->path,
                                      .ai_addrlen = sizeof(a->path)};
        a->list = &a->single;
        return 0;
    }
    (void)snprintf(port, sizeof(port), "%u", (unsigned)e->port);
    return getaddrinfo(e->host, port, &hints, &a->list);
}

static void addresses_release(struct addresses *a)
{
    if (a->list != &a->single)
        freeaddrinfo(a->list);
}

static enum status bound_port(int fd, uint16_t *ret_port, struct error *err)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un path;
    } address = {0};
    socklen_t length = sizeof(address);

    if (getsockname(fd, &address.any, &length) != 0)
        return error_set_errno(err, errno, "cannot read the bound port");
    if (address.any.sa_family == AF_UNIX)
        *ret_port = 0;
    else
        *ret_port =
            ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
    return STATUS_OK;
}

/* A listening socket on one resolved address, or -1 with errno. */
static int listen_on(const struct addrinfo *a, bool local)
{
    int one = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (local)
        net_disable_pacing(fd);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        int saved = errno;

        (void)close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

enum status net_listen(const struct endpoint *e, const char *origin, int *ret_fd,
                       uint16_t *ret_port, struct error *err)
{
    struct addresses addresses;
    char text[ENDPOINT_TEXT_SIZE];
    char holder[128];
    uint16_t port = 0;
    int fd = -1;
    int saved = 0;
    enum status status;
    int code = addresses_find(&addresses, e, AI_PASSIVE);

    endpoint_format(e, text, sizeof(text));
    if (code != 0)
        return error_set(err, STATUS_CONFIG, "cannot listen on %s (%s): %s", text, origin,
                         resolve_error(code));
    for (const struct addrinfo *a = addresses.list; a && fd < 0; a = a->ai_next) {
        fd = listen_on(a, endpoint_is_loopback(e));
        if (fd < 0)
            saved = errno;
    }
    addresses_release(&addresses);
    if (fd < 0 && saved == EADDRINUSE && !endpoint_unix_path(e)) {
        net_port_holder(e->port, holder, sizeof(holder));
        return error_set(err, STATUS_EXISTS, "cannot listen on %s (%s): the port is taken by %s",
                         text, origin, holder);
    }
    if (fd < 0)
        return error_set_errno(err, saved, "cannot listen on %s (%s)", text, origin);
    status = bound_port(fd, &port, err);
    if (status != STATUS_OK) {
        (void)close(fd);
        return status;
    }
    *ret_fd = fd;
    *ret_port = port;
    return STATUS_OK;
}

enum status net_accept(int listen_fd, int64_t deadline_ns, int *ret_fd, struct error *err)
{
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        int ready;

        if (fd >= 0) {
            set_no_delay(fd);
            *ret_fd = fd;
            return STATUS_OK;
        }
        /* Errors of the pending connection, not of the listening socket: accept(2). */
        if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN ||
            errno == EHOSTUNREACH || errno == ENETUNREACH)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return error_set_errno(err, errno, "cannot accept a connection");
        ready = wait_for(listen_fd, POLLIN, deadline_ns);
        if (ready < 0)
            return error_set_errno(err, errno, "cannot wait for a connection");
        if (ready == 0)
            return error_set(err, STATUS_TIMEOUT, "nobody connected before the deadline");
    }
}

/* A connect to a port without a listener can reach itself when the kernel picks that port as the
 * source port (simultaneous open); such a socket would receive its own bytes. */
static bool is_self_connected(int fd)
{
    struct sockaddr_storage local = {0};
    struct sockaddr_storage peer = {0};
    socklen_t local_length = sizeof(local);
    socklen_t peer_length = sizeof(peer);

    return getsockname(fd, (struct sockaddr *)&local, &local_length) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_length) == 0 &&
           local_length == peer_length && memcmp(&local, &peer, local_length) == 0;
}

/* A connected socket to one resolved address, or -1 with errno. */
static int connect_to(const struct addrinfo *a, bool local, int64_t deadline_ns)
{
    int failure = 0;
    socklen_t length = sizeof(failure);
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (local)
        net_disable_pacing(fd);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        failure = errno;
        if (failure == EINPROGRESS || failure == EINTR) {
            int ready = wait_for(fd, POLLOUT, deadline_ns);

            failure = ready == 0 ? ETIMEDOUT : errno;
            if (ready > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &length) != 0)
                failure = errno;
        }
    }
    if (failure == 0 && is_self_connected(fd))
        failure = ECONNREFUSED;
    if (failure != 0) {
        (void)close(fd);
        errno = failure;
        return -1;
    }
    set_no_delay(fd);
    return fd;
}

/* Try each address once; -1 and the last reason when none accepts. */
static int try_connect(const struct endpoint *e, int64_t deadline_ns, char *reason, size_t size)
{
    struct addresses addresses;
    int fd = -1;
    int code = addresses_find(&addresses, e, 0);

    if (code != 0) {
        (void)snprintf(reason, size, "%s", resolve_error(code));
        return -1;
    }
    for (const struct addrinfo *a = addresses.list; a && fd < 0; a = a->ai_next) {
        fd = connect_to(a, endpoint_is_loopback(e), deadline_ns);
        if (fd < 0)
            (void)snprintf(reason, size, "%s", strerror(errno));
    }
    addresses_release(&addresses);
    return fd;
}

bool net_probe(const struct endpoint *e, int64_t deadline_ns, char *reason, size_t size)
{
    int fd = try_connect(e, deadline_ns, reason, size);

    if (fd < 0)
        return false;
    (void)close(fd);
    return true;
}

enum status net_connect(const struct endpoint *e, int64_t deadline_ns, int *ret_fd,
                        struct error *err)
{
    char text[ENDPOINT_TEXT_SIZE];
    char reason[256] = "no address";
    int pause_ms = RETRY_FIRST_MS;
    int64_t start_ns = clock_now_ns();
    int left_ms;

    for (;;) {
        int fd = try_connect(e, deadline_ns, reason, sizeof(reason));

        if (fd >= 0) {
            *ret_fd = fd;
            return STATUS_OK;
        }
        left_ms = clock_left_ms(deadline_ns);
        if (left_ms == 0)
            break;
        (void)poll(NULL, 0, pause_ms < left_ms ? pause_ms : left_ms);
        pause_ms = pause_ms * 2 < RETRY_MAX_MS ? pause_ms * 2 : RETRY_MAX_MS;
    }
    endpoint_format(e, text, sizeof(text));
    return error_set(err, STATUS_UNREACHABLE, "cannot reach %s within %.1f s: %s", text,
                     (double)(clock_now_ns() - start_ns) * 1e-9, reason);
}

/* After a failed send(2) or recv(2): wait until it can be repeated (OK), or the error. */
static enum status wait_or_fail(int fd, short events, int64_t deadline_ns, const char *verb,
                                size_t done, size_t size, struct error *err)
{
    int ready;

    if (errno == EINTR)
        return STATUS_OK;
    if (errno == ECONNRESET || errno == EPIPE)
        return error_set(err, STATUS_PEER_LOST, "peer closed the connection after %zu of %zu bytes",
                         done, size);
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return error_set_errno(err, errno, "cannot %s", verb);
    ready = wait_for(fd, events, deadline_ns);
    if (ready < 0)
        return error_set_errno(err, errno, "cannot wait to %s", verb);
    if (ready == 0)
        return error_set(err, STATUS_TIMEOUT, "%s: %zu of %zu bytes before the deadline", verb,
                         done, size);
    return STATUS_OK;
}

enum status net_send_all(int fd, const void *data, size_t size, int64_t deadline_ns,
                         struct error *err)
{
    const char *next = data;
    size_t done = 0;

    while (done < size) {
        ssize_t put = send(fd, next + done, size - done, MSG_NOSIGNAL);
        enum status status;

        if (put >= 0) {
            done += (size_t)put;
            continue;
        }
        status = wait_or_fail(fd, POLLOUT, deadline_ns, "send", done, size, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status net_recv_all(int fd, void *data, size_t size, int64_t deadline_ns, struct error *err)
{
    char *next = data;
    size_t done = 0;

    while (done < size) {
        ssize_t got = recv(fd, next + done, size - done, 0);
        enum status status;

        if (got > 0) {
            done += (size_t)got;
            continue;
        }
        if (got == 0)
            errno = ECONNRESET;
        status = wait_or_fail(fd, POLLIN, deadline_ns, "receive", done, size, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

void net_limit_local_window(int fd, uint64_t before, uint64_t after)
{
    const int window = NET_LOCAL_WINDOW;

    if (before / NET_LOCAL_WINDOW_EVERY == after / NET_LOCAL_WINDOW_EVERY)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof(window));
}

void net_disable_pacing(int fd)
{
    static const char control[] = "reno"; /* in every kernel, and needs no privileges */

    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, sizeof(control) - 1);
}

void net_limit_unsent(int fd)
{
    const int limit = NET_UNSENT;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof(limit));
}

enum status net_local_host(int fd, char *text, size_t size, struct error *err)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof(address);
    int code;

    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        return error_set_errno(err, errno, "cannot read a socket's local address");
    code = getnameinfo((struct sockaddr *)&address, length, text, (socklen_t)size, NULL, 0,
                       NI_NUMERICHOST);
    if (code != 0)
        return error_set(err, STATUS_IO, "cannot print a socket's local address: %s",
                         resolve_error(code));
    if (strncmp(text, "::ffff:", 7) == 0 && strchr(text, '.')) /* IPv4 on a dual-stack socket */
        memmove(text, text + 7, strlen(text + 7) + 1);
    return STATUS_OK;
}
