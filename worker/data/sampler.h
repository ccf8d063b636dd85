/*
 * sampler: torch.utils.data.DistributedSampler, index for index.
 * Source: torch/utils/data/distributed.py; permutation: torch.randperm with a generator seeded seed
 * + epoch.
 */
#ifndef SPARRING_WORKER_DATA_SAMPLER_H
#define SPARRING_WORKER_DATA_SAMPLER_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Samples that do not divide among the ranks. */
enum sampler_rest {
    SAMPLER_PAD,  /* the first ones again until they do (DistributedSampler's default) */
    SAMPLER_DROP, /* left out (drop_last) */
    SAMPLER_KEEP, /* the first ranks have one more than the others; each sample once */
};

struct sampler_part {
    unsigned rank, world_size;
};

struct sampler {
    size_t dataset_count;
    struct sampler_part part;  /* of epochs before `later_epoch` ... */
    struct sampler_part later; /* ... and from there on */
    uint64_t later_epoch;      /* UINT64_MAX: never */
    unsigned rank, world_size; /* of the current epoch */
    bool shuffle;
    enum sampler_rest rest;
    uint64_t seed;
    int64_t *order;   /* owned; this rank's indices of the current epoch */
    size_t length;    /* samples per rank and epoch; 0 when the data set is empty, or unless
                         padded when it has too few samples */
    int64_t *scratch; /* owned; the permutation of the whole data set */
};

/* STATUS_INVALID when rank >= world_size; STATUS_UNSUPPORTED from 214748364 samples on, where
 * PyTorch draws its permutations in another way. */
enum status sampler_init(struct sampler *s, size_t dataset_count, unsigned rank,
                         unsigned world_size, bool shuffle, enum sampler_rest rest, uint64_t seed,
                         struct error *err);
void sampler_release(struct sampler *s); /* NULL and zeroed structs allowed */

/* Fill s->order for `epoch`; nothing is allocated. */
void sampler_set_epoch(struct sampler *s, uint64_t epoch);

/* From `epoch` on, not before the current one, the data is divided among other ranks (fewer, after
 * a loss); set_epoch does it.  May allocate; nothing has changed when it fails. */
enum status sampler_repartition(struct sampler *s, uint64_t epoch, unsigned rank,
                                unsigned world_size, struct error *err);

/* Samples of this rank in `epoch`. */
size_t sampler_length(const struct sampler *s, uint64_t epoch);

/* Ranks that `epoch` is divided among. */
unsigned sampler_parts(const struct sampler *s, uint64_t epoch);

/* Samples that padding repeats per epoch over all ranks. */
size_t sampler_padding(const struct sampler *s);

#endif
