/*
 * shm_ceiling: a bare two-phase all-reduce over shared memory: every rank sums its slice of all
 * arrays in rank order, then copies the slices of the others.  No signatures, no time-outs, no
 * detection of dead ranks: the memory bandwidth of this machine for this number of ranks.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_SHM_CEILING_H
#define SPARRING_EXPERIMENTS_BENCH_SHM_CEILING_H

#include "common/base/error.h"
#include "common/base/shared_memory.h"
#include "common/store/store.h"

#include <stddef.h>
#include <stdint.h>

struct shm_ceiling {
    unsigned rank, world_size;
    struct shared_memory *arenas; /* owned, one per rank */
    uint32_t barriers;            /* passed so far */
    unsigned spins;               /* spins of a waiting rank before it yields its core */
    size_t size;                  /* bytes of data */
    float *data;                  /* this rank's, inside its arena; zeroed by open */
};

/* Map the arrays (`size` bytes each) of the ranks of `store`, all processes of this host and user.
 */
enum status shm_ceiling_open(struct shm_ceiling *c, struct store *store, size_t size,
                             int64_t timeout_ms, struct error *err);

/* Replace data[0..count) by the sum over all ranks.  Waits for ever for a missing rank.  A rank may
 * write to its data again only after all ranks have returned: use a barrier, or the next call. */
void shm_ceiling_run(struct shm_ceiling *c, size_t count);

void shm_ceiling_close(struct shm_ceiling *c); /* after a failed open, too */

#endif
