/*
 * The thread: one epoll over all connections.  It wakes for messages, for the next heartbeat to
 * send and for the moment at which the quietest peer has been silent for too long.
 *
 * When the thread itself comes late (this process was stopped, its host was frozen, or no core was
 * free), the silence is not the peers': heard_ns of every peer is reset.
 */
#include "common/base/clock.h"
#include "common/collective/mesh/mesh_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX     64
#define HEARTBEAT_NS   ((int64_t)MESH_HEARTBEAT_MS * 1000000)
#define READS_PER_TURN 16 /* of one peer, before the next one's */

/* Handle the whole messages in p->in; false: it holds something else. */
static bool take_messages(struct mesh *m, unsigned rank)
{
    struct mesh_peer *p = &m->peers[rank];
    size_t start = 0;

    while (p->in_bytes - start >= MESH_HEADER_BYTES) {
        size_t length = mesh_message_length(p->in + start);
        struct mesh_message message;

        if (length == 0)
            return false;
        if (p->in_bytes - start < length)
            break;
        if (!mesh_message_decode(p->in + start, length, &message))
            return false;
        start += length;
        mesh_receive(m, rank, &message);
        if (p->fd < 0)
            return true; /* it sent MESH_GOODBYE */
    }
    memmove(p->in, p->in + start, p->in_bytes - start);
    p->in_bytes -= start;
    return true;
}

static void read_peer(struct mesh *m, unsigned rank)
{
    struct mesh_peer *p = &m->peers[rank];

    for (int turn = 0; turn < READS_PER_TURN && p->fd >= 0; turn++) {
        ssize_t got = recv(p->fd, p->in + p->in_bytes, sizeof(p->in) - p->in_bytes, MSG_DONTWAIT);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0) {
            mesh_connection_ended(m, rank, got == 0 ? 0 : errno);
            return;
        }
        p->heard_ns = clock_now_ns();
        p->in_bytes += (size_t)got;
        if (!take_messages(m, rank))
            mesh_connection_ended(m, rank, EPROTO);
    }
}

static void send_heartbeats(struct mesh *m)
{
    const struct mesh_message alive = {.kind = MESH_ALIVE};

    for (unsigned r = 0; r < m->world_size; r++)
        if (m->peers[r].state == MESH_PEER_UP && m->peers[r].out_end == 0)
            mesh_send(m, r, &alive);
}

static void handle_event(struct mesh *m, const struct epoll_event *event)
{
    if (event->data.u32 == UINT32_MAX) {
        uint64_t count;

        (void)!read(m->wake_fd, &count, sizeof(count));
        return;
    }
    if (event->events & EPOLLOUT)
        mesh_flush(m, event->data.u32);
    if (event->events & ~(uint32_t)EPOLLOUT)
        read_peer(m, event->data.u32);
}

/* expected_ns: when this thread should have woken. */
static void reset_silence_if_late(struct mesh *m, int64_t expected_ns, int64_t now_ns)
{
    if (now_ns - expected_ns < m->heartbeat_timeout_ms * 1000000 / 3)
        return;
    for (unsigned r = 0; r < m->world_size; r++)
        m->peers[r].heard_ns = now_ns;
}

static int milliseconds_until(int64_t then_ns, int64_t now_ns)
{
    int64_t left_ms = (then_ns - now_ns + 999999) / 1000000;

    if (left_ms < 0)
        return 0;
    return left_ms > MESH_HEARTBEAT_MS ? MESH_HEARTBEAT_MS : (int)left_ms;
}

void *mesh_thread_run(void *mesh)
{
    struct mesh *m = mesh;
    int64_t heartbeat_ns = clock_now_ns();
    int64_t now_ns = heartbeat_ns;

    (void)pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        struct epoll_event events[EVENTS_MAX];
        int64_t next_ns = mesh_find_silent(m, now_ns);
        int64_t due_ns = mesh_monitor_verdicts(m, now_ns);
        int64_t expected_ns;
        int wait_ms;
        int count;

        if (now_ns >= heartbeat_ns) {
            mesh_monitor_groups(m, now_ns);
            mesh_send_trails(m);
            send_heartbeats(m);
            heartbeat_ns = now_ns + HEARTBEAT_NS;
        }
        next_ns = next_ns < heartbeat_ns ? next_ns : heartbeat_ns;
        wait_ms = milliseconds_until(next_ns < due_ns ? next_ns : due_ns, now_ns);
        (void)pthread_mutex_unlock(&m->lock);
        expected_ns = clock_now_ns() + (int64_t)wait_ms * 1000000;
        count = epoll_wait(m->epoll_fd, events, EVENTS_MAX, wait_ms);
        (void)pthread_mutex_lock(&m->lock);
        now_ns = clock_now_ns();
        reset_silence_if_late(m, expected_ns, now_ns);
        for (int i = 0; i < count; i++)
            handle_event(m, &events[i]);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return NULL;
}
