/*
 * model: a chain of Linear layers, with ReLU between them or without.
 *
 * One slab of parameters and one of gradients on the device.  On the CPU they are the host slabs
 * too; with a GPU the host slabs are page-locked staging copies.  Activations of every layer are
 * kept for backward; two buffers take turns as the gradient that flows back.  Backward computes a
 * layer's weight gradient before its input gradient, so that its bytes can travel while the layers
 * before it still compute; the first layer's input gradient is not needed and not computed.
 * Everything is allocated in model_open.  Threads: one caller; the model has no threads of its own.
 */
#include "worker/model/model.h"

#include "common/base/memory.h"
#include "worker/model/spec.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

struct layer {
    size_t in, out;
    bool relu;
    size_t weight_offset, bias_offset; /* in the slabs, elements */
    size_t ready_count;                /* of the gradient slab once this layer's part is done */
    float *output;                     /* (max_batch, out), owned, device */
};

struct model {
    struct compute *compute; /* borrowed */
    struct tensor_table table;
    struct layer layers[SPEC_LAYERS_MAX];
    size_t length; /* layers */
    size_t max_batch;
    float *params, *grads; /* owned, device, table.count */
    float *host_params,
        *host_grads; /* the same pointers where the device is the host; else owned */
    float *input;    /* owned, device, (max_batch, inputs); NULL on the host */
    float *flow[2];  /* owned, device, (max_batch, widest): gradients of the activations */
};

/* Names and shapes as their PyTorch counterparts: weight (out, in), then bias (out). */
static enum status build_table(struct model *m, const struct spec *spec, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t l = 0; l < spec->layers && status == STATUS_OK; l++) {
        size_t shape[2] = {spec->widths[l + 1], spec->widths[l]};
        char name[TENSOR_NAME_MAX];

        (void)snprintf(name, sizeof(name), "fc%zu.weight", l + 1);
        status = tensor_table_add(&m->table, name, 2, shape, err);
        if (status != STATUS_OK)
            break;
        (void)snprintf(name, sizeof(name), "fc%zu.bias", l + 1);
        status = tensor_table_add(&m->table, name, 1, shape, err);
    }
    if (status == STATUS_OK)
        tensor_table_layout(&m->table);
    return status;
}

static void build_layers(struct model *m, const struct spec *spec)
{
    m->length = spec->layers;
    for (size_t l = 0; l < spec->layers; l++) {
        const struct tensor_view *weight = &m->table.views[2 * l];
        const struct tensor_view *bias = &m->table.views[2 * l + 1];

        assert(bias->offset + bias->count == weight->offset);
        m->layers[l] = (struct layer){.in = spec->widths[l],
                                      .out = spec->widths[l + 1],
                                      .relu = spec->relu && l + 1 < spec->layers,
                                      .weight_offset = weight->offset,
                                      .bias_offset = bias->offset,
                                      .ready_count = weight->offset + weight->count};
    }
}

/* Both factors are at most SPEC_WIDTH_MAX, so the product does not overflow. */
static enum status alloc_batch(struct model *m, size_t width, float **ret, struct error *err)
{
    return compute_alloc(m->compute, m->max_batch * width, ret, err);
}

static enum status alloc_slabs(struct model *m, struct error *err)
{
    size_t count = m->table.count;
    enum status status = compute_alloc(m->compute, count, &m->params, err);

    if (status == STATUS_OK)
        status = compute_alloc(m->compute, count, &m->grads, err);
    if (status != STATUS_OK)
        return status;
    if (compute_is_host(m->compute)) {
        m->host_params = m->params;
        m->host_grads = m->grads;
        return STATUS_OK;
    }
    status = compute_alloc_host(m->compute, count, &m->host_params, err);
    if (status == STATUS_OK)
        status = compute_alloc_host(m->compute, count, &m->host_grads, err);
    return status;
}

static enum status alloc_activations(struct model *m, struct error *err)
{
    size_t widest = 0;
    enum status status = STATUS_OK;

