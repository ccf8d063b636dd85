/*
 * ps_codec: a worker's end of compression: the coded copy of its gradients, and what it has not
 * said of them yet.  common/codec/compression says what travels.
 *
 * Threads: encode on the training thread; decode on an I/O thread, a partition belongs to one link.
 */
#ifndef SPARRING_WORKER_SYNC_PS_CODEC_H
#define SPARRING_WORKER_SYNC_PS_CODEC_H

#include "common/codec/compression.h"
#include "common/rpc/rpc.h"
#include "common/shard_map/shard_map.h"

#include <stdint.h>

struct ps_codec {
    struct compression compression;
    enum codec_mode mode; /* what becomes of the slab when something comes down */
    float *residual;      /* owned; slab layout; NULL: the codec has none */
    uint8_t *coded;       /* owned; NULL: gradients are sent as they are */
    size_t *at;           /* owned; (map->length) of each partition in coded, bytes */
    size_t *sizes; /* owned; (map->length) of what is there; 0: the gradient is sent as it is */
    uint64_t tx_bytes, rx_bytes; /* of all partitions, in one round; UINT64_MAX: they vary */
};

/* Allocates everything; map is not needed afterwards. */
enum status ps_codec_init(struct ps_codec *c, const struct compression *compression,
                          enum codec_mode mode, const struct shard_map *map, struct error *err);
void ps_codec_release(struct ps_codec *c); /* zeroed and half-built ones are allowed */

/* Encode a partition's gradient (p->count elements); what comes of it lies in c->coded until the
 * partition's next one.  STATUS_DATA as codec_encode. */
enum status ps_codec_encode(struct ps_codec *c, size_t partition, const float *gradient,
                            const struct partition *p, struct error *err);

/* Where the coded partition lies, and its size; NULL: it is no shorter than the gradient. */
const uint8_t *ps_codec_coded(const struct ps_codec *c, size_t partition, size_t *ret_size);

/* A compressed answer into dst (p->count). */
enum status ps_codec_decode(const struct ps_codec *c, struct rpc_message *message, float *dst,
                            const struct partition *p, struct error *err);

#endif
