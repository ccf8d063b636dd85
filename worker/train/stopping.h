/*
 * stopping: ranks that are asked to stop (SIGTERM, SIGINT) end behind the same update.
 *
 * Each would end after the update that it is in.  So one could be gone while rank 0 waited for it
 * in the next, or before rank 0 had saved, and with it the updates since the last checkpoint. Where
 * the run is saved rank 0 decides: it tells through the store behind which update all end, one more
 * than it has made, which nobody has completed without it; the others go on until they know, or for
 * a second and three updates, and leave when rank 0 has saved.  Where ranks are not in step rank 0
 * saves at once and the others need only stay until it has.  If a rank or a server is lost in that
 * update, it is not made and nothing is saved.
 *
 * Without a store (processes that come and go, one rank), without --checkpoint-dir, or when the
 * signal came to one rank alone: each ends for itself.
 *
 * Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_STOPPING_H
#define SPARRING_WORKER_TRAIN_STOPPING_H

#include <stdbool.h>
#include <stdint.h>

struct trainer;

struct stopping {
    bool asked;   /* the signal has been seen: */
    int64_t when; /* clock_now_ns */
    uint64_t completed;
    bool agreed; /* rank 0's word is here, or given: */
    uint64_t end;
};

/* Between two updates, with `completed` of them made: end here? */
bool stopping_is_due(struct trainer *t, uint64_t completed);

/* Then: how many there are in the end, all of them here.  With --overlap-forward the last of
 * `completed` may be on its way; or it will never be made, because rank 0 does not begin it. */
uint64_t stopping_settle(struct trainer *t, uint64_t completed);

/* Rank 0 has saved, or could not: the others may leave. */
void stopping_tell_saved(struct trainer *t);

/* Any other rank: wait for that, at most --timeout-ms. */
void stopping_await_saved(struct trainer *t);

#endif
