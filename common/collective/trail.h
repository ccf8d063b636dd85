/*
 * trail: which collectives a rank has run in a group, for comparison with the other ranks'.
 *
 * A hash that rolls over the signatures, in order: where two ranks' hashes at one sequence number
 * are equal, all operations up to it were.  Kept are
 *   - the last TRAIL_LENGTH operations with their hashes, so that the first one that differs can be
 *     named;
 *   - hashes alone at ever sparser sequence numbers further back (of the numbers divisible by 2^k
 *     and no more, the last four), so that ranks find one that both keep, at any rate.
 *
 * Threads: one writer; any number of readers at the same time, without locks: what is being
 * overwritten reads as not kept any more.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_TRAIL_H
#define SPARRING_COMMON_COLLECTIVE_TRAIL_H

#include "common/collective/signature.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TRAIL_LENGTH      1024
#define TRAIL_LEVELS      24
#define TRAIL_CHECKPOINTS 4 /* of each level */

struct trail_entry {
    _Atomic uint64_t sequence; /* 0: none, or being written */
    _Atomic uint64_t hash;     /* up to and with this one */
    _Atomic uint64_t kind;     /* call, dtype, op, order, root */
    _Atomic uint64_t count;
};

struct trail_checkpoint {
    _Atomic uint64_t sequence;
    _Atomic uint64_t hash;
};

struct trail {
    _Atomic uint64_t newest; /* sequence */
    struct trail_entry entries[TRAIL_LENGTH];
    struct trail_checkpoint checkpoints[TRAIL_LEVELS][TRAIL_CHECKPOINTS];
};

/* The next operation; its sequence is one more than the last one's.  A few stores. */
void trail_add(struct trail *t, const struct signature *s);

uint64_t trail_newest(const struct trail *t); /* 0: none yet */

/* The oldest sequence that trail_find finds; 1 while all are kept. */
uint64_t trail_oldest(const struct trail *t);

/* The hash at `sequence`; at 0 it is 0.  False: not there yet, or not kept. */
bool trail_hash(const struct trail *t, uint64_t sequence, uint64_t *ret_hash);

/* The operation and its hash.  Group and generation are the caller's to fill. */
bool trail_find(const struct trail *t, uint64_t sequence, struct signature *ret,
                uint64_t *ret_hash);

/* The sequence to send to the others, for a trail that was at `before` at the last send: a rank
 * that runs equally fast still keeps its hash several such intervals later. */
uint64_t trail_checkpoint_sequence(const struct trail *t, uint64_t before);

#endif
