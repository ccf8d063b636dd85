/*
 * The TCP transport.  A link is one or more connections; its stream is dealt out to them in stripes
 * of a fixed size, in turn, so both ends know where the next byte comes from without any framing.
 * Sockets are non-blocking and TCP_NODELAY; buffer sizes are the kernel's, whose tuning fixed sizes
 * would end.
 *
 * Bytes are copied into the kernel.  MSG_ZEROCOPY costs more than it saves where both ends are on
 * one machine, on loopback and over veth alike: the kernel copies all of it after all, later.  With
 * 64 MiB between two ranks a rank takes 94 ms of processor time instead of 77 (veth, 10 Gbit/s), 50
 * instead of 32 (loopback).
 *
 * Inside a host the window is bounded (net_limit_local_window).  Between hosts it is not: links of
 * 10 Gbit/s gain nothing, and long ones need it.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"
#include "common/collective/collective_ops.h"
#include "common/collective/ring/ring_connect.h"
#include "common/collective/ring/ring_transport.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STRIPE_BYTES ((uint64_t)64 << 10)

/* Within a host, where more bytes come, wake for as many as the ring asks for in one call, or for a
 * smaller power of two: fewer switches where ranks share cores.  Between hosts that would hold back
 * bytes for the time that 512 KiB take on the link, in every message: a third of a step with four
 * ranks, 4.2 MiB, 300 Mbit/s and 20 ms. */
#define WAKE_BYTES_MAX (512 << 10)
#define WAKE_BYTES_MIN (64 << 10)

struct tcp {
    struct transport head;
    unsigned rank, world_size;
    struct ring_connections links; /* owned */
    bool tunable;                  /* some rank has several to a neighbour, if not this one */
    unsigned *active;              /* owned, like all of these: connections in use per link */
    uint64_t *sent;                /* bytes per link since `active` changed */
    uint64_t *received;
    int *wake_bytes;      /* SO_RCVLOWAT of each link's first connection */
    struct pollfd *polls; /* for 2 interests per rank and the alarm */
};

/* The connection that carries byte `position` of a link, and how many bytes from there. */
static int carrier_fd(const struct tcp *t, unsigned peer, uint64_t position, size_t *ret_room)
{
    const int *fds = &t->links.fds[peer * t->links.stride];
    unsigned active = t->active[peer];

    if (active == 1) {
        *ret_room = SIZE_MAX;
        return fds[0];
    }
    *ret_room = (size_t)(STRIPE_BYTES - position % STRIPE_BYTES);
    return fds[position / STRIPE_BYTES % active];
}

/* Copy at most two parts, cut at `room` bytes. */
static int cut_parts(const struct iovec *parts, int count, size_t room, struct iovec *ret)
{
    int used = 0;

    for (; used < count && room > 0; used++) {
        ret[used] = parts[used];
        if (ret[used].iov_len > room)
            ret[used].iov_len = room;
        room -= ret[used].iov_len;
    }
    return used;
}

static ssize_t outcome_of_errno(void)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return 0;
    if (errno == EPIPE || errno == ECONNRESET || errno == ETIMEDOUT || errno == EHOSTUNREACH)
        return TRANSPORT_ENDED;
    return TRANSPORT_FAILED;
}

static ssize_t tcp_send(struct transport *head, unsigned peer, const struct iovec *parts, int count)
{
    struct tcp *t = (struct tcp *)head;
    struct iovec some[2];
    struct msghdr message = {.msg_iov = some};
    size_t room;
    int fd = carrier_fd(t, peer, t->sent[peer], &room);
    ssize_t put;

    message.msg_iovlen = (size_t)cut_parts(parts, count, room, some);
    put = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (put < 0)
        return outcome_of_errno();
    t->sent[peer] += (uint64_t)put;
    return put;
}

static void count_received(struct tcp *t, unsigned peer, uint64_t bytes)
{
    uint64_t before = t->received[peer];

    t->received[peer] += bytes;
    for (unsigned s = 0; t->links.local[peer] && s < t->active[peer]; s++)
        net_limit_local_window(t->links.fds[peer * t->links.stride + s], before, t->received[peer]);
}

static ssize_t tcp_receive(struct transport *head, unsigned peer, const struct iovec *parts,
                           int count)
{
    struct tcp *t = (struct tcp *)head;
    struct iovec some[2];
    struct msghdr message = {.msg_iov = some};
    size_t room;
    int fd = carrier_fd(t, peer, t->received[peer], &room);
    ssize_t got;

    message.msg_iovlen = (size_t)cut_parts(parts, count, room, some);
    got = recvmsg(fd, &message, 0);
    if (got < 0)
        return outcome_of_errno();
    if (got == 0)
        return TRANSPORT_ENDED;
    count_received(t, peer, (uint64_t)got);
    return got;
}

static int wake_bytes(size_t expected)
{
    int bytes = WAKE_BYTES_MAX;

    while (bytes >= WAKE_BYTES_MIN && (size_t)bytes > expected)
        bytes /= 2;
    return bytes >= WAKE_BYTES_MIN ? bytes : 1;
}

/* Have poll(2) report a link's only connection readable at `bytes`. */
static void set_wake_bytes(struct tcp *t, unsigned peer, int bytes)
{
    int fd = t->links.fds[peer * t->links.stride];

    if (t->wake_bytes[peer] == bytes)
        return;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)) == 0)
        t->wake_bytes[peer] = bytes;
}

/* One entry per interest; two interests for one connection are two entries, which poll(2) allows.
 */
