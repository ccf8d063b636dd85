/*
 * loader: batches prefetched by one thread into a ring of buffers.
 * The order is the sampler's: consecutive batches of batch_size; the last batch of an epoch may be
 * shorter; epochs follow each other without end.
 * Called by worker/train.  Threads: one caller.  The loader's thread owns the sampler from
 * loader_open or loader_resume until loader_pause or loader_close.
 */
#ifndef SPARRING_WORKER_DATA_LOADER_H
#define SPARRING_WORKER_DATA_LOADER_H

#include "worker/data/dataset.h"
#include "worker/data/sampler.h"

struct loader;

struct batch {
    const float *x;   /* (count, features), borrowed until the next loader_next */
    const int32_t *y; /* (count, positions), borrowed like x */
    size_t count;
    uint64_t epoch;
    size_t offset; /* of the first sample in this rank's part of the epoch */
    size_t left;   /* samples from `offset` to the end of this rank's part, this batch included */
    bool last_of_epoch;
    uint64_t number; /* counts all batches gathered by this loader: unique */
};

/* An allocator for the batches' samples, for example of page-locked memory.  Called on the thread
 * of the loader's caller.  Errors name what is missing; the loader adds "batch: ". */
struct loader_memory {
    enum status (*alloc)(void *user, size_t count, float **ret, struct error *err);
    void (*free)(void *user, float *memory);
    void *user;
};

/* All arguments are borrowed until loader_close; the loader's thread calls sampler_set_epoch(0, 1,
 * ...).  memory NULL: the heap; otherwise fewer buffers are used if batches are large.
 * STATUS_INVALID: batch_size is 0, or the sampler has no samples for this rank. */
enum status loader_open(const struct dataset *dataset, struct sampler *sampler, size_t batch_size,
                        const struct loader_memory *memory, struct loader **ret_loader,
                        struct error *err);

/* The next batch.  Blocks until the thread has gathered it, at most for the time of one gather. */
void loader_next(struct loader *l, struct batch *ret);

/* The batch that loader_next will return; its data is borrowed until the loader_next after that
 * one.  Blocks like loader_next. */
void loader_peek(struct loader *l, struct batch *ret);

/* The same without blocking; false: the batch is not gathered yet. */
bool loader_try_peek(struct loader *l, struct batch *ret);

/* Stop the thread and wait for it; the caller owns the sampler until loader_resume.  The data of a
 * borrowed batch stays valid. */
void loader_pause(struct loader *l);

/* Continue at sample `offset` of this rank's part of `epoch`, with the sampler's current partition.
 * Drops the prefetched batches, and invalidates borrowed ones.  STATUS_INVALID: `offset` is not
 * inside the rank's part of the epoch, or a later part is empty. */
enum status loader_resume(struct loader *l, uint64_t epoch, size_t offset, struct error *err);

/* Stop the thread and wait for it.  NULL allowed. */
void loader_close(struct loader *l);

#endif
