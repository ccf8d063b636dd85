/*
 * ps_row_selection: the rows of each partition that the replies of the current round must contain.
 *
 * Ranges of the slab are added from begin until the round's first partition is requested; without
 * any, the replies contain all rows.  The row numbers have memory of their own, so that they can be
 * sent again until the partition's reply has arrived.
 *
 * Threads: the training thread adds and commits, between rounds; threads that send a request of the
 * round or check its reply read.
 */
#ifndef SPARRING_WORKER_SYNC_PS_ROW_SELECTION_H
#define SPARRING_WORKER_SYNC_PS_ROW_SELECTION_H

#include "common/codec/codec_row_selection.h"
#include "common/codec/compression.h"
#include "common/shard_map/shard_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_row_selection {
    const struct shard_map *map;         /* borrowed; NULL: the job selects no rows */
    bool has_pending;                    /* a range was added since the last commit */
    size_t words;                        /* in all sets */
    uint64_t *set;                       /* owned; bits of the rows added */
    uint8_t *numbers;                    /* owned; of the current round */
    struct ps_selected_rows *partitions; /* owned */
};

struct ps_selected_rows { /* one partition */
    size_t first_word;    /* of its set */
    /* of the current round: */
    bool is_partial;      /* the reply has only the selected rows; false: all, which take no more
                             bytes */
    size_t numbers_bytes; /* of the row numbers */
    size_t reply_bytes;   /* of the reply with those rows */
};

/* map: borrowed until ps_row_selection_release. */
enum status ps_row_selection_init(struct ps_row_selection *r, const struct codec *down,
                                  const struct shard_map *map, struct error *err);
void ps_row_selection_release(struct ps_row_selection *r); /* also zeroed and half-built ones */

/* Add the rows of elements [offset, offset + count) of the slab. */
void ps_row_selection_add(struct ps_row_selection *r, size_t offset, size_t count);

/* Make the added ranges the selection of the round that begins, and start an empty one.  All
 * replies of the last round have arrived, and gRPC has released its numbers. */
void ps_row_selection_commit(struct ps_row_selection *r);

/* NULL: all rows of the partition. */
const struct ps_selected_rows *ps_row_selection_of(const struct ps_row_selection *r,
                                                   size_t partition);

const uint8_t *ps_row_selection_numbers(const struct ps_row_selection *r,
                                        const struct ps_selected_rows *p);

#endif
