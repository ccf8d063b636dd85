/*
 * delay_schedule: reproducible injection of stragglers and staleness (--delay-schedule FILE).  A
 * text file, one rule per line:
 *
 *   RANK STEP[-STEP] MS             the rank sleeps MS milliseconds in each of these steps, before
 *                                   forward and backward of its last batch
 *   RANK STEP[-STEP] P%             likewise, for P percent of its previous step, in a busy loop:
 *                                   models a slower program on the same core
 *   staleness RANK STEP[-STEP] K    the servers apply the rank's push of these steps after exactly
 *                                   K other pushes since its read (asp, ssp)
 *
 * Ranks and steps are those of the records (from 0); "-" without a second step means to the end.  A
 * '#' begins a comment.  Delays of overlapping rules for a rank add up; of overlapping staleness
 * rules the last one applies.
 *
 * Called by the trainer (read) and train_step (delays); the staleness rules go to
 * the synchronisation.
 */
#ifndef SPARRING_WORKER_TRAIN_DELAY_SCHEDULE_H
#define SPARRING_WORKER_TRAIN_DELAY_SCHEDULE_H

#include "common/base/error.h"
#include "common/consistency/consistency.h"

#include <stddef.h>
#include <stdint.h>

struct delay_rule {
    unsigned rank;
    uint64_t first, last; /* steps */
    int64_t delay_ns;
    double share; /* of the duration of the previous step */
};

struct delay_schedule {
    struct delay_rule *delays; /* owned */
    size_t delay_count;
    struct exact_staleness *staleness; /* owned; rounds, that is steps from 1 */
    size_t staleness_count;
    uint64_t hash; /* of the rules; 0: none */
};

/* path "": no rules.  STATUS_NOT_FOUND, STATUS_IO, or STATUS_CONFIG with the number of a bad
 * line. */
enum status delay_schedule_read(const char *path, unsigned world_size, struct delay_schedule *ret,
                                struct error *err);

/* The rounds of a run that goes on after so many steps begin at 1 again: move the rules of
 * staleness, and drop those that have passed. */
void delay_schedule_resume(struct delay_schedule *s, uint64_t steps);

void delay_schedule_release(struct delay_schedule *s); /* a zeroed one is allowed */

/* The delays of a rank in a step: to sleep, and to be busy as a share of the previous step. */
int64_t delay_schedule_ns(const struct delay_schedule *s, unsigned rank, uint64_t step);
double delay_schedule_share(const struct delay_schedule *s, unsigned rank, uint64_t step);

#endif
