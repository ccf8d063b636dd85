/*
 * network_measure: a TCP connection from every host to the next one, all driven by one poll loop.
 * First all send until each has its rate, or for so long that TCP's start is no excuse.  When
 * everything has arrived, single bytes go there and back.
 */
#include "experiments/network/network_measure.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WINDOW_NS     INT64_C(50000000) /* at least, */
#define WINDOW_BYTES  (256 << 10)       /* and for so many bytes, which come in large segments, */
#define WINDOW_MAX_NS INT64_C(2000000000)
#define WINDOWS       10 /* and START_TRIPS round trips: until then TCP may start */
#define START_TRIPS   20
#define PIECE         65536
#define TRIPS         11
#define DEADLINE_MS   20000
#define QUEUE_NS      INT64_C(10000000)
#define SEND_MIN      (16 << 10)
#define SEND_MAX      (64 << 20)
#define PAYLOAD_SHARE (1448.0 / 1514) /* of a full frame, with time stamps */
#define RATE_SLACK    0.1
#define TRIP_SLACK    0.1
#define TRIP_SLACK_NS INT64_C(1000000) /* of two processes on busy cores */

struct flow {
    int listener, from_fd, to_fd; /* -1: none */
    struct network_link path;     /* of both hosts */
    uint64_t sent, received, at_start;
    double rate; /* in the last window */
    int64_t sent_ns;
    int64_t trips[TRIPS];
    size_t trip_count;
};

struct probe {
    const struct network *network;
    struct flow *flows; /* owned; from host h to the next one */
    struct pollfd *fds; /* owned; scratch */
    int64_t deadline_ns;
    char *piece; /* owned */
};

static int64_t longest_trip_ns(const struct probe *p)
{
    int64_t longest_ns = 0;

    for (size_t h = 0; h < p->network->length; h++) {
        const struct network_link *link = &p->flows[h].path;

        if (2 * (link->delay_ns + link->jitter_ns) > longest_ns)
            longest_ns = 2 * (link->delay_ns + link->jitter_ns);
    }
    return longest_ns;
}

/* Long enough on the slowest link. */
static int64_t window_ns(const struct network *n)
{
    double longest_ns = (double)WINDOW_NS;

    for (size_t h = 0; h < n->length; h++)
        if (n->links[h].rate > 0)
            longest_ns = fmax(longest_ns, WINDOW_BYTES * 8e9 / n->links[h].rate);
    return (int64_t)fmin(longest_ns, (double)WINDOW_MAX_NS);
}

static enum status too_late(struct error *err)
{
    return error_set(err, STATUS_TIMEOUT, "network: the links could not be measured in time");
}

/* ---- connections ---- */

static enum status listen_in(const struct network *n, size_t host, struct sockaddr_in *address,
                             int *ret_fd, struct error *err)
{
    socklen_t length = sizeof(*address);
    char text[32];
    enum status status = network_enter(n, host, err);

    if (status != STATUS_OK)
        return status;
    network_address(host, text, sizeof(text));
    *address = (struct sockaddr_in){.sin_family = AF_INET};
    (void)inet_pton(AF_INET, text, &address->sin_addr);
    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*ret_fd < 0 || bind(*ret_fd, (const struct sockaddr *)address, length) != 0 ||
        listen(*ret_fd, 1) != 0 || getsockname(*ret_fd, (struct sockaddr *)address, &length) != 0)
        return error_set_errno(err, errno, "network: cannot listen on %s", text);
    return STATUS_OK;
}

/* Keeps the link busy with no more than QUEUE_NS waiting before it, which would delay the answers
 * to the flow in the other direction. */
static int send_bytes(const struct network_link *path)
{
    double bytes = path->rate / 8 * (double)(8 * path->delay_ns + QUEUE_NS) * 1e-9;

    if (path->rate == 0)
        return SEND_MAX;
    return bytes > SEND_MIN ? (int)(bytes < SEND_MAX ? bytes : SEND_MAX) : SEND_MIN;
}

