/*
 * One direction of a link.  Header and data go out, and come in, with one system call where both
 * are there.
 */
#include "common/collective/ring/ring_flow.h"

#include "common/base/clock.h"

#include <errno.h>
#include <string.h>

#define REPORT_BYTES 65536 /* payload between two reports of progress */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

bool ring_flow_is_done(const struct ring_flow *f)
{
    return f->header_done == RING_HEADER_BYTES && f->done == f->total;
}

static void count_moved(struct ring_io *io, size_t bytes)
{
    io->moved += bytes;
    if (!io->report_progress || io->moved - io->reported < REPORT_BYTES)
        return;
    io->reported = io->moved;
    io->report_progress(io->progress_argument, io->moved);
}

static enum ring_outcome io_trouble(struct ring_io *io, const struct ring_flow *f, ssize_t result)
{
    io->trouble.peer = f->peer;
    io->trouble.error_number = errno;
    return result == TRANSPORT_ENDED ? RING_LOST : RING_FAILED;
}

enum ring_outcome ring_flow_send(struct ring_io *io, const struct ring_operation *operation,
                                 struct ring_flow *f, const void *data, size_t bytes, bool *moved)
{
    size_t head = RING_HEADER_BYTES - f->header_done;
    struct iovec parts[2] = {
        {.iov_base = (unsigned char *)(uintptr_t)operation->header + f->header_done,
         .iov_len = head},
        {.iov_base = (void *)(uintptr_t)data, .iov_len = smaller(bytes, io->segment_bytes)}};
    int first = head == 0;
    int last = parts[1].iov_len > 0;
    ssize_t put;
    size_t head_put;

    if (first > last)
        return RING_DONE;
    put = io->transport->ops->send(io->transport, f->peer, parts + first, last - first + 1);
    if (put < 0)
        return io_trouble(io, f, put);
    f->blocked = put == 0;
    *moved = *moved || put > 0;
    head_put = smaller((size_t)put, head);
    f->header_done += head_put;
    f->done += (size_t)put - head_put;
    count_moved(io, (size_t)put - head_put);
    return RING_DONE;
}

/* A header is complete: is it what this rank expects? */
static enum ring_outcome check_header(struct ring_io *io, const struct ring_operation *operation,
                                      struct ring_flow *f)
{
    f->factor = ring_header_factor(f->header);
    if (memcmp(f->header, operation->expected, SIGNATURE_BYTES) == 0)
        return RING_DONE;
    io->trouble.peer = f->peer;
    memcpy(io->trouble.header, f->header, RING_HEADER_BYTES);
    return RING_DIFFERS;
}

enum ring_outcome ring_flow_receive(struct ring_io *io, const struct ring_operation *operation,
                                    struct ring_flow *f, void *data, size_t bytes, size_t *ret_got,
                                    bool *moved)
{
    size_t head = RING_HEADER_BYTES - f->header_done;
    struct iovec parts[2] = {{.iov_base = f->header + f->header_done, .iov_len = head},
                             {.iov_base = data, .iov_len = smaller(bytes, io->segment_bytes)}};
    int first = head == 0;
    int last = parts[1].iov_len > 0;
    ssize_t got;
    size_t head_got;

    *ret_got = 0;
    if (first > last)
        return RING_DONE;
    got = io->transport->ops->receive(io->transport, f->peer, parts + first, last - first + 1);
    if (got < 0)
        return io_trouble(io, f, got);
    f->blocked = got == 0;
    *moved = *moved || got > 0;
    head_got = smaller((size_t)got, head);
    f->header_done += head_got;
    *ret_got = (size_t)got - head_got;
    count_moved(io, *ret_got);
    if (head_got > 0 && f->header_done == RING_HEADER_BYTES)
        return check_header(io, operation, f);
    return RING_DONE;
}

static bool unblock(const struct transport_interest *interests, struct ring_flow *const *flows,
                    size_t count)
{
    bool any = false;

    for (size_t i = 0; i < count; i++) {
        if (interests[i].can_send || interests[i].can_receive) {
            flows[i]->blocked = false;
            any = true;
        }
    }
    return any;
}

/* A process that was stopped while it waited did not wait past until_ns. */
static void count_waited(struct ring_io *io, int64_t since_ns, int64_t until_ns)
{
    int64_t now_ns = clock_now_ns();

    if (now_ns > until_ns)
        now_ns = until_ns;
    if (now_ns > since_ns)
        io->waited_ns += now_ns - since_ns;
}

enum ring_outcome ring_flow_wait(struct ring_io *io, struct transport_interest *interests,
                                 struct ring_flow *const *flows, size_t count, int64_t until_ns)
{
    struct transport *t = io->transport;

    for (;;) {
        int64_t since_ns = clock_now_ns();

        if (!t->ops->wait(t, interests, count, io->alarm_fd, until_ns)) {
            io->trouble.peer = count > 0 ? interests[0].peer : 0;
            io->trouble.error_number = errno;
            return RING_FAILED;
        }
        count_waited(io, since_ns, until_ns);
        if (unblock(interests, flows, count)) /* bytes that trickle in must not outlast the time */
            return since_ns < until_ns && clock_now_ns() >= until_ns ? RING_PAUSED : RING_DONE;
        if ((io->alarm && atomic_load(io->alarm)) || clock_now_ns() >= until_ns)
            return RING_PAUSED;
    }
}

enum ring_outcome ring_flow_flush(struct ring_io *io, int64_t until_ns)
{
    struct transport *t = io->transport;

    while (t->ops->is_flushed && !t->ops->is_flushed(t)) {
        if (!t->ops->wait(t, NULL, 0, io->alarm_fd, until_ns)) {
            io->trouble.error_number = errno;
            return RING_FAILED;
        }
        if ((io->alarm && atomic_load(io->alarm)) || clock_now_ns() >= until_ns)
            return t->ops->is_flushed(t) ? RING_DONE : RING_PAUSED;
    }
    return RING_DONE;
}
