/*
 * stop: the process-wide flag that signals set.  SIGTERM, SIGINT and SIGUSR1 (which srun passes on,
 * and Slurm can send ahead of a time limit) request an orderly stop (a daemon drains, a worker ends
 * after its step); a further one ends the process at once, unless it comes within a second:
 * Slurm sends SIGTERM twice, and a launcher passes on what a terminal or a scheduler has sent, too.
 * SIGPIPE and SIGXFSZ (a file past its limit) are ignored: write returns the error.
 */
#ifndef SPARRING_COMMON_BASE_STOP_H
#define SPARRING_COMMON_BASE_STOP_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define STOP_ONE_REQUEST_NS INT64_C(1000000000) /* signals within this time after the first */

/* Install the handlers.  Call once in main, on the main thread, before other threads start. */
enum status stop_install(struct error *err);

/* The signal that requested the stop, or 0. */
int stop_requested(void);

/* When a stop interrupts waits for other processes. */
enum stop_waits {
    STOP_WAITS_LATE, /* default: after 10 s; the current step may end first, but may also hang */
    STOP_WAITS_NOW,  /* nothing would be lost: peers are not connected yet, or the work is done */
    STOP_WAITS_NEVER /* the wait itself saves data that the stop must not lose */
};
void stop_set_waits(enum stop_waits when);

/* Does a requested stop interrupt waits now? */
bool stop_ends_waits(void);

/* An eventfd that becomes readable (and stays so) when a stop is requested; for poll.  -1 before
 * install. */
int stop_fd(void);

#endif
