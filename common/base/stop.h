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

/* While nothing is at stake a stop also ends the waits for others: ranks or servers that are not
 * there yet.  Off at first, and to be off again before anybody says goodbye. */
void stop_let_interrupt(bool may);

/* May a wait be ended by a stop?  One is requested, and nothing is at stake, or it has been for 10
 * s: a step is made to its end, but not one that may take for ever. */
bool stop_interrupts(void);

/* An eventfd that becomes readable (and stays so) when a stop is requested; for poll.  -1 before
 * install. */
int stop_fd(void);

#endif
