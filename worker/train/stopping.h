/*
 * stopping: ranks that receive SIGTERM or SIGINT end after the same update.
 *
 * A rank that ended on its own after its current update could be gone while rank 0 waits for it in
 * the next one, or while rank 0 saves, and the updates since the last checkpoint would be lost.
 * Where the run is saved and ranks work in lockstep, rank 0 decides: it publishes in the store the
 * update after which all end, one more than it has made, which no rank can have completed without
 * it.  The others go on until they read it, or for a second and three updates.  They leave when
 * rank 0 has saved, and no rank leaves before all have the last update, or a second has passed:
 * leaving ends the job on the servers, also for a rank that still waits for their replies.  Ranks
 * that are not in lockstep only stay until rank 0 has saved.  If a rank or a server is lost in the
 * last update, it is not made and nothing is saved.
 *
 * Without a store (processes that join and leave, one rank), without --checkpoint-dir, or when only
 * one rank received the signal: each ends for itself.  But out of lockstep a rank that has not read
 * a decision waits 10 s for rank 0, which may be in a long step or evaluate: its save needs the
 * servers, which end the job when another rank leaves early.
 *
 * Needs the store and overlap.  Called by the training loop.  Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_STOPPING_H
#define SPARRING_WORKER_TRAIN_STOPPING_H

#include <stdbool.h>
#include <stdint.h>

struct trainer;

struct stopping {
    bool requested;               /* the signal has been seen: */
    int64_t decision_deadline_ns; /* deadline of waiting for rank 0's decision */
    uint64_t requested_completed; /* updates that this rank had completed then */
    bool agreed;                  /* rank 0 has decided: */
    uint64_t end;                 /* updates of the whole run */
};

/* Between two updates, with `completed` of them made: end here? */
bool stopping_is_due(struct trainer *t, uint64_t completed);

/* Complete what is in flight (with --overlap-forward the last of `completed`) and return the number
 * of updates made.  The last of `completed` is not counted if rank 0 ends before it. */
uint64_t stopping_complete_update(struct trainer *t, uint64_t completed);

/* Publish that this rank may be left (rank 0: it has saved, or could not), then wait until rank 0
 * has saved, at most --timeout-ms, and until all ranks have the last update, at most a second. */
void stopping_leave(struct trainer *t);

#endif
