/*
 * reply_encoding: encodes replies and keeps what the codec must remember between rounds.
 *
 * In lockstep there is one coded copy, else one for each rank.  In each copy the partitions follow
 * each other, each starting on a cache line of its own.  All memory is allocated by
 * reply_encoding_init.  The caller holds the lock of the partition that a call works on.
 */
#include "server/shard/reply_encoding.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64 /* bytes */

/* Write the partitions' consecutive offsets (NULL: none); returns the bytes of all. */
static size_t lay_out_offsets(const struct reply_encoding_config *c, size_t *offsets)
{
    const uint32_t *held;
    size_t length = shard_map_held(c->map, c->index, &held);
    size_t bytes = 0;

    for (size_t local_index = 0; local_index < length; local_index++) {
        size_t coded = codec_bytes(&c->codec, c->map->partitions[held[local_index]].count);

        if (offsets)
            offsets[local_index] = bytes;
        bytes += (coded + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    }
    return bytes;
}

/* Selected rows differ between ranks: shard_reply.c encodes them (server/shard/row_selection.h). */
static bool is_coded(const struct codec *codec)
{
    return codec->kind != CODEC_NONE && codec->kind != CODEC_SELECTED_ROWS;
}

static bool sends_deltas(const struct reply_encoding_config *c)
{
    return c->update && is_coded(&c->codec) &&
           (codec_has_residual(&c->codec) || codec_has_variable_size(&c->codec));
}

static bool needs_state(const struct reply_encoding_config *c)
{
    return c->ranks == 0 && (codec_has_residual(&c->codec) || sends_deltas(c));
}

static bool needs_delta(const struct reply_encoding_config *c)
{
    return sends_deltas(c) && codec_has_residual(&c->codec);
}

static size_t copy_count(unsigned ranks)
{
    return ranks > 0 ? ranks : 1;
}

size_t reply_encoding_bytes(const struct reply_encoding_config *c)
{
    if (!is_coded(&c->codec))
        return 0;
    return copy_count(c->ranks) * lay_out_offsets(c, NULL) +
           ((size_t)needs_state(c) + needs_delta(c)) * c->map->server_elements[c->index] *
               sizeof(float);
}

/* The arrays with elements per partition. */
static enum status allocate_parts(struct reply_encoding *d, struct error *err)
{
    enum status status =
        mem_calloc(d->length, sizeof(*d->offsets), "offsets of coded replies", &d->offsets, err);

    if (status == STATUS_OK)
        status = mem_calloc(copy_count(d->ranks) * d->length, sizeof(*d->sizes),
                            "sizes of coded replies", &d->sizes, err);
    if (status == STATUS_OK && d->ranks > 0)
        status = mem_calloc(d->ranks * d->length, sizeof(*d->copy_known), "known copies of ranks",
                            &d->copy_known, err);
    return status;
}

enum status reply_encoding_init(struct reply_encoding *d,
                                const struct reply_encoding_config *config, struct error *err)
{
    size_t elements = config->map->server_elements[config->index];
    const uint32_t *held;
    enum status status;

    *d = (struct reply_encoding){.codec = config->codec,
                                 .sends_deltas = sends_deltas(config),
                                 .ranks = config->ranks,
                                 .length = shard_map_held(config->map, config->index, &held)};
    if (!is_coded(&config->codec))
        return STATUS_OK;
    status = allocate_parts(d, err);
    if (status != STATUS_OK)
        return status;
    d->stride = lay_out_offsets(config, d->offsets);
    status =
        mem_calloc_aligned(copy_count(d->ranks) * d->stride, 1, "coded replies", &d->coded, err);
    if (status == STATUS_OK && needs_state(config))
        status = mem_calloc_aligned(elements, sizeof(float), "codec state of replies",
                                    &d->codec_state, err);
    if (status == STATUS_OK && needs_delta(config))
        status = mem_calloc_aligned(elements, sizeof(float), "deltas of replies", &d->delta, err);
    return status;
}

void reply_encoding_release(struct reply_encoding *d)
{
    free(d->coded);
    free(d->offsets);
    free(d->sizes);
    free(d->copy_known);
    free(d->codec_state);
    free(d->delta);
    memset(d, 0, sizeof(*d));
}

/* ------------------------------------------------------------------ coding */

/* held: the ranks' copy, to which the delta is added here as on the ranks. */
static enum status encode_delta(const struct reply_encoding *d, uint8_t *coded, float *delta,
                                size_t count, const float *values, float *held, struct error *err)
{
    enum status status;

    for (size_t i = 0; i < count; i++)
        delta[i] = values[i] - held[i];
    status = codec_encode(&d->codec, NULL, delta, count, coded, err);
    if (status != STATUS_OK)
        return status;
    return codec_decode(&d->codec, coded, codec_bytes(&d->codec, count), held, count, CODEC_ADD,
                        err);
}

/* held: the ranks' copy; NULL: zeros.  Returns the bytes, 0: no fewer than those of the
 * elements. */
static size_t encode_rows(uint8_t *coded, size_t count, const float *data, float *held)
{
    size_t size = codec_encode_rows(data, held, count, coded);

    if (held)
        memcpy(held, data, count * sizeof(float));
    return size;
}

/* ------------------------------------------------------------------ lockstep */

void reply_encoding_set_initial(struct reply_encoding *d, const float *values, size_t offset,
                                size_t count)
{
    if (d->codec_state && d->sends_deltas)
        memcpy(d->codec_state + offset, values, count * sizeof(float));
}

enum status reply_encoding_encode(struct reply_encoding *d, size_t local_index, size_t offset,
                                  size_t count, const float *data, struct error *err)
{
    float *codec_state = d->codec_state ? d->codec_state + offset : NULL;
    uint8_t *coded;

    if (!d->coded || d->ranks > 0)
        return STATUS_OK;
    coded = d->coded + d->offsets[local_index];
    if (codec_has_variable_size(&d->codec)) {
        d->sizes[local_index] = encode_rows(coded, count, data, codec_state);
        return STATUS_OK;
    }
    d->sizes[local_index] = codec_bytes(&d->codec, count);
    if (d->sends_deltas)
        return encode_delta(d, coded, d->delta + offset, count, data, codec_state, err);
    return codec_encode(&d->codec, data, codec_state, count, coded, err);
}

const float *reply_encoding_common_copy(const struct reply_encoding *d, size_t offset)
{
    return d->codec_state && d->sends_deltas ? d->codec_state + offset : NULL;
}

bool reply_encoding_must_persist(const struct reply_encoding *d)
{
    return d->codec_state && codec_has_residual(&d->codec);
}

enum status reply_encoding_export(const struct reply_encoding *d, size_t local_index, size_t offset,
                                  size_t count, float *data, float *codec_state, struct error *err)
{
    if (!reply_encoding_must_persist(d))
        return STATUS_OK;
    memcpy(codec_state, d->codec_state + offset, count * sizeof(float));
    if (d->sends_deltas || d->sizes[local_index] == 0)
        return STATUS_OK;
    return codec_decode(&d->codec, d->coded + d->offsets[local_index], d->sizes[local_index], data,
                        count, CODEC_REPLACE, err);
}

enum status reply_encoding_import(struct reply_encoding *d, size_t local_index, size_t offset,
                                  size_t count, const float *data, const float *codec_state,
                                  uint64_t steps, struct error *err)
{
    if (!d->coded || d->ranks > 0)
        return STATUS_OK;
    d->sizes[local_index] = 0;
    if (reply_encoding_must_persist(d))
        memcpy(d->codec_state + offset, codec_state, count * sizeof(float));
    else if (d->codec_state)
        memcpy(d->codec_state + offset, data, count * sizeof(float));
    else if (steps > 0) /* encoding again gives the same bytes */
        return reply_encoding_encode(d, local_index, offset, count, data, err);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ without lockstep */

/* Returns the bytes; 0: the codec cannot encode the values, or not in fewer bytes. */
static size_t encode_for_rank(struct reply_encoding *d, uint8_t *coded, size_t offset, size_t count,
                              const float *values, float *rank_values)
{
    size_t size = codec_bytes(&d->codec, count);

    if (codec_has_variable_size(&d->codec))
        return encode_rows(coded, count, values, rank_values);
    if (d->sends_deltas)
        return encode_delta(d, coded, d->delta + offset, count, values, rank_values, NULL) ==
                       STATUS_OK
                   ? size
                   : 0;
    return codec_encode(&d->codec, values, NULL, count, coded, NULL) == STATUS_OK &&
                   codec_decode(&d->codec, coded, size, rank_values, count, CODEC_REPLACE, NULL) ==
                       STATUS_OK
               ? size
               : 0;
}

void reply_encoding_encode_for_rank(struct reply_encoding *d, unsigned rank, size_t local_index,
                                    size_t offset, size_t count, const float *values,
                                    float *rank_values, bool whole)
{
    size_t index = rank * d->length + local_index;
    size_t size = 0;

    if (d->coded && !whole && (d->copy_known[index] || !d->sends_deltas))
        size = encode_for_rank(d, d->coded + rank * d->stride + d->offsets[local_index], offset,
                               count, values, rank_values);
    if (size == 0)
        memcpy(rank_values, values, count * sizeof(float));
    if (!d->coded)
        return;
    d->sizes[index] = size;
    d->copy_known[index] = true;
}

void reply_encoding_invalidate(struct reply_encoding *d, unsigned rank, size_t local_index)
{
    if (d->copy_known)
        d->copy_known[rank * d->length + local_index] = false;
}

/* ------------------------------------------------------------------ both */

size_t reply_encoding_size(const struct reply_encoding *d, unsigned rank, size_t local_index,
                           size_t count)
{
    return reply_encoding_coded(d, rank, local_index)
               ? d->sizes[(d->ranks > 0 ? rank * d->length : 0) + local_index]
               : count * sizeof(float);
}

const uint8_t *reply_encoding_coded(const struct reply_encoding *d, unsigned rank,
                                    size_t local_index)
{
    unsigned copy = d->ranks > 0 ? rank : 0;

    return d->coded && d->sizes[copy * d->length + local_index] > 0
               ? d->coded + copy * d->stride + d->offsets[local_index]
               : NULL;
}
