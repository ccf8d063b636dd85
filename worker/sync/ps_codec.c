/*
 * Coded partitions have memory of their own, each from a cache line boundary, so that a partition
 * can be sent again until its reply has arrived.
 *
 * The first thread that sends a partition in a round encodes it: the training thread, or one that
 * reconnects a link.  `lock` is held while encoding.
 */
#include "worker/sync/ps_codec.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_LINE_BYTES 64

static enum status allocate_offsets(struct ps_codec *c, const struct shard_map *map,
                                    size_t *ret_bytes, struct error *err)
{
    size_t bytes = 0;
    enum status status = mem_calloc(map->length, sizeof(*c->offsets), "offsets of coded partitions",
                                    &c->offsets, err);

    if (status == STATUS_OK)
        status =
            mem_calloc(map->length, sizeof(*c->sizes), "sizes of coded partitions", &c->sizes, err);
    if (status == STATUS_OK)
        status = mem_calloc(map->length, sizeof(*c->rounds), "rounds of coded partitions",
                            &c->rounds, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < map->length; i++) {
        size_t coded = codec_bytes(&c->compression.up, map->partitions[i].count);

        c->offsets[i] = bytes;
        bytes += (coded + CACHE_LINE_BYTES - 1) / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
    }
    *ret_bytes = bytes;
    return STATUS_OK;
}

enum status ps_codec_init(struct ps_codec *c, const struct compression *compression,
                          enum codec_mode mode, const struct shard_map *map, struct error *err)
{
    size_t elements = 0, bytes = 0;
    enum status status = STATUS_OK;

    *c = (struct ps_codec){.compression = *compression, .mode = mode};
    for (size_t i = 0; i < map->length; i++) {
        elements += map->partitions[i].count;
        c->tx_bytes += codec_bytes(&compression->up, map->partitions[i].count);
        c->rx_bytes += codec_bytes(&compression->down, map->partitions[i].count);
    }
    if (codec_has_variable_size(&compression->up))
        c->tx_bytes = UINT64_MAX;
    if (codec_has_variable_size(&compression->down))
        c->rx_bytes = UINT64_MAX;
    if (compression->up.kind == CODEC_NONE)
        return STATUS_OK;
    (void)pthread_mutex_init(&c->lock, NULL);
    c->has_lock = true;
    status = allocate_offsets(c, map, &bytes, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(bytes, 1, "coded gradients", &c->coded, err);
    if (status == STATUS_OK && codec_has_residual(&compression->up))
        status = mem_calloc_aligned(elements, sizeof(float), "residual of the gradients",
                                    &c->residual, err);
    if (status != STATUS_OK)
        ps_codec_release(c);
    return status;
}

void ps_codec_release(struct ps_codec *c)
{
    free(c->residual);
    free(c->coded);
    free(c->offsets);
    free(c->sizes);
    free(c->rounds);
    if (c->has_lock)
        (void)pthread_mutex_destroy(&c->lock);
    memset(c, 0, sizeof(*c));
}

static enum status encode_partition(struct ps_codec *c, size_t partition, const float *gradient,
                                    const struct partition *p, struct error *err)
{
    uint8_t *coded = c->coded + c->offsets[partition];

    if (codec_has_variable_size(&c->compression.up)) {
        c->sizes[partition] = codec_encode_rows(gradient, NULL, p->count, coded);
        return STATUS_OK;
    }
    c->sizes[partition] = codec_bytes(&c->compression.up, p->count);
    return codec_encode(&c->compression.up, gradient, c->residual ? c->residual + p->offset : NULL,
                        p->count, coded, err);
}

enum status ps_codec_encode(struct ps_codec *c, size_t partition, uint64_t round,
                            const float *gradient, const struct partition *p,
                            const uint8_t **ret_coded, size_t *ret_size, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&c->lock);
    if (c->rounds[partition] < round) {
        status = encode_partition(c, partition, gradient, p, err);
        c->rounds[partition] = status == STATUS_OK ? round : c->rounds[partition];
    }
    *ret_size = c->sizes[partition];
    (void)pthread_mutex_unlock(&c->lock);
    *ret_coded = *ret_size > 0 ? c->coded + c->offsets[partition] : NULL;
    return status;
}

static enum status feed_decoder(void *user, const void *bytes, size_t size, struct error *err)
{
    return codec_decode_feed(user, bytes, size, err);
}

enum status ps_codec_decode(const struct ps_codec *c, struct rpc_message *message, float *dst,
                            const struct partition *p, struct error *err)
{
    struct codec_decoder decoder;
    enum status status;

    codec_decode_start(&decoder, &c->compression.down, dst, p->count, c->mode);
    status = rpc_message_read(message, feed_decoder, &decoder, err);
    return status == STATUS_OK ? codec_decode_end(&decoder, err) : status;
}
