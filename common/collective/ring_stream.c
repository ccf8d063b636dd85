/*
 * The loop of ring_stream.h.  Both sockets are tried in turn; only when neither moves does the
 * loop wait in poll(2).  Bytes to be added arrive in a scratch that stays in the L2 cache and are
 * added at once; all other bytes arrive in place.  A float32 that a receive has cut is carried to
 * the front of the scratch.
 *
 * There is no spinning before poll(2).  Yielding in a loop gains a quarter of the latency of small
 * operations on idle cores, but loses a factor of ten and more where the cores compute (a thread
 * that yields waits for the others' time slices, one that sleeps is woken at once), and here
 * they do.  Fixed socket buffers do not pay either: the kernel's tuning is as fast on loopback.
 *
 * Why bytes may land in place while the same range may still have to be sent: a byte comes round
 * the ring only after this rank has sent the byte that it is made of.
 */
#include "common/collective/ring_stream.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/tensor/tensor.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Half of a usual L2 cache.  On loopback 256 KiB to 1 MiB measure alike, 64 KiB 10 to 20 % slower.
 */
#define SEGMENT_BYTES   ((size_t)512 << 10)
#define MOVES_PER_CLOCK 64 /* look at the clock this often while bytes move */

enum status ring_stream_init(struct ring_stream *s, struct error *err)
{
    *s = (struct ring_stream){.right_fd = -1, .left_fd = -1, .segment_bytes = SEGMENT_BYTES};
    return mem_calloc_aligned(s->segment_bytes, 1, "ring segment", &s->scratch, err);
}

void ring_stream_release(struct ring_stream *s)
{
    if (s->right_fd >= 0)
        (void)close(s->right_fd);
    if (s->left_fd >= 0)
        (void)close(s->left_fd);
    s->right_fd = s->left_fd = -1;
    free(s->scratch);
    s->scratch = NULL;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- cursors ---- */

/* Enter the next range that is not empty, when the current one is done. */
static void next_send_range(const struct ring_plan *plan, struct ring_cursor *c)
{
    while (c->offset == c->range.bytes && c->step < plan->send_steps) {
        c->range = ring_plan_send(plan, c->step++);
        c->offset = 0;
    }
}

static void next_receive_range(const struct ring_plan *plan, struct ring_cursor *c)
{
    while (c->offset == c->range.bytes && c->step < plan->receive_steps) {
        c->range = ring_plan_receive(plan, c->step++, &c->action);
        c->offset = 0;
    }
}

void ring_run_init(struct ring_run *run, const struct ring_plan *plan, void *buffer,
                   const unsigned char *header)
{
    memset(run, 0, sizeof(*run));
    run->plan = plan;
    run->buffer = buffer;
    memcpy(run->header, header, sizeof(run->header));
    next_send_range(plan, &run->sent);
    next_receive_range(plan, &run->received);
}

static bool has_sent_all(const struct ring_run *run)
{
    return run->header_sent == RING_HEADER_BYTES && run->sent.done == run->plan->send_bytes;
}

static bool has_received_all(const struct ring_run *run)
{
    return run->header_received == RING_HEADER_BYTES &&
           run->received.done == run->plan->receive_bytes;
}

/* Bytes of the current range that may go out now: the rule of ring_plan.h. */
static size_t sendable(const struct ring_run *run)
{
    uint64_t allowed = run->plan->lag_bytes + run->received.done - run->sent.done;
    size_t left = run->sent.range.bytes - run->sent.offset;

    return allowed < left ? (size_t)allowed : left;
}

/* ---- sending ---- */

static enum ring_outcome send_outcome(const struct ring_stream *s)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return RING_DONE;
    if (errno == EPIPE || errno == ECONNRESET)
        return s->right_closed ? RING_RIGHT_CLOSED : RING_RIGHT_LOST;
    return RING_FAILED;
}

