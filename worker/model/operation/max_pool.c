/*
 * max_pool: the maximum of each window of an image.  Saves the index of each maximum for backward.
 */
#include "worker/model/program.h"

static enum status open_pool(struct model *m, struct operation *op, struct error *err)
{
    float *memory = NULL;
    void *argmax;
    enum status status =
        program_alloc(m, m->values[op->out].count, "choices of max pooling", &memory, err);

    argmax = memory; /* float and int32_t have 4 bytes each */
    op->argmax = argmax;
    return status;
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_max_pool_forward(m->compute, &op->pool, program_read(m, op->in), op->argmax,
                                    program_write(m, op->out), batch, err);
}

static enum status backward_input(struct model *m, struct operation *op, size_t batch,
                                  struct error *err)
{
    return compute_max_pool_backward(m->compute, &op->pool, op->argmax,
                                     program_gradient(m, op->out), program_gradient(m, op->in),
                                     batch, op->accumulates, err);
}

const struct operation_kind operation_max_pool = {
    .open = open_pool,
    .forward = forward,
    .backward_input = backward_input,
};
