/*
 * train_step: one synchronised update of the model.  Needs an open trainer.  Called by the training
 * loop, on its thread.
 */
#ifndef SPARRING_WORKER_TRAIN_TRAIN_STEP_H
#define SPARRING_WORKER_TRAIN_TRAIN_STEP_H

#include "worker/train/trainer.h"

/* Make update `index` (from 0) from --accumulate-steps batches or the rest of the epoch.  Blocks
 * until the update is made, here or by the servers; with --overlap-forward until all gradients are
 * passed on.  *ret_has_input false: no rank has inputs left in this epoch, and nothing was done.
 * *ret_epoch_end is set if the last batch was the epoch's last, and not written otherwise.
 * *ret_step: samples, loss and times; valid once the step has begun. */
enum status train_step(struct trainer *t, uint64_t index, bool *ret_has_input, bool *ret_epoch_end,
                       struct step_record *ret_step, struct error *err);

/* sync_announce_samples.  If no rank has samples left, all ranks have received the model of the
 * last rank that trained, and this also updates the device's copy.  Without a group (one rank,
 * --sync local) the device's parameters stay, because the host's may be older. */
enum status train_announce_samples(struct trainer *t, size_t samples, unsigned *ret_active,
                                   struct error *err);

#endif
