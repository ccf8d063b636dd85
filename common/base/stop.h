/*
 * stop: the one flag that signals set.  SIGTERM and SIGINT ask for an orderly stop (a daemon
 * drains, a worker ends after its step); a second one ends the process at once.  SIGPIPE and
 * SIGXFSZ (a file past its limit) are ignored: the write says what is wrong.
 */
#ifndef SPARRING_COMMON_BASE_STOP_H
#define SPARRING_COMMON_BASE_STOP_H

#include "common/base/error.h"

#include <stdbool.h>

/* Install the handlers.  Call once in main before threads start. */
enum status stop_install(struct error *err);

/* The signal that asked us to stop, or 0. */
int stop_requested(void);

/* When a stop ends the waits for other processes. */
enum stop_waits {
    STOP_WAITS_LATE, /* the first: after 10 s; a step is made to its end, but may take for ever */
    STOP_WAITS_NOW,  /* nothing is at stake: ranks or servers are not there yet, or all is done */
    STOP_WAITS_NEVER /* what is waited for is what the stop saves */
};
void stop_set_waits(enum stop_waits when);

/* Is a stop requested that ends a wait now? */
bool stop_ends_waits(void);

/* An eventfd that becomes readable (and stays so) when a stop is requested; for poll.  -1 before
 * install. */
int stop_fd(void);

#endif
