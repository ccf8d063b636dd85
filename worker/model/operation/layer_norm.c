/*
 * layer_norm: LayerNorm over the last dimension of each row.  Saves mean and inverse standard
 * deviation of each row for backward.
 */
#include "worker/model/program.h"

#include <assert.h>

#define EPSILON 1e-5f

static enum status open_norm(struct model *m, struct operation *op, struct error *err)
{
    struct layer_norm *n = &op->layer_norm;
    enum status status = STATUS_OK;

    assert(op->in != INPUT_VALUE);
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = program_alloc(m, op->rows, "statistics", &op->saved[i], err);
    n->weight = program_params(m, op, 0);
    n->bias = program_params(m, op, 1);
    n->dweight = program_grads(m, op, 0);
    n->dbias = program_grads(m, op, 1);
    n->mean = op->saved[0];
    n->inverse_std = op->saved[1];
    n->epsilon = EPSILON;
    return status;
}

static void init(struct model *m, const struct operation *op, struct random *r,
                 enum random_rounding rounding)
{
    (void)r;
    (void)rounding;
    program_init_norm(m, op);
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_layer_norm_forward(m->compute, &op->layer_norm, program_read(m, op->in),
                                      program_write(m, op->out), batch * op->rows, err);
}

static enum status backward(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err)
{
    assert(!op->shared_weight);
    return compute_layer_norm_backward(m->compute, &op->layer_norm, program_read(m, op->in),
                                       program_gradient(m, op->out), program_gradient(m, op->in),
                                       batch * op->rows, op->accumulates, accumulate, err);
}

const struct operation_kind operation_layer_norm = {
    .open = open_norm,
    .init = init,
    .forward = forward,
    .backward = backward,
};
