/*
 * row_selection: the rows that ranks have selected for their next replies, and those replies.
 *
 * A rank selects rows of a partition before it requests the reply by a push or a pull.  The reply
 * has those rows' values at the time it is filled, and uses up the selection.  It is coded into a
 * buffer of the rank, which changes at the next reply to the rank, after the rank has read this
 * one.  Final values are always sent whole.
 *
 * Memory, all allocated by row_selection_init: a bit for each rank and row; in lockstep also a slab
 * for each rank, for its coded replies.
 *
 * Threads: any; a partition under the lock of its shard_part.  Called by shard only.
 */
#ifndef SPARRING_SERVER_SHARD_ROW_SELECTION_H
#define SPARRING_SERVER_SHARD_ROW_SELECTION_H

#include "common/codec/codec_row_selection.h"
#include "common/codec/compression.h"
#include "common/shard_map/shard_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct row_selection {
    size_t words;    /* of one rank's bits of all partitions */
    size_t length;   /* partitions held */
    uint64_t *bits;  /* owned; (world_size, words); NULL: the job has no row selection */
    size_t *offsets; /* owned; (length) of each partition's bits in a rank's words */
    bool *selected;  /* owned; (world_size, length) */
    uint8_t *coded;  /* owned; (world_size, 4 bytes per element held); NULL: the caller's is used */
};

/* Bytes that row_selection_init allocates. */
size_t row_selection_bytes(const struct codec *down, const struct shard_map *map, unsigned index,
                           unsigned world_size, bool copies);

/* down: the codec of replies; map is not needed afterwards.  copies: the caller has a slab for the
 * replies to each rank. */
enum status row_selection_init(struct row_selection *n, const struct codec *down,
                               const struct shard_map *map, unsigned index, unsigned world_size,
                               bool copies, struct error *err);
void row_selection_release(struct row_selection *n); /* zeroed and half-built ones are allowed */

/* The bits of a rank's selection in a partition. */
uint64_t *row_selection_bits(const struct row_selection *n, size_t local_index, unsigned rank);

/* True: there is a selection that is not used up.  Writable; only if the job has row selection. */
bool *row_selection_flag(const struct row_selection *n, size_t local_index, unsigned rank);

#endif
