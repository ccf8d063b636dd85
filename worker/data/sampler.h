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

struct sampler {
    size_t dataset_count;
    unsigned rank, world_size;
    bool shuffle, drop_last;
    uint64_t seed;
    int64_t *order;   /* owned; this rank's indices of the current epoch */
    size_t length;    /* samples per rank and epoch; 0 when the data set is empty, or with drop_last
                         when it has fewer samples than there are ranks */
    int64_t *scratch; /* owned; the permutation of the whole data set */
};

/* STATUS_INVALID when rank >= world_size; STATUS_UNSUPPORTED from 214748364 samples on, where
 * PyTorch draws its permutations in another way. */
enum status sampler_init(struct sampler *s, size_t dataset_count, unsigned rank,
                         unsigned world_size, bool shuffle, bool drop_last, uint64_t seed,
                         struct error *err);
void sampler_release(struct sampler *s); /* NULL and zeroed structs allowed */

/* Fill s->order for `epoch`; nothing is allocated. */
void sampler_set_epoch(struct sampler *s, uint64_t epoch);

/* Samples that padding repeats per epoch over all ranks. */
size_t sampler_padding(const struct sampler *s);

#endif
