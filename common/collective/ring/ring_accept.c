/*
 * Accepts the data connections of higher ranks.  Those that are expected and a few more may be
 * pending at a time, each with the bytes of its hello so far; one poll(2) watches them and the
 * listening socket, so a client that connects and stays silent delays no other.
 */
#include "common/collective/ring/ring_accept.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STRANGERS_MAX 16 /* pending, before the oldest connection is closed */

struct pending {
    int fd;
    size_t bytes;
    unsigned char hello[RING_HELLO_BYTES];
};

struct acceptor {
    int listen_fd;
    const struct mesh_alarm *alarm; /* NULL: none */
    const struct ring_hello *self;
    const uint64_t *cookies;
    struct ring_connections *connections;
    struct pending *pending; /* owned; in order of arrival */
    struct pollfd *fds;      /* owned; capacity + 2 */
    size_t length, capacity;
    unsigned rejected;
    char last_rejection[128];
};

/* Where the descriptor of a rank's stream is kept. */
static int *fd_of(const struct acceptor *a, uint32_t rank, uint32_t stream)
{
    return &a->connections->fds[rank * a->connections->stride + stream];
}

static void remove_pending(struct acceptor *a, size_t index)
{
    if (a->pending[index].fd >= 0)
        (void)close(a->pending[index].fd);
    a->length--;
    memmove(&a->pending[index], &a->pending[index + 1],
            (a->length - index) * sizeof(a->pending[0]));
}

static void reject_pending(struct acceptor *a, size_t index, const char *why)
{
    a->rejected++;
    (void)snprintf(a->last_rejection, sizeof(a->last_rejection), "%s", why);
    remove_pending(a, index);
}

/* Is a complete hello expected?  Else writes the reason. */
static bool check_hello(const struct acceptor *a, const unsigned char *bytes,
                        struct ring_hello *ret_hello, char *why, size_t size)
{
    const struct ring_hello *self = a->self;
    struct ring_hello hello = {.rank = 0};

    if (!ring_hello_decode(bytes, &hello))
        (void)snprintf(why, size, "it spoke another protocol");
    else if (hello.group != self->group || hello.generation != self->generation)
        (void)snprintf(why, size, "it belongs to another group");
    else if (hello.world_size != self->world_size)
        (void)snprintf(why, size, "it believes in %" PRIu32 " ranks, not %" PRIu32,
                       hello.world_size, self->world_size);
    else if (hello.cookie != self->cookie)
        (void)snprintf(why, size, "it did not know the cookie");
    else if (hello.rank <= self->rank || hello.rank >= self->world_size ||
             hello.stream >= a->connections->counts[hello.rank] ||
             *fd_of(a, hello.rank, hello.stream) >= 0)
        (void)snprintf(why, size, "it was rank %" PRIu32 ", stream %" PRIu32, hello.rank,
                       hello.stream);
    else {
        *ret_hello = hello;
        return true;
    }
    return false;
}

/* A fresh connection has room for a few bytes. */
static void accept_peer(struct acceptor *a, size_t index, const struct ring_hello *peer)
{
    struct ring_hello answer = *a->self;
    unsigned char bytes[RING_HELLO_BYTES];
    int fd = a->pending[index].fd;

    answer.cookie = a->cookies[peer->rank];
    answer.stream = peer->stream;
    ring_hello_encode(&answer, bytes);
    if (send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(bytes)) {
        reject_pending(a, index, "it left at once");
        return;
    }
    *fd_of(a, peer->rank, peer->stream) = fd;
    a->pending[index].fd = -1;
    remove_pending(a, index);
}

static void read_pending(struct acceptor *a, size_t index)
{
    struct pending *p = &a->pending[index];
    char why[sizeof(a->last_rejection)];
    struct ring_hello hello;
    ssize_t got = recv(p->fd, p->hello + p->bytes, RING_HELLO_BYTES - p->bytes, 0);

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (got <= 0) {
        reject_pending(a, index, "it left without a word");
        return;
    }
    p->bytes += (size_t)got;
    if (p->bytes < RING_HELLO_BYTES)
        return;
    if (check_hello(a, p->hello, &hello, why, sizeof(why)))
        accept_peer(a, index, &hello);
    else
        reject_pending(a, index, why);
}

