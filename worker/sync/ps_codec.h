/*
 * ps_codec: the worker's side of compression: the coded copy of its gradients, and their residual
 * (error feedback).  common/codec/compression.h defines the formats.
 *
 * Threads: encode on any thread; decode on an I/O thread, each partition belongs to one link.
 * Called by ps_open.c, ps_close.c and ps_payload.c.
 */
#ifndef SPARRING_WORKER_SYNC_PS_CODEC_H
#define SPARRING_WORKER_SYNC_PS_CODEC_H

#include "common/codec/compression.h"
#include "common/rpc/rpc.h"
#include "common/shard_map/shard_map.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct ps_codec {
    struct compression compression;
    enum codec_mode mode; /* how a reply changes the slab */
    float *residual;      /* owned; slab layout; NULL: the codec has none */
    uint8_t *coded;       /* owned; NULL: gradients are sent uncompressed */
    size_t *offsets;      /* owned; (map->length) bytes; of each partition in coded */
    size_t *sizes;        /* owned; (map->length) bytes there; 0: send the gradient uncompressed */
    uint64_t *rounds;     /* owned; (map->length) round of the gradient there */
    pthread_mutex_t lock; /* guards residual, coded, sizes and rounds while encoding */
    bool has_lock;        /* lock is initialised */
    uint64_t tx_bytes, rx_bytes; /* of one round; UINT64_MAX: they depend on the data */
};

/* Allocates everything; map is not needed afterwards. */
enum status ps_codec_init(struct ps_codec *c, const struct compression *compression,
                          enum codec_mode mode, const struct shard_map *map, struct error *err);
void ps_codec_release(struct ps_codec *c); /* zeroed and half-built ones are allowed */

/* Encode a partition's gradient (p->count elements) of a round >= 1, once per round, however often
 * it is sent.  *ret_coded: *ret_size bytes, valid until the partition's next round; NULL: not
 * smaller than the gradient.  STATUS_DATA as codec_encode.  Only with compression.up. */
enum status ps_codec_encode(struct ps_codec *c, size_t partition, uint64_t round,
                            const float *gradient, const struct partition *p,
                            const uint8_t **ret_coded, size_t *ret_size, struct error *err);

/* Decode a compressed reply into dst (p->count). */
enum status ps_codec_decode(const struct ps_codec *c, struct rpc_message *message, float *dst,
                            const struct partition *p, struct error *err);

#endif
