/*
 * train_step: one update of the model, with what all ranks bring to it.
 */
#ifndef SPARRING_WORKER_TRAIN_TRAIN_STEP_H
#define SPARRING_WORKER_TRAIN_TRAIN_STEP_H

#include "worker/train/trainer.h"

/* Update `index` (from 0), from --accumulate-steps batches or what is left of the epoch.  Blocks
 * until it is made, here or by the servers.  *ret_go false: no rank has inputs left in this epoch,
 * and nothing was done.  *ret_epoch_end: the last batch was the epoch's last; stays as it is
 * otherwise.  *ret_step: samples, loss and times, once the step was begun. */
enum status train_step(struct trainer *t, uint64_t index, bool *ret_go, bool *ret_epoch_end,
                       struct step_record *ret_step, struct error *err);

/* sync_enlist.  When no rank has any samples, all have the model of the last one that trained: on
 * their devices, too.  Without other ranks the device has what it had, and the host's may be older.
 */
enum status train_enlist(struct trainer *t, size_t samples, unsigned *ret_active,
                         struct error *err);

#endif
