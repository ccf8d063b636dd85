/*
 * policy: which contributions to a partition are taken, when the optimizer steps, and who may be
 * answered now.  Pure: no locks, no memory of its own, no I/O; one struct policy describes one
 * partition.  common/consistency says what the modes are.
 *
 *   lockstep      (bsp, ssp(0)) round t is complete once each rank has contributed to it exactly
 *                 once, and nobody may contribute to round t + 1 before that.
 *   with backup   round t is complete once n - b ranks have contributed, or all that are left.  A
 *                 contribution to a complete round is late: it is dropped and answered at once.
 *   each a step   (asp, ssp(s > 0)) every contribution is complete by itself.  In ssp it is
 *                 answered once every rank's clock is at most s behind.
 *
 * Round 0 is the initial value: it is set once, and each rank reads it once before it contributes.
 * A rank that finishes counts as infinitely far: nobody waits for it any more.  The final values go
 * to those who asked for them once all ranks have finished.
 *
 * Exact staleness, for experiments: where each contribution is a step, every one of them is held
 * until policy_next_apply takes it, and a rank may have a target, the number of steps behind which
 * its next one belongs.  That place is kept for it, and others wait; but nobody waits where all who
 * still contribute have done so, because then nothing could come: the least target goes first.
 *
 * Invariants: a rank that is parked has contributed and is not answered yet; `arrived` ranks have
 * contributed to round steps + 1 (0 where each contribution is a step).
 */
#ifndef SPARRING_SERVER_POLICY_H
#define SPARRING_SERVER_POLICY_H

#include "common/consistency/consistency.h"

#include <stdbool.h>
#include <stdint.h>

#define POLICY_NO_TARGET UINT64_MAX

enum policy_read { POLICY_READ_NONE, POLICY_READ_PARKED, POLICY_READ_DONE };

/* One rank's position in one partition. */
struct policy_rank {
    uint64_t clock;        /* last round it contributed to, late or not; 0: none */
    uint64_t seen;         /* optimizer steps in the values that it read last */
    enum policy_read read; /* of round 0 */
    uint64_t target;       /* exact: steps that come before its next one; POLICY_NO_TARGET: any */
    bool held;             /* exact: its contribution is in and not applied; it is parked, too */
    bool parked;           /* waits for the answer to its contribution, or for the final values */
    bool finished;         /* contributes no more */
};

struct policy {
    struct consistency consistency;
    unsigned world_size;
    unsigned arrived;          /* contributions to the round under way */
    unsigned finished;         /* ranks that have */
    unsigned finished_arrived; /* those of them that are counted in arrived */
    uint64_t steps;            /* optimizer steps made; in lockstep and with backup: rounds */
    uint64_t slowest;          /* ssp: least clock of the ranks that have not finished */
    bool initialised;          /* round 0 is set */
    bool exact;                /* contributions are held until policy_next_apply */
    struct policy_rank *ranks; /* borrowed, world_size of them */
};

enum policy_verdict {
    POLICY_ACCEPTED,      /* taken; others are still missing */
    POLICY_COMPLETE,      /* taken; step the optimizer, then ask policy_next_answer */
    POLICY_LATE,          /* of a round that is complete without it: drop it, answer this rank */
    POLICY_UNINITIALISED, /* round 1 before this rank has read round 0 */
    POLICY_TWICE,         /* the same contribution, initial value or read came before */
    POLICY_STALE,         /* of a round that is complete */
    POLICY_AHEAD,         /* of a round that cannot have begun, for this rank */
    POLICY_FINISHED,      /* this rank said that it contributes no more */
};

/* consistency: checked; ranks: world_size entries, zeroed here, borrowed as long as the policy
 * lives. */
void policy_init(struct policy *p, const struct consistency *consistency, unsigned world_size,
                 struct policy_rank *ranks);

/* What policy_push would answer; changes nothing.  rank < world_size. */
enum policy_verdict policy_check(const struct policy *p, unsigned rank, uint64_t round);

/* The contribution of `rank` to `round` is in, or dropped.  A verdict other than ACCEPTED, COMPLETE
 * and LATE changes nothing. */
enum policy_verdict policy_push(struct policy *p, unsigned rank, uint64_t round);

/* From here on contributions are held.  Only where each is a step, before the first of them. */
void policy_make_exact(struct policy *p);

/* Exact: the rank has read, and its next contribution belongs behind `steps` others. */
void policy_aim(struct policy *p, unsigned rank, uint64_t steps);

/* Exact: the held contribution whose turn it is; it counts as applied.  False: none now. */
bool policy_next_apply(struct policy *p, unsigned *ret_rank);

/* Optimizer steps made between this rank's last read and now. */
uint64_t policy_staleness(const struct policy *p, unsigned rank);

/*
 * The first rank from *rank on whose contribution, or request for the final values, may be answered
 * with the values as they are now; it counts as answered.  False: none.  Ask after COMPLETE, and
 * where each contribution is a step after every push: one may free others.
 */
bool policy_next_answer(struct policy *p, unsigned *rank);

/* `rank` is answered now, after LATE. */
void policy_answer(struct policy *p, unsigned rank);

/*
 * Not in lockstep: `rank` contributes no more, and with `wants_final` waits for the final values.
 * FINISHED when it said so before.  COMPLETE: the round under way is complete by it; step the
 * optimizer.  In either case ask policy_next_answer then.
 */
enum policy_verdict policy_finish(struct policy *p, unsigned rank, bool wants_final);

/* Round 0 is set: COMPLETE, or TWICE. */
enum policy_verdict policy_set(struct policy *p);

/* `rank` asks for round 0: COMPLETE, ACCEPTED (parked until it is set) or TWICE. */
enum policy_verdict policy_pull(struct policy *p, unsigned rank);

/* After policy_set: takes one parked rank off; false when none is left. */
bool policy_next_parked(struct policy *p, unsigned *ret_rank);

/* "came twice"; for messages to people. */
const char *policy_verdict_text(enum policy_verdict verdict);

#endif
