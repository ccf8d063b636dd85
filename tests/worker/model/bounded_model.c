/*
 * bounded_model: forward and backward of an MLP as model_step computes them, each value in double
 * with its error bound.
 */
#include "tests/worker/model/bounded_model.h"

#include <check.h>
#include <math.h>
#include <string.h>

#define EPSILON   1e-5 /* of the variance */
#define IN_DOUBLE 1    /* terms of a sum in double that is rounded once */
#define EXP_ERROR (4 * ROUNDING)

enum view { WEIGHT, BIAS, NORM_WEIGHT, NORM_BIAS };

static const float *view(const struct bounded_model *a, size_t layer, enum view which)
{
    return a->params + a->table->views[layer * (a->spec->batch_norm ? 4 : 2) + which].offset;
}

static struct bounded exactly(float value)
{
    return bounded_exact((double)value);
}

/* Compute y of column j, and save in `a` what backward needs. */
static void normalise_bounded(struct bounded_model *a, size_t l, size_t j)
{
    struct bounded(*y)[BOUNDED_WIDTH_MAX] = a->values[l + 1];
    struct bounded(*hat)[BOUNDED_WIDTH_MAX] = a->normalised[l];
    struct bounded mean = {0};
    struct bounded var = {0};

    for (size_t i = 0; i < a->batch; i++)
        bounded_add(&mean, y[i][j], IN_DOUBLE);
    mean = bounded_times(mean, 1.0 / (double)a->batch);
    for (size_t i = 0; i < a->batch; i++) {
        hat[i][j] = bounded_plus(y[i][j], (struct bounded){-mean.value, mean.error});
        var.value += hat[i][j].value * hat[i][j].value / (double)a->batch;
        var.error +=
            (2 * fabs(hat[i][j].value) + hat[i][j].error) * hat[i][j].error / (double)a->batch;
    }
    a->inverse_std[l][j] = bounded_inverse_std(var, EPSILON);
    for (size_t i = 0; i < a->batch; i++) {
        hat[i][j] = bounded_product(hat[i][j], a->inverse_std[l][j]);
        y[i][j] = bounded_plus(bounded_product(hat[i][j], exactly(view(a, l, NORM_WEIGHT)[j])),
                               exactly(view(a, l, NORM_BIAS)[j]));
    }
}

static void relu_bounded(struct bounded_model *a, size_t l, size_t j)
{
    for (size_t i = 0; i < a->batch; i++) {
        struct bounded *y = &a->values[l + 1][i][j];

        a->undecided = a->undecided || fabs(y->value) <= y->error;
        if (y->value <= 0)
            *y = (struct bounded){0};
    }
}

static void forward_bounded(struct bounded_model *a, const float *x)
{
    for (size_t i = 0; i < a->batch; i++)
        for (size_t k = 0; k < a->spec->widths[0]; k++)
            a->values[0][i][k] = bounded_exact((double)x[i * a->spec->widths[0] + k]);
    for (size_t l = 0; l < a->spec->layers; l++) {
        size_t width = a->spec->widths[l];
        const float *weight = view(a, l, WEIGHT);
        const float *bias = view(a, l, BIAS);

        for (size_t i = 0; i < a->batch; i++) {
            for (size_t j = 0; j < a->spec->widths[l + 1]; j++) {
                struct bounded sum = {0};

                bounded_add(&sum, exactly(bias[j]), width + 1);
                for (size_t k = 0; k < width; k++)
                    bounded_add(&sum,
                                bounded_product(exactly(weight[j * width + k]), a->values[l][i][k]),
                                width + 1);
                a->values[l + 1][i][j] = sum;
            }
        }
        for (size_t j = 0; l + 1 < a->spec->layers && j < a->spec->widths[l + 1]; j++) {
            if (a->spec->batch_norm)
                normalise_bounded(a, l, j);
            if (a->spec->relu)
                relu_bounded(a, l, j);
        }
    }
}