static enum ring_outcome send_some(const struct ring_stream *s, struct ring_run *run, bool *moved)
{
    size_t data = smaller(sendable(run), s->segment_bytes);
    size_t head = RING_HEADER_BYTES - run->header_sent;
    struct iovec parts[2] = {
        {.iov_base = run->header + run->header_sent, .iov_len = head},
        {.iov_base = run->buffer + run->sent.range.offset + run->sent.offset, .iov_len = data}};
    struct msghdr message = {.msg_iov = head > 0 ? parts : parts + 1,
                             .msg_iovlen = head > 0 ? 2 : 1};
    ssize_t put;
    size_t head_put;

    if (head + data == 0)
        return RING_DONE;
    put = sendmsg(s->right_fd, &message, MSG_NOSIGNAL);
    if (put < 0)
        return send_outcome(s);
    *moved = true;
    head_put = smaller((size_t)put, head);
    run->header_sent += head_put;
    run->sent.offset += (size_t)put - head_put;
    run->sent.done += (size_t)put - head_put;
    next_send_range(run->plan, &run->sent);
    return RING_DONE;
}

/* ---- receiving ---- */

/* Take `got` new bytes of the current range: added ones lie in the scratch, others in place. */
static void process(const struct ring_stream *s, struct ring_run *run, size_t got)
{
    struct ring_cursor *c = &run->received;
    size_t whole = got;

    if (c->action == RING_ADD) {
        size_t filled = run->carried + got;
        unsigned char *own = run->buffer + c->range.offset + c->offset;

        run->carried = filled % sizeof(float);
        whole = filled - run->carried;
        vector_add((float *)(void *)own, (const float *)(const void *)s->scratch,
                   whole / sizeof(float));
        memmove(s->scratch, s->scratch + whole, run->carried);
    }
    c->offset += whole;
    c->done += whole;
    next_receive_range(run->plan, c);
}

static struct iovec receive_target(const struct ring_stream *s, const struct ring_run *run)
{
    const struct ring_cursor *c = &run->received;
    size_t left = c->range.bytes - c->offset;

    if (c->action == RING_ADD)
        return (struct iovec){.iov_base = s->scratch + run->carried,
                              .iov_len = smaller(left, s->segment_bytes) - run->carried};
    return (struct iovec){.iov_base = run->buffer + c->range.offset + c->offset,
                          .iov_len = smaller(left, s->segment_bytes)};
}