static void fill_polls(struct tcp *t, struct transport_interest *interests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct transport_interest *w = &interests[i];
        uint64_t position = w->send ? t->sent[w->peer] : t->received[w->peer];
        size_t room;

        if (w->receive && t->links.local[w->peer] && t->active[w->peer] == 1)
            set_wake_bytes(t, w->peer, wake_bytes(w->expected));
        t->polls[i] = (struct pollfd){.fd = carrier_fd(t, w->peer, position, &room),
                                      .events = w->send ? POLLOUT : POLLIN};
        w->can_send = w->can_receive = false;
    }
}

static bool tcp_wait(struct transport *head, struct transport_interest *interests, size_t count,
                     int alarm_fd, int64_t until_ns)
{
    struct tcp *t = (struct tcp *)head;
    int64_t left_ns = until_ns - clock_now_ns();
    struct timespec left = {0};

    if (left_ns > 0) {
        left.tv_sec = (time_t)(left_ns / 1000000000);
        left.tv_nsec = (long)(left_ns % 1000000000);
    }
    fill_polls(t, interests, count);
    t->polls[count] = (struct pollfd){.fd = alarm_fd, .events = POLLIN};
    if (ppoll(t->polls, count + 1, &left, NULL) < 0)
        return errno == EINTR;
    for (size_t i = 0; i < count; i++) {
        interests[i].can_send = interests[i].send && t->polls[i].revents;
        interests[i].can_receive = interests[i].receive && t->polls[i].revents;
    }
    return true;
}

/* Unread bytes would turn the close into a reset, which may overtake what was just sent. */
static void drain_input(int fd)
{
    char bytes[256];

    while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        ;
}

static uint64_t tcp_queued(struct transport *head, unsigned peer)
{
    const struct tcp *t = (const struct tcp *)head;
    uint64_t sum = 0;

    for (unsigned s = 0; !t->links.local[peer] && s < t->active[peer]; s++) {
        int bytes = 0;

        if (ioctl(t->links.fds[peer * t->links.stride + s], SIOCOUTQ, &bytes) == 0 && bytes > 0)
            sum += (uint64_t)bytes;
    }
    return sum;
}

static unsigned tcp_use_streams(struct transport *head, unsigned count)
{
    struct tcp *t = (struct tcp *)head;

    for (unsigned r = 0; r < t->world_size; r++) {
        if (r == t->rank)
            continue;
        t->active[r] = count < t->links.counts[r] ? count : t->links.counts[r];
        t->sent[r] = t->received[r] = 0;
        if (t->active[r] > 1)
            set_wake_bytes(t, r, 1); /* a stripe may end before so many come */
    }
    return t->tunable ? RING_STREAMS_TUNED : 1;
}

static void tcp_settle_streams(struct transport *head)
{
    struct tcp *t = (struct tcp *)head;

    for (unsigned r = 0; r < t->world_size; r++) {
        int *fds = &t->links.fds[r * t->links.stride];

        for (unsigned s = t->active[r]; s < t->links.counts[r] && r != t->rank; s++) {
            (void)close(fds[s]);
            fds[s] = -1;
        }
    }
}

static void tcp_close(struct transport *head, bool in_order)
{
    struct tcp *t = (struct tcp *)head;
    int *fds;

    if (!t)
        return;
    fds = t->links.fds;
    for (size_t i = 0; fds && i < (size_t)t->world_size * t->links.stride; i++) {
        if (fds[i] < 0)
            continue;
        if (in_order)
            drain_input(fds[i]);
        (void)close(fds[i]);
    }
    free(fds);
    free(t->links.counts);
    free(t->links.local);
    free(t->active);
    free(t->sent);
    free(t->received);
    free(t->wake_bytes);
    free(t->polls);
    free(t);
}

static enum status tcp_allocate(struct tcp *t, struct error *err)
{
    size_t n = t->world_size;
    size_t fd_count = n * t->links.stride;
    enum status status = mem_calloc(fd_count, sizeof(int), "connections", &t->links.fds, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < fd_count; i++)
        t->links.fds[i] = -1;
    status = mem_calloc(n, sizeof(unsigned), "links", &t->links.counts, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(bool), "links", &t->links.local, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*t->active), "links", &t->active, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*t->sent), "links", &t->sent, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*t->received), "links", &t->received, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*t->wake_bytes), "links", &t->wake_bytes, err);
    for (size_t r = 0; r < n && status == STATUS_OK; r++)
        t->wake_bytes[r] = 1;
    if (status == STATUS_OK)
        status = mem_calloc(2 * n + 1, sizeof(*t->polls), "links", &t->polls, err);
    return status;
}

static enum status tcp_open(struct collective *group, int64_t deadline_ns, struct transport **ret,
                            struct error *err)
{
    struct tcp *t;
    enum status status = mem_calloc(1, sizeof(*t), "TCP transport", &t, err);

    if (status != STATUS_OK)
        return status;
    *t = (struct tcp){.head = {.ops = &transport_tcp_ops},
                      .rank = group->rank,
                      .world_size = group->world_size,
                      .links.stride = group->streams > 0 ? group->streams : RING_STREAMS_TUNED};
    status = tcp_allocate(t, err);
    if (status == STATUS_OK)
        status = ring_connect(group, deadline_ns, &t->links, &t->tunable, err);
    if (status != STATUS_OK) {
        tcp_close(&t->head, false);
        return status;
    }
    (void)tcp_use_streams(&t->head, t->tunable ? 1 : t->links.stride);
    *ret = &t->head;
    return STATUS_OK;
}

const struct transport_ops transport_tcp_ops = {
    .name = "tcp",
    .open = tcp_open,
    .send = tcp_send,
    .receive = tcp_receive,
    .wait = tcp_wait,
    .queued = tcp_queued,
    .use_streams = tcp_use_streams,
    .settle_streams = tcp_settle_streams,
    .close = tcp_close,
};
