/*
 * batch_norm: y = activation(normalised x * weight + bias + residual), BatchNorm1d and 2d.  Forward
 * may overwrite x: for vectors the CPU leaves the normalised values there.  Running statistics are
 * buffers; the number of batches is counted on the host.
 */
#include "worker/model/program.h"

#include <assert.h>
#include <string.h>

#define MOMENTUM 0.1f
#define EPSILON  1e-5f

static float *buffer_view(const struct model *m, float *buffers, const struct operation *op,
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
    n->running_mean = buffer_view(m, m->buffers, op, 0);
    n->running_var = buffer_view(m, m->buffers, op, 1);
    op->batches_tracked = buffer_view(m, m->host_buffers, op, 2);
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
        buffer_view(m, m->host_buffers, op, 0)[i] = 0.0f;
        buffer_view(m, m->host_buffers, op, 1)[i] = 1.0f;
    }
    tensor_set_int64(op->batches_tracked, 0);
}

/* The variance of a single value is undefined. */
static enum status refuse_single_value(const struct model *m, const struct operation *op,
                                       struct error *err)
{
    const char *name = m->buffer_table.views[op->first_buffer].name;

    return error_set(err, STATUS_DATA,
                     "batch normalisation '%.*s' needs more than 1 value per channel in training, "
                     "and has a batch of 1 sample with 1: take batches that leave none over "
                     "(--batch-size, --samples)",
                     (int)(strlen(name) - strlen(".running_mean")), name);
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    if (batch * op->batch_norm.inner < 2)
        return refuse_single_value(m, op, err);
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
    assert(!op->accumulates && !op->shared_weight);
    return compute_batch_norm_backward(m->compute, &op->batch_norm, program_write(m, op->in),
                                       program_write(m, op->out), program_gradient(m, op->out),
                                       program_gradient(m, op->in), batch,
                                       op->residual != INPUT_VALUE, accumulate, err);
}

const struct operation_kind operation_batch_norm = {
    .in_place = true,
    .overwrites_input = true,
    .sets_input_gradient = true,
    .open = open_norm,
    .init = init,
    .forward = forward,
    .evaluate = evaluate,
    .backward = backward,
};