    for (size_t l = 0; l < m->length && status == STATUS_OK; l++) {
        status = alloc_batch(m, m->layers[l].out, &m->layers[l].output, err);
        if (m->layers[l].out > widest)
            widest = m->layers[l].out;
    }
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = alloc_batch(m, widest, &m->flow[i], err);
    if (status == STATUS_OK && !compute_is_host(m->compute))
        status = alloc_batch(m, m->layers[0].in, &m->input, err);
    return status;
}

enum status model_open(const char *spec_text, struct compute *compute, size_t max_batch,
                       struct model **ret_model, struct error *err)
{
    struct spec spec;
    struct model *m = NULL;
    enum status status = spec_parse(spec_text, &spec, err);

    if (status != STATUS_OK)
        return status;
    if (max_batch == 0 || max_batch > SPEC_WIDTH_MAX)
        return error_set(err, STATUS_INVALID, "a batch of %zu samples: 1 to %d", max_batch,
                         SPEC_WIDTH_MAX);
    status = mem_calloc(1, sizeof(*m), "model", &m, err);
    if (status != STATUS_OK)
        return status;
    m->compute = compute;
    m->max_batch = max_batch;
    status = build_table(m, &spec, err);
    if (status == STATUS_OK) {
        build_layers(m, &spec);
        status = alloc_slabs(m, err);
    }
    if (status == STATUS_OK)
        status = alloc_activations(m, err);
    if (status != STATUS_OK) {
        model_close(m);
        return err ? error_prefix(err, "model '%s': ", spec_text) : status;
    }
    *ret_model = m;
    return STATUS_OK;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    if (m->host_params != m->params)
        compute_free_host(m->compute, m->host_params);
    if (m->host_grads != m->grads)
        compute_free_host(m->compute, m->host_grads);
    compute_free(m->compute, m->params);
    compute_free(m->compute, m->grads);
    compute_free(m->compute, m->input);
    compute_free(m->compute, m->flow[0]);
    compute_free(m->compute, m->flow[1]);
    for (size_t l = 0; l < m->length; l++)
        compute_free(m->compute, m->layers[l].output);
    tensor_table_release(&m->table);
    free(m);
}

const struct tensor_table *model_table(const struct model *m)
{
    return &m->table;
}

size_t model_inputs(const struct model *m)
{
    return m->layers[0].in;
}

size_t model_classes(const struct model *m)
{
    return m->layers[m->length - 1].out;
}

float *model_params(struct model *m)
{
    return m->host_params;
}

float *model_grads(struct model *m)
{
    return m->host_grads;
}

enum status model_init(struct model *m, uint64_t seed, enum random_rounding rounding,
                       struct error *err)
{
    struct random r;

    random_seed(&r, seed);
    for (size_t l = 0; l < m->length; l++) {
        const struct layer *layer = &m->layers[l];

        random_linear_init(&r, m->host_params + layer->weight_offset,
                           m->host_params + layer->bias_offset, layer->in, layer->out, rounding);
    }
    return model_params_changed(m, err);
}

enum status model_params_changed(struct model *m, struct error *err)
{
    if (m->host_params == m->params)
        return STATUS_OK;
    return compute_upload(m->compute, m->params, m->host_params, m->table.count, err);
}

/* The batch as the first layer reads it. */
static enum status place_input(struct model *m, const float *x, size_t batch, const float **ret_x,
                               struct error *err)
{
    if (batch == 0 || batch > m->max_batch)
        return error_set(err, STATUS_INVALID, "a batch of %zu samples, the model takes 1 to %zu",
                         batch, m->max_batch);
    if (!m->input) {
        *ret_x = x;
        return STATUS_OK;
    }
    *ret_x = m->input;
    return compute_upload(m->compute, m->input, x, batch * m->layers[0].in, err);
}

static enum status forward(struct model *m, const float *x, size_t batch, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t l = 0; l < m->length && status == STATUS_OK; l++) {
        const struct layer *layer = &m->layers[l];

