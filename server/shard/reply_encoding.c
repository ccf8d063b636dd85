/* The coded partitions lie one behind the other, each on a cache line of its own. */
#include "server/shard/reply_encoding.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define LINE 64 /* bytes */

/* Places one behind the other into at (NULL: only the sum is wanted); returns the bytes of all. */
static size_t lay_out(const struct reply_encoding_config *c, size_t *at)
{
    const uint32_t *held;
    size_t length = shard_map_held(c->map, c->index, &held);
    size_t bytes = 0;

    for (size_t slot = 0; slot < length; slot++) {
        size_t coded = codec_bytes(&c->codec, c->map->partitions[held[slot]].count);

        if (at)
            at[slot] = bytes;
        bytes += (coded + LINE - 1) / LINE * LINE;
    }
    return bytes;
}

/* Named rows differ from rank to rank (server/row_selection.h). */
static bool codes(const struct codec *codec)
{
    return codec->kind != CODEC_NONE && codec->kind != CODEC_SELECTED_ROWS;
}

static bool tells_changes(const struct reply_encoding_config *c)
{
    return c->update && codes(&c->codec) &&
           (codec_has_residual(&c->codec) || codec_has_variable_size(&c->codec));
}

static bool keeps(const struct reply_encoding_config *c)
{
    return c->ranks == 0 && (codec_has_residual(&c->codec) || tells_changes(c));
}

static bool works(const struct reply_encoding_config *c)
{
    return tells_changes(c) && codec_has_residual(&c->codec);
}

static size_t copies(unsigned ranks)
{
    return ranks > 0 ? ranks : 1;
}

size_t reply_encoding_bytes(const struct reply_encoding_config *c)
{
    if (!codes(&c->codec))
        return 0;
    return copies(c->ranks) * lay_out(c, NULL) +
           ((size_t)keeps(c) + works(c)) * c->map->server_elements[c->index] * sizeof(float);
}

/* What there is one of per partition. */
static enum status allocate_parts(struct reply_encoding *d, struct error *err)
{
    enum status status =
        mem_calloc(d->length, sizeof(*d->at), "places of coded answers", &d->at, err);

    if (status == STATUS_OK)
        status = mem_calloc(copies(d->ranks) * d->length, sizeof(*d->sizes),
                            "sizes of coded answers", &d->sizes, err);
    if (status == STATUS_OK && d->ranks > 0)
        status =
            mem_calloc(d->ranks * d->length, sizeof(*d->knows), "who knows what", &d->knows, err);
    return status;
}

enum status reply_encoding_init(struct reply_encoding *d,
                                const struct reply_encoding_config *config, struct error *err)
{
    size_t elements = config->map->server_elements[config->index];
    const uint32_t *held;
    enum status status;

    *d = (struct reply_encoding){.codec = config->codec,
                                 .tells_changes = tells_changes(config),
                                 .ranks = config->ranks,
                                 .length = shard_map_held(config->map, config->index, &held)};
    if (!codes(&config->codec))
        return STATUS_OK;
    status = allocate_parts(d, err);
    if (status != STATUS_OK)
        return status;
    d->stride = lay_out(config, d->at);
    status = mem_calloc_aligned(copies(d->ranks) * d->stride, 1, "coded answers", &d->coded, err);
    if (status == STATUS_OK && keeps(config))
        status = mem_calloc_aligned(elements, sizeof(float), "what answers have not said", &d->kept,
                                    err);
    if (status == STATUS_OK && works(config))
        status = mem_calloc_aligned(elements, sizeof(float), "changes", &d->work, err);
    return status;
}

void reply_encoding_release(struct reply_encoding *d)
{
    free(d->coded);
    free(d->at);
    free(d->sizes);
    free(d->knows);
    free(d->kept);
    free(d->work);
    memset(d, 0, sizeof(*d));
}

/* ------------------------------------------------------------------ coding */

/* held: what the ranks have; they do with the answer what is done with it here. */
static enum status encode_change(const struct reply_encoding *d, uint8_t *coded, float *work,
                                 size_t count, const float *values, float *held, struct error *err)
{
    enum status status;

    for (size_t i = 0; i < count; i++)
        work[i] = values[i] - held[i];
    status = codec_encode(&d->codec, NULL, work, count, coded, err);
    if (status != STATUS_OK)
        return status;
    return codec_decode(&d->codec, coded, codec_bytes(&d->codec, count), held, count, CODEC_ADD,
                        err);
}

/* held: NULL: zeros.  Returns the bytes, 0: no fewer than those of the elements. */
static size_t encode_rows(uint8_t *coded, size_t count, const float *data, float *held)
{
    size_t size = codec_encode_rows(data, held, count, coded);

    if (held)
        memcpy(held, data, count * sizeof(float));
    return size;
}

