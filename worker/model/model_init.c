/*
 * Initial parameters, operation by operation: each kind of operation passes its fan in and fan out,
 * the architecture selects the distribution that its PyTorch counterpart uses.  Values are drawn on
 * the host and uploaded.
 *
 * Sources: torch.nn.modules.linear, .conv (reset_parameters); He et al. 2015 (kaiming); Radford et
 * al. 2019 (GPT-2).
 */
#include "worker/model/program.h"

#include <math.h>
#include <string.h>

void program_init_weight(struct model *m, const struct operation *op, size_t fan_in, size_t fan_out,
                         struct random *r, enum random_rounding rounding)
{
    const struct tensor_view *weight = &m->table.views[op->first_view];
    float *values = program_host_params(m, op, 0);
    float *bias = op->views > 1 ? program_host_params(m, op, 1) : NULL;
    size_t biases = weight->shape[0];
    double deviation =
        op->initial.kind == INITIAL_KAIMING ? sqrt(2.0 / (double)fan_out) : op->initial.deviation;

    if (op->initial.kind == INITIAL_TORCH && bias) {
        random_linear_init(r, values, bias, fan_in, biases, rounding);
        return;
    }
    if (op->initial.kind == INITIAL_TORCH) {
        double bound = 1.0 / sqrt((double)fan_in);

        random_uniform(r, values, weight->count, -bound, bound, rounding);
        return;
    }
    random_normal(r, values, weight->count);
    vector_scale(values, (float)deviation, weight->count);
    if (bias)
        memset(bias, 0, biases * sizeof(*bias));
}

void program_init_norm(struct model *m, const struct operation *op)
{
    const struct tensor_view *weight = &m->table.views[op->first_view];

    for (size_t i = 0; i < weight->count; i++) {
        program_host_params(m, op, 0)[i] = 1.0f;
        program_host_params(m, op, 1)[i] = 0.0f;
    }
}

enum status model_init(struct model *m, uint64_t seed, enum random_rounding rounding,
                       struct error *err)
{
    struct random r;

    random_seed(&r, seed);
    for (size_t i = 0; i < m->length; i++) {
        const struct operation *op = &m->operations[i];

        if (op->kind->init && op->first_use)
            op->kind->init(m, op, &r, rounding);
    }
    return model_params_changed(m, err);
}

enum status model_params_changed(struct model *m, struct error *err)
{
    enum status status;

    if (m->host_params == m->params)
        return STATUS_OK;
    status = compute_upload(m->compute, m->params, m->host_params, m->table.count, err);
    if (status != STATUS_OK || !m->buffers)
        return status;
    return compute_upload(m->compute, m->buffers, m->host_buffers, m->buffer_table.count, err);
}