static enum status add_pending(struct acceptor *a, struct error *err)
{
    int fd;
    enum status status = net_accept(a->listen_fd, 0, &fd, err);

    if (status != STATUS_OK)
        return status == STATUS_TIMEOUT ? STATUS_OK : status; /* it left again before we looked */
    if (a->length == a->capacity)
        reject_pending(a, 0, "it said nothing");
    a->pending[a->length++] = (struct pending){.fd = fd};
    return STATUS_OK;
}

/* Look at the connections that poll(2) found readable, newest first because dropping one moves the
 * later ones. */
static void read_ready(struct acceptor *a, const struct pollfd *fds, size_t count)
{
    for (size_t i = count; i > 0; i--)
        if (fds[i - 1].revents)
            read_pending(a, i - 1);
}

/* The first rank with a connection that is not there; the world size when all are. */
static uint32_t find_missing(const struct acceptor *a)
{
    uint32_t rank = a->self->rank + 1;

    for (; rank < a->self->world_size; rank++)
        for (uint32_t s = 0; s < a->connections->counts[rank]; s++)
            if (*fd_of(a, rank, s) < 0)
                return rank;
    return rank;
}

static enum status missing_rank_error(const struct acceptor *a, uint32_t missing, struct error *err)
{
    const unsigned rank = a->connections->members[missing];

    if (a->rejected == 0)
        return error_set(err, STATUS_TIMEOUT, "rank %u did not connect", rank);
    return error_set(err, STATUS_TIMEOUT,
                     "rank %u did not connect (%u others were turned away; the last: %s)", rank,
                     a->rejected, a->last_rejection);
}

static enum status wait_for_all(struct acceptor *a, int64_t deadline_ns, struct error *err)
{
    for (;;) {
        uint32_t missing = find_missing(a);
        struct pollfd *fds = a->fds;
        size_t count = a->length;
        int left_ms = clock_left_ms(deadline_ns);
        enum status status;

        if (missing >= a->self->world_size)
            return STATUS_OK;
        for (size_t i = 0; i < count; i++)
            fds[i] = (struct pollfd){.fd = a->pending[i].fd, .events = POLLIN};
        fds[count] = (struct pollfd){.fd = a->listen_fd, .events = POLLIN};
        fds[count + 1] = (struct pollfd){.fd = a->alarm ? a->alarm->fd : -1, .events = POLLIN};
        if (poll(fds, count + 2, left_ms) < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot wait for rank %u",
                                   a->connections->members[missing]);
        if (fds[count + 1].revents)
            return mesh_alarm_error(a->alarm, err);
        read_ready(a, fds, count);
        if (left_ms == 0)
            return missing_rank_error(a, missing, err);
        status = fds[count].revents ? add_pending(a, err) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
    }
}

enum status ring_accept(int listen_fd, const struct ring_hello *self, const uint64_t *cookies,
                        const struct mesh_alarm *alarm, int64_t deadline_ns,
                        struct ring_connections *c, struct error *err)
{
    struct acceptor a = {
        .listen_fd = listen_fd, .alarm = alarm, .self = self, .cookies = cookies, .connections = c};
    enum status status;

    a.capacity = STRANGERS_MAX;
    for (uint32_t rank = self->rank + 1; rank < self->world_size; rank++)
        a.capacity += c->counts[rank];
    status = mem_calloc(a.capacity, sizeof(*a.pending), "pending connections", &a.pending, err);
    if (status == STATUS_OK)
        status = mem_calloc(a.capacity + 2, sizeof(*a.fds), "pending connections", &a.fds, err);
    if (status == STATUS_OK)
        status = wait_for_all(&a, deadline_ns, err);
    while (a.length > 0)
        remove_pending(&a, a.length - 1);
    free(a.fds);
    free(a.pending);
    return status;
}
