/*
 * finish: what comes after the last update, or instead of it: evaluation, the rates of all ranks,
 * saving, the last records; and what to say when the run failed.
 */
#ifndef SPARRING_WORKER_TRAIN_FINISH_H
#define SPARRING_WORKER_TRAIN_FINISH_H

#include "worker/train/trainer.h"

/* Loss and accuracy on the test split, into *outcome and the records: on the lowest rank that is
 * left, where there is a test split and --evaluate wants it. */
enum status finish_evaluate(struct trainer *t, struct run_outcome *outcome, struct error *err);

/* The run's orderly end, on every rank. */
enum status finish_run(struct trainer *t, struct run_outcome *outcome, struct error *err);

/* *err is why the run ends; becomes the reason of another rank where that failed first.  `opened`:
 * there are records to end. */
void finish_failed(struct trainer *t, struct run_outcome *outcome, bool opened, struct error *err);

#endif
