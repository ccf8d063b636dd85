/*
 * replicas: one process that trains on several devices (--sync dataparallel), as
 * torch.nn.DataParallel does.  In every step
 *   - the batch is cut along its first dimension as torch.chunk cuts it: parts of ceil(batch /
 *     devices) samples, the last one shorter, perhaps fewer parts than devices;
 *   - parameters and buffers of the first device are copied to the others;
 *   - each device does forward and backward of its part;
 *   - gradients are summed on the first device, weighted so that they are those of the mean loss
 *     over the whole batch; the optimizer runs there.
 * Of running statistics only the first device's stay, which have seen its part of the batch.
 *
 * A CPU's devices are threads.  Threads: one caller; each further device has a thread of its own.
 * Source: torch/nn/parallel/data_parallel.py, scatter_gather.py, replicate.py.
 */
#ifndef SPARRING_WORKER_TRAIN_REPLICAS_H
#define SPARRING_WORKER_TRAIN_REPLICAS_H

#include "worker/model/model.h"

struct replicas;

struct replicas_config {
    const char *spec;    /* of the model */
    const char *device;  /* as compute_open's, like the next two */
    unsigned local_rank; /* of the first device; the others follow it */
    unsigned threads;    /* of each device's products */
    enum precision precision;
    bool deterministic;
    unsigned count;   /* devices, the first included; 1 to OPTIONS_DEVICES_MAX */
    size_t max_batch; /* of all devices together */
};

/* Samples [*ret_at, *ret_at + n) of a batch are those of device `index`; returns n, 0: none. */
size_t replicas_part(size_t batch, unsigned count, unsigned index, size_t *ret_at);

/* `first` is the model on the first device, borrowed until replicas_close; it may be changed,
 * evaluated and saved between steps. */
enum status replicas_open(const struct replicas_config *config, struct model *first,
                          struct replicas **ret, struct error *err);

/* As model_step on `first`, whose gradients, buffers, loss and `ready` are those of the whole
 * batch; `ready` is called once, in the end. */
enum status replicas_step(struct replicas *r, const float *x, const int32_t *labels, size_t batch,
                          bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                          struct error *err);

void replicas_close(struct replicas *r); /* NULL allowed */

#endif
