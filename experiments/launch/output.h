/*
 * output: one stream of a child, copied line by line with a prefix.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_OUTPUT_H
#define SPARRING_EXPERIMENTS_LAUNCH_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUTPUT_LINE_MAX 4000 /* with prefix below PIPE_BUF, so a line is one atomic write */

struct output {
    int fd;     /* read side of the pipe, non-blocking; -1: none */
    int target; /* STDOUT_FILENO or STDERR_FILENO */
    char prefix[32];
    char line[OUTPUT_LINE_MAX];
    size_t length;
};

/* What ends a wait for a reader that does not read our output. */
struct output_wait_limit {
    int stop_fd; /* readable: a signal asks us to stop */
    int64_t deadline_ns;
};

/* Copy the available bytes, without waiting for more; longer lines are cut.  False at the end
 * of the stream, when the rest of the last line has been written too.  Lines are dropped when the
 * target is broken, or when it takes nothing until the limit. */
bool output_copy(struct output *o, const struct output_wait_limit *limit);

/* Copy the rest and close. */
void output_close(struct output *o, const struct output_wait_limit *limit);

#endif
