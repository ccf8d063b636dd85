/*
 * collective_blocking: operations of backends whose `run` is a library call that blocks.
 *
 * A wait without a deadline of its caller's makes the call itself; a poll, or a wait that must
 * return in time, hands the operation to the group's executor thread.  A watchdog thread ends calls
 * that the library does not end: when a member is lost, or well past the group's time-out, it
 * interrupts the call; and if the call does not return then (MPI has no way to cancel one), it ends
 * the process, because nothing else could: the text goes to the log, the exit code is the status's.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_COLLECTIVE_BLOCKING_H
#define SPARRING_COMMON_COLLECTIVE_COLLECTIVE_BLOCKING_H

#include "common/collective/collective_ops.h"

/* As collective_ops.run, and honours until_ns; only where group->no_deadline says that the caller
 * waits for as long as it takes does it block for longer.  Counts stats by the backend's formula.
 */
enum run_outcome collective_blocking_run(struct collective *group, struct collective_work *work,
                                         int64_t until_ns, struct error *err);

/* Is the operation inside a library call of the executor? */
bool collective_blocking_holds(const struct collective *group, const struct collective_work *work);

/* End the threads.  False: a library call cannot be ended; the group's memory and the backend must
 * then be left as they are until the process ends. */
bool collective_blocking_close(struct collective *group);

#endif
