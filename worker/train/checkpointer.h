/*
 * checkpointer: saves and resumes a run (--checkpoint-dir, --resume).
 *
 * A checkpoint is taken between two updates.  The rank that is 0 among the ranks left saves it;
 * with --sync ps, rank 0 of the job or the process that replaces it, since other ranks are not
 * notified of its loss.  Contents: parameters, buffers, optimizer state, and the position in the
 * run.  Random generators need no state: an epoch's order and the layers that LayerDrop skips are
 * drawn from the seed and the number of the epoch or update.  Not saved is state local to each
 * rank: the residual errors of compression (PowerSGD, top-k, one bit), and running statistics of
 * ranks other than 0.
 *
 * Every rank reads the same file; its hash is part of the manifest that the ranks compare.  If the
 * servers run the optimizer, its state and the parameters are fetched from and restored to them.
 *
 * Called by the trainer, trainer_local and the training loop.  Threads: the training thread.
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
    char from[CHECKPOINT_PATH_MAX]; /* the resumed file, which this run does not remove */
    uint64_t start;                 /* updates made before this process began */
    uint64_t optimizer_lead;        /* optimizer steps minus updates at that point; negative, modulo
                                       2^64, if updates overflowed */
    uint64_t overflowed;            /* updates left out before that because of an overflow */
    uint64_t start_epoch;           /* complete epochs at that point */
    uint64_t identity;              /* hash of the checkpoint's tensors; 0: none */
    uint64_t newest;                /* updates in the newest checkpoint */
    float *values; /* owned; parameters fetched from the servers to be saved; NULL: not needed */
};

/* Load the checkpoint that --resume names into the trainer's model, optimizer and loader, and
 * recompute the length of the run.  *ret_resumed false, with STATUS_OK: nothing to resume ("", or
 * auto without a checkpoint).  STATUS_MISMATCH: a checkpoint of another model or optimizer, or in
 * an epoch that this number of ranks cannot continue.  STATUS_CONFIG: a new run, and
 * --checkpoint-dir holds another run's checkpoints; elastic jobs check that in
 * checkpointer_check_folder. */
enum status checkpointer_resume(struct trainer *t, bool *ret_resumed, struct error *err);

/* On rank 0, log which tensors of a loaded file were converted to float32. */
struct safetensors;
void checkpointer_log_conversions(const struct trainer *t, const struct safetensors *file);

/* Elastic jobs, when sync is open and has not started.  STATUS_CONFIG: the first process of a new
 * run, and --checkpoint-dir holds another run's checkpoints.  Warns if the loss of rank 0 would
 * stop checkpoints. */
enum status checkpointer_check_folder(const struct trainer *t, struct error *err);

/* On rank 0, before the ranks meet: make the folders of --run-dir and --checkpoint-dir, and see
 * that files can be created in the latter and for --save, which would be noticed only after the
 * training.
 */
enum status checkpointer_check_targets(const struct trainer *t, struct error *err);

/* Call after sync is open. */
enum status checkpointer_open(struct trainer *t, struct error *err);
void checkpointer_release(struct checkpointer *c);

/* Called on every rank between updates, with the number of completed ones.  Saves a checkpoint if
 * one is due, on the saving rank only.  STATUS_DATA: a parameter is not finite; nothing is
 * saved. */
enum status checkpointer_step(struct trainer *t, uint64_t completed, struct error *err);

/* The same at the end of the run or on a stop: saves unless the newest checkpoint has
 * `completed`. */
enum status checkpointer_save_last(struct trainer *t, uint64_t completed, struct error *err);

#endif