static enum status connect_from(const struct network *n, size_t host,
                                const struct sockaddr_in *address, struct flow *f,
                                struct error *err)
{
    int on = 1, room = send_bytes(&f->path);
    enum status status = network_enter(n, host, err);

    if (status != STATUS_OK)
        return status;
    f->from_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (f->from_fd < 0 || setsockopt(f->from_fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)) != 0 ||
        setsockopt(f->from_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
        (connect(f->from_fd, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
         errno != EINPROGRESS))
        return error_set_errno(err, errno, "network: host %zu cannot connect to the next one",
                               host);
    return STATUS_OK;
}

static enum status accept_flow(struct probe *p, struct flow *f, struct error *err)
{
    struct pollfd fd = {.fd = f->listener, .events = POLLIN};
    int on = 1;

    if (poll(&fd, 1, clock_left_ms(p->deadline_ns)) <= 0)
        return too_late(err);
    f->to_fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (f->to_fd < 0 || setsockopt(f->to_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0)
        return error_set_errno(err, errno, "network: cannot accept a connection");
    return STATUS_OK;
}

static enum status connect_flows(struct probe *p, struct error *err)
{
    const struct network *n = p->network;
    enum status status = STATUS_OK;

    for (size_t h = 0; h < n->length && status == STATUS_OK; h++) {
        size_t next = (h + 1) % n->length;
        struct sockaddr_in address;

        p->flows[h].path = network_link_join(&n->links[h], &n->links[next]);
        status = listen_in(n, next, &address, &p->flows[h].listener, err);
        if (status == STATUS_OK)
            status = connect_from(n, h, &address, &p->flows[h], err);
    }
    for (size_t h = 0; h < n->length && status == STATUS_OK; h++)
        status = accept_flow(p, &p->flows[h], err);
    return status;
}

/* ---- rates ---- */

static enum status check_transfer(ssize_t moved, struct error *err)
{
    if (moved > 0 || (moved < 0 && (errno == EAGAIN || errno == EINTR)))
        return STATUS_OK;
    return error_set_errno(err, moved == 0 ? ECONNRESET : errno,
                           "network: a connection between emulated hosts broke");
}

/* Wait for room or bytes in any flow, and move one piece each. */
static enum status move_pieces(struct probe *p, bool sending, int64_t until_ns, struct error *err)
{
    size_t n = p->network->length;
    enum status status = STATUS_OK;

    for (size_t h = 0; h < n; h++) {
        p->fds[2 * h] = (struct pollfd){.fd = p->flows[h].to_fd, .events = POLLIN};
        p->fds[2 * h + 1] =
            (struct pollfd){.fd = sending ? p->flows[h].from_fd : -1, .events = POLLOUT};
    }
    if (poll(p->fds, 2 * n, clock_left_ms(until_ns)) < 0 && errno != EINTR)
        return error_set_errno(err, errno, "network: poll");
    for (size_t h = 0; h < n && status == STATUS_OK; h++) {
        struct flow *f = &p->flows[h];
        ssize_t moved = 1;

        if (p->fds[2 * h].revents != 0) {
            moved = recv(f->to_fd, p->piece, PIECE, 0);
            status = check_transfer(moved, err);
            f->received += moved > 0 ? (uint64_t)moved : 0;
        }
        if (p->fds[2 * h + 1].revents != 0 && status == STATUS_OK) {
            moved = send(f->from_fd, p->piece, PIECE, MSG_NOSIGNAL);
            status = check_transfer(moved, err);
            f->sent += moved > 0 ? (uint64_t)moved : 0;
        }
    }
    return status;
}

static bool all_arrived(const struct probe *p)
{
    for (size_t h = 0; h < p->network->length; h++)
        if (p->flows[h].received < p->flows[h].sent)
            return false;
    return true;
}

/* What the kernel has received; this process may read it later. */
static uint64_t arrived_bytes(const struct flow *f)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    (void)getsockopt(f->to_fd, IPPROTO_TCP, TCP_INFO, &info, &size);
    return info.tcpi_bytes_received;
}

/* Move bytes for one window; *ret: the smallest share of its rate that a flow had. */
static enum status measure_window(struct probe *p, double *ret, struct error *err)
{
    int64_t begin_ns = clock_now_ns(), end_ns = begin_ns + window_ns(p->network);
    enum status status = STATUS_OK;
    double seconds;

