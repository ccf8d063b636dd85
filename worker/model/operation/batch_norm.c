/*
 * batch_norm: y = activation(normalised x * weight + bias + residual), BatchNorm1d and 2d.  After
 * forward x is the operation's own: the CPU leaves the normalised values there.
 */
#include "worker/model/program.h"

#include <assert.h>

#define MOMENTUM 0.1f
#define EPSILON  1e-5f

static float *buffer(const struct model *m, float *buffers, const struct operation *op,
                     size_t index)
{
    return buffers + m->buffer_table.views[op->first_buffer + index].offset;
}

static enum status open_norm(struct model *m, struct operation *op, struct error *err)
{
    struct batch_norm *n = &op->batch_norm;
    enum status status = STATUS_OK;

    assert(op->in != INPUT_VALUE && n->activation != ACTIVATION_GELU);
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = compute_alloc(m->compute, n->channels, "statistics", &op->saved[i], err);
    n->weight = program_params(m, op, 0);
    n->bias = program_params(m, op, 1);
    n->dweight = program_grads(m, op, 0);
    n->dbias = program_grads(m, op, 1);
    n->running_mean = buffer(m, m->buffers, op, 0);
    n->running_var = buffer(m, m->buffers, op, 1);
    op->batches_tracked = buffer(m, m->host_buffers, op, 2);
    n->mean = op->saved[0];
    n->inverse_std = op->saved[1];
    n->momentum = MOMENTUM;
    n->epsilon = EPSILON;
    return status;
}

static void init(struct model *m, const struct operation *op, struct random *r,
                 enum random_rounding rounding)
{
    (void)r;
    (void)rounding;
    program_init_norm(m, op);
    for (size_t i = 0; i < op->batch_norm.channels; i++) {
        buffer(m, m->host_buffers, op, 0)[i] = 0.0f;
        buffer(m, m->host_buffers, op, 1)[i] = 1.0f;
    }
    *op->batches_tracked = 0.0f;
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_batch_norm_forward(m->compute, &op->batch_norm, program_write(m, op->in),
                                      program_residual(m, op), program_write(m, op->out), batch,
                                      err);
}

static enum status evaluate(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_batch_norm_evaluate(m->compute, &op->batch_norm, program_read(m, op->in),
                                       program_residual(m, op), program_write(m, op->out), batch,
                                       err);
}

static enum status backward(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err)
{
    const struct batch_norm *n = &op->batch_norm;
    void *dy = program_gradient(m, op->out);
    enum status status = STATUS_OK;

    assert(!op->accumulates && !op->shared_weight);
    if (n->activation != ACTIVATION_NONE)
        status = compute_activation_backward(m->compute, n->activation, program_write(m, op->out),
                                             dy, batch * m->values[op->out].count, err);
    if (status != STATUS_OK)
        return status;
    return compute_batch_norm_backward(m->compute, n, program_write(m, op->in), dy,
                                       program_gradient(m, op->in), batch, accumulate, err);
}

const struct operation_kind operation_batch_norm = {
    .name = "batch normalisation",
    .in_place = true,
    .owns_input = true,
    .sets_input = true,
    .open = open_norm,
    .init = init,
    .forward = forward,
    .evaluate = evaluate,
    .backward = backward,
};
