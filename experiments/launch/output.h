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

/* What may interrupt a wait for a reader of our output that does not read. */
struct output_patience {
    int stop_fd; /* readable: a signal asks us to stop */
    int64_t deadline_ns;
};

/* Copy what is there, without waiting for more; longer lines are cut into pieces.  False at the end
 * of the stream, when the rest of the last line has been written too.  Lines are dropped when the
 * target is broken, or when it takes nothing until patience ends. */
bool output_copy(struct output *o, const struct output_patience *patience);

/* Copy what is left and close. */
void output_close(struct output *o, const struct output_patience *patience);

#endif