    for (size_t h = 0; h < p->network->length; h++)
        p->flows[h].at_start = arrived_bytes(&p->flows[h]);
    while (status == STATUS_OK && clock_now_ns() < end_ns)
        status = move_pieces(p, true, end_ns, err);
    seconds = (double)(clock_now_ns() - begin_ns) * 1e-9;
    *ret = 1;
    for (size_t h = 0; h < p->network->length; h++) {
        struct flow *f = &p->flows[h];
        double full = f->path.rate * PAYLOAD_SHARE;

        f->rate = (double)(arrived_bytes(f) - f->at_start) * 8 / seconds;
        if (full > 0 && f->rate / full < *ret)
            *ret = f->rate / full;
    }
    return status;
}

/* The best window so far counts; it ends when in one of them all flows have their rates. */
static enum status measure_rates(struct probe *p, struct network_measured *ret, struct error *err)
{
    int64_t until_ns =
        clock_now_ns() + WINDOWS * window_ns(p->network) + START_TRIPS * longest_trip_ns(p);
    double best = 0, share;
    enum status status = measure_window(p, &share, err); /* TCP's start */

    while (status == STATUS_OK && best < 1 - RATE_SLACK / 2 && clock_now_ns() < until_ns) {
        status = measure_window(p, &share, err);
        for (size_t h = 0; h < p->network->length && share > best; h++)
            ret[h].rate = p->flows[h].rate;
        best = share > best ? share : best;
    }
    while (status == STATUS_OK && !all_arrived(p)) {
        if (clock_left_ms(p->deadline_ns) == 0)
            return too_late(err);
        status = move_pieces(p, false, p->deadline_ns, err);
    }
    return status;
}

/* ---- round trips ---- */

/* Send a byte back where one has come, and note the end of a round trip. */
static void pass_byte(struct probe *p, size_t h)
{
    struct flow *f = &p->flows[h];
    char byte;

    if (p->fds[2 * h].revents != 0 && recv(f->to_fd, &byte, 1, 0) == 1)
        (void)!send(f->to_fd, &byte, 1, MSG_NOSIGNAL);
    if (p->fds[2 * h + 1].revents != 0 && recv(f->from_fd, &byte, 1, 0) == 1) {
        f->trips[f->trip_count++] = clock_now_ns() - f->sent_ns;
        f->sent_ns = 0;
    }
}

/* Of every flow that has trips left and no byte under way: send one; later, where the buffer is
 * still full of bytes whose arrival was not yet acknowledged.  False: none has trips left. */
static bool send_bytes_out(struct probe *p)
{
    bool left = false;

    for (size_t h = 0; h < p->network->length; h++) {
        struct flow *f = &p->flows[h];
        bool waits;

        left = left || f->trip_count < TRIPS;
        waits = f->sent_ns == 0 && f->trip_count < TRIPS;
        if (waits) {
            int64_t now_ns = clock_now_ns();

            waits = send(f->from_fd, "", 1, MSG_NOSIGNAL) != 1;
            f->sent_ns = waits ? 0 : now_ns;
        }
        p->fds[2 * h] = (struct pollfd){.fd = f->to_fd, .events = POLLIN};
        p->fds[2 * h + 1] =
            (struct pollfd){.fd = f->from_fd, .events = (short)(waits ? POLLIN | POLLOUT : POLLIN)};
    }
    return left;
}

static int compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static enum status measure_trips(struct probe *p, struct network_measured *ret, struct error *err)
{
    size_t n = p->network->length;

    while (send_bytes_out(p)) {
        if (poll(p->fds, 2 * n, clock_left_ms(p->deadline_ns)) == 0)
            return too_late(err);
        for (size_t h = 0; h < n; h++)
            pass_byte(p, h);
    }
    for (size_t h = 0; h < n; h++) {
        qsort(p->flows[h].trips, TRIPS, sizeof(p->flows[h].trips[0]), compare_times);
        ret[h].round_trip_ns = p->flows[h].trips[TRIPS / 2];
    }
    return STATUS_OK;
}

/* ---- */

static void close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

static enum status open_probe(struct probe *p, struct error *err)
{
    size_t n = p->network->length;
    enum status status = mem_calloc(n, sizeof(*p->flows), "flows", &p->flows, err);

