/*
 * active_features: selects the parameters that the next forward reads (--compression-down named).
 *
 * A feature that is 0 in all samples of the next batch contributes 0 through its column of the
 * first layer's weight, whatever the column's values.  So a step pulls only the rows that hold
 * columns of active features, and all parameters outside the first layer's weight.  Training is bit
 * for bit the same, except with an infinite weight, where 0 times infinity would be NaN.
 * The last step, and a step that an evaluation follows, pull all parameters.
 *
 * Needs a synchronisation that supports row selection and a model with an input weight; otherwise
 * all functions are no-ops.  Called by the trainer and train_step.  Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_ACTIVE_FEATURES_H
#define SPARRING_WORKER_TRAIN_ACTIVE_FEATURES_H

#include "common/base/error.h"
#include "worker/data/loader.h"

#include <stdbool.h>
#include <stdint.h>

struct trainer;

struct active_features {
    bool *active; /* owned; (features): non-zero in the next batch; NULL: no row selection */
};

/* Call once the synchronisation is open. */
enum status active_features_open(struct trainer *t, struct error *err);
void active_features_close(struct trainer *t);

/* Select the rows for the batch after `batch`, which is the current one.  Call between sync_begin
 * of update `index` and its backward. */
void active_features_select(struct trainer *t, uint64_t index, const struct batch *batch);

#endif
