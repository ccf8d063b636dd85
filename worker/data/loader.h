/*
 * loader: batches prefetched by one thread into a ring of buffers.
 * The order is the sampler's: consecutive batches of batch_size, the last, shorter batch of an
 * epoch kept; epochs follow each other without end.
 * Threads: one caller.  The loader's thread owns the sampler between open and close.
 */
#ifndef SPARRING_WORKER_DATA_LOADER_H
#define SPARRING_WORKER_DATA_LOADER_H

#include "worker/data/dataset.h"
#include "worker/data/sampler.h"

struct loader;

struct batch {
    const float *x;   /* (count, features), borrowed until the next loader_next */
    const int32_t *y; /* (count, positions), borrowed likewise */
    size_t count;
    uint64_t epoch;
    size_t at;   /* of its first sample in this rank's part of the epoch */
    size_t left; /* samples of this rank from here to the end of the epoch, this batch included */
    bool last_of_epoch;
    uint64_t number; /* of all that were ever gathered: never the same twice */
};

/* Where samples are gathered: memory that a GPU reads directly, say.  Errors name what is missing;
 * called from the loader's caller, not from its thread. */
struct loader_memory {
    enum status (*alloc)(void *user, size_t count, float **ret, struct error *err);
    void (*free)(void *user, float *memory);
    void *user;
};

/* All are borrowed for the loader's life; the loader's thread calls sampler_set_epoch(0, 1, ...).
 * memory NULL: the heap; of other memory few and large buffers are taken.  STATUS_INVALID when
 * batch_size is 0 or the sampler has no samples for this rank. */
enum status loader_open(const struct dataset *dataset, struct sampler *sampler, size_t batch_size,
                        const struct loader_memory *memory, struct loader **ret_loader,
                        struct error *err);

/* The next batch.  Blocks until the thread has it, which never takes longer than one gather. */
void loader_next(struct loader *l, struct batch *ret);

/* The batch that loader_next will return; its data is borrowed until the next one after that.
 * Blocks likewise. */
void loader_peek(struct loader *l, struct batch *ret);

/* The same without waiting for the thread; false: it has not got it yet. */
bool loader_try_peek(struct loader *l, struct batch *ret);

/* Ends the thread and waits for it; the sampler is the caller's until loader_resume.  The batch
 * that is held stays as it is. */
void loader_pause(struct loader *l);

/* Go on from sample `at` of this rank's part of `epoch`, as the sampler divides the data now.  What
 * was prefetched is dropped, and the batch that was held is borrowed no more.  STATUS_INVALID when
 * the rank's part of the epoch ends before `at`. */
enum status loader_resume(struct loader *l, uint64_t epoch, size_t at, struct error *err);

/* Ends the thread and waits for it.  NULL allowed. */
void loader_close(struct loader *l);

#endif
