/*
 * wanted: the parameters that the next forward reads (--compression-down named).
 *
 * A feature that is 0 in all samples of the next batch is multiplied with its column of the first
 * layer's weight and adds nothing, whatever stands there; so a step need only bring the rows with
 * columns of the others, and everything behind the first layer.  Training is the same bit for bit.
 * (But for a weight that has become infinite: 0 times that would have been NaN.)
 * The last step, and one that an evaluation follows, bring all.
 *
 * Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_WANTED_H
#define SPARRING_WORKER_TRAIN_WANTED_H

#include "common/base/error.h"
#include "worker/data/loader.h"

#include <stdbool.h>
#include <stdint.h>

struct trainer;

struct wanted {
    bool *active; /* owned; (features), in the next batch; NULL: no rows are named */
};

/* Once the synchronisation is open. */
enum status wanted_open(struct trainer *t, struct error *err);
void wanted_close(struct trainer *t);

/* Between sync_begin of update `index` and its backward; `batch` is the one under way. */
void wanted_name(struct trainer *t, uint64_t index, const struct batch *batch);

#endif
