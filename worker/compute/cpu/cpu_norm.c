/*
 * Batch normalisation, a block of columns at a time: their sums, in double precision as PyTorch
 * accumulates them on the CPU, stay in the first-level cache while the rows pass.
 *
 * Source: Ioffe and Szegedy 2015; torch/nn/modules/batchnorm.py.
 */
#include "worker/compute/cpu/cpu_norm.h"

#include <math.h>

#define BLOCK 256 /* columns: two blocks of sums take 4 KiB */

struct sums {
    double a[BLOCK], b[BLOCK];
};

static void clear(struct sums *s, size_t columns)
{
    for (size_t j = 0; j < columns; j++)
        s->a[j] = s->b[j] = 0;
}

static float activate(float value, bool relu)
{
    return relu && value < 0.0f ? 0.0f : value; /* a NaN passes */
}

/* s->a: the mean of each column; s->b: the sum of its squared deviations.  Two passes: exact enough
 * for columns whose mean is large. */
static void moments(const float *x, size_t batch, size_t width, size_t columns, struct sums *s)
{
    clear(s, columns);
    for (size_t row = 0; row < batch; row++)
        for (size_t j = 0; j < columns; j++)
            s->a[j] += (double)x[row * width + j];
    for (size_t j = 0; j < columns; j++)
        s->a[j] /= (double)batch;
    for (size_t row = 0; row < batch; row++) {
        for (size_t j = 0; j < columns; j++) {
            double d = (double)x[row * width + j] - s->a[j];

            s->b[j] += d * d;
        }
    }
}

/* Running statistics and inverse_std of columns [at, at + columns). */
static void keep_statistics(const struct batch_norm *n, const struct sums *s, size_t batch,
                            size_t at, size_t columns)
{
    for (size_t j = 0; j < columns; j++) {
        float mean = (float)s->a[j];
        float unbiased = (float)(s->b[j] / (double)(batch - 1));

        n->inverse_std[at + j] = (float)(1.0 / sqrt(s->b[j] / (double)batch + (double)n->epsilon));
        n->running_mean[at + j] =
            n->momentum * mean + (1.0f - n->momentum) * n->running_mean[at + j];
        n->running_var[at + j] =
            n->momentum * unbiased + (1.0f - n->momentum) * n->running_var[at + j];
    }
}

void cpu_norm_forward(const struct batch_norm *n, float *x, float *y, size_t batch)
{
    bool relu = n->activation == ACTIVATION_RELU;
    size_t width = n->channels;
    struct sums s;

    for (size_t at = 0; at < width; at += BLOCK) {
        size_t columns = width - at < BLOCK ? width - at : BLOCK;

        moments(x + at, batch, width, columns, &s);
        keep_statistics(n, &s, batch, at, columns);
        for (size_t row = 0; row < batch; row++) {
            float *in = x + row * width + at;
            float *out = y + row * width + at;

            for (size_t j = 0; j < columns; j++) {
                in[j] = (in[j] - (float)s.a[j]) * n->inverse_std[at + j];
                out[j] = activate(in[j] * n->weight[at + j] + n->bias[at + j], relu);
            }
        }
    }
}

void cpu_norm_evaluate(const struct batch_norm *n, const float *x, float *y, size_t batch)
{
    bool relu = n->activation == ACTIVATION_RELU;
    size_t width = n->channels;

    for (size_t row = 0; row < batch; row++, x += width, y += width) {
        for (size_t j = 0; j < width; j++) {
            float scale = n->weight[j] / sqrtf(n->running_var[j] + n->epsilon);

            y[j] = activate((x[j] - n->running_mean[j]) * scale + n->bias[j], relu);
        }
    }
}

/* s->a: sums of dy; s->b: sums of dy * normalised. */
static void gradient_sums(const float *normalised, const float *dy, size_t batch, size_t width,
                          size_t columns, struct sums *s)
{
    clear(s, columns);
    for (size_t row = 0; row < batch; row++) {
        for (size_t j = 0; j < columns; j++) {
            s->a[j] += (double)dy[row * width + j];
            s->b[j] += (double)dy[row * width + j] * (double)normalised[row * width + j];
        }
    }
}

void cpu_norm_backward(const struct batch_norm *n, const float *normalised, const float *dy,
                       float *dx, size_t batch, bool accumulate)
{
    size_t width = n->channels;
    struct sums s;

    for (size_t at = 0; at < width; at += BLOCK) {
        size_t columns = width - at < BLOCK ? width - at : BLOCK;

        gradient_sums(normalised + at, dy + at, batch, width, columns, &s);
        for (size_t j = 0; j < columns; j++) {
            n->dbias[at + j] = (accumulate ? n->dbias[at + j] : 0.0f) + (float)s.a[j];
            n->dweight[at + j] = (accumulate ? n->dweight[at + j] : 0.0f) + (float)s.b[j];
            s.a[j] /= (double)batch;
            s.b[j] /= (double)batch;
        }
        for (size_t row = 0; row < batch; row++) {
            const float *hat = normalised + row * width + at;
            const float *d = dy + row * width + at;
            float *out = dx + row * width + at;

            for (size_t j = 0; j < columns; j++)
                out[j] = n->weight[at + j] * n->inverse_std[at + j] *
                         (d[j] - (float)s.a[j] - hat[j] * (float)s.b[j]);
        }
    }
}
