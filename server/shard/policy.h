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
 * Loss and return.  A slot that is vacated is waited for no more; what it has contributed stays, so
 * a round under way may become complete by it.  Who occupies it then reads first and contributes
 * from the round under way on, unless the slot has done so already; where each contribution is a
 * step, from the slowest rank's clock on.  A slot that is replaced was waited for all the time: its
 * clock stays as it is.  In lockstep a round that has the contribution of the slot's last holder
 * waits for the newcomer's all the same: it must have read before the values change.  In ssp a
 * newcomer's first read waits for nobody.
 *
 * Again: a contribution, read or end that is marked so may have come before.  One that did is not
 * taken a second time; what is asked is only its answer.  So every message may be sent as often as
 * connections break, and has its effect once.
 *
 * Invariants: a rank that is parked has contributed and is not answered yet; `arrived` ranks have
 * contributed to round steps + 1 (0 where each contribution is a step).
 */
#ifndef SPARRING_SERVER_SHARD_POLICY_H
#define SPARRING_SERVER_SHARD_POLICY_H

#include "common/consistency/consistency.h"

#include <stdbool.h>
#include <stdint.h>

#define POLICY_NO_TARGET UINT64_MAX

/* UNKNOWN: it may have read before this server knew of it, see policy_restore. */
enum policy_read { POLICY_READ_NONE, POLICY_READ_PARKED, POLICY_READ_DONE, POLICY_READ_UNKNOWN };

/* One rank's position in one partition. */
struct policy_rank {
    uint64_t clock;        /* last round it contributed to, late or not; 0: none */
    uint64_t seen;         /* optimizer steps in the values that it read last */
    enum policy_read read; /* of round 0 */
    uint64_t target;       /* exact: steps that come before its next one; POLICY_NO_TARGET: any */
    bool held;             /* exact: its contribution is in and not applied; it is parked, too */
    bool parked;           /* waits for the answer to its contribution, or for the final values */
    bool finished;         /* contributes no more */
    bool vacant;           /* nobody holds the slot: it contributes no more until occupied */
    bool inherited;        /* lockstep: what the slot's last holder has contributed to the round
                              under way is in; the next one's counts, and is not to be taken */
};

struct policy {
    struct consistency consistency;
    unsigned world_size;
    unsigned arrived;          /* contributions to the round under way */
    unsigned contributions;    /* that the newest step took; 0 before the first */
    unsigned gone;             /* ranks that have finished or are vacant */
    unsigned gone_arrived;     /* those of them that are counted in arrived */
    uint64_t steps;            /* optimizer steps made; in lockstep and with backup: rounds */
    uint64_t slowest;          /* ssp: least clock of the ranks that are not gone */
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
    POLICY_VACANT,        /* nobody holds this slot */
    POLICY_AGAIN,         /* was taken before and may be answered: answer this rank */
    POLICY_AGAIN_WAITS,   /* was taken before; others are still missing, as after ACCEPTED */
};

/* consistency: checked; ranks: world_size entries, zeroed here, borrowed as long as the policy
 * lives. */
void policy_init(struct policy *p, const struct consistency *consistency, unsigned world_size,
                 struct policy_rank *ranks);

/* What policy_push would answer; changes nothing.  rank < world_size; again: it may have come
 * before, which else is an error. */
enum policy_verdict policy_check(const struct policy *p, unsigned rank, uint64_t round, bool again);

/* The contribution of `rank` to `round` is in, or dropped.  A verdict other than ACCEPTED,
 * COMPLETE, LATE and AGAIN_WAITS (the rank is parked) changes nothing. */
enum policy_verdict policy_push(struct policy *p, unsigned rank, uint64_t round, bool again);

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

/* `rank` is answered now, after LATE or AGAIN. */
void policy_answer(struct policy *p, unsigned rank);

/*
 * Not in lockstep: `rank` contributes no more, and with `wants_final` waits for the final values.
 * FINISHED when it said so before, AGAIN_WAITS when that was expected.  COMPLETE: the round under
 * way is complete by it; step the optimizer.  In any case but FINISHED and VACANT ask
 * policy_next_answer then.
 */
enum policy_verdict policy_finish(struct policy *p, unsigned rank, bool wants_final, bool again);

/* Nobody holds the slot any more.  COMPLETE: the round under way is complete by it; step the
 * optimizer.  In either case ask policy_next_answer then. */
enum policy_verdict policy_vacate(struct policy *p, unsigned rank);

/* Somebody holds the slot from now on, and has read nothing.  Nothing changes if it is held. */
void policy_occupy(struct policy *p, unsigned rank);

/* The rank's connection broke: what it waits for it will ask for again, and not be answered before.
 * So one question has one answer. */
void policy_suspend(struct policy *p, unsigned rank);

/* Another one holds the slot, which was not vacated: it has read nothing, else all stays. */
void policy_replace(struct policy *p, unsigned rank);

/* Round 0 is set: COMPLETE, or TWICE. */
enum policy_verdict policy_set(struct policy *p);

/* `rank` asks for round 0: COMPLETE, ACCEPTED (parked until it is set), TWICE, AGAIN, AGAIN_WAITS
 * or VACANT. */
enum policy_verdict policy_pull(struct policy *p, unsigned rank, bool again);

/* After policy_set: takes one parked rank off; false when none is left. */
bool policy_next_parked(struct policy *p, unsigned *ret_rank);

#define POLICY_SAVED_FINISHED 1u
#define POLICY_SAVED_VACANT   2u

/*
 * What must outlive a server, of each rank: its clock, the steps that it has seen, and flags
 * (POLICY_SAVED_...).  Contributions to the round under way are not in it: nobody was told that
 * they were taken, so they are sent again.
 *   clocks, seen, flags  world_size each; seen may be NULL
 */
void policy_save(const struct policy *p, uint64_t *clocks, uint64_t *seen, uint8_t *flags);

/*
 * Take over what another one saved at `steps`.  Nobody is parked and, where round 0 is set, who has
 * read is not known: each rank may read first or contribute at once.  seen NULL: a rank whose clock
 * differs from the one here has seen `steps`, the others what they have here.
 * False, and nothing is changed: there is no such state.
 */
bool policy_restore(struct policy *p, uint64_t steps, const uint64_t *clocks, const uint64_t *seen,
                    const uint8_t *flags);

/* "came twice"; for messages to people. */
const char *policy_verdict_text(enum policy_verdict verdict);

#endif
