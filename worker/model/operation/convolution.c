/*
 * convolution: y = activation(x * weight + bias) over images.  A weight belongs to one operation
 * only.  The device's plan is prepared for the largest batch.
 */
#include "worker/model/program.h"

#include <assert.h>

static enum status open_convolution(struct model *m, struct operation *op, struct error *err)
{
    struct convolution *c = &op->convolution;

    assert(op->residual == INPUT_VALUE && c->activation != ACTIVATION_GELU);
    c->weight = program_params(m, op, 0);
    c->bias = program_params(m, op, 1);
    c->dweight = program_grads(m, op, 0);
    c->dbias = program_grads(m, op, 1);
    return compute_conv_prepare(m->compute, c, m->max_batch, err);
}

static void close_convolution(struct model *m, struct operation *op)
{
    compute_conv_release(m->compute, &op->convolution);
}

static void init(struct model *m, const struct operation *op, struct random *r,
                 enum random_rounding rounding)
{
    const struct convolution *c = &op->convolution;
    size_t window = c->kernel * c->kernel;

    program_init_weight(m, op, c->channels * window, c->filters * window, r, rounding);
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_conv_forward(m->compute, &op->convolution, program_read(m, op->in),
                                program_write(m, op->out), batch, err);
}

static enum status backward(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err)
{
    const struct convolution *c = &op->convolution;
    void *dy = program_gradient(m, op->out);
    enum status status = STATUS_OK;

    assert(!op->shared_weight);
    if (c->activation != ACTIVATION_NONE)
        status = compute_activation_backward(m->compute, c->activation, program_write(m, op->out),
                                             dy, batch * m->values[op->out].count, err);
    if (status != STATUS_OK)
        return status;
    return compute_conv_backward_weight(m->compute, c, program_read(m, op->in), dy, batch,
                                        accumulate, err);
}

static enum status backward_input(struct model *m, struct operation *op, size_t batch,
                                  struct error *err)
{
    return compute_conv_backward_input(m->compute, &op->convolution, program_gradient(m, op->out),
                                       program_gradient(m, op->in), batch, op->accumulates, err);
}

static uint64_t forward_flops(const struct operation *op)
{
    const struct convolution *c = &op->convolution;
    const uint64_t window = (uint64_t)c->channels * c->kernel * c->kernel;
    size_t rows = compute_windows(c->height, c->kernel, c->stride, c->padding);
    size_t columns = compute_windows(c->width, c->kernel, c->stride, c->padding);

    return 2 * window * c->filters * rows * columns;
}

const struct operation_kind operation_convolution = {
    .open = open_convolution,
    .close = close_convolution,
    .init = init,
    .forward = forward,
    .backward = backward,
    .backward_input = backward_input,
    .forward_flops = forward_flops,
};
