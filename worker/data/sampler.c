/*
 * DistributedSampler: every rank draws the same permutation from seed + epoch, repeats its first
 * indices until it divides among the ranks (or drops the remainder, or gives it to the first
 * ranks), and takes every world_size-th index.  The padding is not stored: index p of the padded
 * order is the permutation at p modulo the number of samples.  No locking: see the header.
 */
#include "worker/data/sampler.h"

#include "common/base/memory.h"
#include "common/base/random.h"

#include <stdlib.h>

#define SAMPLES_END 214748364 /* from this size on randperm draws 64-bit numbers */

static size_t samples_of_rank(size_t count, size_t ranks, size_t rank,
                              enum sampler_remainder remainder)
{
    size_t left = count % ranks;

    if (remainder == SAMPLER_KEEP)
        return count / ranks + (rank < left);
    return count / ranks + (remainder == SAMPLER_PAD && left != 0);
}

enum status sampler_init(struct sampler *s, size_t dataset_count, unsigned rank,
                         unsigned world_size, bool shuffle, enum sampler_remainder remainder,
                         uint64_t seed, struct error *err)
{
    enum status status;

    if (rank >= world_size)
        return error_set(err, STATUS_INVALID, "sampler: rank %u is outside a world of %u", rank,
                         world_size);
    if (dataset_count >= SAMPLES_END)
        return error_set(err, STATUS_UNSUPPORTED, "sampler: %zu samples, at most %d are supported",
                         dataset_count, SAMPLES_END - 1);
    *s = (struct sampler){
        .dataset_count = dataset_count,
        .part = {rank, world_size},
        .later = {rank, world_size},
        .later_epoch = UINT64_MAX,
        .rank = rank,
        .world_size = world_size,
        .shuffle = shuffle,
        .remainder = remainder,
        .seed = seed,
        .length = samples_of_rank(dataset_count, world_size, rank, remainder),
    };
    status = mem_calloc(s->length, sizeof(*s->order), "sampler order", &s->order, err);
    if (status == STATUS_OK)
        status = mem_calloc(dataset_count, sizeof(*s->scratch), "permutation", &s->scratch, err);
    if (status != STATUS_OK)
        sampler_release(s);
    return status;
}

void sampler_release(struct sampler *s)
{
    if (!s)
        return;
    free(s->order);
    free(s->scratch);
    *s = (struct sampler){0};
}

static const struct sampler_part *part_of(const struct sampler *s, uint64_t epoch)
{
    return epoch < s->later_epoch ? &s->part : &s->later;
}

size_t sampler_length(const struct sampler *s, uint64_t epoch)
{
    const struct sampler_part *part = part_of(s, epoch);

    return samples_of_rank(s->dataset_count, part->world_size, part->rank, s->remainder);
}

unsigned sampler_parts(const struct sampler *s, uint64_t epoch)
{
    return part_of(s, epoch)->world_size;
}

enum status sampler_repartition(struct sampler *s, uint64_t epoch, unsigned rank,
                                unsigned world_size, struct error *err)
{
    size_t length;
    int64_t *order;

    if (rank >= world_size)
        return error_set(err, STATUS_INVALID, "sampler: rank %u is outside a world of %u", rank,
                         world_size);
    length = samples_of_rank(s->dataset_count, world_size, rank, s->remainder);
    if (length < s->length)
        length = s->length;
    order = realloc(s->order, (length > 0 ? length : 1) * sizeof(*order));
    if (!order)
        return error_set(err, STATUS_NO_MEMORY, "no memory for the order of %zu samples", length);
    s->order = order;
    s->part = epoch > 0 ? *part_of(s, epoch - 1) : s->part;
    s->later = (struct sampler_part){rank, world_size};
    s->later_epoch = epoch;
    return STATUS_OK;
}

void sampler_set_epoch(struct sampler *s, uint64_t epoch)
{
    struct random random;

    s->rank = part_of(s, epoch)->rank;
    s->world_size = part_of(s, epoch)->world_size;
    s->length = sampler_length(s, epoch);
    if (s->dataset_count == 0)
        return;
    if (s->shuffle) {
        random_seed(&random, s->seed + epoch);
        random_permutation(&random, s->scratch, s->dataset_count);
    } else {
        for (size_t i = 0; i < s->dataset_count; i++)
            s->scratch[i] = (int64_t)i;
    }
    for (size_t i = 0; i < s->length; i++)
        s->order[i] = s->scratch[(s->rank + i * s->world_size) % s->dataset_count];
}

size_t sampler_padding(const struct sampler *s)
{
    size_t total = s->length * s->world_size;

    return s->remainder == SAMPLER_PAD && total > s->dataset_count ? total - s->dataset_count : 0;
}
