/* The coded partitions lie one behind the other, each on a cache line of its own. */
#include "server/shard_down.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define LINE 64 /* bytes */

/* Places one behind the other into at (NULL: only the sum is wanted); returns the bytes of all. */
static size_t lay_out(const struct codec *codec, const struct shard_map *map, unsigned index,
                      size_t *at)
{
    const uint32_t *held;
    size_t length = shard_map_held(map, index, &held);
    size_t bytes = 0;

    for (size_t slot = 0; slot < length; slot++) {
        if (at)
            at[slot] = bytes;
        bytes += (codec_bytes(codec, map->partitions[held[slot]].count) + LINE - 1) / LINE * LINE;
    }
    return bytes;
}

/* Named rows differ from rank to rank (server/shard_names.h). */
static bool codes(const struct codec *codec)
{
    return codec->kind != CODEC_NONE && codec->kind != CODEC_NAMED;
}

static bool tells_changes(const struct codec *codec, bool update)
{
    return update && codes(codec) && (codec_has_residual(codec) || codec_varies(codec));
}

size_t shard_down_bytes(const struct codec *codec, const struct shard_map *map, unsigned index)
{
    size_t bytes;

    if (!codes(codec))
        return 0;
    bytes = lay_out(codec, map, index, NULL);
    if (codec_has_residual(codec) || codec_varies(codec))
        bytes += map->server_elements[index] * sizeof(float);
    return bytes;
}

enum status shard_down_init(struct shard_down *d, const struct codec *codec, bool update,
                            const struct shard_map *map, unsigned index, struct error *err)
{
    const uint32_t *held;
    size_t length = shard_map_held(map, index, &held);
    enum status status;

    *d = (struct shard_down){.codec = *codec, .tells_changes = tells_changes(codec, update)};
    if (!codes(codec))
        return STATUS_OK;
    status = mem_calloc(length, sizeof(*d->at), "places of coded answers", &d->at, err);
    if (status == STATUS_OK)
        status = mem_calloc(length, sizeof(*d->sizes), "sizes of coded answers", &d->sizes, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(lay_out(codec, map, index, d->at), 1, "coded answers",
                                    &d->coded, err);
    if (status == STATUS_OK && (codec_has_residual(codec) || d->tells_changes))
        status = mem_calloc_aligned(map->server_elements[index], sizeof(float),
                                    "what answers have not said", &d->kept, err);
    return status;
}

void shard_down_release(struct shard_down *d)
{
    free(d->coded);
    free(d->at);
    free(d->sizes);
    free(d->kept);
    memset(d, 0, sizeof(*d));
}

void shard_down_begin(struct shard_down *d, const float *values, size_t offset, size_t count)
{
    if (d->tells_changes)
        memcpy(d->kept + offset, values, count * sizeof(float));
}

/* What the ranks do with the answer is done here, too. */
static enum status encode_change(struct shard_down *d, uint8_t *coded, size_t offset, size_t count,
                                 const float *values, float *work, struct error *err)
{
    enum status status;

    for (size_t i = 0; i < count; i++)
        work[i] = values[i] - d->kept[offset + i];
    status = codec_encode(&d->codec, NULL, work, count, coded, err);
    if (status != STATUS_OK)
        return status;
    return codec_decode(&d->codec, coded, codec_bytes(&d->codec, count), d->kept + offset, count,
                        CODEC_ADD, err);
}

/* Returns the bytes, 0: no fewer than those of the elements. */
static size_t encode_rows(const struct shard_down *d, uint8_t *coded, size_t offset, size_t count,
                          const float *data)
{
    size_t size = codec_encode_rows(data, d->kept ? d->kept + offset : NULL, count, coded);

    if (d->kept)
        memcpy(d->kept + offset, data, count * sizeof(float));
    return size;
}

enum status shard_down_encode(struct shard_down *d, size_t slot, size_t offset, size_t count,
                              const float *data, float *work, struct error *err)
{
    uint8_t *coded;

    if (!d->coded)
        return STATUS_OK;
    coded = d->coded + d->at[slot];
    if (codec_varies(&d->codec)) {
        d->sizes[slot] = encode_rows(d, coded, offset, count, data);
        return STATUS_OK;
    }
    d->sizes[slot] = codec_bytes(&d->codec, count);
    if (d->tells_changes)
        return encode_change(d, coded, offset, count, data, work, err);
    return codec_encode(&d->codec, data, d->kept ? d->kept + offset : NULL, count, coded, err);
}

size_t shard_down_size(const struct shard_down *d, size_t slot, size_t count)
{
    return shard_down_coded(d, slot) ? d->sizes[slot] : count * sizeof(float);
}

const uint8_t *shard_down_coded(const struct shard_down *d, size_t slot)
{
    return d->coded && d->sizes[slot] > 0 ? d->coded + d->at[slot] : NULL;
}
