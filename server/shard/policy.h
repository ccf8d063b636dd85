/*
 * policy: which contributions to a partition are accepted, when the optimizer steps, and which
 * ranks may be answered.  Pure: no locks, no memory of its own, no I/O; one struct policy describes
 * one partition.  common/consistency defines the modes.  Called by shard with the partition's lock.
 *
 *   lockstep      (bsp, ssp(0)) round t is complete once each rank has contributed to it exactly
 *                 once, and no rank may contribute to round t + 1 before that.
 *   with backup   round t is complete once n - b ranks have contributed, or all that are left.  A
 *                 contribution to a complete round is late: it is dropped and answered at once.
 *   each a step   (asp, ssp(s > 0)) every contribution is complete by itself.  In ssp it is
 *                 answered once every rank's clock is at most s behind.
 *
 * Round 0 is the initial value: it is set once, and each rank reads it once before it contributes.
 * The clock of a finished rank counts as infinite: no rank waits for it.  Ranks that requested the
 * final values get them once all ranks have finished.
 *
 * Exact staleness, for experiments: where each contribution is a step, every one of them is held
 * until policy_next_apply selects it.  A rank may have a target: the number of steps that precede
 * its next contribution.  That step is reserved for the rank, and other contributions wait.  When
 * every rank that still contributes is waiting, no contribution can arrive: then the least target
 * goes first.
 *
 * Loss and return.  A vacated rank is not waited for; its contribution stays, so vacating may
 * complete the round under way.  A session that occupies a vacant rank reads first and contributes
 * from the round under way on, unless the rank has contributed to it already; where each
 * contribution is a step, from the slowest rank's clock on.  A replaced rank was never vacant and
 * keeps its clock.  In lockstep a round that has the contribution of the rank's last session still
 * waits for the new session's: it must have read before the values change.  In ssp the first read
 * of a new session waits for no rank.
 *
 * Resends.  A contribution, read or finish with `again` may have arrived before.  If it did, it is
 * not counted a second time and only requests the reply.  So a message may be sent once for each
 * connection and has its effect once.
 *
 * Invariants: a rank that is parked has contributed and has a reply pending; `arrived` ranks have
 * contributed to round steps + 1 (0 where each contribution is a step).
 */
#ifndef SPARRING_SERVER_SHARD_POLICY_H
#define SPARRING_SERVER_SHARD_POLICY_H

#include "common/consistency/consistency.h"

#include <stdbool.h>
#include <stdint.h>

#define POLICY_NO_TARGET UINT64_MAX

/* UNKNOWN: it may have read from an earlier server, see policy_restore. */
enum policy_read { POLICY_READ_NONE, POLICY_READ_PARKED, POLICY_READ_DONE, POLICY_READ_UNKNOWN };

/* One rank's position in one partition. */
struct policy_rank {
    uint64_t clock;        /* last round it contributed to, late or not; 0: none */
    uint64_t seen;         /* optimizer steps that the values it read last include */
    enum policy_read read; /* of round 0 */
    uint64_t target;       /* exact: steps before its next one; POLICY_NO_TARGET: any number */
    bool held;             /* exact: its contribution is not applied yet; parked is set, too */
    bool parked;           /* the reply to its contribution, or the final values, are pending */
    bool finished;         /* contributes no more */
    bool vacant;           /* no session has the rank: no contributions until occupied */
    bool inherited;        /* lockstep: the sum of the round under way has the contribution of the
                              rank's last session; the next session's is counted, but not summed */
};

struct policy {
    struct consistency consistency;
    unsigned world_size;
    unsigned arrived;          /* contributions to the round under way */
    unsigned contributions;    /* that the newest step took; 0 before the first */
    unsigned inactive;         /* ranks that have finished or are vacant */
    unsigned inactive_arrived; /* those of them that are counted in arrived */
    uint64_t steps;            /* optimizer steps made; in lockstep and with backup: rounds */
    uint64_t slowest;          /* ssp: least clock of the ranks that are not inactive */
    bool initialised;          /* round 0 is set */
    bool exact;                /* contributions are held until policy_next_apply */
    struct policy_rank *ranks; /* borrowed, world_size of them */
};

enum policy_outcome {
    POLICY_ACCEPTED,      /* counted; others are still missing */
    POLICY_COMPLETE,      /* counted; step the optimizer, then call policy_next_reply */
    POLICY_LATE,          /* of a round that is complete without it: drop it, answer this rank */
    POLICY_UNINITIALISED, /* round 1 before this rank has read round 0 */
    POLICY_TWICE,         /* the same contribution, initial value or read arrived before */
    POLICY_PAST,          /* of a round that is complete */
    POLICY_AHEAD,         /* of a round that cannot have begun, for this rank */
    POLICY_FINISHED,      /* this rank has finished */
    POLICY_VACANT,        /* this rank is vacant */
    POLICY_AGAIN,         /* counted before, and its reply is due: answer this rank */
    POLICY_AGAIN_WAITS,   /* counted before; others are still missing, as after ACCEPTED */
};