/* Replace the logits of row i by their gradient, (softmax - one-hot) / batch. */
static void cross_entropy_bounded(struct bounded_model *a, size_t i, size_t label)
{
    struct bounded *logits = a->values[a->spec->layers][i];
    size_t classes = a->spec->widths[a->spec->layers];
    struct bounded grads[BOUNDED_WIDTH_MAX];

    for (size_t j = 0; j < classes; j++)
        for (size_t k = 0; k < j; k++)
            a->undecided = a->undecided || fabs(logits[j].value - logits[k].value) <=
                                               logits[j].error + logits[k].error;
    for (size_t j = 0; j < classes; j++) { /* p = 1 / sum of exp(logit - logit j) */
        double sum = 0;
        double exponent = 0;
        double p;

        for (size_t k = 0; k < classes; k++) {
            sum += exp(logits[k].value - logits[j].value);
            exponent = fmax(exponent, logits[j].error + logits[k].error +
                                          2 * ROUNDING * fabs(logits[k].value - logits[j].value));
        }
        exponent += 2 * EXP_ERROR + (double)(classes + 2) * ROUNDING;
        p = 1 / sum;
        grads[j] =
            bounded_times(bounded_round(p - (j == label), p * expm1(exponent) + 2 * ROUNDING),
                          1.0 / (double)a->batch);
        if (j == label)
            a->loss_error += exponent / (double)a->batch;
    }
    memcpy(logits, grads, sizeof(grads));
}

/* Replace dy of column j by the gradient of the layer's input. */
static void denormalise_bounded(struct bounded_model *a, bounded_rows dy, size_t l, size_t j)
{
    struct bounded(*hat)[BOUNDED_WIDTH_MAX] = a->normalised[l];
    struct bounded sums[2] = {{0}};
    struct bounded scale;

    for (size_t i = 0; i < a->batch; i++) {
        bounded_add(&sums[0], dy[i][j], IN_DOUBLE);
        bounded_add(&sums[1], bounded_product(dy[i][j], hat[i][j]), IN_DOUBLE);
    }
    a->grads[view(a, l, NORM_BIAS) + j - a->params] = sums[0];
    a->grads[view(a, l, NORM_WEIGHT) + j - a->params] = sums[1];
    scale = bounded_product(exactly(view(a, l, NORM_WEIGHT)[j]), a->inverse_std[l][j]);
    for (size_t i = 0; i < a->batch; i++) {
        struct bounded d = bounded_plus(dy[i][j], bounded_times(sums[0], -1.0 / (double)a->batch));

        d = bounded_plus(
            d, bounded_product(hat[i][j], bounded_times(sums[1], -1.0 / (double)a->batch)));
        dy[i][j] = bounded_product(scale, d);
    }
}

static void backward_bounded(struct bounded_model *a)
{
    static bounded_rows d[2];

    memcpy(d[a->spec->layers % 2], a->values[a->spec->layers], sizeof(bounded_rows));
    for (size_t l = a->spec->layers; l-- > 0;) {
        struct bounded(*dz)[BOUNDED_WIDTH_MAX] = d[(l + 1) % 2];
        struct bounded(*dx)[BOUNDED_WIDTH_MAX] = d[l % 2];
        size_t width = a->spec->widths[l];
        const float *weight = view(a, l, WEIGHT);
        struct bounded *bias_grads = a->grads + (view(a, l, BIAS) - a->params);

        memset(dx, 0, sizeof(bounded_rows));
        for (size_t j = 0; j < a->spec->widths[l + 1]; j++) {
            if (l + 1 < a->spec->layers && a->spec->batch_norm)
                denormalise_bounded(a, dz, l, j);
            for (size_t i = 0; i < a->batch; i++)
                bounded_add(&bias_grads[j], dz[i][j], a->batch);
            for (size_t k = 0; k < width; k++) {
                struct bounded *grad = a->grads + (weight + j * width + k - a->params);

                for (size_t i = 0; i < a->batch; i++) {
                    bounded_add(grad, bounded_product(dz[i][j], a->values[l][i][k]), a->batch);
                    if (l > 0 && (!a->spec->relu || a->values[l][i][k].value > 0))
                        bounded_add(&dx[i][k],
                                    bounded_product(dz[i][j], exactly(weight[j * width + k])),
                                    a->spec->widths[l + 1]);
                }
            }
        }
    }
}

void bounded_model_step(struct bounded_model *a, const struct spec *spec,
                        const struct tensor_table *table, const float *params, const float *x,
                        const int32_t *labels, size_t batch)
{
    ck_assert(batch <= BOUNDED_BATCH_MAX && table->count <= BOUNDED_PARAMS_MAX &&
              spec->layers <= BOUNDED_LAYERS_MAX);
    for (size_t l = 0; l <= spec->layers; l++)
        ck_assert_uint_le(spec->widths[l], BOUNDED_WIDTH_MAX);
    *a = (struct bounded_model){.spec = spec, .table = table, .params = params, .batch = batch};
    forward_bounded(a, x);
    for (size_t i = 0; i < batch; i++)
        cross_entropy_bounded(a, i, (size_t)labels[i]);
    backward_bounded(a);
}
