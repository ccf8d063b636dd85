/*
 * ahead: with a GPU, the next batch travels while the device computes.  The loader gathers batches
 * in page-locked memory; when a step's work is issued, and before any of it is waited for, the
 * upload of the batch behind it starts, if the loader has it by then.  The order of the samples is
 * the loader's and is not touched: a batch that another one comes instead of is forgotten.  Without
 * a GPU, and with several in one process, nothing here does anything.
 * Threads: the training loop's.
 */
#ifndef SPARRING_WORKER_TRAIN_AHEAD_H
#define SPARRING_WORKER_TRAIN_AHEAD_H

#include "worker/data/loader.h"

struct trainer;

struct ahead {
    struct loader_memory memory; /* alloc NULL: the heap will do */
    bool started;
    uint64_t number; /* the batch on its way */
};

/* What the loader gathers in, for as long as the trainer's device is open; NULL: the heap. */
const struct loader_memory *ahead_memory(struct trainer *t);

/* From here on model_step starts the upload of the batch behind its own. */
void ahead_open(struct trainer *t);

/* The loader gave this batch, and model_step is called with it next. */
enum status ahead_take(struct trainer *t, const struct batch *batch, struct error *err);

/* The loader's memory is about to change in another way than by loader_next for the next step:
 * blocks until no upload reads it. */
enum status ahead_drop(struct trainer *t, struct error *err);

#endif
