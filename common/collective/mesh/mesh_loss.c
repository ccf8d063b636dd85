/*
 * Losses, classified by what the kernels report.  An end of file or a reset means that the process
 * is gone: its kernel closed the connection.  After silence:
 *   - /proc shows a process of this host that is stopped or gone;
 *   - this kernel counts acknowledgements: a silent peer whose kernel acknowledges
 *     our heartbeats is stopped; one whose kernel acknowledges nothing either is cut off (or its
 *     whole host is frozen, which looks the same).
 * A process of this host that exists, is not stopped and whose kernel acknowledges is
 * silent only because it gets no core, or waits for its own code from a busy disk: it is not lost.
 * What waits for it has a deadline of its own.
 */
#include "common/base/clock.h"
#include "common/collective/mesh/mesh_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void close_connection(struct mesh *m, unsigned rank)
{
    struct mesh_peer *p = &m->peers[rank];

    if (p->fd < 0)
        return;
    (void)epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, p->fd, NULL);
    (void)close(p->fd);
    p->fd = -1;
    p->in_bytes = p->out_start = p->out_end = 0;
    p->waits_to_send = false;
}

void mesh_lose(struct mesh *m, unsigned rank, enum fault fault, const char *how)
{
    struct mesh_peer *p = &m->peers[rank];

    if (p->state == MESH_PEER_LOST)
        return;
    p->state = fault == FAULT_FINISHED ? MESH_PEER_LEFT : MESH_PEER_LOST;
    p->fault = fault;
    p->gone_ns = clock_now_ns();
    (void)snprintf(p->how, sizeof(p->how), "%s", how);
    if (fault != FAULT_FINISHED)
        mesh_raise_member(m, rank);
    mesh_note_event(m);
}

static bool is_network_error(int error_number)
{
    return error_number == ETIMEDOUT || error_number == EHOSTUNREACH ||
           error_number == ENETUNREACH || error_number == ENETDOWN || error_number == EHOSTDOWN;
}

void mesh_connection_ended(struct mesh *m, unsigned rank, int error_number)
{
    struct mesh_peer *p = &m->peers[rank];
    char how[sizeof(p->how)];

    close_connection(m, rank);
    mesh_note_event(m);
    if (p->state != MESH_PEER_UP || m->closing)
        return;
    if (error_number == EPROTO)
        mesh_lose(m, rank, FAULT_FAILED, "it sent something that is no message");
    else if (is_network_error(error_number)) {
        (void)snprintf(how, sizeof(how), "its connection broke: %s", strerror(error_number));
        mesh_lose(m, rank, FAULT_NETWORK, how);
    } else
        mesh_lose(m, rank, FAULT_DEAD, "its process closed its connection without a goodbye");
}

/* The state letter of a process of this host ("T" stopped, "Z" gone), '\0' when there is none; '?'
 * when /proc is not readable. */
static char process_state(uint64_t pid)
{
    char path[64];
    char line[512];
    char *end;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%" PRIu64 "/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return errno == ENOENT ? '\0' : '?';
    end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
    (void)fclose(file);
    return end && end[1] == ' ' ? end[2] : '?';
}

/* Milliseconds since this kernel had an acknowledgement from the peer's, while data waits for one;
 * 0: nothing waits. */
static uint32_t unacknowledged_ms(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    int waiting = 0; /* bytes, those that no route takes included */

    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
        ioctl(fd, SIOCOUTQ, &waiting) != 0)
        return 0;
    return waiting > 0 ? info.tcpi_last_ack_recv : 0;
}

