/*
 * trainer_local: the parts of one rank's run that need no other rank.  Called by the trainer,
 * finish and checkpointer.  Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_TRAINER_LOCAL_H
#define SPARRING_WORKER_TRAIN_TRAINER_LOCAL_H

#include "worker/train/trainer.h"

/* Open device, model, replicas, data, loader and optimizer, and set the parameters by --init or
 * --resume.  Sets the length of the run.  After a failure the opened parts stay, for
 * trainer_close. */
enum status trainer_open_local(struct trainer *t, struct error *err);

/* Samples of the longest part of an epoch over all ranks; with --sync local of this rank's part.
 * The sampler must be open, and the loader paused or not yet open. */
uint64_t trainer_longest_part(const struct trainer *t);

/* Open the test split, on the rank that evaluates.  STATUS_OK also if it is open, or does not
 * exist. */
enum status trainer_open_test_set(struct trainer *t, struct error *err);

#endif
