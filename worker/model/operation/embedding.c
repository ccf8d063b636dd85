/*
 * embedding: the sum of a row per token and a row per position.  Its input is the model's: ids,
 * which have no gradient.  The token weight may be shared with the output layer, whose gradient
 * comes first.
 */
#include "worker/model/program.h"

#include <assert.h>

static enum status open_embedding(struct model *m, struct operation *op, struct error *err)
{
    struct embedding *e = &op->embedding;

    (void)err;
    assert(op->in == INPUT_VALUE && op->views == 2);
    e->token_weight = program_params(m, op, 0);
    e->position_weight = program_params(m, op, 1);
    e->dtoken_weight = program_grads(m, op, 0);
    e->dposition_weight = program_grads(m, op, 1);
    return STATUS_OK;
}

static void init(struct model *m, const struct operation *op, struct random *r,
                 enum random_rounding rounding)
{
    (void)rounding;
    assert(op->initial.kind == INITIAL_NORMAL);
    for (size_t i = 0; i < 2; i++) {
        size_t count = m->table.views[op->first_view + i].count;
        float *values = program_host_params(m, op, i);

        random_normal(r, values, count);
        vector_scale(values, (float)op->initial.deviation, count);
    }
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    return compute_embedding_forward(m->compute, &op->embedding, program_read(m, op->in),
                                     program_write(m, op->out), batch, err);
}

static enum status backward(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err)
{
    return compute_embedding_backward(m->compute, &op->embedding, program_read(m, op->in),
                                      program_gradient(m, op->out), batch,
                                      accumulate || op->shared_weight, accumulate, err);
}

const struct operation_kind operation_embedding = {
    .open = open_embedding,
    .init = init,
    .forward = forward,
    .backward = backward,
};
