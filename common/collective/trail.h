/*
 * trail: which collectives a rank has run in a group, for comparison with the other ranks'.
 *
 * A hash that rolls over the signatures, in order: where two ranks' hashes at one sequence number
 * are equal, all operations up to it were.  Kept are
 *   - the last TRAIL_LENGTH operations with their hashes, so that the first one that differs can be
 *     named;
 *   - hashes alone at ever sparser sequence numbers further back (of the numbers divisible by 2^k
 *     and no more, the last four), so that ranks find one that both know, however fast they run.
 *
 * Threads: one writer; any number of readers at the same time, without locks: what is being
 * overwritten is simply not kept any more.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_TRAIL_H
#define SPARRING_COMMON_COLLECTIVE_TRAIL_H

#include "common/collective/signature.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TRAIL_LENGTH 1024
#define TRAIL_LEVELS 24
#define TRAIL_MARKS  4 /* of each level */

struct trail_entry {
    _Atomic uint64_t sequence; /* 0: none, or being written */
    _Atomic uint64_t hash;     /* up to and with this one */
    _Atomic uint64_t kind;     /* call, dtype, op, order, root */
    _Atomic uint64_t count;
};

struct trail_mark {
    _Atomic uint64_t sequence;
    _Atomic uint64_t hash;
};

struct trail {
    _Atomic uint64_t newest; /* sequence */
    struct trail_entry entries[TRAIL_LENGTH];
    struct trail_mark marks[TRAIL_LEVELS][TRAIL_MARKS];
};

/* The next operation; its sequence is one more than the last one's.  A few stores. */
void trail_add(struct trail *t, const struct signature *s);

uint64_t trail_newest(const struct trail *t); /* 0: none yet */

/* The first one that trail_find knows; 1 while it knows all. */
uint64_t trail_oldest(const struct trail *t);

/* The hash at `sequence`; at 0 it is 0.  False: not there yet, or not kept. */
bool trail_hash(const struct trail *t, uint64_t sequence, uint64_t *ret_hash);

/* The operation and its hash.  Group and generation are the caller's to fill. */
bool trail_find(const struct trail *t, uint64_t sequence, struct signature *ret,
                uint64_t *ret_hash);

/* Of a trail that was at `before` the last time: the sequence to tell others of, one whose hash a
 * rank that runs equally fast still has when it hears of it several such times later. */
uint64_t trail_landmark(const struct trail *t, uint64_t before);

#endif
