/*
 * trainer_local: the parts of one rank's run that need no other rank.
 */
#ifndef SPARRING_WORKER_TRAIN_TRAINER_LOCAL_H
#define SPARRING_WORKER_TRAIN_TRAINER_LOCAL_H

#include "worker/train/trainer.h"

/* Device, model, replicas, data, loader and optimizer, and parameters as --init or --resume says;
 * the length of the run is known from here on.  On failure what was opened stays, for
 * trainer_close. */
enum status trainer_open_local(struct trainer *t, struct error *err);

/* Samples of the longest part of an epoch that any rank has, with the sampler open and the loader
 * not, or paused; with --sync local this rank's, which waits for nobody. */
uint64_t trainer_longest_part(const struct trainer *t);

/* The test split, on the rank that evaluates; nothing to do when it is open, or not there. */
enum status trainer_open_test_set(struct trainer *t, struct error *err);

#endif
