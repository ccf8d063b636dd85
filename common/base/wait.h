/*
 * wait: shows the user what this process waits for.
 *
 * A function that may wait long for another process registers a struct wait on its stack.  The
 * monitor thread prints a line after 3 s, "waiting for server 127.0.0.1:1 (connection refused), 3 s
 * of 600", which is rewritten every second on a terminal.  It also ends the process when a stop
 * (stop.h) interrupts waits and a wait still lasts for half a second, inside a library for
 * instance.  Without a monitor, waits have no effect.
 *
 * Threads: waits nest.  Only waits of the thread that started the monitor are registered.
 */
#ifndef SPARRING_COMMON_BASE_WAIT_H
#define SPARRING_COMMON_BASE_WAIT_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct wait {
    bool is_listed;     /* false: no monitor, or another thread */
    struct wait *outer; /* NULL: none; the line describes the outermost wait */
    char what[256];
    char reason[256]; /* "": unknown; the innermost known reason is shown */
    int64_t since_ns;
    int64_t limit_ns; /* from since_ns; INT64_MAX: none */
};

/* "waiting for <what>", at most until deadline_ns (INT64_MAX: for ever). */
void wait_begin(struct wait *w, int64_t deadline_ns, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* Set the reason why the wait has not ended. */
void wait_note(struct wait *w, const char *reason, ...) __attribute__((format(printf, 2, 3)));

void wait_end(struct wait *w);

/* Once in main, after log_open and stop_install. */
enum status wait_monitor_start(struct error *err);

/* Stop and join the monitor before an orderly exit: it prints no more lines. */
void wait_monitor_stop(void);

#endif
