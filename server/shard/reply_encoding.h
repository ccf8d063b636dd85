/*
 * reply_encoding: compressed replies of a shard.
 *
 * In lockstep each complete sum or step of a partition is encoded once, before any reply, and all
 * replies are sent from that one copy:
 *
 *   fp16, bf16            the values, or the mean, rounded.
 *   topk, onebit, mean    the mean plus the residual of earlier rounds (`codec_state`).
 *   topk, onebit, values  the difference between the values and the ranks' copy.  Every rank adds
 *                         each reply to the same initial values, so all copies are equal, and
 *                         `codec_state` is the same copy, bit for bit.
 *   rows, mean            the rows that are not zero.
 *   rows, values          the rows that differ from the ranks' copy (`codec_state`, as above).
 *
 * Without lockstep the ranks' copies differ, so each reply is encoded for its rank, against that
 * rank's copy (`rank_values` of the shard).  There is no residual: the difference contains it.
 *
 * A whole reply replaces a rank's copy: by the common copy in lockstep, else by the values.  It is
 * sent to a new session; without lockstep after a broken connection, which may have lost a delta;
 * and instead of a reply that an earlier server encoded.  In lockstep a rank that requests a reply
 * again gets the same delta, and knows by its round whether it has applied it already.
 *
 * So only `codec_state` must outlive a server.  Replayed mutations reproduce it (the same input
 * gives the same bytes), and a snapshot contains it.
 *
 * With the codecs none and selected rows nothing is encoded here.
 *
 * A coded reply is overwritten when the next round of its partition is complete, in lockstep after
 * all ranks have it (server/shard/shard.h); one that is encoded for a rank at the next reply to
 * that rank.  Memory beside the shard's: the coded bytes (for each rank, without lockstep); for
 * topk and onebit two slabs of float32 (of means one), for rows of values one in lockstep.
 *
 * Threads: any; a partition under the lock of its shard_part.  Called by shard only, and by
 * server/persistence for reply_encoding_must_persist.
 */
#ifndef SPARRING_SERVER_SHARD_REPLY_ENCODING_H
#define SPARRING_SERVER_SHARD_REPLY_ENCODING_H

#include "common/codec/compression.h"
#include "common/shard_map/shard_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reply_encoding_config {
    struct codec codec;
    bool update;                 /* replies are values */
    unsigned ranks;              /* with a copy of their own; 0: lockstep */
    const struct shard_map *map; /* not needed after reply_encoding_init */
    unsigned index;              /* of this server in the map */
};

struct reply_encoding {
    struct codec codec;
    bool sends_deltas; /* of values: a reply is added to, or patches, the rank's copy */
    unsigned ranks;
    size_t length;      /* partitions held */
    size_t *sizes;      /* owned; (ranks or 1, length) bytes of the coded replies; 0: not coded */
    uint8_t *coded;     /* owned; NULL: replies are never coded */
    size_t *offsets;    /* owned; (length) bytes; of a partition in the coded replies to a rank */
    size_t stride;      /* bytes of the coded replies to one rank */
    bool *copy_known;   /* owned; (ranks, length) is the rank's copy known? */
    float *codec_state; /* owned; lockstep: the residual or the common copy; NULL: not needed */
    float *delta;       /* owned; work space for the difference; NULL: not needed */
};

/* Bytes that reply_encoding_init allocates for tensors. */
size_t reply_encoding_bytes(const struct reply_encoding_config *config);

enum status reply_encoding_init(struct reply_encoding *d,
                                const struct reply_encoding_config *config, struct error *err);
void reply_encoding_release(struct reply_encoding *d); /* zeroed and half-built ones are allowed */

/* ------------------------------------------------------------------ lockstep */

/* All ranks start from these initial values of the partition at `offset`. */
void reply_encoding_set_initial(struct reply_encoding *d, const float *values, size_t offset,
                                size_t count);

/* Encode the common reply.  data: the values or the mean.  STATUS_DATA as codec_encode. */
enum status reply_encoding_encode(struct reply_encoding *d, size_t local_index, size_t offset,
                                  size_t count, const float *data, struct error *err);

/* The copy of all ranks that have the newest reply; NULL: replies are not deltas of values. */
const float *reply_encoding_common_copy(const struct reply_encoding *d, size_t offset);

/* Must `codec_state` outlive the server? */
bool reply_encoding_must_persist(const struct reply_encoding *d);

/*
 * Export and import the encoding state of a partition.
 *   data         the values or the newest sum; export replaces a coded mean by the decoded one
 *   codec_state  (count), if reply_encoding_must_persist
 *   steps        0: no reply has been encoded yet
 */
enum status reply_encoding_export(const struct reply_encoding *d, size_t local_index, size_t offset,
                                  size_t count, float *data, float *codec_state, struct error *err);
enum status reply_encoding_import(struct reply_encoding *d, size_t local_index, size_t offset,
                                  size_t count, const float *data, const float *codec_state,
                                  uint64_t steps, struct error *err);

/* ------------------------------------------------------------------ without lockstep */

/*
 * Encode the values for one rank: rank_values (count, the rank's copy) becomes the copy after this
 * reply.  The reply is not coded with `whole`, if a delta is due but the rank's copy is unknown, or
 * if the codec cannot encode the values or not in fewer bytes.
 */
void reply_encoding_encode_for_rank(struct reply_encoding *d, unsigned rank, size_t local_index,
                                    size_t offset, size_t count, const float *values,
                                    float *rank_values, bool whole);

/* The rank's copy is unknown from now on. */
void reply_encoding_invalidate(struct reply_encoding *d, unsigned rank, size_t local_index);

/* ------------------------------------------------------------------ both */

/* Bytes of the reply of `count` elements to that rank, coded or not. */
size_t reply_encoding_size(const struct reply_encoding *d, unsigned rank, size_t local_index,
                           size_t count);

/* The coded partition; NULL: this reply is not coded. */
const uint8_t *reply_encoding_coded(const struct reply_encoding *d, unsigned rank,
                                    size_t local_index);

#endif
