/*
 * fault_injector: carries out a fault schedule on the children and the emulated network of a job,
 * and records when it did.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_FAULT_INJECTOR_H
#define SPARRING_EXPERIMENTS_LAUNCH_FAULT_INJECTOR_H

#include "experiments/launch/child_set.h"
#include "experiments/launch/fault_schedule.h"

enum fault_state { FAULT_PLANNED, FAULT_ACTIVE, FAULT_ENDED };

struct injected_fault {
    enum fault_state state;
    int64_t end_ns;              /* when it is to end, once it has begun; INT64_MAX: never */
    double begin_wall, end_wall; /* seconds since 1970; it was in force all the time between */
};

struct fault_injector {
    const struct fault_schedule *schedule; /* borrowed */
    struct injected_fault *injected;       /* owned, one for each fault; NULL: not open */
    struct child_set *child_set;           /* borrowed */
    int64_t start_ns;                      /* time zero of the schedule */
    double start_wall;
};

/* Time zero is now. */
enum status fault_injector_open(struct fault_injector *f, const struct fault_schedule *schedule,
                                struct child_set *child_set, struct error *err);

/* Begin and end the faults that are due.  *ret_next_ns: when the next one is, INT64_MAX: never.
 * Fails where a link cannot be changed. */
enum status fault_injector_step(struct fault_injector *f, int64_t *ret_next_ns, struct error *err);

/* Write FOLDER/faults.json: what was planned, and when it began and ended. */
enum status fault_injector_write(const struct fault_injector *f, const char *folder, uint64_t seed,
                                 struct error *err);

void fault_injector_close(struct fault_injector *f); /* a zeroed one is allowed */

#endif
