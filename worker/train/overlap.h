/*
 * overlap: pulls a step's parameters while the next step computes (--overlap-forward).
 *
 * The model's forward waits for each layer's parameters before it reads them, and for all of them
 * before backward begins.  That wait counts as exposed_comm_ns, not compute_ns, of the step whose
 * forward waited.  A step's record is written once all its replies have arrived, so its bytes are
 * exactly the step's own.
 *
 * Called by the trainer, train_step, the training loop, checkpointer and stopping.
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
    struct step_record pending_step; /* a step that is not yet recorded */
    bool has_pending;
    bool complete;             /* its replies have arrived, and its bytes are counted */
    uint64_t tx_mark, rx_mark; /* payload sent and received by earlier steps */
    int64_t waited_ns;         /* in the current step's forward */
};

/* Whether sync_finish may leave parameters outstanding: the value of
 * sync_config.overlap_forward. */
bool overlap_is_enabled(const struct trainer *t);

/* Call before the first step, once the model and the synchronisation are open. */
void overlap_open(struct trainer *t);

/* Call at the begin of a step.  before: the counters so far. */
void overlap_begin(struct trainer *t, const struct sync_counters *before);

/* Call after the step's backward: moves the time that forward waited from compute to
 * exposed_comm. */
void overlap_computed(struct trainer *t, struct step_record *step);

/* Write a step's record, or keep it pending while parameters are outstanding. */
enum status overlap_record(struct trainer *t, const struct step_record *step, struct error *err);

/* Wait for all parameters.  Call before anything but forward reads them.  The wait is added to the
 * step that they belong to. */
enum status overlap_wait(struct trainer *t, struct error *err);

/* Call after a failure or a stop: writes the pending step's record if all of its parameters have
 * arrived.  Otherwise it is unknown whether the update was made, and the record is dropped. */
void overlap_abandon(struct trainer *t);

#endif