/* consistency: checked; ranks: world_size entries, zeroed here, borrowed as long as the policy
 * lives. */
void policy_init(struct policy *p, const struct consistency *consistency, unsigned world_size,
                 struct policy_rank *ranks);

/* What policy_push would return; changes nothing.  rank < world_size; again: it may be a resend,
 * which is an error otherwise. */
enum policy_outcome policy_check(const struct policy *p, unsigned rank, uint64_t round, bool again);

/* Count the contribution of `rank` to `round`, or drop it.  Outcomes other than ACCEPTED, COMPLETE,
 * LATE and AGAIN_WAITS (which parks the rank) change nothing. */
enum policy_outcome policy_push(struct policy *p, unsigned rank, uint64_t round, bool again);

/* Hold contributions from now on.  Only where each is a step, before the first of them. */
void policy_make_exact(struct policy *p);

/* Exact: the rank has read; `steps` other steps are to precede its next contribution. */
void policy_set_target(struct policy *p, unsigned rank, uint64_t steps);

/* Exact: find the held contribution whose turn it is and count it as applied.  False: none now. */
bool policy_next_apply(struct policy *p, unsigned *ret_rank);

/* Optimizer steps made between this rank's last read and now; not the bound of ssp, which is in
 * rounds. */
uint64_t policy_staleness(const struct policy *p, unsigned rank);

/*
 * Find the first rank from *rank on whose contribution, or request for the final values, may be
 * answered with the current values, and mark it as answered.  False: none.  Call it after COMPLETE,
 * and where each contribution is a step after every push, which may make other replies due.
 */
bool policy_next_reply(struct policy *p, unsigned *rank);

/* Mark `rank` as answered, after LATE or AGAIN. */
void policy_mark_replied(struct policy *p, unsigned rank);

/*
 * Not in lockstep: `rank` contributes no more, and with `wants_final` waits for the final values.
 * A second call returns FINISHED, or with `again` AGAIN_WAITS.  COMPLETE: this completes the round
 * under way; step the optimizer.  After all outcomes but FINISHED and VACANT call
 * policy_next_reply.
 */
enum policy_outcome policy_finish(struct policy *p, unsigned rank, bool wants_final, bool again);

/* The rank is vacant from now on.  COMPLETE: this completes the round under way; step the
 * optimizer.  In either case call policy_next_reply then. */
enum policy_outcome policy_vacate(struct policy *p, unsigned rank);

/* A new session, which has read nothing, takes the vacant rank.  No effect if it is not vacant. */
void policy_occupy(struct policy *p, unsigned rank);

/* The rank's connection broke: cancel its pending replies until it requests them again.  So each
 * request gets one reply. */
void policy_suspend(struct policy *p, unsigned rank);

/* A new session, which has read nothing, takes the rank, which was not vacated and keeps its clock.
 */
void policy_replace(struct policy *p, unsigned rank);

/* Round 0 is set: COMPLETE, or TWICE. */
enum policy_outcome policy_set(struct policy *p);

/* `rank` reads round 0: COMPLETE, ACCEPTED (parked until it is set), TWICE, AGAIN, AGAIN_WAITS or
 * VACANT. */
enum policy_outcome policy_pull(struct policy *p, unsigned rank, bool again);

/* After policy_set: find one rank with a parked read and mark it as read; false: none is left. */
bool policy_next_parked(struct policy *p, unsigned *ret_rank);

#define POLICY_SAVED_FINISHED 1u
#define POLICY_SAVED_VACANT   2u

/*
 * Save what must outlive a server, of each rank: its clock, the steps that it has seen, and flags
 * (POLICY_SAVED_...).  Contributions to the round under way are excluded: they are not
 * acknowledged, so their ranks send them again.
 *   clocks, seen, flags  world_size each; seen may be NULL
 */
void policy_save(const struct policy *p, uint64_t *clocks, uint64_t *seen, uint8_t *flags);

/*
 * Restore what another policy saved at `steps`.  No rank is parked.  If round 0 is set, it is
 * unknown which ranks have read it: each may read first or contribute at once.  seen NULL: a rank
 * whose clock changes has seen `steps`, the others keep their value.
 * Returns false and changes nothing if there is no such state.
 */
bool policy_restore(struct policy *p, uint64_t steps, const uint64_t *clocks, const uint64_t *seen,
                    const uint8_t *flags);

/* "came twice"; for error texts. */
const char *policy_outcome_text(enum policy_outcome outcome);

#endif
