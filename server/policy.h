/*
 * policy: when the sum of a partition is complete, and which contributions may be accepted.  Pure:
 * no locks, no memory of its own, no I/O; one struct policy describes one partition.
 *
 * bsp (bulk synchronous): round t of a partition is complete once each rank has contributed to it
 * exactly once, and nobody may contribute to round t + 1 before that.  Round 0 is the initial
 * value: it is set once, and each rank reads it once before it contributes to round 1.
 *
 * Invariant: every rank's clock is `round` or `round + 1`, and `arrived` of them are the latter.
 */
#ifndef SPARRING_SERVER_POLICY_H
#define SPARRING_SERVER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum policy_read { POLICY_READ_NONE, POLICY_READ_PARKED, POLICY_READ_DONE };

/* One rank's position in one partition. */
struct policy_rank {
    uint64_t clock;        /* last round it contributed to; 0: none */
    enum policy_read read; /* of round 0 */
};

struct policy {
    unsigned world_size;
    unsigned arrived;          /* contributions to round + 1 */
    uint64_t round;            /* rounds 1..round are complete */
    bool initialised;          /* round 0 is set */
    struct policy_rank *ranks; /* borrowed, world_size of them */
};

enum policy_verdict {
    POLICY_ACCEPTED,      /* taken; others are still missing */
    POLICY_COMPLETE,      /* taken; answer now */
    POLICY_UNINITIALISED, /* round 1 before this rank has read round 0 */
    POLICY_TWICE,         /* the same contribution, initial value or read came before */
    POLICY_STALE,         /* of a round that is complete */
    POLICY_AHEAD,         /* of a round that cannot have begun */
};

/* ranks: world_size entries, zeroed here, borrowed as long as the policy lives. */
void policy_init(struct policy *p, unsigned world_size, struct policy_rank *ranks);

/* What policy_push would answer; changes nothing.  rank < world_size. */
enum policy_verdict policy_check(const struct policy *p, unsigned rank, uint64_t round);

/* The contribution of `rank` to `round` is in.  A verdict other than ACCEPTED and COMPLETE changes
 * nothing. */
enum policy_verdict policy_push(struct policy *p, unsigned rank, uint64_t round);

/* Round 0 is set: COMPLETE, or TWICE. */
enum policy_verdict policy_set(struct policy *p);

/* `rank` asks for round 0: COMPLETE, ACCEPTED (parked until it is set) or TWICE. */
enum policy_verdict policy_pull(struct policy *p, unsigned rank);

/* After policy_set: takes one parked rank off; false when none is left. */
bool policy_next_parked(struct policy *p, unsigned *ret_rank);

/* "came twice"; for messages to people. */
const char *policy_verdict_text(enum policy_verdict verdict);

#endif
