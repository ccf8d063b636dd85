/*
 * ps_names: the rows of each partition that this rank wants to be told in the round under way.
 *
 * They are collected as ranges of the slab from begin on, until the round's first partition is
 * asked for; a round for which nothing was collected is told whole.  Their numbers lie in memory
 * of their own, so that they can be sent again as long as the partition has not been answered.
 *
 * Threads: collected and settled by the training thread, between rounds; read by whoever asks for a
 * partition that has been handed over, or checks its answer.
 */
#ifndef SPARRING_WORKER_SYNC_PS_NAMES_H
#define SPARRING_WORKER_SYNC_PS_NAMES_H

#include "common/codec/codec_row_selection.h"
#include "common/codec/compression.h"
#include "common/shard_map/shard_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_names {
    const struct shard_map *map; /* borrowed; NULL: no rows are named in this job */
    bool collects;               /* something was collected since the last round was settled */
    size_t words;                /* of all sets */
    uint64_t *set;               /* owned; what is collected */
    uint8_t *numbers;            /* owned; of the round under way */
    struct ps_named *partitions; /* owned */
};

struct ps_named { /* one partition */
    size_t at;    /* first word of its set */
    bool some;    /* in the round under way: rows are named, not all */
    size_t size;  /* bytes of their numbers */
    size_t bytes; /* of the answer that holds them */
};

/* map: as long as the names live. */
enum status ps_names_init(struct ps_names *n, const struct codec *down, const struct shard_map *map,
                          struct error *err);
void ps_names_release(struct ps_names *n); /* zeroed and half-built ones are allowed */

/* Elements [offset, offset + count) of the slab are wanted. */
void ps_names_collect(struct ps_names *n, size_t offset, size_t count);

/* What was collected are the names of the round that begins; nothing is collected then.  All
 * answers of the last round are here, and core has let go of its numbers. */
void ps_names_settle(struct ps_names *n);

/* NULL: all of the partition is wanted. */
const struct ps_named *ps_names_of(const struct ps_names *n, size_t partition);

const uint8_t *ps_names_numbers(const struct ps_names *n, const struct ps_named *p);

#endif
