/*
 * linear: y = activation(x weight^T + bias) + residual, on each row of a sample.  With GELU the
 * input of the activation is saved; ReLU's backward reads the output.  The backward of the
 * preceding activation may be part of the input gradient's product.
 */
#include "worker/model/program.h"

#include <assert.h>

/* Include the backward of the previous operation's activation in this operation's input gradient.
 */
static void fuse_activation_backward(const struct model *m, struct operation *op)
{
    struct operation *previous = &m->operations[op->in - 1];

    previous->activation_backward_fused = true;
    op->linear.previous = previous->linear.activation;
    op->linear.previous_saved =
        previous->pre_activation ? previous->pre_activation : program_write(m, previous->out);
}

static enum status open_linear(struct model *m, struct operation *op, struct error *err)
{
    struct linear *l = &op->linear;

    assert(op->residual == INPUT_VALUE || l->activation == ACTIVATION_NONE);
    l->weight = program_params(m, op, 0);
    l->bias = program_params(m, op, 1);
    l->dweight = program_grads(m, op, 0);
    l->dbias = program_grads(m, op, 1);
    if (op->fuses_activation_backward)
        fuse_activation_backward(m, op);
    if (l->activation != ACTIVATION_GELU)
        return STATUS_OK;
    return program_alloc_values(m, op->rows * l->out, "inputs of GELU", &op->pre_activation, err);
}

static void init(struct model *m, const struct operation *op, struct random *r,
                 enum random_rounding rounding)
{
    program_init_weight(m, op, op->linear.in, op->linear.out, r, rounding);
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_linear_forward(m->compute, &op->linear, program_read(m, op->in),
                                  program_residual(m, op), op->pre_activation,
                                  program_write(m, op->out), batch * op->rows, err);
}

static enum status backward(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err)
{
    const struct linear *l = &op->linear;
    void *dy = program_gradient(m, op->out);
    size_t rows = batch * op->rows;
    enum status status = STATUS_OK;

    assert(!op->shared_weight);
    if (l->activation != ACTIVATION_NONE && !op->activation_backward_fused)
        status = compute_activation_backward(m->compute, l->activation,
                                             op->pre_activation ? op->pre_activation
                                                                : program_write(m, op->out),
                                             dy, rows * l->out, err);
    if (status != STATUS_OK)
        return status;
    return compute_linear_backward_weight(m->compute, l, program_read(m, op->in), dy, rows,
                                          accumulate, err);
}

static enum status backward_input(struct model *m, struct operation *op, size_t batch,
                                  struct error *err)
{
    return compute_linear_backward_input(m->compute, &op->linear, program_gradient(m, op->out),
                                         program_gradient(m, op->in), batch * op->rows,
                                         op->accumulates, err);
}

static uint64_t forward_flops(const struct operation *op)
{
    return 2 * (uint64_t)op->rows * op->linear.in * op->linear.out;
}

const struct operation_kind operation_linear = {
    .open = open_linear,
    .init = init,
    .forward = forward,
    .backward = backward,
    .backward_input = backward_input,
    .forward_flops = forward_flops,
};
