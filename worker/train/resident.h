/*
 * resident: training with the optimizer on the GPU, whatever the synchronisation.  What comes from
 * the others (mean gradients, or parameters from servers that update) goes up to the device part by
 * part while the rest is still on its way; with --backend nccl gradients never leave the GPUs.  The
 * host's parameters are fetched only when somebody reads them.  Nothing of it applies where the
 * device is the host.
 *
 * Not with parameters that may have no gradient in a step, which the optimizer has to leave out one
 * by one, nor with several devices (dataparallel): there the host's optimizer runs.
 */
#ifndef SPARRING_WORKER_TRAIN_RESIDENT_H
#define SPARRING_WORKER_TRAIN_RESIDENT_H

#include "common/base/error.h"

struct sync_config;
struct trainer;

/* Before the ranks meet: can this run's precision be had with its synchronisation?
 * STATUS_UNSUPPORTED: fp16, which leaves out updates that overflowed, alike on all ranks. */
enum status resident_check(const struct trainer *t, struct error *err);

/* What the synchronisation has to know of it.  NCCL reduces gradients where the GPU has made them
 * (model_device_grads), unless a hook on the host rewrites them. */
void resident_configure(struct trainer *t, struct sync_config *config);

/* Parameters and the optimizer's state are as the ranks begin. */
enum status resident_open(struct trainer *t, struct error *err);

#endif
