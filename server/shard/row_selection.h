/*
 * row_selection: the rows that ranks have named for their next answers, and those answers.
 *
 * A rank names rows of a partition before it asks for it, by a push or a pull.  The answer then
 * holds those rows as the values are at that moment, and the names are used up.  It is coded into
 * memory of the rank's own, which changes when the rank is answered next, and so has read.
 * Final values are told whole.
 *
 * Memory, all of it from the start: a bit for each rank and row; and, where answers are sent from
 * one slab, as many as ranks for those that are coded.
 *
 * Threads: any; a partition under the lock of its shard_part.
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
    size_t words;   /* of a rank's sets of all partitions */
    size_t length;  /* partitions held */
    uint64_t *set;  /* owned; (world_size, words); NULL: no rows are named in this job */
    size_t *at;     /* owned; of each slot's set in a rank's words */
    bool *named;    /* owned; (world_size, length) */
    uint8_t *coded; /* owned; (world_size, 4 bytes per element held); NULL: the caller has memory */
};

/* Bytes that row_selection_init allocates. */
size_t row_selection_bytes(const struct codec *down, const struct shard_map *map, unsigned index,
                           unsigned world_size, bool copies);

/* down: of answers; map is not needed afterwards.  copies: each rank is answered from a slab of its
 * own anyway. */
enum status row_selection_init(struct row_selection *n, const struct codec *down,
                               const struct shard_map *map, unsigned index, unsigned world_size,
                               bool copies, struct error *err);
void row_selection_release(struct row_selection *n); /* zeroed and half-built ones are allowed */

/* The set of a rank and slot. */
uint64_t *row_selection_of(const struct row_selection *n, size_t slot, unsigned rank);

/* Has it been named, and not been used up?  May be written to, where rows are named in this job. */
bool *row_selection_is_set(const struct row_selection *n, size_t slot, unsigned rank);

#endif
