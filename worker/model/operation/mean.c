/*
 * mean: global average pooling, the mean of each channel of an image.  Linear, so backward needs no
 * values of forward.
 */
#include "worker/model/program.h"

static size_t image_points(const struct model *m, const struct operation *op)
{
    return m->values[op->in].height * m->values[op->in].width;
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_mean_forward(m->compute, program_read(m, op->in), program_write(m, op->out),
                                batch, m->values[op->in].channels, image_points(m, op), err);
}

static enum status backward_input(struct model *m, struct operation *op, size_t batch,
                                  struct error *err)
{
    return compute_mean_backward(m->compute, program_gradient(m, op->out),
                                 program_gradient(m, op->in), batch, m->values[op->in].channels,
                                 image_points(m, op), op->accumulates, err);
}

const struct operation_kind operation_mean = {
    .forward = forward,
    .backward_input = backward_input,
};
