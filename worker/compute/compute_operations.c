/*
 * Forwards the operations to the device's table.  A function that a device lacks is
 * STATUS_UNSUPPORTED; labels, gradient scales and batch sizes that come from outside are checked
 * here; contracts with the model are assertions.  No state, no locks.
 */
#include "worker/compute/compute_ops.h"

#include <assert.h>
#include <float.h>

static enum status unsupported(const struct compute *c, const char *operation, struct error *err)
{
    return error_set(err, STATUS_UNSUPPORTED, "device %s has no %s", c->ops->name, operation);
}

size_t compute_windows(size_t size, size_t kernel, size_t stride, size_t padding)
{
    assert(size + 2 * padding >= kernel);
    return (size + 2 * padding - kernel) / stride + 1;
}

enum status compute_activation_backward(struct compute *c, enum activation activation,
                                        const void *saved, void *dy, size_t count,
                                        struct error *err)
{
    if (!c->ops->activation_backward)
        return unsupported(c, "activations", err);
    if (activation == ACTIVATION_NONE)
        return STATUS_OK;
    return c->ops->activation_backward(c, activation, saved, dy, count, err);
}

enum status compute_linear_forward(struct compute *c, const struct linear *l, const void *x,
                                   const void *residual, void *pre, void *y, size_t rows,
                                   struct error *err)
{
    if (!c->ops->linear_forward)
        return unsupported(c, "linear layers", err);
    return c->ops->linear_forward(c, l, x, residual, pre, y, rows, err);
}

enum status compute_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                           const void *dy, size_t rows, bool accumulate,
                                           struct error *err)
{
    if (!c->ops->linear_backward_weight)
        return unsupported(c, "linear layers", err);
    return c->ops->linear_backward_weight(c, l, x, dy, rows, accumulate, err);
}

enum status compute_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                          void *dx, size_t rows, bool accumulate, struct error *err)
{
    if (!c->ops->linear_backward_input)
        return unsupported(c, "linear layers", err);
    assert(l->previous == ACTIVATION_NONE || !accumulate);
    return c->ops->linear_backward_input(c, l, dy, dx, rows, accumulate, err);
}

enum status compute_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                                 struct error *err)
{
    if (!c->ops->conv_prepare)
        return unsupported(c, "convolution", err);
    return c->ops->conv_prepare(c, conv, max_batch, err);
}

void compute_conv_release(struct compute *c, struct convolution *conv)
{
    if (conv->plan)
        c->ops->conv_release(c, conv);
}

enum status compute_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                                 void *y, size_t batch, struct error *err)
{
    if (!c->ops->conv_forward)
        return unsupported(c, "convolution", err);
    return c->ops->conv_forward(c, conv, x, y, batch, err);
}

enum status compute_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                         const void *x, const void *dy, size_t batch,
                                         bool accumulate, struct error *err)
{
    if (!c->ops->conv_backward_weight)
        return unsupported(c, "convolution", err);
    return c->ops->conv_backward_weight(c, conv, x, dy, batch, accumulate, err);
}

enum status compute_conv_backward_input(struct compute *c, const struct convolution *conv,
                                        const void *dy, void *dx, size_t batch, bool accumulate,
                                        struct error *err)
{
    if (!c->ops->conv_backward_input)
        return unsupported(c, "convolution", err);
    return c->ops->conv_backward_input(c, conv, dy, dx, batch, accumulate, err);
}

enum status compute_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                     int32_t *argmax, void *y, size_t batch, struct error *err)
{
    if (!c->ops->max_pool_forward)
        return unsupported(c, "max pooling", err);
    return c->ops->max_pool_forward(c, p, x, argmax, y, batch, err);
}

enum status compute_max_pool_backward(struct compute *c, const struct pool *p,
                                      const int32_t *argmax, const void *dy, void *dx, size_t batch,
                                      bool accumulate, struct error *err)
{
    if (!c->ops->max_pool_backward)
        return unsupported(c, "max pooling", err);
    return c->ops->max_pool_backward(c, p, argmax, dy, dx, batch, accumulate, err);
}

