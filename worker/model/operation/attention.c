/*
 * attention: causal self-attention of queries, keys and values that lie side by side in a row.
 * Saves the logarithms of the rows' sums of exponentials for backward.  The gradient of the input
 * is replaced, never accumulated.
 */
#include "worker/model/program.h"

#include <assert.h>

static enum status open_attention(struct model *m, struct operation *op, struct error *err)
{
    struct attention *a = &op->attention;
    enum status status =
        program_alloc(m, a->heads * a->positions, "sums of attention", &op->saved[0], err);

    assert(op->in != INPUT_VALUE);
    return status == STATUS_OK ? compute_attention_prepare(m->compute, a, m->max_batch, err)
                               : status;
}

static void close_attention(struct model *m, struct operation *op)
{
    compute_attention_release(m->compute, &op->attention);
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_attention_forward(m->compute, &op->attention, program_read(m, op->in),
                                     op->saved[0], program_write(m, op->out), batch, err);
}

static enum status backward_input(struct model *m, struct operation *op, size_t batch,
                                  struct error *err)
{
    assert(!op->accumulates);
    return compute_attention_backward(m->compute, &op->attention, program_read(m, op->in),
                                      op->saved[0], program_write(m, op->out),
                                      program_gradient(m, op->out), program_gradient(m, op->in),
                                      batch, err);
}

/* Two products of (T, T) by (T, width); masked pairs count, by the usual convention. */
static uint64_t forward_flops(const struct operation *op)
{
    const struct attention *a = &op->attention;

    return 4 * (uint64_t)a->positions * a->positions * a->width;
}

const struct operation_kind operation_attention = {
    .sets_input_gradient = true,
    .open = open_attention,
    .close = close_attention,
    .forward = forward,
    .backward_input = backward_input,
    .forward_flops = forward_flops,
};
