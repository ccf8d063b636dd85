/*
 * A fixed number of connections may be pending at a time, each with the bytes of its hello so far;
 * one poll(2) watches them and the listening socket, so a client that connects and stays silent
 * holds nobody up.
 */
#include "common/collective/ring_accept.h"

#include "common/base/clock.h"
#include "common/base/net.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PENDING_MAX 16

struct pending {
    int fd;
    size_t bytes;
    unsigned char hello[RING_HELLO_BYTES];
};

struct acceptor {
    int listen_fd;
    const struct ring_hello *wanted;
    struct pending pending[PENDING_MAX]; /* in order of arrival */
    size_t length;
    unsigned strangers;
    char last_stranger[128];
};

static void drop(struct acceptor *a, size_t index)
{
    (void)close(a->pending[index].fd);
    a->length--;
    memmove(&a->pending[index], &a->pending[index + 1],
            (a->length - index) * sizeof(a->pending[0]));
}

static void turn_away(struct acceptor *a, size_t index, const char *why)
{
    a->strangers++;
    (void)snprintf(a->last_stranger, sizeof(a->last_stranger), "%s", why);
    drop(a, index);
}

/* Is a complete hello the one that is waited for?  Writes why not. */
static bool is_wanted(const struct acceptor *a, const unsigned char *bytes, char *why, size_t size)
{
    struct ring_hello hello;

    if (!ring_hello_decode(bytes, &hello))
        (void)snprintf(why, size, "it spoke another protocol");
    else if (hello.group != a->wanted->group)
        (void)snprintf(why, size, "it belongs to another group");
    else if (hello.world_size != a->wanted->world_size)
        (void)snprintf(why, size, "it believes in %" PRIu32 " ranks, not %" PRIu32,
                       hello.world_size, a->wanted->world_size);
    else if (hello.rank != a->wanted->rank)
        (void)snprintf(why, size, "it was rank %" PRIu32, hello.rank);
    else
        return true;
    return false;
}

/* Read on; the descriptor when this is the wanted neighbour, else -1. */
static int read_pending(struct acceptor *a, size_t index)
{
    struct pending *p = &a->pending[index];
    char why[sizeof(a->last_stranger)];
    ssize_t got = recv(p->fd, p->hello + p->bytes, RING_HELLO_BYTES - p->bytes, 0);

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return -1;
    if (got <= 0) {
        turn_away(a, index, "it left without a word");
        return -1;
    }
    p->bytes += (size_t)got;
    if (p->bytes < RING_HELLO_BYTES)
        return -1;
    if (is_wanted(a, p->hello, why, sizeof(why)))
        return p->fd;
    turn_away(a, index, why);
    return -1;
}

static enum status add_pending(struct acceptor *a, struct error *err)
{
    int fd;
    enum status status = net_accept(a->listen_fd, 0, &fd, err);

    if (status != STATUS_OK)
        return status == STATUS_TIMEOUT ? STATUS_OK : status; /* it left again before we looked */
    if (a->length == PENDING_MAX)
        turn_away(a, 0, "it said nothing");
    a->pending[a->length++] = (struct pending){.fd = fd};
    return STATUS_OK;
}

/* Look at the connections that poll(2) found readable, newest first because dropping one moves the
 * later ones. */
static int read_ready(struct acceptor *a, const struct pollfd *fds, size_t count)
{
    for (size_t i = count; i > 0; i--) {
        int fd = fds[i - 1].revents ? read_pending(a, i - 1) : -1;

        if (fd >= 0)
            return fd;
    }
    return -1;
}

static enum status timed_out(const struct acceptor *a, struct error *err)
{
    if (a->strangers == 0)
        return error_set(err, STATUS_TIMEOUT, "rank %" PRIu32 " did not connect", a->wanted->rank);
    return error_set(err, STATUS_TIMEOUT,
                     "rank %" PRIu32 " did not connect (%u others were turned away; the last: %s)",
                     a->wanted->rank, a->strangers, a->last_stranger);
}

static enum status wait_for_neighbour(struct acceptor *a, int64_t deadline_ns, int *ret_fd,
                                      struct error *err)
{
    for (;;) {
        struct pollfd fds[PENDING_MAX + 1];
        size_t count = a->length;
        int left_ms = clock_left_ms(deadline_ns);
        enum status status;

        for (size_t i = 0; i < count; i++)
            fds[i] = (struct pollfd){.fd = a->pending[i].fd, .events = POLLIN};
        fds[count] = (struct pollfd){.fd = a->listen_fd, .events = POLLIN};
        if (poll(fds, count + 1, left_ms) < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot wait for rank %" PRIu32, a->wanted->rank);
        *ret_fd = read_ready(a, fds, count);
        if (*ret_fd >= 0)
            return STATUS_OK;
        if (left_ms == 0)
            return timed_out(a, err);
        status = fds[count].revents ? add_pending(a, err) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
    }
}

enum status ring_accept(int listen_fd, const struct ring_hello *wanted, int64_t deadline_ns,
                        int *ret_fd, struct error *err)
{
    struct acceptor a = {.listen_fd = listen_fd, .wanted = wanted};
    int fd = -1;
    enum status status = wait_for_neighbour(&a, deadline_ns, &fd, err);

    for (size_t i = 0; i < a.length; i++)
        if (a.pending[i].fd != fd)
            (void)close(a.pending[i].fd);
    if (status == STATUS_OK)
        *ret_fd = fd;
    return status;
}
