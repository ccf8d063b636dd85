/*
 * wait: what this process waits for, for whoever looks at it.
 *
 * A function that may wait long for another process says so with a struct wait on its stack.  A
 * thread of its own, the monitor, prints a line after 3 s, "waiting for server 127.0.0.1:1
 * (connection refused), 3 s of 600", on a terminal rewritten in place every second; and it ends the
 * process when a stop (stop.h) may end waits and one goes on for half a second all the same, inside
 * a library for instance.  Without a monitor waits cost a lock and say nothing.
 *
 * Threads: waits nest.  Only those of the thread that started the monitor are looked at.
 */
#ifndef SPARRING_COMMON_BASE_WAIT_H
#define SPARRING_COMMON_BASE_WAIT_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct wait {
    bool is_listed;     /* else it is of no interest */
    struct wait *outer; /* NULL: none; the line is about the outermost */
    char what[256];
    char reason[256]; /* "": unknown; the innermost known one is shown */
    int64_t since_ns;
    int64_t limit_ns; /* from since_ns; INT64_MAX: none */
};

/* "waiting for <what>", at most until deadline_ns (INT64_MAX: for ever). */
void wait_begin(struct wait *w, int64_t deadline_ns, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* Why it is not over yet, as far as is known. */
void wait_note(struct wait *w, const char *reason, ...) __attribute__((format(printf, 2, 3)));

void wait_end(struct wait *w);

/* Once in main, after log_open and stop_install. */
enum status wait_monitor_start(struct error *err);

/* The process is to end in order: no more lines. */
void wait_monitor_stop(void);

#endif