static enum ring_outcome receive_some(const struct ring_stream *s, struct ring_run *run,
                                      bool *moved)
{
    size_t head = RING_HEADER_BYTES - run->header_received;
    struct iovec parts[2] = {{.iov_base = run->left_header + run->header_received, .iov_len = head},
                             receive_target(s, run)};
    struct msghdr message = {.msg_iov = head > 0 ? parts : parts + 1,
                             .msg_iovlen = head > 0 ? 2 : 1};
    ssize_t got;
    size_t head_got;

    if (head + parts[1].iov_len == 0)
        return RING_DONE;
    got = recvmsg(s->left_fd, &message, 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return RING_DONE;
    if (got < 0 && errno != ECONNRESET)
        return RING_FAILED;
    if (got <= 0)
        return RING_LEFT_LOST;
    *moved = true;
    head_got = smaller((size_t)got, head);
    run->header_received += head_got;
    if (head_got > 0 && run->header_received == RING_HEADER_BYTES &&
        memcmp(run->header, run->left_header, RING_HEADER_BYTES) != 0)
        return RING_LEFT_DIFFERS;
    if ((size_t)got > head_got)
        process(s, run, (size_t)got - head_got);
    return RING_DONE;
}

/* ---- notes ---- */

void ring_stream_note(const struct ring_stream *s, const struct ring_note *note)
{
    unsigned char bytes[RING_NOTE_BYTES];

    ring_note_encode(note, bytes);
    (void)!send(s->left_fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static enum ring_outcome take_note(struct ring_stream *s)
{
    struct ring_note note;

    if (!ring_note_decode(s->note, &note))
        return RING_RIGHT_LOST; /* whoever it is, it is not our neighbour any more */
    switch (note.kind) {
    case RING_NOTE_ALIVE:
        s->alive_sequence = note.sequence;
        break;
    case RING_NOTE_BLAME:
        if (note.sequence == s->blamed_sequence && note.rank == s->blamed_rank)
            break; /* been round the ring */
        s->blamed_sequence = note.sequence;
        s->blamed_rank = note.rank;
        ring_stream_note(s, &note);
        break;
    case RING_NOTE_GOODBYE:
        s->right_closed = true;
        break;
    }
    return RING_DONE;
}

/* Read what the right neighbour says, until there is no more. */
static enum ring_outcome read_notes(struct ring_stream *s)
{
    while (!s->right_closed) {
        ssize_t got =
            recv(s->right_fd, s->note + s->note_bytes, RING_NOTE_BYTES - s->note_bytes, 0);
        enum ring_outcome outcome;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return RING_DONE;
        if (got <= 0)
            return RING_RIGHT_LOST;
        s->note_bytes += (size_t)got;
        if (s->note_bytes < RING_NOTE_BYTES)
            continue;
        s->note_bytes = 0;
        outcome = take_note(s);
        if (outcome != RING_DONE)
            return outcome;
    }
    return RING_DONE;
}

/* ---- the loop ---- */

/* Wait until a socket can move or until_ns.  Listens for notes, too: they and the end of the
 * connection are the only things that come from the right. */
static enum ring_outcome wait_for_move(struct ring_stream *s, const struct ring_run *run,
                                       int64_t until_ns)
{
    bool wants_send = run->header_sent < RING_HEADER_BYTES || sendable(run) > 0;
    struct pollfd fds[2] = {
        {.fd = s->right_fd, .events = (short)(POLLIN | (wants_send ? POLLOUT : 0))},
        {.fd = has_received_all(run) ? -1 : s->left_fd, .events = POLLIN}};
    int left_ms = clock_left_ms(until_ns);
    int ready;

    if (s->right_closed) { /* its end of stream would wake every poll */
        if (!has_sent_all(run))
            return RING_RIGHT_CLOSED;
        fds[0].fd = -1;
    }
    ready = poll(fds, 2, left_ms);
    if (ready < 0 && errno != EINTR)
        return RING_FAILED;
    if (ready == 0 && left_ms == 0)
        return RING_PAUSED;
    if (ready > 0 && (fds[0].revents & ~POLLOUT))
        return read_notes(s);
    return RING_DONE;
}

/* The right neighbour is gone: what it said last, or what the left one says, may tell why. */
static enum ring_outcome why_right_lost(struct ring_stream *s, struct ring_run *run)
{
    bool moved;

    if (read_notes(s) == RING_DONE && s->right_closed)
        return RING_RIGHT_CLOSED; /* a goodbye came before the reset */
    if (run->header_received < RING_HEADER_BYTES &&
        receive_some(s, run, &moved) == RING_LEFT_DIFFERS)
        return RING_LEFT_DIFFERS;
    return RING_RIGHT_LOST;
}

enum ring_outcome ring_stream_run(struct ring_stream *s, struct ring_run *run, int64_t until_ns)
{
    unsigned moves = 0;

    while (!has_sent_all(run) || !has_received_all(run)) {
        bool moved = false;
        enum ring_outcome outcome = send_some(s, run, &moved);

        if (outcome == RING_DONE)
            outcome = receive_some(s, run, &moved);
        if (outcome == RING_DONE && !moved)
            outcome = wait_for_move(s, run, until_ns);
        if (outcome == RING_RIGHT_LOST)
            return why_right_lost(s, run);
        if (outcome != RING_DONE)
            return outcome;
        if (moved && ++moves % MOVES_PER_CLOCK == 0 && clock_now_ns() >= until_ns)
            return RING_PAUSED;
    }
    return RING_DONE;
}

static void drain(int fd)
{
    char bytes[256];

    while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        ;
}

void ring_stream_leave(const struct ring_stream *s, const unsigned char *header,
                       const struct ring_note *goodbye)
{
    if (s->right_fd < 0 || s->left_fd < 0)
        return;
    (void)!send(s->right_fd, header, RING_HEADER_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT);
    ring_stream_note(s, goodbye);
    /* Unread bytes would turn the close into a reset, which may overtake what was just sent. */
    drain(s->right_fd);
    drain(s->left_fd);
}