    for (size_t h = 0; h < n && status == STATUS_OK; h++)
        p->flows[h] = (struct flow){.listener = -1, .from_fd = -1, .to_fd = -1};
    if (status == STATUS_OK)
        status = mem_calloc(2 * n, sizeof(*p->fds), "flows", &p->fds, err);
    if (status == STATUS_OK)
        status = mem_calloc(PIECE, 1, "flows", &p->piece, err);
    if (status == STATUS_OK)
        status = connect_flows(p, err);
    return status;
}

enum status network_probe(struct network *n, struct error *err)
{
    int64_t most_ms = DEADLINE_MS + WINDOWS * window_ns(n) / 1000000;
    struct probe probe = {.network = n, .deadline_ns = clock_deadline_ns(most_ms)};
    enum status status = n->length > 1 ? open_probe(&probe, err) : STATUS_OK, left;

    if (status == STATUS_OK && n->length > 1)
        status = measure_rates(&probe, n->measured, err);
    if (status == STATUS_OK && n->length > 1)
        status = measure_trips(&probe, n->measured, err);
    for (size_t h = 0; probe.flows && h < n->length; h++) {
        close_fd(probe.flows[h].listener);
        close_fd(probe.flows[h].from_fd);
        close_fd(probe.flows[h].to_fd);
    }
    free(probe.flows);
    free(probe.fds);
    free(probe.piece);
    left = network_leave(n, status == STATUS_OK ? err : NULL);
    return status == STATUS_OK ? left : status;
}

enum status network_probe_check(const struct network *n, size_t host, struct error *err)
{
    size_t next = (host + 1) % n->length;
    struct network_link path = network_link_join(&n->links[host], &n->links[next]);
    const struct network_measured *m = &n->measured[host];
    double rate = path.rate * PAYLOAD_SHARE;
    int64_t trip_ns = 2 * path.delay_ns;
    int64_t slack_ns = (int64_t)(TRIP_SLACK * (double)trip_ns) + 2 * path.jitter_ns + TRIP_SLACK_NS;

    if (n->length == 1)
        return STATUS_OK;
    if (rate > 0 && path.loss == 0 &&
        (m->rate < (1 - RATE_SLACK) * rate || m->rate > (1 + RATE_SLACK) * rate))
        return error_set(err, STATUS_DISTURBED,
                         "network: TCP carries %.4g Mbit/s from host %zu to host %zu, all links "
                         "busy, and not the %.4g of a link of %.4g: take lower rates or fewer "
                         "hosts, or a machine with less load",
                         m->rate * 1e-6, host, next, rate * 1e-6, path.rate * 1e-6);
    if (path.delay_ns == 0)
        return STATUS_OK;
    if (m->round_trip_ns < trip_ns - slack_ns || m->round_trip_ns > trip_ns + slack_ns)
        return error_set(
            err, STATUS_DISTURBED,
            "network: a round trip between host %zu and host %zu takes %.3f ms instead "
            "of %.3f",
            host, next, (double)m->round_trip_ns * 1e-6, (double)trip_ns * 1e-6);
    return STATUS_OK;
}