        status = compute_linear_forward(m->compute, x, m->params + layer->weight_offset,
                                        m->params + layer->bias_offset, layer->output, batch,
                                        layer->in, layer->out, layer->relu, err);
        x = layer->output;
    }
    return status;
}

/* A layer's gradient is issued: final here and now on the host, on its way from a GPU. */
static enum status hand_over(struct model *m, size_t from, size_t to, model_ready_fn *ready,
                             void *user, struct error *err)
{
    if (!compute_is_host(m->compute))
        return compute_download_start(m->compute, m->host_grads + from, m->grads + from, to - from,
                                      err);
    if (ready)
        ready(user, to);
    return STATUS_OK;
}

/* dy: the layer's gradient in m->flow[at % 2]; the layer before it gets the other one. */
static enum status backward_layer(struct model *m, size_t l, const float *x, size_t batch,
                                  bool accumulate, model_ready_fn *ready, void *user,
                                  struct error *err)
{
    const struct layer *layer = &m->layers[l];
    const float *dy = m->flow[l % 2];
    float *dx = m->flow[(l + 1) % 2];
    enum status status = compute_linear_backward_weight(
        m->compute, x, dy, m->grads + layer->weight_offset, m->grads + layer->bias_offset, batch,
        layer->in, layer->out, accumulate, err);

    if (status == STATUS_OK)
        status = hand_over(m, layer->bias_offset, layer->ready_count, ready, user, err);
    if (status != STATUS_OK || l == 0)
        return status;
    status = compute_linear_backward_input(m->compute, dy, m->params + layer->weight_offset, dx,
                                           batch, layer->in, layer->out, err);
    if (status == STATUS_OK && m->layers[l - 1].relu)
        status = compute_relu_backward(m->compute, x, dx, batch * layer->in, err);
    return status;
}

/* With a GPU: the copies arrive in the order in which they were started. */
static enum status collect_gradients(struct model *m, model_ready_fn *ready, void *user,
                                     struct error *err)
{
    if (compute_is_host(m->compute))
        return STATUS_OK;
    for (size_t l = m->length; l-- > 0;) {
        enum status status = compute_download_wait(m->compute, err);

        if (status != STATUS_OK)
            return status;
        if (ready)
            ready(user, m->layers[l].ready_count);
    }
    return STATUS_OK;
}

enum status model_step(struct model *m, const float *x, const int32_t *labels, size_t batch,
                       bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                       struct error *err)
{
    const float *input = NULL;
    const struct layer *last = &m->layers[m->length - 1];
    size_t correct;
    enum status status = place_input(m, x, batch, &input, err);

    if (status == STATUS_OK)
        status = forward(m, input, batch, err);
    if (status == STATUS_OK)
        status = compute_softmax_cross_entropy(m->compute, last->output, labels,
                                               m->flow[(m->length - 1) % 2], batch, last->out, err);
    for (size_t l = m->length; l-- > 0 && status == STATUS_OK;)
        status = backward_layer(m, l, l > 0 ? m->layers[l - 1].output : input, batch, accumulate,
                                ready, user, err);
    if (status == STATUS_OK)
        status = collect_gradients(m, ready, user, err);
    if (status == STATUS_OK)
        status = compute_loss_wait(m->compute, ret_loss, &correct, err);
    return status;
}

enum status model_evaluate(struct model *m, const float *x, const int32_t *labels, size_t batch,
                           double *ret_loss, size_t *ret_correct, struct error *err)
{
    const float *input = NULL;
    const struct layer *last = &m->layers[m->length - 1];
    enum status status = place_input(m, x, batch, &input, err);

    if (status == STATUS_OK)
        status = forward(m, input, batch, err);
    if (status == STATUS_OK)
        status = compute_softmax_cross_entropy(m->compute, last->output, labels, NULL, batch,
                                               last->out, err);
    if (status == STATUS_OK)
        status = compute_loss_wait(m->compute, ret_loss, ret_correct, err);
    return status;
}
