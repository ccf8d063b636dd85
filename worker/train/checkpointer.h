/*
 * checkpointer: saving a run and going on with one (--checkpoint-dir, --resume).
 *
 * A checkpoint is taken between two updates, by the rank that is 0 among those left (with --sync ps
 * by rank 0 of the job or who takes its place: others do not learn that it is lost): parameters and
 * buffers, the optimizer's state, and how far the run has come.  Generators need no state: the
 * order of an epoch and what LayerDrop skips in an update are drawn from the seed and the number of
 * the epoch or update.  What each rank keeps of its own is not in it: errors that compression
 * (PowerSGD, top-k, one bit) has left, and running statistics of other ranks than 0.
 *
 * Every rank reads the same file; that they have is part of the manifest that they agree on.  With
 * the optimizer on the servers its state and the parameters come from there and go back there.
 */
#ifndef SPARRING_WORKER_TRAIN_CHECKPOINTER_H
#define SPARRING_WORKER_TRAIN_CHECKPOINTER_H

#include "common/base/error.h"
#include "common/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

struct trainer;

struct checkpointer {
    bool resumed;
    char from[CHECKPOINT_PATH_MAX]; /* the file; it stays as long as this run does */
    uint64_t start;                 /* updates that the run had made when this process began */
    uint64_t optimizer_lead;        /* steps of the optimizer that it had made beyond those; less
                                       than 0, modulo 2^64, where updates overflowed */
    uint64_t overflowed;            /* updates that it had left out for that */
    uint64_t start_epoch;           /* epochs that were over */
    uint64_t identity;              /* hash of the checkpoint's tensors; 0: none */
    uint64_t newest;                /* updates in the newest checkpoint */
    float *values; /* owned; what the servers have, while it is saved; NULL: not needed */
};

/* The run that --resume names is loaded into the trainer's model, optimizer and loader, and its
 * length is counted anew.  *ret_resumed false: there is none, as it should be ("", or auto without
 * a checkpoint).  STATUS_MISMATCH: it is of another model or optimizer, or in the middle of an
 * epoch that cannot be gone on with.  STATUS_CONFIG: a new run, and --checkpoint-dir has another
 * one's checkpoints; where processes come and go, checkpointer_join says that. */
enum status checkpointer_resume(struct trainer *t, bool *ret_resumed, struct error *err);

/* Say what of a file that was loaded was not float32 there; rank 0 does. */
struct safetensors;
void checkpointer_log_conversions(const struct trainer *t, const struct safetensors *file);

/* When sync is open and has not started: is this the first process of a new run, and
 * --checkpoint-dir has another one's checkpoints?  STATUS_CONFIG.  Warns of checkpoints that may
 * not come. */
enum status checkpointer_join(const struct trainer *t, struct error *err);

/* After sync is open. */
enum status checkpointer_open(struct trainer *t, struct error *err);
void checkpointer_release(struct checkpointer *c);

/* Every rank, between updates and with `completed` of them made: saves where one is due, on the
 * rank whose task it is.  STATUS_DATA: parameters that are not finite are not saved. */
enum status checkpointer_step(struct trainer *t, uint64_t completed, struct error *err);

/* The run ends here, whatever is due. */
enum status checkpointer_end(struct trainer *t, uint64_t completed, struct error *err);

#endif
