/*
 * recovery: training on without ranks that are lost (--on-rank-loss shrink).
 *
 * When a step fails because a rank is dead, stopped or cut off, the survivors make a group of their
 * own (sync_shrink).  They may be one update apart: the last bucket of a step can have ended on
 * some and not on others.  So each tells how many updates it has completed; if they differ, those
 * behind take parameters, optimizer state and buffers from the lowest of those ahead, and have the
 * update with it.  Then all do the next update: where it had begun, again, from the same batch,
 * with gradients computed anew and divided by the ranks that are left.  Nothing is copied for that
 * while all is well, but a model's buffers (running statistics), which forward changes.
 *
 * Every rank keeps its part of the data to the end of the epoch; what the lost ranks had left of it
 * is not seen, and is counted.  From the next epoch on the data is divided among those left.  The
 * lowest of them takes over what rank 0 did.
 */
#ifndef SPARRING_WORKER_TRAIN_RECOVERY_H
#define SPARRING_WORKER_TRAIN_RECOVERY_H

#include "worker/data/loader.h"
#include "worker/sync/sync.h"

struct trainer;

struct recovery {
    bool wanted;   /* --on-rank-loss shrink, and ranks to lose */
    bool excluded; /* the others went on without this rank */
    bool inside;   /* an update is under way; ... */
    bool began;    /* ... it has taken its first batch: */
    uint64_t epoch;
    size_t at;       /* of that batch */
    float *buffers;  /* owned: the model's at the begin of the update; NULL: it has none */
    int64_t well_ns; /* when the ranks last ended an update together */
    unsigned count;  /* recoveries so far */
    unsigned lost[MESH_RANKS_MAX]; /* ranks of the job, in the order of their loss */
    unsigned lost_count;
    uint64_t samples_lost; /* of the epochs in which ranks were lost */
};

/* After the trainer's model and sync are open. */
enum status recovery_open(struct trainer *t, struct error *err);
void recovery_release(struct recovery *r);

/* An update begins; takes its first batch; has ended on this rank. */
void recovery_begin(struct trainer *t);
void recovery_take(struct trainer *t, const struct batch *batch);
void recovery_end(struct trainer *t);

/* *err says why a call of sync failed when `completed` updates had ended here.  STATUS_OK: go on;
 * *ret_came says that one more has come from another rank, which makes it completed + 1.  Else *err
 * is the reason to end with, most often as it was. */
enum status recovery_run(struct trainer *t, uint64_t completed, bool *ret_came, struct error *err);

#endif
