/*
 * train_model: an entry of `sparring bench train --model`: a spec of sparring-worker with its batch
 * and steps, and random data of its shape.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_TRAIN_MODEL_H
#define SPARRING_EXPERIMENTS_BENCH_TRAIN_MODEL_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct train_model {
    char spec[256];
    char data[128]; /* random data that fit it */
    int64_t batch_size, steps;
    uint64_t positions; /* labels per sample: of a sequence its tokens, else 1 */
};

/* text: SPEC[@BATCH[@STEPS]],...; a comma before a letter separates, others belong to the spec
 * (gpt:4,4,128,64).  batch_size and steps: defaults for entries without them; ranks: the data hold
 * whole batches of all ranks.  Fills up to `max` models; STATUS_INVALID for more, for none, or for
 * malformed numbers; STATUS_CONFIG for a spec without sizes (the worker validates the rest). */
enum status train_models_parse(const char *text, int64_t batch_size, int64_t steps, int64_t ranks,
                               struct train_model *models, size_t max, size_t *ret_count,
                               struct error *err);

#endif
