/*
 * Sending: tried at once; what the kernel does not take stays in the peer's buffer until the thread
 * finds the socket writable.  A peer that reads nothing (stopped, cut off) fills its buffer up to a
 * bound; beyond it messages are dropped, because by then it counts as lost anyway.
 */
#include "common/collective/mesh/mesh_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static void watch_writable(struct mesh *m, unsigned rank, bool enabled)
{
    struct mesh_peer *p = &m->peers[rank];
    struct epoll_event event = {.events = EPOLLIN | (enabled ? (uint32_t)EPOLLOUT : 0),
                                .data.u32 = rank};

    if (p->waits_to_send == enabled)
        return;
    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_MOD, p->fd, &event) == 0)
        p->waits_to_send = enabled;
}

void mesh_flush(struct mesh *m, unsigned rank)
{
    struct mesh_peer *p = &m->peers[rank];

    while (p->fd >= 0 && p->out_start < p->out_end) {
        ssize_t put = send(p->fd, p->out + p->out_start, p->out_end - p->out_start,
                           MSG_NOSIGNAL | MSG_DONTWAIT);

        if (put >= 0)
            p->out_start += (size_t)put;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else if (errno != EINTR) {
            p->out_start = p->out_end = 0; /* the reading side finds out and says why */
            break;
        }
    }
    if (p->out_start == p->out_end)
        p->out_start = p->out_end = 0;
    if (p->fd >= 0)
        watch_writable(m, rank, p->out_end > 0);
}

/* Make room for `size` more bytes behind out_end; false: too many wait already. */
static bool reserve_out_bytes(struct mesh_peer *p, size_t size)
{
    size_t capacity = p->out_capacity > 0 ? p->out_capacity : 4 * (size_t)MESH_MESSAGE_MAX;
    unsigned char *grown;

    if (p->out_start > 0) {
        memmove(p->out, p->out + p->out_start, p->out_end - p->out_start);
        p->out_end -= p->out_start;
        p->out_start = 0;
    }
    while (capacity < p->out_end + size)
        capacity *= 2;
    if (capacity > MESH_OUT_MAX_BYTES)
        return false;
    if (capacity == p->out_capacity)
        return true;
    grown = realloc(p->out, capacity);
    if (!grown)
        return false;
    p->out = grown;
    p->out_capacity = capacity;
    return true;
}

void mesh_send(struct mesh *m, unsigned rank, const struct mesh_message *message)
{
    struct mesh_peer *p = &m->peers[rank];

    if (p->fd < 0 || !reserve_out_bytes(p, MESH_MESSAGE_MAX))
        return;
    p->out_end += mesh_message_encode(message, p->out + p->out_end);
    mesh_flush(m, rank);
}

void mesh_send_all(struct mesh *m, const struct mesh_message *message)
{
    for (unsigned r = 0; r < m->world_size; r++)
        mesh_send(m, r, message);
}
