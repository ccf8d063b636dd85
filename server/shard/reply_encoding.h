/*
 * reply_encoding: answers in fewer bytes.
 *
 * In lockstep a whole sum or step of a partition is coded once, before anybody is answered, and all
 * ranks are answered from that one copy:
 *
 *   fp16, bf16            the values, or the mean, rounded.
 *   topk, onebit, mean    the mean and what was not said of those before it (the residual, `kept`).
 *   topk, onebit, values  the difference between the values and what the ranks hold.  Every rank
 *                         adds what it is told to the same initial values, so they all hold the
 *                         same, and `kept` holds it, too, bit for bit.
 *   rows, mean            the rows that are not zero.
 *   rows, values          the rows that differ from what the ranks hold: `kept`, as above.
 *
 * Else every rank has been told something of its own, so each answer is coded for its rank, against
 * what that rank holds (`told`, the shard's copy for it).  Residuals of its own nobody has there:
 * what was not said is the difference.
 *
 * The whole takes the place of what a rank holds: what all hold in lockstep, else the values.  It
 * is for whoever is new; for whoever may have lost what it was told on its own; and for those who
 * ask for an answer that was coded by a server before this one.  In lockstep a rank that asks again
 * gets the same change again, and knows by its round whether it has that already.
 *
 * So nothing that was said need outlive a server but `kept`.  Records bring it forth again (the
 * same input gives the same bytes), a snapshot has it.
 *
 * Nothing is coded here where the codec is none or named.
 *
 * A coded answer is overwritten when the next round of its partition is complete, which in lockstep
 * is after everybody has it (server/shard.h); one that is coded for its rank when that rank is
 * answered next.  Memory beside the shard's: the coded bytes (of each rank, where it is told on its
 * own); for topk and onebit two slabs of float32 (of means one), for rows of values one in
 * lockstep.
 *
 * Threads: any; a partition under the lock of its shard_part.
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
    bool update;                 /* answers are values */
    unsigned ranks;              /* that are told on their own; 0: lockstep */
    const struct shard_map *map; /* not needed after reply_encoding_init */
    unsigned index;              /* of this server in the map */
};

struct reply_encoding {
    struct codec codec;
    bool tells_changes; /* of values: what comes down is added to, or changes, what is there */
    unsigned ranks;
    size_t length;  /* partitions */
    size_t *sizes;  /* owned; (ranks or 1, length) of the answers; 0: it is sent as it is */
    uint8_t *coded; /* owned; NULL: answers are not coded */
    size_t *at;     /* owned; (length) of each slot's answer in those of a rank, bytes */
    size_t stride;  /* bytes of the coded answers to one rank */
    bool *knows;    /* owned; (ranks, length) what the rank holds is known */
    float *kept;    /* owned; lockstep; NULL: the codec has no use for it */
    float *work;    /* owned; changes while they are coded; NULL: likewise */
};

/* Bytes that reply_encoding_init allocates for tensors. */
size_t reply_encoding_bytes(const struct reply_encoding_config *config);

enum status reply_encoding_init(struct reply_encoding *d,
                                const struct reply_encoding_config *config, struct error *err);
void reply_encoding_release(struct reply_encoding *d); /* zeroed and half-built ones are allowed */

/* ------------------------------------------------------------------ lockstep */

/* Everybody gets these initial values of the partition at `offset`. */
void reply_encoding_begin(struct reply_encoding *d, const float *values, size_t offset,
                          size_t count);

/* Code an answer to all.  data: the values or the mean.  STATUS_DATA as codec_encode. */
enum status reply_encoding_encode(struct reply_encoding *d, size_t slot, size_t offset,
                                  size_t count, const float *data, struct error *err);

/* What everybody holds who has the newest answer; NULL: it is no change of values. */
const float *reply_encoding_whole(const struct reply_encoding *d, size_t offset);

/* Does `kept` have to outlive the server? */
bool reply_encoding_is_kept(const struct reply_encoding *d);

/*
 * A partition in and out.  data: the values, or the newest sum, which becomes what was said of it.
 * kept: (count), where reply_encoding_is_kept.  steps: 0: nothing has been said yet.
 */
enum status reply_encoding_export(const struct reply_encoding *d, size_t slot, size_t offset,
                                  size_t count, float *data, float *kept, struct error *err);
enum status reply_encoding_import(struct reply_encoding *d, size_t slot, size_t offset,
                                  size_t count, const float *data, const float *kept,
                                  uint64_t steps, struct error *err);

/* ------------------------------------------------------------------ one rank on its own */

/*
 * What the rank is to be told of the values: told (count; what it holds if that is known) becomes
 * what it will hold.  Coded, unless `whole` is asked for, what it holds is not known, or the codec
 * has no words for the values.
 */
void reply_encoding_tell(struct reply_encoding *d, unsigned rank, size_t slot, size_t offset,
                         size_t count, const float *values, float *told, bool whole);

/* What the rank holds is not known any more. */
void reply_encoding_forget(struct reply_encoding *d, unsigned rank, size_t slot);

/* ------------------------------------------------------------------ either */

/* Bytes of the answer of `count` elements to that rank, coded or not. */
size_t reply_encoding_size(const struct reply_encoding *d, unsigned rank, size_t slot,
                           size_t count);

/* Where the coded partition lies; NULL: this answer is not coded. */
const uint8_t *reply_encoding_coded(const struct reply_encoding *d, unsigned rank, size_t slot);

#endif
