/*
 * reference_model: loss of an MLP in double precision, one sample after the other, without
 * optimisation.  Supports linear and ReLU layers.
 */
#include "tests/worker/model/reference_model.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

/* out = weight in + bias; relu: negative values become 0, and each sign is added to the hash
 * *signs. */
static void reference_layer(const double *weight, const double *bias, const double *in,
                            size_t in_count, double *out, size_t out_count, bool relu,
                            uint64_t *signs)
{
    for (size_t j = 0; j < out_count; j++) {
        out[j] = bias[j];
        for (size_t k = 0; k < in_count; k++)
            out[j] += weight[j * in_count + k] * in[k];
        if (!relu)
            continue;
        *signs = (*signs ^ (out[j] > 0.0 ? 1u : 2u)) * UINT64_C(1099511628211);
        if (out[j] < 0.0)
            out[j] = 0.0;
    }
}

/* Cross-entropy of one row of logits. */
static double row_loss(const double *logits, size_t classes, size_t label, size_t *correct)
{
    size_t best = 0;
    double sum = 0.0;

    for (size_t j = 1; j < classes; j++)
        if (logits[j] > logits[best])
            best = j;
    for (size_t j = 0; j < classes; j++)
        sum += exp(logits[j] - logits[best]);
    *correct += best == label;
    return log(sum) + logits[best] - logits[label];
}

double reference_loss(const struct spec *spec, const struct tensor_table *table,
                      const double *params, const float *x, const int32_t *labels, size_t batch,
                      uint64_t *ret_signs, size_t *ret_correct)
{
    double values[2][REFERENCE_WIDTH_MAX] = {{0}};
    double loss = 0.0;
    uint64_t signs = UINT64_C(14695981039346656037);
    size_t correct = 0;

    for (size_t l = 0; l <= spec->layers; l++)
        assert(spec->widths[l] <= REFERENCE_WIDTH_MAX);
    for (size_t i = 0; i < batch; i++) {
        for (size_t k = 0; k < spec->widths[0]; k++)
            values[0][k] = (double)x[i * spec->widths[0] + k];
        for (size_t l = 0; l < spec->layers; l++)
            reference_layer(params + table->views[2 * l].offset,
                            params + table->views[2 * l + 1].offset, values[l % 2], spec->widths[l],
                            values[(l + 1) % 2], spec->widths[l + 1],
                            spec->relu && l + 1 < spec->layers, &signs);
        loss += row_loss(values[spec->layers % 2], spec->widths[spec->layers], (size_t)labels[i],
                         &correct);
    }
    *ret_signs = signs;
    *ret_correct = correct;
    return loss / (double)batch;
}
