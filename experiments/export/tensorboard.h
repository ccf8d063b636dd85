/*
 * tensorboard: the runs of a folder as event files of TensorBoard: scalars of the steps of rank 0
 * and of evaluations, and the options that were given as hyperparameters.
 */
#ifndef SPARRING_EXPERIMENTS_EXPORT_TENSORBOARD_H
#define SPARRING_EXPERIMENTS_EXPORT_TENSORBOARD_H

#include "common/base/error.h"

/* `folder`: a run directory, or one with several; OUT gets a folder for each run, which must not
 * have a file of that run yet.  Prints how many there are. */
enum status tensorboard_export(const char *folder, const char *out, struct error *err);

#endif
