/*
 * shard_down: answers in fewer bytes.  A whole sum or step of a partition is coded once, before
 * anybody is answered, and all ranks are answered from that one copy.
 *
 *   fp16, bf16            the values, or the mean, rounded.
 *   topk, onebit, mean    the mean and what was not said of those before it (the residual).
 *   topk, onebit, values  the difference between the values and what the ranks hold.  Every rank
 *                         adds what it is told to the same initial values, so they all hold the
 *                         same, and `told` holds it, too, bit for bit.
 *
 *   rows, mean            the rows that are not zero.
 *   rows, values          the rows that differ from what the ranks hold: `kept`, as above.
 *
 * A coded answer is overwritten when the next round of its partition is complete, which in lockstep
 * is after everybody has it (server/shard.h).  Memory beside the shard's: the coded bytes, and for
 * topk, onebit and rows of values one slab of float32.
 *
 * Threads: any; a partition under the lock of its shard_part.
 */
#ifndef SPARRING_SERVER_SHARD_DOWN_H
#define SPARRING_SERVER_SHARD_DOWN_H

#include "common/codec/compression.h"
#include "common/shard_map/shard_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard_down {
    struct codec codec;
    bool tells_changes; /* of values: `kept` is what the ranks hold; else the residual */
    size_t *sizes;      /* owned; of each slot's answer; 0: it is sent as it is */
    uint8_t *coded;     /* owned; NULL: answers are not coded */
    size_t *at;         /* owned; of each slot's answer in coded, bytes */
    float *kept;        /* owned; NULL: the codec has no residual */
};

/* Nothing is coded here where the codec is none or named; shard_down_encode then does nothing. */

/* Bytes that shard_down_init allocates for tensors of server `index` of the map. */
size_t shard_down_bytes(const struct codec *codec, const struct shard_map *map, unsigned index);

/* update: answers are values.  map is not needed afterwards. */
enum status shard_down_init(struct shard_down *d, const struct codec *codec, bool update,
                            const struct shard_map *map, unsigned index, struct error *err);
void shard_down_release(struct shard_down *d); /* zeroed and half-built ones are allowed */

/* Everybody gets these initial values of the partition at `offset`. */
void shard_down_begin(struct shard_down *d, const float *values, size_t offset, size_t count);

/* Code an answer.  data: the values or the mean; work: count elements that may be overwritten, used
 * where changes are told.  STATUS_DATA as codec_encode. */
enum status shard_down_encode(struct shard_down *d, size_t slot, size_t offset, size_t count,
                              const float *data, float *work, struct error *err);

/* Bytes of the answer of `count` elements, coded or not. */
size_t shard_down_size(const struct shard_down *d, size_t slot, size_t count);

/* Where the coded partition lies; NULL: this answer is not coded. */
const uint8_t *shard_down_coded(const struct shard_down *d, size_t slot);

#endif
