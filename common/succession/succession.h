/*
 * succession: the takeover protocol between a parameter server (primary), its replica and the
 * workers.  It decides which server may acknowledge steps after a connection is lost.  Pure: no
 * locks, no memory of its own, no I/O.
 *
 * A primary acknowledges a step once its replica has it.  Two final transitions exist; at most one
 * of them ever happens:
 *
 *   alone      the primary considers the replica lost.  It proposes to continue alone, and until
 *              *every* rank with a session has voted for it, or has left, it acknowledges only
 *              steps that the replica has.
 *   promoted   a worker has lost the primary.  The replica becomes the primary when *one* rank that
 *              has not voted "alone" requests it; from then on it rejects records.
 *
 * Each worker votes once, finally, for the lifetime of the pair: a worker that voted "alone" may
 * join a replica that is promoted already, but cannot promote one.  So a primary that is alone and
 * a promoted replica cannot coexist, whatever messages are lost, late or repeated.  A change of
 * membership is a record like a step: it takes effect once the replica has it, so both servers
 * agree on the set of voters.
 *
 * Limit: when the replica is considered lost although it is alive, and the primary crashes before
 * all votes have arrived, workers that voted "alone" wait for ever.  Those are two failures.
 *
 * The epoch counts the transitions: each ends in the next epoch, and a server that receives a later
 * epoch than its own has been superseded.
 *
 * Library.  Needs only base.  Called by the parameter server and the worker.
 */
#ifndef SPARRING_COMMON_SUCCESSION_SUCCESSION_H
#define SPARRING_COMMON_SUCCESSION_SUCCESSION_H

#include <stdbool.h>
#include <stdint.h>

/* ------------------------------------------------------------------ a worker */

enum succession_vote { SUCCESSION_NO_VOTE, SUCCESSION_ALONE, SUCCESSION_REPLICA };

/* One worker's vote on one server and its replica; zeroed: none yet. */
struct succession_worker {
    enum succession_vote vote;
};

/* The primary proposes to continue alone in `epoch` (not 0).  Returns the epoch to reply with, the
 * same for every repetition; 0: this worker has voted for the replica. */
uint64_t succession_worker_propose(struct succession_worker *w, uint64_t epoch);

/* The worker considers the primary lost and connects to the replica.  True: it may promote the
 * replica, and must ignore the primary from now on.  False: it may only join a promoted replica
 * (succession_replica_join), and the primary may still come back. */
bool succession_worker_leave(struct succession_worker *w);

/* Cancel a vote for the replica that was never sent. */
void succession_worker_withdraw(struct succession_worker *w);

/* ------------------------------------------------------------------ the primary */

enum succession_role {
    SUCCESSION_PRIMARY,    /* acknowledges what its replica has */
    SUCCESSION_PROPOSING,  /* the same, while it collects votes */
    SUCCESSION_STANDALONE, /* acknowledges without a replica */
    SUCCESSION_SUPERSEDED, /* acknowledges nothing */
};

const char *succession_role_name(enum succession_role role);

struct succession_primary {
    enum succession_role role;
    uint64_t epoch;
    unsigned world_size;
    bool *settled; /* borrowed; [rank]: cannot promote a replica: it voted, or has no session */
};

/* A primary with a replica that has its terms.  settled: world_size entries, cleared here. */
void succession_primary_init(struct succession_primary *p, uint64_t epoch, unsigned world_size,
                             bool *settled);

/*
 * A primary that was restarted from its state on disk, in which it was not alone.  It has lost its
 * replica's connection and all votes, so it proposes; the caller fills `settled`: true for ranks
 * that have left in order, or whose vacancy the replica had recorded.  Requires that the replica
 * had every change of membership: otherwise the voters are unknown.  A restarted replica keeps its
 * role.
 */
void succession_primary_restore(struct succession_primary *p, uint64_t epoch, unsigned world_size,
                                bool *settled);

/* May a step be acknowledged, given whether the replica has it? */
bool succession_may_acknowledge(const struct succession_primary *p, bool replica_has_it);

/* The replica counts as lost.  True: alone now, in the next epoch. */
bool succession_lose_replica(struct succession_primary *p);

/* Rank (below world_size) voted for this primary to continue alone in `epoch`, which may be one
 * that it proposed before the last change took effect: the vote is final.  True: alone now. */
bool succession_count_vote(struct succession_primary *p, unsigned rank, uint64_t epoch);

/* Rank has left in order, or the record that ends its session has taken effect: its vote is no
 * longer needed.  True: alone now. */
bool succession_mark_settled(struct succession_primary *p, unsigned rank);

/* A change of membership has taken effect: the next epoch, and whether `rank` now has a session. */
void succession_membership_changed(struct succession_primary *p, uint64_t epoch, unsigned rank,
                                   bool held);

/* The replica has been promoted. */
void succession_supersede(struct succession_primary *p);

/* ------------------------------------------------------------------ the replica */

struct succession_replica {
    uint64_t epoch;
    bool promoted;
};

enum succession_join {
    SUCCESSION_REFUSED,  /* the replica is not promoted, and this worker may not promote it */
    SUCCESSION_PROMOTES, /* the replica is now the primary, in the next epoch */
    SUCCESSION_FOLLOWS,  /* the replica was promoted before */
};

/* A record of the primary in `epoch`.  True: apply it; false: that primary has been superseded. */
bool succession_replica_record(struct succession_replica *r, uint64_t epoch);

/* A worker joins whose session is in the replica's own records. */
enum succession_join succession_replica_join(struct succession_replica *r, bool may_promote);

#endif
