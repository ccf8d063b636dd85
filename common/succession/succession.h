/*
 * succession: who may acknowledge steps when a parameter server and its replica lose sight of each
 * other, or the workers of one of them.  Pure: no locks, no memory of its own, no I/O.
 *
 * A primary acknowledges a step once its replica has it.  From there two ways lead on, each for
 * good, and never both:
 *
 *   alone      the primary has given the replica up.  It proposes to go alone and acknowledges
 *              nothing that the replica does not have until *every* rank that holds a slot has
 *              voted for it, or has left and votes no more.
 *   promoted   a worker has lost the primary.  The replica takes the primary's place when *one*
 *              rank asks it to that has not voted for "alone"; from then on it takes no records.
 *
 * Each worker votes once and keeps its word, for as long as the pair lives: one that voted "alone"
 * follows others to a replica that is promoted already, and promotes none.  So a primary that is
 * alone and a promoted replica cannot both be, whatever is lost, late or repeated.  A change of
 * membership is a record like a step: it is in force once the replica has it, so both servers agree
 * on who votes.
 *
 * What this cannot do: when the replica is given up while it lives and the primary dies before all
 * votes are in, workers that voted "alone" wait in vain.  Those are two failures.
 *
 * The epoch counts the changes: either way on ends in the next one, and a server that hears of a
 * later epoch than its own has been succeeded.
 */
#ifndef SPARRING_COMMON_SUCCESSION_SUCCESSION_H
#define SPARRING_COMMON_SUCCESSION_SUCCESSION_H

#include <stdbool.h>
#include <stdint.h>

/* ------------------------------------------------------------------ a worker */

enum succession_vote { SUCCESSION_NO_VOTE, SUCCESSION_ALONE, SUCCESSION_REPLICA };

/* One worker's word about one server and its replica; zeroed: none yet. */
struct succession_worker {
    enum succession_vote vote;
};

/* The primary proposes to go on alone in `epoch` (not 0).  What to answer: the same, whenever it
 * asks; 0: this worker has voted for the replica. */
uint64_t succession_worker_propose(struct succession_worker *w, uint64_t epoch);

/* The worker gives the primary up and goes to the replica, and hears no primary any more if this is
 * true: it may promote.  False: only follow (succession_replica_join, follows), and the primary may
 * yet come back. */
bool succession_worker_leave(struct succession_worker *w);

/* The replica never heard of it: nothing has been sent, so the vote was none. */
void succession_worker_withdraw(struct succession_worker *w);

/* ------------------------------------------------------------------ the primary */

enum succession_role {
    SUCCESSION_PRIMARY,   /* acknowledges what its replica has */
    SUCCESSION_PROPOSING, /* so does it here; it collects the votes */
    SUCCESSION_LONE,      /* acknowledges by itself */
    SUCCESSION_SUCCEEDED, /* acknowledges nothing any more */
};

const char *succession_role_name(enum succession_role role);

struct succession_primary {
    enum succession_role role;
    uint64_t epoch;
    unsigned world_size;
    bool *settled; /* borrowed; [rank]: promotes no replica: it voted, or nobody holds its slot */
};

/* A primary with a replica that has its terms.  settled: world_size entries, cleared here. */
void succession_primary_init(struct succession_primary *p, uint64_t epoch, unsigned world_size,
                             bool *settled);

/*
 * A primary that was started again with what it left on the disk, where it was not alone.  It has
 * lost sight of its replica and has no word of anybody's, so it proposes; `settled` is the
 * caller's: true of ranks that have left in order, or whose vacancy the replica knew.  Only while
 * the replica knew of every change of membership: else the disk does not say who votes.  A replica
 * that is started again is what it was.
 */
void succession_primary_restore(struct succession_primary *p, uint64_t epoch, unsigned world_size,
                                bool *settled);

/* May what the replica has (or has not) be acknowledged? */
bool succession_may_acknowledge(const struct succession_primary *p, bool replica_has_it);

/* The replica is given up.  True: alone now, in the next epoch. */
bool succession_lose_replica(struct succession_primary *p);

/* Rank (below world_size) voted for this primary to go alone in `epoch`, which may be one that it
 * proposed before the last change came into force: the vote is for good.  True: alone now. */
bool succession_take_vote(struct succession_primary *p, unsigned rank, uint64_t epoch);

/* Rank has left in order, or the record that vacates its slot is in force: it votes no more.
 * True: alone now. */
bool succession_settle(struct succession_primary *p, unsigned rank);

/* A change of membership is in force: the next epoch, and whether `rank` holds its slot now. */
void succession_change(struct succession_primary *p, uint64_t epoch, unsigned rank, bool held);

/* The replica has been promoted. */
void succession_succeed(struct succession_primary *p);

/* ------------------------------------------------------------------ the replica */

struct succession_replica {
    uint64_t epoch;
    bool promoted;
};

enum succession_join {
    SUCCESSION_REFUSED,  /* nobody has promoted this replica, nor may this worker */
    SUCCESSION_PROMOTES, /* it is the primary now, in the next epoch */
    SUCCESSION_FOLLOWS,  /* it was before */
};

/* A record of the primary in `epoch`: true: apply it; false: that primary has been succeeded. */
bool succession_replica_record(struct succession_replica *r, uint64_t epoch);

/* A worker that holds a slot (by the replica's own records) comes. */
enum succession_join succession_replica_join(struct succession_replica *r, bool may_promote);

#endif
