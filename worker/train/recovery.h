/*
 * recovery: continues training without lost ranks (--on-rank-loss shrink).
 *
 * When a step fails because a rank is dead, stopped or cut off, the survivors form a new group
 * (sync_shrink).  They may be one update apart: the last bucket of a step can have completed on
 * some and not on others.  So each sends its number of completed updates.  If the numbers differ,
 * the lowest of the ranks ahead broadcasts parameters, optimizer state and buffers, which gives the
 * ranks behind that update.  Then all make the next update; if it had begun, they repeat it from
 * the same batch, with gradients recomputed and divided by the new number of ranks.  In
 * failure-free steps the only cost is a copy of the model's buffers (running statistics), which
 * forward changes.
 *
 * Every rank keeps its part of the data to the end of the epoch; the samples left to the lost ranks
 * are skipped and counted.  From the next epoch on the data is divided among the ranks left.  The
 * lowest rank left takes over the tasks of rank 0.
 *
 * Called by the trainer, the training loop, train_step and finish.  Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_RECOVERY_H
#define SPARRING_WORKER_TRAIN_RECOVERY_H

#include "worker/data/loader.h"
#include "worker/sync/sync.h"

struct trainer;

struct recovery {
    bool enabled;           /* --on-rank-loss shrink, and more than one rank */
    bool excluded;          /* the other ranks have continued without this one */
    bool in_update;         /* an update has begun and not ended; ... */
    bool has_batch;         /* ... its first batch has been loaded: */
    uint64_t epoch;         /* of that batch */
    size_t offset;          /* of that batch in this rank's part of the epoch */
    float *buffers;         /* owned: the model's, from the begin of the update; NULL: not copied */
    int64_t last_update_ns; /* clock_now_ns at the end of the last common update or recovery */
    unsigned count;         /* recoveries so far */
    unsigned lost[MESH_RANKS_MAX]; /* ranks of the job, in the order of their loss */
    unsigned lost_count;
    uint64_t samples_lost; /* samples skipped in the epochs in which ranks were lost */
};

/* Call after the trainer's model and sync are open. */
enum status recovery_open(struct trainer *t, struct error *err);
void recovery_release(struct recovery *r);

/* Call at the begin of an update, with its first batch, and at its end on this rank. */
void recovery_begin_update(struct trainer *t);
void recovery_note_batch(struct trainer *t, const struct batch *batch);
void recovery_end_update(struct trainer *t);

/* Recover from a failed call of sync.  *err: its failure; completed: updates completed on this
 * rank.  STATUS_OK: continue; *ret_advanced: this rank has received one more update from another
 * rank, so completed + 1 are complete.  Otherwise *err is the reason to end the run, usually
 * unchanged. */
enum status recovery_run(struct trainer *t, uint64_t completed, bool *ret_advanced,
                         struct error *err);

#endif
