/*
 * upload_ahead: on a GPU, uploads the next batch while the device computes.  The loader gathers
 * batches in page-locked memory.  When a step's work has been issued, and before any of it is
 * waited for, the upload of the following batch starts, provided that the loader has gathered it.
 * The order of the samples stays the loader's: if the next step gets another batch, the upload is
 * discarded.  All functions are no-ops without a GPU and with several GPUs in one process.
 * Called by trainer_local (memory), the trainer, train_step, the training loop and recovery.
 * Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_UPLOAD_AHEAD_H
#define SPARRING_WORKER_TRAIN_UPLOAD_AHEAD_H

#include "worker/data/loader.h"

struct trainer;

struct upload_ahead {
    struct loader_memory memory; /* alloc NULL: batches are on the heap, and nothing is uploaded */
    bool started;                /* an upload is pending: */
    uint64_t number;             /* batch.number of that upload */
};

/* The memory for the loader's batches, valid while the trainer's device is open; NULL: the heap. */
const struct loader_memory *upload_ahead_memory(struct trainer *t);

/* From here on model_step starts the upload of the batch that follows its own. */
void upload_ahead_open(struct trainer *t);

/* Call between loader_next and model_step, with the batch of that step.  Discards a pending upload
 * of another batch. */
enum status upload_ahead_consume(struct trainer *t, const struct batch *batch, struct error *err);

/* Discard a pending upload and block until no upload reads the loader's memory.  Call before that
 * memory changes in any other way than by the loader_next of the next step. */
enum status upload_ahead_cancel(struct trainer *t, struct error *err);

#endif
