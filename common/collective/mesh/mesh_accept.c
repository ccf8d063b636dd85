/*
 * Accepts the connections of higher ranks.  As many as there are and a few more may be pending at a
 * time, each with the bytes of its hello so far; one poll(2) watches them and the listening socket,
 * so a client that connects and stays silent delays no other.  When all entries are used the oldest
 * pending connection is closed.
 */
#include "common/collective/mesh/mesh_accept.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"
#include "common/base/strbuf.h"
#include "common/collective/mesh/mesh_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STRANGERS_MAX 64 /* pending, before the oldest connection is closed */

struct pending {
    int fd;
    size_t bytes;
    unsigned char hello[MESH_MESSAGE_MAX];
};

struct mesh_acceptor {
    int listen_fd;
    struct mesh_hello self;
    size_t hello_bytes;
    struct pending *pending; /* owned; in order of arrival */
    struct pollfd *fds;      /* owned; capacity + 1 */
    size_t length, capacity;
    unsigned rejected;
    char last_rejection[128];
};

enum status mesh_acceptor_open(int listen_fd, const struct mesh_hello *self,
                               struct mesh_acceptor **ret, struct error *err)
{
    struct mesh_message message = {.kind = MESH_HELLO, .hello = *self};
    unsigned char bytes[MESH_MESSAGE_MAX];
    struct mesh_acceptor *a;
    enum status status = mem_calloc(1, sizeof(*a), "an acceptor", &a, err);

    if (status != STATUS_OK)
        return status;
    a->listen_fd = listen_fd;
    a->self = *self;
    a->hello_bytes = mesh_message_encode(&message, bytes);
    a->capacity = self->world_size + STRANGERS_MAX;
    status = mem_calloc(a->capacity, sizeof(*a->pending), "pending connections", &a->pending, err);
    if (status == STATUS_OK)
        status = mem_calloc(a->capacity + 1, sizeof(*a->fds), "pending connections", &a->fds, err);
    if (status == STATUS_OK)
        *ret = a;
    else
        mesh_acceptor_close(a);
    return status;
}

void mesh_acceptor_close(struct mesh_acceptor *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->length; i++)
        (void)close(a->pending[i].fd);
    free(a->fds);
    free(a->pending);
    free(a);
}

static void remove_pending(struct mesh_acceptor *a, size_t index)
{
    a->length--;
    memmove(&a->pending[index], &a->pending[index + 1],
            (a->length - index) * sizeof(a->pending[0]));
}

static void reject_pending(struct mesh_acceptor *a, size_t index, const char *why)
{
    a->rejected++;
    (void)snprintf(a->last_rejection, sizeof(a->last_rejection), "%s", why);
    (void)close(a->pending[index].fd);
    remove_pending(a, index);
}

void mesh_acceptor_refuse(struct mesh_acceptor *a, int fd, const struct mesh_hello *hello)
{
    a->rejected++;
    (void)snprintf(a->last_rejection, sizeof(a->last_rejection),
                   "it was rank %" PRIu32 " a second time", hello->rank);
    (void)close(fd);
}

/* Does a complete hello belong to this job?  Writes why not. */
static bool check_hello(const struct mesh_acceptor *a, const struct pending *p,
                        struct mesh_hello *ret_hello, char *why, size_t size)
{
    struct mesh_message message;

    if (!mesh_message_decode(p->hello, p->bytes, &message) || message.kind != MESH_HELLO)
        (void)snprintf(why, size, "it spoke another protocol");
    else if (memcmp(message.hello.token, a->self.token, MESH_TOKEN_BYTES) != 0)
        (void)snprintf(why, size, "it belongs to another job");
    else if (message.hello.world_size != a->self.world_size)
        (void)snprintf(why, size, "it believes in %" PRIu32 " ranks, not %" PRIu32,
                       message.hello.world_size, a->self.world_size);
    else if (message.hello.rank >= a->self.world_size)
        (void)snprintf(why, size, "it was rank %" PRIu32, message.hello.rank);
    else {
        *ret_hello = message.hello;
        return true;
    }
    return false;
}

/* Read on; the descriptor when this is a rank of ours, else -1. */
static int read_pending(struct mesh_acceptor *a, size_t index, struct mesh_hello *ret_hello)
{
    struct pending *p = &a->pending[index];
    char why[sizeof(a->last_rejection)];
    ssize_t got = recv(p->fd, p->hello + p->bytes, a->hello_bytes - p->bytes, 0);
    int fd = p->fd;

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return -1;
    if (got <= 0) {
        reject_pending(a, index, "it left without a word");
        return -1;
    }
    p->bytes += (size_t)got;
    if (p->bytes >= MESH_HEADER_BYTES && mesh_message_length(p->hello) != a->hello_bytes) {
        reject_pending(a, index, "it spoke another protocol");
        return -1;
    }
    if (p->bytes < a->hello_bytes)
        return -1;
    if (!check_hello(a, p, ret_hello, why, sizeof(why))) {
        reject_pending(a, index, why);
        return -1;
    }
    remove_pending(a, index);
    return fd;
}

static enum status add_pending(struct mesh_acceptor *a, struct error *err)
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

enum status mesh_acceptor_next(struct mesh_acceptor *a, int64_t deadline_ns, int *ret_fd,
                               struct mesh_hello *ret_hello, struct error *err)
{
    for (;;) {
        struct pollfd *fds = a->fds;
        size_t count = a->length;
        int left_ms = clock_left_ms(deadline_ns);
        enum status status = STATUS_OK;

        for (size_t i = 0; i < count; i++)
            fds[i] = (struct pollfd){.fd = a->pending[i].fd, .events = POLLIN};
        fds[count] = (struct pollfd){.fd = a->listen_fd, .events = POLLIN};
        if (poll(fds, count + 1, left_ms) < 0) {
            if (errno != EINTR)
                return error_set_errno(err, errno, "cannot wait for connections");
            continue;
        }
        for (size_t i = count; i > 0; i--) { /* newest first: dropping one moves the later ones */
            int fd = fds[i - 1].revents ? read_pending(a, i - 1, ret_hello) : -1;

            if (fd >= 0) {
                *ret_fd = fd;
                return STATUS_OK;
            }
        }
        if (fds[count].revents)
            status = add_pending(a, err);
        if (status == STATUS_OK && left_ms == 0) /* also while unknown clients keep connecting */
            status = error_set(err, STATUS_TIMEOUT, "nobody connected before the deadline");
        if (status != STATUS_OK)
            return status;
    }
}

enum status mesh_acceptor_missing(const struct mesh_acceptor *a, const struct mesh *m,
                                  struct error *err)
{
    struct strbuf missing = STRBUF_INIT;
    unsigned count = 0;
    enum status status;

    for (unsigned r = m->rank + 1; r < m->world_size; r++)
        if (m->peers[r].fd < 0)
            strbuf_addf(&missing, "%s%u", count++ == 0 ? "" : ", ", r);
    if (a->rejected == 0)
        status = error_set(err, STATUS_TIMEOUT, "rank%s %s did not connect", count == 1 ? "" : "s",
                           missing.text);
    else
        status = error_set(err, STATUS_TIMEOUT,
                           "rank%s %s did not connect (%u others were turned away; the last: %s)",
                           count == 1 ? "" : "s", missing.text, a->rejected, a->last_rejection);
    strbuf_release(&missing);
    return status;
}