enum status compute_mean_forward(struct compute *c, const void *x, void *y, size_t batch,
                                 size_t channels, size_t inner, struct error *err)
{
    if (!c->ops->mean_forward)
        return unsupported(c, "average pooling", err);
    return c->ops->mean_forward(c, x, y, batch, channels, inner, err);
}

enum status compute_mean_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                                  size_t channels, size_t inner, bool accumulate, struct error *err)
{
    if (!c->ops->mean_backward)
        return unsupported(c, "average pooling", err);
    return c->ops->mean_backward(c, dy, dx, batch, channels, inner, accumulate, err);
}

enum status compute_flatten_forward(struct compute *c, const void *x, void *y, size_t batch,
                                    size_t channels, size_t inner, struct error *err)
{
    if (!c->ops->flatten_forward)
        return unsupported(c, "flattening", err);
    return c->ops->flatten_forward(c, x, y, batch, channels, inner, err);
}

enum status compute_flatten_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                                     size_t channels, size_t inner, bool accumulate,
                                     struct error *err)
{
    if (!c->ops->flatten_backward)
        return unsupported(c, "flattening", err);
    return c->ops->flatten_backward(c, dy, dx, batch, channels, inner, accumulate, err);
}

enum status compute_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                       const void *residual, void *y, size_t batch,
                                       struct error *err)
{
    if (!c->ops->batch_norm_forward)
        return unsupported(c, "batch normalisation", err);
    if (batch * n->inner < 2)
        return error_set(err, STATUS_DATA,
                         "batch normalisation needs more than 1 value per channel in training");
    return c->ops->batch_norm_forward(c, n, x, residual, y, batch, err);
}

enum status compute_batch_norm_evaluate(struct compute *c, const struct batch_norm *n,
                                        const void *x, const void *residual, void *y, size_t batch,
                                        struct error *err)
{
    if (!c->ops->batch_norm_evaluate)
        return unsupported(c, "batch normalisation", err);
    return c->ops->batch_norm_evaluate(c, n, x, residual, y, batch, err);
}

enum status compute_batch_norm_backward(struct compute *c, const struct batch_norm *n,
                                        const void *x, const void *y, void *dy, void *dx,
                                        size_t batch, bool residual, bool accumulate_parameters,
                                        struct error *err)
{
    if (!c->ops->batch_norm_backward)
        return unsupported(c, "batch normalisation", err);
    return c->ops->batch_norm_backward(c, n, x, y, dy, dx, batch, residual, accumulate_parameters,
                                       err);
}

enum status compute_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                       void *y, size_t rows, struct error *err)
{
    if (!c->ops->layer_norm_forward)
        return unsupported(c, "layer normalisation", err);
    return c->ops->layer_norm_forward(c, n, x, y, rows, err);
}

enum status compute_layer_norm_backward(struct compute *c, const struct layer_norm *n,
                                        const void *x, const void *dy, void *dx, size_t rows,
                                        bool accumulate_input, bool accumulate_parameters,
                                        struct error *err)
{
    if (!c->ops->layer_norm_backward)
        return unsupported(c, "layer normalisation", err);
    return c->ops->layer_norm_backward(c, n, x, dy, dx, rows, accumulate_input,
                                       accumulate_parameters, err);
}

enum status compute_embedding_forward(struct compute *c, const struct embedding *e,
                                      const float *ids, void *y, size_t batch, struct error *err)
{
    if (!c->ops->embedding_forward)
        return unsupported(c, "embedding", err);
    return c->ops->embedding_forward(c, e, ids, y, batch, err);
}

enum status compute_embedding_backward(struct compute *c, const struct embedding *e,
                                       const float *ids, const void *dy, size_t batch,
                                       bool accumulate_tokens, bool accumulate, struct error *err)
{
    if (!c->ops->embedding_backward)
        return unsupported(c, "embedding", err);
    return c->ops->embedding_backward(c, e, ids, dy, batch, accumulate_tokens, accumulate, err);
}

enum status compute_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                      struct error *err)
{
    if (!c->ops->attention_prepare)
        return unsupported(c, "attention", err);
    return c->ops->attention_prepare(c, a, max_batch, err);
}

void compute_attention_release(struct compute *c, struct attention *a)
{
    if (a->plan)
        c->ops->attention_release(c, a);
}

