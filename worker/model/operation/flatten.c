/*
 * flatten: an image as features in PyTorch's order, channel by channel, on devices that store the
 * channels last.  Other devices need no conversion, and the builder adds no such operation.
 */
#include "worker/model/program.h"

static size_t image_points(const struct model *m, const struct operation *op)
{
    return m->values[op->in].height * m->values[op->in].width;
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_flatten_forward(m->compute, program_read(m, op->in), program_write(m, op->out),
                                   batch, m->values[op->in].channels, image_points(m, op), err);
}

static enum status backward_input(struct model *m, struct operation *op, size_t batch,
                                  struct error *err)
{
    return compute_flatten_backward(m->compute, program_gradient(m, op->out),
                                    program_gradient(m, op->in), batch, m->values[op->in].channels,
                                    image_points(m, op), op->accumulates, err);
}

const struct operation_kind operation_flatten = {
    .forward = forward,
    .backward_input = backward_input,
};
