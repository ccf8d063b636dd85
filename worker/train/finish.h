/*
 * finish: the end of a run, successful or failed: evaluation, the rates of all ranks, saving, the
 * last records, and the reason of a failure.  Called by the training loop, on its thread.
 */
#ifndef SPARRING_WORKER_TRAIN_FINISH_H
#define SPARRING_WORKER_TRAIN_FINISH_H

#include "worker/train/trainer.h"

/* Measure loss and accuracy on the test split, into *outcome and (records) the records.  Acts on
 * the lowest rank left only, and only if there is a test split and --evaluate is not "never". */
enum status finish_evaluate(struct trainer *t, struct run_end *outcome, bool records,
                            struct error *err);

/* End a successful run; called on every rank.  With a group every rank waits for the others' last
 * update; with a store only, rank 0 does; an elastic job does not wait. */
enum status finish_run(struct trainer *t, struct run_end *outcome, struct error *err);

/* End a failed run.  *err is the reason, and is replaced by another rank's failure if that came
 * first.  opened: trainer_open has succeeded, so the records can be ended. */
void finish_failed(struct trainer *t, struct run_end *outcome, bool opened, struct error *err);

#endif
