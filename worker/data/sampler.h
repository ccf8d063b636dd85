/*
 * sampler: torch.utils.data.DistributedSampler, index for index.
 * Source: torch/utils/data/distributed.py; permutation: torch.randperm with a generator seeded with
 * seed + epoch.  Called by trainer_local, the trainer, recovery and checkpointer, and by the
 * loader's thread, which owns it while the loader runs.  Threads: one at a time, except
 * sampler_length and sampler_parts, which read only what sampler_init and sampler_repartition
 * write.
 */
#ifndef SPARRING_WORKER_DATA_SAMPLER_H
#define SPARRING_WORKER_DATA_SAMPLER_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The policy for samples that do not divide among the ranks. */
enum sampler_remainder {
    SAMPLER_PAD,  /* repeat the first samples (DistributedSampler's default) */
    SAMPLER_DROP, /* drop the remainder (drop_last) */
    SAMPLER_KEEP, /* one more sample for the first ranks; each sample once */
};

struct sampler_part {
    unsigned rank, world_size;
};

struct sampler {
    size_t dataset_count;
    struct sampler_part part;  /* of epochs before `later_epoch` ... */
    struct sampler_part later; /* ... and from that epoch on */
    uint64_t later_epoch;      /* UINT64_MAX: never */
    unsigned rank, world_size; /* of the current epoch */
    bool shuffle;
    enum sampler_remainder remainder;
    uint64_t seed;
    int64_t *order;   /* owned; this rank's indices of the current epoch */
    size_t length;    /* samples of this rank in the current epoch; 0: the data set is empty, or,
                         without padding, has too few samples */
    int64_t *scratch; /* owned; the permutation of the whole data set */
};

/* STATUS_INVALID: rank >= world_size.  STATUS_UNSUPPORTED: 214748364 samples or more, for which
 * PyTorch draws permutations by another algorithm. */
enum status sampler_init(struct sampler *s, size_t dataset_count, unsigned rank,
                         unsigned world_size, bool shuffle, enum sampler_remainder remainder,
                         uint64_t seed, struct error *err);
void sampler_release(struct sampler *s); /* NULL and zeroed structs allowed */

/* Fill s->order for `epoch`.  Does not allocate. */
void sampler_set_epoch(struct sampler *s, uint64_t epoch);

/* Divide the data among other ranks (fewer, after a loss) from `epoch` on, which must not precede
 * the current one; takes effect in sampler_set_epoch.  May allocate; a failure changes nothing. */
enum status sampler_repartition(struct sampler *s, uint64_t epoch, unsigned rank,
                                unsigned world_size, struct error *err);

/* Samples of this rank in `epoch`. */
size_t sampler_length(const struct sampler *s, uint64_t epoch);

/* Number of ranks among which `epoch` is divided. */
unsigned sampler_parts(const struct sampler *s, uint64_t epoch);

/* Samples repeated by padding in the current epoch, over all ranks. */
size_t sampler_padding(const struct sampler *s);

#endif
