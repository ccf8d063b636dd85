/*
 * ps_codec: a worker's end of compression: the coded copy of its gradients, and what it has not
 * said of them yet.  common/codec/compression says what travels.
 *
 * Threads: encode on any; decode on an I/O thread, a partition belongs to one link.
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
    enum codec_mode mode; /* what becomes of the slab when something comes down */
    float *residual;      /* owned; slab layout; NULL: the codec has none */
    uint8_t *coded;       /* owned; NULL: gradients are sent as they are */
    size_t *at;           /* owned; (map->length) of each partition in coded, bytes */
    size_t *sizes;    /* owned; (map->length) of what is there; 0: the gradient is sent as it is */
    uint64_t *rounds; /* owned; (map->length) whose gradient is there */
    pthread_mutex_t lock; /* of residual, coded, sizes and rounds, while something is coded */
    bool locks;           /* it is initialised */
    uint64_t tx_bytes, rx_bytes; /* of all partitions, in one round; UINT64_MAX: they vary */
};

/* Allocates everything; map is not needed afterwards. */
enum status ps_codec_init(struct ps_codec *c, const struct compression *compression,
                          enum codec_mode mode, const struct shard_map *map, struct error *err);
void ps_codec_release(struct ps_codec *c); /* zeroed and half-built ones are allowed */

/* Encode a partition's gradient (p->count elements) of a round from 1, unless that is done already:
 * it is coded once, however often it is sent.  *ret_coded is where it lies, *ret_size bytes, until
 * the partition's next round; NULL: it is no shorter than the gradient.  STATUS_DATA as
 * codec_encode.  Only with compression.up. */
enum status ps_codec_encode(struct ps_codec *c, size_t partition, uint64_t round,
                            const float *gradient, const struct partition *p,
                            const uint8_t **ret_coded, size_t *ret_size, struct error *err);

/* A compressed answer into dst (p->count). */
enum status ps_codec_decode(const struct ps_codec *c, struct rpc_message *message, float *dst,
                            const struct partition *p, struct error *err);

#endif