/* ------------------------------------------------------------------ lockstep */

void reply_encoding_begin(struct reply_encoding *d, const float *values, size_t offset,
                          size_t count)
{
    if (d->kept && d->tells_changes)
        memcpy(d->kept + offset, values, count * sizeof(float));
}

enum status reply_encoding_encode(struct reply_encoding *d, size_t slot, size_t offset,
                                  size_t count, const float *data, struct error *err)
{
    float *kept = d->kept ? d->kept + offset : NULL;
    uint8_t *coded;

    if (!d->coded || d->ranks > 0)
        return STATUS_OK;
    coded = d->coded + d->at[slot];
    if (codec_has_variable_size(&d->codec)) {
        d->sizes[slot] = encode_rows(coded, count, data, kept);
        return STATUS_OK;
    }
    d->sizes[slot] = codec_bytes(&d->codec, count);
    if (d->tells_changes)
        return encode_change(d, coded, d->work + offset, count, data, kept, err);
    return codec_encode(&d->codec, data, kept, count, coded, err);
}

const float *reply_encoding_whole(const struct reply_encoding *d, size_t offset)
{
    return d->kept && d->tells_changes ? d->kept + offset : NULL;
}

bool reply_encoding_is_kept(const struct reply_encoding *d)
{
    return d->kept && codec_has_residual(&d->codec);
}

enum status reply_encoding_export(const struct reply_encoding *d, size_t slot, size_t offset,
                                  size_t count, float *data, float *kept, struct error *err)
{
    if (!reply_encoding_is_kept(d))
        return STATUS_OK;
    memcpy(kept, d->kept + offset, count * sizeof(float));
    if (d->tells_changes || d->sizes[slot] == 0)
        return STATUS_OK;
    return codec_decode(&d->codec, d->coded + d->at[slot], d->sizes[slot], data, count,
                        CODEC_REPLACE, err);
}

enum status reply_encoding_import(struct reply_encoding *d, size_t slot, size_t offset,
                                  size_t count, const float *data, const float *kept,
                                  uint64_t steps, struct error *err)
{
    if (!d->coded || d->ranks > 0)
        return STATUS_OK;
    d->sizes[slot] = 0;
    if (reply_encoding_is_kept(d))
        memcpy(d->kept + offset, kept, count * sizeof(float));
    else if (d->kept)
        memcpy(d->kept + offset, data, count * sizeof(float));
    else if (steps > 0) /* it is rounded, or left out, as it was */
        return reply_encoding_encode(d, slot, offset, count, data, err);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ one rank on its own */

/* Returns the bytes; 0: there are no words for it. */
static size_t tell_coded(struct reply_encoding *d, uint8_t *coded, size_t offset, size_t count,
                         const float *values, float *told)
{
    size_t size = codec_bytes(&d->codec, count);

    if (codec_has_variable_size(&d->codec))
        return encode_rows(coded, count, values, told);
    if (d->tells_changes)
        return encode_change(d, coded, d->work + offset, count, values, told, NULL) == STATUS_OK
                   ? size
                   : 0;
    return codec_encode(&d->codec, values, NULL, count, coded, NULL) == STATUS_OK &&
                   codec_decode(&d->codec, coded, size, told, count, CODEC_REPLACE, NULL) ==
                       STATUS_OK
               ? size
               : 0;
}

void reply_encoding_tell(struct reply_encoding *d, unsigned rank, size_t slot, size_t offset,
                         size_t count, const float *values, float *told, bool whole)
{
    size_t index = rank * d->length + slot;
    size_t size = 0;

    if (d->coded && !whole && (d->knows[index] || !d->tells_changes))
        size =
            tell_coded(d, d->coded + rank * d->stride + d->at[slot], offset, count, values, told);
    if (size == 0)
        memcpy(told, values, count * sizeof(float));
    if (!d->coded)
        return;
    d->sizes[index] = size;
    d->knows[index] = true;
}

void reply_encoding_forget(struct reply_encoding *d, unsigned rank, size_t slot)
{
    if (d->knows)
        d->knows[rank * d->length + slot] = false;
}

/* ------------------------------------------------------------------ either */

size_t reply_encoding_size(const struct reply_encoding *d, unsigned rank, size_t slot, size_t count)
{
    return reply_encoding_coded(d, rank, slot)
               ? d->sizes[(d->ranks > 0 ? rank * d->length : 0) + slot]
               : count * sizeof(float);
}

const uint8_t *reply_encoding_coded(const struct reply_encoding *d, unsigned rank, size_t slot)
{
    unsigned copy = d->ranks > 0 ? rank : 0;

    return d->coded && d->sizes[copy * d->length + slot] > 0
               ? d->coded + copy * d->stride + d->at[slot]
               : NULL;
}