enum status compute_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                      float *log_sums, void *y, size_t batch, struct error *err)
{
    if (!c->ops->attention_forward)
        return unsupported(c, "attention", err);
    return c->ops->attention_forward(c, a, qkv, log_sums, y, batch, err);
}

enum status compute_attention_backward(struct compute *c, const struct attention *a,
                                       const void *qkv, const float *log_sums, const void *y,
                                       const void *dy, void *dqkv, size_t batch, struct error *err)
{
    if (!c->ops->attention_backward)
        return unsupported(c, "attention", err);
    return c->ops->attention_backward(c, a, qkv, log_sums, y, dy, dqkv, batch, err);
}

enum status compute_check_labels(const int32_t *labels, size_t rows, size_t classes,
                                 struct error *err)
{
    for (size_t i = 0; i < rows; i++)
        if (labels[i] < 0 || (size_t)labels[i] >= classes)
            return error_set(err, STATUS_DATA, "row %zu of the batch: label %d, but %zu classes", i,
                             labels[i], classes);
    return STATUS_OK;
}

enum status compute_softmax_cross_entropy(struct compute *c, const void *logits,
                                          const int32_t *labels, void *dlogits, size_t rows,
                                          size_t classes, size_t stride, struct error *err)
{
    enum status status;

    assert(stride >= classes);
    if (!c->ops->softmax_cross_entropy)
        return unsupported(c, "cross-entropy", err);
    status = compute_check_labels(labels, rows, classes, err);
    if (status != STATUS_OK)
        return status;
    return c->ops->softmax_cross_entropy(c, logits, labels, dlogits, rows, classes, stride, err);
}

enum status compute_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                              struct error *err)
{
    return c->ops->loss_wait(c, ret_loss, ret_correct, err);
}

/* ---- training on the device ---- */

bool compute_has_optimizer(const struct compute *c)
{
    return c->ops->optimizer_update != NULL;
}

enum status compute_register_params(struct compute *c, const float *params, size_t count,
                                    const size_t *starts, size_t views, struct error *err)
{
    if (!c->ops->register_params)
        return unsupported(c, "copies of parameters", err);
    return c->ops->register_params(c, params, count, starts, views, err);
}

enum status compute_optimizer_update(struct compute *c, const struct optimizer_config *config,
                                     double learning_rate, uint64_t step,
                                     const struct compute_update *update, struct error *err)
{
    if (!c->ops->optimizer_update)
        return unsupported(c, "optimizer", err);
    return c->ops->optimizer_update(c, config, learning_rate, step, update, err);
}

enum status compute_gradient_scale(struct compute *c, struct gradient_scale *ret, struct error *err)
{
    *ret = (struct gradient_scale){.scale = 1.0f};
    return c->ops->gradient_scale ? c->ops->gradient_scale(c, ret, err) : STATUS_OK;
}

enum status compute_set_gradient_scale(struct compute *c, const struct gradient_scale *scale,
                                       struct error *err)
{
    if (!(scale->scale >= 1.0f && scale->scale <= FLT_MAX))
        return error_set(err, STATUS_INVALID, "a scale of gradients of %g", (double)scale->scale);
    return c->precision == PRECISION_FP16 && c->ops->set_gradient_scale
               ? c->ops->set_gradient_scale(c, scale, err)
               : STATUS_OK;
}

bool compute_has_graphs(const struct compute *c)
{
    return c->ops->graph_begin != NULL;
}

enum status compute_graph_begin(struct compute *c, struct error *err)
{
    if (!c->ops->graph_begin)
        return unsupported(c, "graphs", err);
    return c->ops->graph_begin(c, err);
}

enum status compute_graph_end(struct compute *c, struct compute_graph **ret, struct error *err)
{
    return c->ops->graph_end(c, ret, err);
}

enum status compute_graph_launch(struct compute *c, const struct compute_graph *graph,
                                 const int32_t *labels, size_t rows,
                                 const struct optimizer_config *config, double learning_rate,
                                 uint64_t step, struct error *err)
{
    return c->ops->graph_launch(c, graph, labels, rows, config, learning_rate, step, err);
}

void compute_graph_free(struct compute *c, struct compute_graph *graph)
{
    if (graph)
        c->ops->graph_free(c, graph);
}
