/*
 * shard_sum: adds contributions to a partition's accumulator, and runs the optimizer on the sum.
 *
 * A contribution that lies in memory, and stays there until its reply, need not be copied to be
 * kept.  So the first one of a round is only noted, and the one that completes the round, too; they
 * are pending.  shard_step then makes the sum and the update in one pass, block by block, in cache.
 * For two ranks that is all: each gradient is read once, and the accumulator is not used where
 * nothing else needs the sum.
 *
 * Order of arrival, or rank order, where contributions that arrive before their turn wait in
 * `early`.  Ranks 0 and 1 never wait for each other: g1 + g0 is g0 + g1 bit for bit.
 */
#include "server/shard/shard_internal.h"

#include "common/tensor/tensor.h"

#include <string.h>

#define BLOCK       4096 /* elements that are summed, then updated, while they are in cache */
#define PENDING_MIN 1024 /* elements; fewer are copied sooner than noted */

static void copy_elements(float *dst, const struct shard_source *source, size_t at, size_t count)
{
    vector_scale_to(dst, source->elements + at, source->factor, count);
}

static void add_elements(float *dst, const struct shard_source *source, size_t at, size_t count)
{
    vector_add_scaled_bytes(dst, (const unsigned char *)(source->elements + at), source->factor,
                            count);
}

enum status shard_copy_source(const struct shard_source *source, float *dst, size_t count,
                              struct error *err)
{
    if (!source->elements)
        return source->copy(source->user, dst, count, err);
    copy_elements(dst, source, 0, count);
    return STATUS_OK;
}

static enum status add_source(const struct shard_source *source, float *dst, size_t count,
                              struct error *err)
{
    if (!source->elements)
        return source->add(source->user, dst, count, err);
    add_elements(dst, source, 0, count);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ pending contributions */

/* Add the pending ones' elements [at, at + count) to `sum`, which has the others' already. */
static void add_pending(const struct shard_part *part, float *sum, size_t at, size_t count)
{
    for (unsigned i = 0; i < part->pending_count; i++)
        if (part->summed == part->pending_count && i == 0)
            copy_elements(sum, &part->pending[i], at, count);
        else
            add_elements(sum, &part->pending[i], at, count);
}

void shard_drop_pending(struct shard_part *part)
{
    for (unsigned i = 0; i < part->pending_count; i++)
        shard_drop_kept(&part->pending[i]);
    part->pending_count = 0;
}

void shard_sum_pending(struct shard_part *part, float *sum)
{
    for (size_t at = 0; part->pending_count > 0 && at < part->count; at += BLOCK)
        add_pending(part, sum + at, at, part->count - at < BLOCK ? part->count - at : BLOCK);
    shard_drop_pending(part);
}

void shard_step(struct shard *s, struct shard_part *part, float *sum, float scale, double rate)
{
    float *values = s->values + part->offset;
    uint64_t step = s->config.steps_before + part->policy.steps;
    bool needs_sum = !s->config.update || shard_has_sink(s) || part->summed > part->pending_count;

    for (size_t at = 0; at < part->count; at += BLOCK) {
        size_t count = part->count - at < BLOCK ? part->count - at : BLOCK;
        float *block = needs_sum ? sum + at : sum;

        add_pending(part, block, at, count);
        if (scale != 1.0f)
            vector_scale(block, scale, count);
        if (s->config.update)
            optimizer_update_at(&s->optimizer, rate, step, part->offset + at, count, values + at,
                                block);
    }
    shard_drop_pending(part);
    part->summed = 0;
    part->next_rank = 0;
}

/* ------------------------------------------------------------------ sums */

enum status shard_sum_source(struct shard_part *part, float *sum, const struct shard_source *source,
                             bool completes, struct error *err)
{
    bool first = part->summed == 0;
    enum status status = STATUS_OK;

    if (!source->elements || part->count < PENDING_MIN) {
        shard_sum_pending(part, sum);
        part->summed++;
        return first ? shard_copy_source(source, sum, part->count, err)
                     : add_source(source, sum, part->count, err);
    }
    if (first && !completes)
        status = source->keep(source->user, &part->pending[0], err);
    else
        part->pending[part->pending_count] =
            (struct shard_source){.elements = source->elements, .factor = source->factor};
    if (status != STATUS_OK)
        return status;
    part->summed++;
    part->pending_count++;
    if (!first && !completes)
        shard_sum_pending(part, sum);
    return STATUS_OK;
}

static void sum_early_part(struct shard_part *part, float *sum, const float *early)
{
    shard_sum_pending(part, sum);
    if (part->summed++ == 0)
        memcpy(sum, early, part->count * sizeof(float));
    else
        vector_add(sum, early, part->count);
}

/* May `rank` still contribute to the round?  Lock held. */
static bool is_awaited(const struct shard_part *part, unsigned rank, uint64_t round)
{
    const struct policy_rank *r = &part->policy.ranks[rank];

    return !r->vacant && r->clock < round;
}

/* Skips ranks that will not contribute. */
void shard_sum_early(struct shard *s, struct shard_part *part, uint64_t round)
{
    const struct policy *p = &part->policy;
    float *sum = s->accumulators[round % 2] + part->offset;

    if (!s->early)
        return;
    if (part->next_rank < 2 && (is_awaited(part, 0, round) || is_awaited(part, 1, round)))
        return;
    if (part->next_rank < 2)
        part->next_rank = 2;
    for (; part->next_rank < p->world_size && !is_awaited(part, part->next_rank, round);
         part->next_rank++)
        if (p->ranks[part->next_rank].clock == round)
            sum_early_part(part, sum, shard_early_part(s, part, part->next_rank));
}
