/*
 * loader: batches prefetched by one thread into two alternating buffers.
 * The order is the sampler's: consecutive batches of batch_size, the last, shorter batch of an
 * epoch kept.
 */
#ifndef SPARRING_WORKER_DATA_LOADER_H
#define SPARRING_WORKER_DATA_LOADER_H

#include "worker/data/dataset.h"
#include "worker/data/sampler.h"

struct loader;

struct batch {
    const float *x;   /* (count, features), borrowed until the next loader_next */
    const int32_t *y; /* (count) */
    size_t count;
    uint64_t epoch;
    bool last_of_epoch;
};

/* Both are borrowed for the loader's life; the loader's thread calls sampler_set_epoch(0, 1, ...).
 */
enum status loader_open(const struct dataset *dataset, struct sampler *sampler, size_t batch_size,
                        struct loader **ret_loader, struct error *err);

/* The next batch; epochs follow each other without end.  Blocks until the thread has it. */
void loader_next(struct loader *l, struct batch *ret);
size_t loader_batches_per_epoch(const struct loader *l);
void loader_close(struct loader *l); /* NULL allowed */

#endif
