/*
 * model_layers: the model's parts, for its two sources.
 */
#ifndef SPARRING_WORKER_MODEL_MODEL_LAYERS_H
#define SPARRING_WORKER_MODEL_MODEL_LAYERS_H

#include "worker/model/model.h"
#include "worker/model/spec.h"

struct layer { /* Linear; BatchNorm1d; ReLU */
    size_t in, out;
    bool norm;
    bool may_drop;            /* LayerDrop may skip it */
    bool dropped;             /* in this batch */
    size_t first_view, views; /* in the table */
    size_t start;             /* of the layer's part of the slabs, elements ... */
    size_t ready_count;       /* ... and its end: the fill mark once its gradient is done */
    size_t weight_offset, bias_offset;
    struct linear linear;
    size_t norm_weight_offset, norm_bias_offset;
    struct batch_norm batch_norm;
    float *batches_tracked; /* a buffer */
    const float *input;     /* of this batch; borrowed */
    float *output;          /* (max_batch, out), owned, device */
    float *normalised;      /* (max_batch, out), owned, device; with norm */
    float *inverse_std;     /* (out), owned, device; with norm */
};

struct model {
    struct compute *compute; /* borrowed */
    struct tensor_table table, buffer_table, state_table;
    struct layer layers[SPEC_LAYERS_MAX];
    size_t length; /* layers */
    size_t max_batch;
    model_await_fn *await; /* NULL: parameters are there */
    void *await_user;
    struct shared_memory memory; /* of the slabs on the host; else none */
    float *params, *grads;       /* device, table.count; owned with a GPU */
    float *host_params,
        *host_grads;  /* the same pointers where the device is the host; else owned */
    float *buffers;   /* behind the parameters; NULL: none */
    float *input;     /* owned, device, (max_batch, inputs); NULL on the host */
    float *flow[2];   /* owned, device, (max_batch, widest): gradients of the activations */
    unsigned current; /* the flow buffer that holds the gradient */
    bool *used;       /* owned; per view */
    double drop;      /* probability */
    struct random random;
    int64_t forward_ns;
};

#endif
