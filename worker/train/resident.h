/*
 * resident: keeps parameters and optimizer on the GPU, unless the servers run the optimizer.
 * Received data (mean gradients, or parameters from servers that run the optimizer) is uploaded
 * range by range while the rest is still in transfer; with --backend nccl gradients never leave the
 * GPUs.  The host's copy of the parameters is fetched only when it is read.
 *
 * The host's optimizer runs without a GPU, with several devices (dataparallel), and with
 * parameters that may have no gradient in a step, since it must skip them one by one.
 *
 * Called by the trainer.  Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_RESIDENT_H
#define SPARRING_WORKER_TRAIN_RESIDENT_H

#include "common/base/error.h"

struct sync_config;
struct trainer;

/* Check that the precision works with the synchronisation; call before the rendezvous.
 * STATUS_UNSUPPORTED: fp16 with an option under which the optimizer on the GPU cannot skip updates
 * that overflowed, alike on all ranks. */
enum status resident_check(const struct trainer *t, struct error *err);

/* Set the callbacks and device buffers in the synchronisation's configuration.  NCCL reduces the
 * gradients in device memory (model_device_grads), unless a hook on the host rewrites them. */
void resident_configure(struct trainer *t, struct sync_config *config);

/* Upload the parameters and the optimizer's state; call when they have their initial values. */
enum status resident_open(struct trainer *t, struct error *err);

#endif
