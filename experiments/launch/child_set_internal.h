/*
 * child_set_internal: functions shared by child_set.c and child_set_ends.c.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_CHILD_SET_INTERNAL_H
#define SPARRING_EXPERIMENTS_LAUNCH_CHILD_SET_INTERNAL_H

#include "experiments/launch/child_set.h"

/* Classify the end of a child (state LEADER_ENDED), and mark it for restart where that is allowed.
 */
void child_set_handle_end(struct child_set *c, struct child *child);

/* Once blame_deadline_ns has passed or no rank runs any more, log the first failure and stop the
 * ranks. */
void child_set_declare_first_failure(struct child_set *c);

/* Send signal `number` to all ranks and start their grace time. */
void child_set_stop_ranks(struct child_set *c, int number);

#endif
