/*
 * output: bytes are buffered until a line is complete and written in one call, so that lines of
 * ranks do not mix.  When the target is a full pipe the copy blocks, and so do the ranks, as they
 * would if they wrote to it directly.
 */
#include "experiments/launch/output.h"

#include "common/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIPE_BYTES (1 << 17) /* twice what Linux gives a pipe */

/* True when the target takes bytes. */
static bool wait_for_room(int target, const struct output_wait_limit *limit)
{
    struct pollfd fds[2] = {{.fd = target, .events = POLLOUT},
                            {.fd = limit->stop_fd, .events = POLLIN}};
    int ready;

    do {
        int left = limit->deadline_ns == INT64_MAX ? -1 : clock_left_ms(limit->deadline_ns);

        ready = poll(fds, 2, left);
    } while (ready < 0 && errno == EINTR);
    return ready > 0 && fds[0].revents != 0;
}

static void write_line(struct output *o, char *text, size_t length,
                       const struct output_wait_limit *limit)
{
    char newline = '\n';
    struct iovec parts[3] = {{.iov_base = o->prefix, .iov_len = strlen(o->prefix)},
                             {.iov_base = text, .iov_len = length},
                             {.iov_base = &newline, .iov_len = 1}};
    ssize_t put;

    do {
        if (!wait_for_room(o->target, limit))
            return;
        put = writev(o->target, parts, 3);
    } while (put < 0 && (errno == EINTR || errno == EAGAIN));
}

static void write_lines(struct output *o, const struct output_wait_limit *limit)
{
    size_t start = 0;

    for (size_t i = 0; i < o->length; i++) {
        if (o->line[i] != '\n')
            continue;
        write_line(o, o->line + start, i - start, limit);
        start = i + 1;
    }
    if (start == 0 && o->length == sizeof(o->line)) { /* longer than the buffer: cut it here */
        write_line(o, o->line, o->length, limit);
        start = o->length;
    }
    memmove(o->line, o->line + start, o->length - start);
    o->length -= start;
}

bool output_copy(struct output *o, const struct output_wait_limit *limit)
{
    ssize_t got = read(o->fd, o->line + o->length, sizeof(o->line) - o->length);

    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    if (got > 0) {
        o->length += (size_t)got;
        write_lines(o, limit);
        return true;
    }
    if (o->length > 0)
        write_line(o, o->line, o->length, limit);
    o->length = 0;
    return false;
}

void output_close(struct output *o, const struct output_wait_limit *limit)
{
    if (o->fd < 0)
        return;
    /* An orphan of the child may hold the pipe open, or even write on: read no more than the pipe
     * can have held. */
    for (int i = 0; i < PIPE_BYTES / OUTPUT_LINE_MAX; i++) {
        struct pollfd more = {.fd = o->fd, .events = POLLIN};

        if (poll(&more, 1, 0) <= 0 || !output_copy(o, limit))
            break;
    }
    if (o->length > 0)
        write_line(o, o->line, o->length, limit);
    o->length = 0;
    (void)close(o->fd);
    o->fd = -1;
}
