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
    size_t length;    /* samples per rank and epoch */
    int64_t *scratch; /* owned; the whole permutation with its padding */
};

/* STATUS_INVALID when rank >= world_size. */
enum status sampler_init(struct sampler *s, size_t dataset_count, unsigned rank,
                         unsigned world_size, bool shuffle, bool drop_last, uint64_t seed,
                         struct error *err);
void sampler_release(struct sampler *s);

/* Fill s->order for `epoch`; nothing is allocated. */
void sampler_set_epoch(struct sampler *s, uint64_t epoch);

/* Samples that padding repeats per epoch over all ranks. */
size_t sampler_padding(const struct sampler *s);

#endif
