/*
 * flight_layout: the recorder's file, shared by its writer and its reader.
 *
 * A header of one page, then `entries` cells.  Everything is written in the host's byte order,
 * which the header records.  A cell is an array of 64-bit words, so that a concurrent reader never
 * sees half a store; word 0 is its sequence lock: odd while the words change.
 * A writer that was killed leaves it odd; what the cell holds is usable all the same when its index
 * is not 0, because the index goes first and comes last when a cell changes hands.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_FLIGHT_LAYOUT_H
#define SPARRING_COMMON_COLLECTIVE_FLIGHT_LAYOUT_H

#include "common/collective/flight/flight.h"

#include <stdatomic.h>

#define FLIGHT_MAGIC       "SPflight"
#define FLIGHT_VERSION     1u
#define FLIGHT_BYTE_ORDER  0x01020304u
#define FLIGHT_ENTRIES_MAX ((uint64_t)1 << 20)

enum flight_word {
    FLIGHT_LOCK,
    FLIGHT_INDEX, /* 0: none */
    FLIGHT_STATE,
    FLIGHT_WHAT, /* call, dtype, op, order: 8 bits each; generation: the upper 32 */
    FLIGHT_GROUP,
    FLIGHT_SEQUENCE,
    FLIGHT_COUNT,
    FLIGHT_ROOT,
    FLIGHT_STEP,
    FLIGHT_BUCKET, /* bucket: the lower 32; buckets: the upper */
    FLIGHT_QUEUED_NS,
    FLIGHT_STARTED_NS,
    FLIGHT_ENDED_NS,
    FLIGHT_DONE_BYTES,
    FLIGHT_TOTAL_BYTES,
    FLIGHT_NAME,                                      /* of the group, 32 bytes */
    FLIGHT_WORDS = FLIGHT_NAME + FLIGHT_NAME_MAX / 8, /* 19 */
    FLIGHT_CELL_WORDS = 24                            /* three cache lines */
};

struct flight_cell {
    _Atomic uint64_t words[FLIGHT_CELL_WORDS];
};

enum flight_notice { FLIGHT_NO_NOTICE, FLIGHT_NOTICE_COMING, FLIGHT_NOTICE };

struct flight_header {
    union {
        char magic[8]; /* written last: a file without it is not complete */
        _Atomic uint64_t magic_word;
    };
    uint32_t version;
    uint32_t byte_order;
    uint32_t header_bytes;
    uint32_t cell_bytes;
    uint64_t entries;
    uint32_t rank, world_size;
    int64_t pid;
    double opened_wall;
    int64_t opened_ns;
    _Atomic uint64_t recorded; /* operations so far */
    _Atomic uint32_t notice;   /* enum flight_notice; then the three below hold */
    int32_t fault;
    int32_t culprit;
    uint32_t reserved;
    char reason[FLIGHT_REASON_MAX];
};

#define FLIGHT_HEADER_BYTES 4096u

_Static_assert(sizeof(struct flight_header) <= FLIGHT_HEADER_BYTES, "the header fits its page");
_Static_assert(sizeof(struct flight_cell) == 192, "a cell is 192 bytes");
_Static_assert(FLIGHT_WORDS <= FLIGHT_CELL_WORDS, "the words fit their cell");

#endif
