/*
 * replicas: one process that trains on several devices (--sync dataparallel), as
 * torch.nn.DataParallel does.  In every step
 *   - the batch is split along its first dimension like torch.chunk: parts of ceil(batch / devices)
 *     samples, the last one possibly shorter, and possibly fewer parts than devices;
 *   - parameters and buffers of the first device are copied to the others;
 *   - each device runs forward and backward on its part;
 *   - gradients are summed on the first device, weighted to give the gradient of the mean loss over
 *     the whole batch; the optimizer runs there.
 * Only the running statistics of the first device are kept; they cover its part of the batch.
 *
 * On a CPU the devices are threads.  Called by trainer_local (open), train_step and the trainer
 * (close).  Threads: one caller; each device but the first has a thread of its own.
 * Source: torch/nn/parallel/data_parallel.py, scatter_gather.py, replicate.py.
 */
#ifndef SPARRING_WORKER_TRAIN_REPLICAS_H
#define SPARRING_WORKER_TRAIN_REPLICAS_H

#include "worker/model/model.h"

struct replicas;

struct replicas_config {
    const char *spec;    /* of the model */
    const char *device;  /* as for compute_open, like the next two */
    unsigned local_rank; /* of the first device; the others follow it */
    unsigned threads;    /* per device, of the CPU's matrix products */
    enum precision precision;
    bool deterministic;
    unsigned count;   /* devices, the first included; 1 to OPTIONS_DEVICES_MAX */
    size_t max_batch; /* of all devices together */
};

/* The part of device `index` is samples [*ret_at, *ret_at + n) of a batch; returns n, may be 0. */
size_t replicas_part(size_t batch, unsigned count, unsigned index, size_t *ret_at);

/* Open the other devices and start their threads.  first: the model on the first device, borrowed
 * until replicas_close; it may be updated, evaluated and saved between steps.  STATUS_INVALID:
 * count outside its range. */
enum status replicas_open(const struct replicas_config *config, struct model *first,
                          struct replicas **ret, struct error *err);

/* Like model_step on `first`, which gets the gradients of the whole batch; *ret_loss is its loss.
 * `ready` is called once, at the end. */
enum status replicas_step(struct replicas *r, const float *x, const int32_t *labels, size_t batch,
                          bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                          struct error *err);

void replicas_close(struct replicas *r); /* NULL allowed */

#endif
