/*
 * output: bytes are gathered until a line is whole, and leave in one write, so that lines of ranks
 * do not mix.  The target may be a pipe that nobody reads for a while: then the ranks wait, as they
 * would if they wrote to it themselves.
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
static bool wait_for_room(int target, const struct output_patience *patience)
{
    struct pollfd fds[2] = {{.fd = target, .events = POLLOUT},
                            {.fd = patience->stop_fd, .events = POLLIN}};
    int ready;

    do {
        int left = patience->deadline_ns == INT64_MAX ? -1 : clock_left_ms(patience->deadline_ns);

        ready = poll(fds, 2, left);
    } while (ready < 0 && errno == EINTR);
    return ready > 0 && fds[0].revents != 0;
}

static void write_line(struct output *o, char *text, size_t length,
                       const struct output_patience *patience)
{
    char newline = '\n';
    struct iovec parts[3] = {{.iov_base = o->prefix, .iov_len = strlen(o->prefix)},
                             {.iov_base = text, .iov_len = length},
                             {.iov_base = &newline, .iov_len = 1}};
    ssize_t put;

    do {
        if (!wait_for_room(o->target, patience))
            return;
        put = writev(o->target, parts, 3);
    } while (put < 0 && (errno == EINTR || errno == EAGAIN));
}

static void write_lines(struct output *o, const struct output_patience *patience)
{
    size_t start = 0;

    for (size_t i = 0; i < o->length; i++) {
        if (o->line[i] != '\n')
            continue;
        write_line(o, o->line + start, i - start, patience);
        start = i + 1;
    }
    if (start == 0 && o->length == sizeof(o->line)) { /* no end in sight */
        write_line(o, o->line, o->length, patience);
        start = o->length;
    }
    memmove(o->line, o->line + start, o->length - start);
    o->length -= start;
}

bool output_copy(struct output *o, const struct output_patience *patience)
{
    ssize_t got = read(o->fd, o->line + o->length, sizeof(o->line) - o->length);

    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    if (got > 0) {
        o->length += (size_t)got;
        write_lines(o, patience);
        return true;
    }
    if (o->length > 0)
        write_line(o, o->line, o->length, patience);
    o->length = 0;
    return false;
}

void output_close(struct output *o, const struct output_patience *patience)
{
    if (o->fd < 0)
        return;
    /* Something that the child left behind may hold the pipe open, or even write on: take no more
     * than the pipe can have held. */
    for (int i = 0; i < PIPE_BYTES / OUTPUT_LINE_MAX; i++) {
        struct pollfd more = {.fd = o->fd, .events = POLLIN};

        if (poll(&more, 1, 0) <= 0 || !output_copy(o, patience))
            break;
    }
    if (o->length > 0)
        write_line(o, o->line, o->length, patience);
    o->length = 0;
    (void)close(o->fd);
    o->fd = -1;
}
