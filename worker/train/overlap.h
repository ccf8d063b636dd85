/*
 * overlap: steps whose parameters come back while the next one computes (--overlap-forward).
 *
 * The model's forward waits for each layer's parameters before it reads them, and for all before
 * backward begins.  Where that wait lies it is counted: exposed_comm_ns of the step whose forward
 * waited, not compute_ns.  A step's record is written when its answers are here, so its bytes are
 * all of its own and no others.
 *
 * Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_OVERLAP_H
#define SPARRING_WORKER_TRAIN_OVERLAP_H

#include "common/base/error.h"
#include "common/metrics/metrics.h"

#include <stdbool.h>
#include <stdint.h>

struct trainer;
struct sync_counters;

struct overlap {
    struct step_record held; /* a step that is not recorded yet */
    bool holds;
    bool complete;             /* its answers are here, and its bytes are counted */
    uint64_t tx_mark, rx_mark; /* payload sent and received for the steps before it */
    int64_t waited_ns;         /* in forward of the step under way */
};

/* May finish leave parameters outstanding?  What sync_config.overlap_forward is set to. */
bool overlap_is_wanted(const struct trainer *t);

/* Before the first step, once the model and the synchronisation are open. */
void overlap_open(struct trainer *t);

/* A step begins; `before`: what was sent and received so far. */
void overlap_begin(struct trainer *t, const struct sync_counters *before);

/* Its forward and backward are done: the time that they waited is no computation. */
void overlap_computed(struct trainer *t, struct step_record *step);

/* Record a step, or hold it while parameters are outstanding. */
enum status overlap_record(struct trainer *t, const struct step_record *step, struct error *err);

/* Wait for all parameters: somebody else than forward is about to read them.  The time goes to the
 * step that they are of. */
enum status overlap_settle(struct trainer *t, struct error *err);

/* After a failure or a stop: record the step that was held if all of its parameters have come; else
 * nobody knows whether its update was made. */
void overlap_abandon(struct trainer *t);

#endif