/* The fault of a silent rank; how (size bytes) gets the evidence. */
static enum fault classify_silence(const struct mesh *m, unsigned rank, double silent_seconds,
                                   char *how, size_t size)
{
    const struct mesh_peer *p = &m->peers[rank];
    uint32_t ack_ms = unacknowledged_ms(p->fd);
    char state = p->pid != 0 ? process_state(p->pid) : '?';

    if (state == 'T' || state == 't') {
        (void)snprintf(how, size,
                       "silent for %.1f s; its process %" PRIu64 " is stopped (state %c)",
                       silent_seconds, p->pid, state);
        return FAULT_STOPPED;
    }
    if (state == '\0' || state == 'Z' || state == 'X') {
        (void)snprintf(how, size, "its process %" PRIu64 " is gone", p->pid);
        return FAULT_DEAD;
    }
    if ((int64_t)ack_ms > 2 * MESH_HEARTBEAT_MS) {
        (void)snprintf(how, size, "silent for %.1f s; its host has acknowledged nothing for %.1f s",
                       silent_seconds, ack_ms * 1e-3);
        return FAULT_NETWORK;
    }
    (void)snprintf(how, size, "silent for %.1f s; its host acknowledges what it is sent%s",
                   silent_seconds, state == '?' ? "" : ", and its process exists");
    return FAULT_STOPPED;
}

static bool is_starved(const struct mesh *m, unsigned rank)
{
    const struct mesh_peer *p = &m->peers[rank];
    char state = p->pid != 0 ? process_state(p->pid) : '?';

    return state != '\0' && !strchr("TtZX?", state) &&
           (int64_t)unacknowledged_ms(p->fd) <= 2 * MESH_HEARTBEAT_MS;
}

int64_t mesh_find_silent(struct mesh *m, int64_t now_ns)
{
    int64_t limit_ns = m->heartbeat_timeout_ms * 1000000;
    int64_t next_ns = INT64_MAX;

    for (unsigned r = 0; r < m->world_size; r++) {
        struct mesh_peer *p = &m->peers[r];
        char how[sizeof(p->how)];
        enum fault fault;

        if (r == m->rank || p->state != MESH_PEER_UP)
            continue;
        if (now_ns - p->heard_ns < limit_ns) {
            if (p->heard_ns + limit_ns < next_ns)
                next_ns = p->heard_ns + limit_ns;
            continue;
        }
        if (is_starved(m, r))
            continue; /* looked at again with the next heartbeat */
        fault = classify_silence(m, r, (double)(now_ns - p->heard_ns) * 1e-9, how, sizeof(how));
        mesh_lose(m, r, fault, how);
    }
    return next_ns;
}

enum fault mesh_fault(struct mesh *m, unsigned rank, char *ret_text, size_t size)
{
    const struct mesh_peer *p = &m->peers[rank];
    enum fault fault;

    (void)pthread_mutex_lock(&m->lock);
    fault = p->state == MESH_PEER_UP ? FAULT_NONE : p->fault;
    if (ret_text && size > 0)
        (void)snprintf(ret_text, size, "%s", fault == FAULT_NONE ? "" : p->how);
    (void)pthread_mutex_unlock(&m->lock);
    return fault;
}

bool mesh_await_loss(struct mesh *m, const unsigned *ranks, unsigned count, int64_t deadline_ns)
{
    bool found = false;

    (void)pthread_mutex_lock(&m->lock);
    for (;;) {
        for (unsigned i = 0; i < count && !found; i++)
            found = m->peers[ranks[i]].state == MESH_PEER_LOST;
        if (found || clock_now_ns() >= deadline_ns)
            break;
        mesh_wait(m, deadline_ns);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

enum fault mesh_suspect(struct mesh *m, unsigned rank, char *text, size_t size)
{
    const struct mesh_peer *p = &m->peers[rank];
    enum fault fault = FAULT_NONE;

    (void)pthread_mutex_lock(&m->lock);
    if (p->state != MESH_PEER_UP) {
        fault = p->fault;
        (void)snprintf(text, size, "%s", p->how);
    } else if (!is_starved(m, rank)) {
        fault =
            classify_silence(m, rank, (double)(clock_now_ns() - p->heard_ns) * 1e-9, text, size);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return fault;
}
