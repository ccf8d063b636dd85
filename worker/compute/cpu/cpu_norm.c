/*
 * Batch normalisation.  Vectors (inner 1) are processed in blocks of columns: the blocks' sums, in
 * double as PyTorch accumulates them on the CPU, stay in the first-level cache while the rows
 * stream through; forward stores the normalised values in x.  Images are processed channel by
 * channel, also with sums in double; x is not changed, and backward normalises it again instead of
 * reading a copy.
 *
 * Source: Ioffe and Szegedy 2015; torch/nn/modules/batchnorm.py.
 */
#include "worker/compute/cpu/cpu.h"

#include <math.h>

#define BLOCK 256 /* columns: two blocks of sums take 4 KiB */

struct sums {
    double a[BLOCK], b[BLOCK];
};

static void zero_sums(struct sums *s, size_t columns)
{
    for (size_t j = 0; j < columns; j++)
        s->a[j] = s->b[j] = 0;
}

static float activate(float value, bool relu)
{
    return relu && value < 0.0f ? 0.0f : value; /* propagates NaN */
}

/* s->a: the mean of each column; s->b: the sum of its squared deviations.  Two passes keep accuracy
 * for columns with a large mean. */
static void moments(const float *x, size_t batch, size_t width, size_t columns, struct sums *s)
{
    zero_sums(s, columns);
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

/* Store a channel's statistics and update its running ones, given its mean and its sum of squared
 * deviations over `count` values. */
static void update_statistics(const struct batch_norm *n, size_t channel, double mean,
                              double deviations, size_t count)
{
    float unbiased = (float)(deviations / (double)(count - 1));
    float share = n->momentum;

    n->inverse_std[channel] = (float)(1.0 / sqrt(deviations / (double)count + (double)n->epsilon));
    n->running_mean[channel] = share * (float)mean + (1.0f - share) * n->running_mean[channel];
    n->running_var[channel] = share * unbiased + (1.0f - share) * n->running_var[channel];
}

/* ---- vectors ---- */

static void vectors_forward(const struct batch_norm *n, float *x, const float *residual, float *y,
                            size_t batch)
{
    bool relu = n->activation == ACTIVATION_RELU;
    size_t width = n->channels;
    struct sums s;

    for (size_t at = 0; at < width; at += BLOCK) {
        size_t columns = width - at < BLOCK ? width - at : BLOCK;

        moments(x + at, batch, width, columns, &s);
        for (size_t j = 0; j < columns; j++)
            update_statistics(n, at + j, s.a[j], s.b[j], batch);
        for (size_t row = 0; row < batch; row++) {
            float *in = x + row * width + at;
            float *out = y + row * width + at;

            for (size_t j = 0; j < columns; j++) {
                float value;

                in[j] = (in[j] - (float)s.a[j]) * n->inverse_std[at + j];
                value = in[j] * n->weight[at + j] + n->bias[at + j];
                out[j] = activate(residual ? value + residual[row * width + at + j] : value, relu);
            }
        }
    }
}

static void vectors_evaluate(const struct batch_norm *n, const float *x, const float *residual,
                             float *y, size_t batch)
{
    bool relu = n->activation == ACTIVATION_RELU;
    size_t width = n->channels;

    for (size_t row = 0; row < batch; row++, x += width, y += width) {
        for (size_t j = 0; j < width; j++) {
            float scale = n->weight[j] / sqrtf(n->running_var[j] + n->epsilon);
            float value = (x[j] - n->running_mean[j]) * scale + n->bias[j];

            y[j] = activate(residual ? value + residual[row * width + j] : value, relu);
        }
    }
}

/* s->a: sums of dy; s->b: sums of dy * normalised. */
static void gradient_sums(const float *normalised, const float *dy, size_t batch, size_t width,
                          size_t columns, struct sums *s)
{
    zero_sums(s, columns);
    for (size_t row = 0; row < batch; row++) {
        for (size_t j = 0; j < columns; j++) {
            s->a[j] += (double)dy[row * width + j];
            s->b[j] += (double)dy[row * width + j] * (double)normalised[row * width + j];
        }
    }
}

static void vectors_backward(const struct batch_norm *n, const float *normalised, const float *dy,
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

/* ---- images ---- */

static struct norm_channel channel_of(const struct batch_norm *n, size_t channel)
{
    return (struct norm_channel){.mean = n->mean[channel],
                                 .inverse_std = n->inverse_std[channel],
                                 .weight = n->weight[channel],
                                 .bias = n->bias[channel],
                                 .relu = n->activation == ACTIVATION_RELU};
}

/* y of one channel in every image. */
static void normalise_planes(const struct image_kernels *kernels, const struct batch_norm *n,
                             const struct norm_channel *channel, size_t at, const float *x,
                             const float *residual, float *y, size_t batch)
{
    size_t image = n->channels * n->inner;

    for (size_t i = 0; i < batch; i++, at += image)
        kernels->normalise(channel, x + at, residual ? residual + at : NULL, y + at, n->inner);
}

static void images_forward(const struct cpu *cpu, const struct batch_norm *n, const float *x,
                           const float *residual, float *y, size_t batch)
{
    const struct image_kernels *kernels = cpu->images;
    size_t image = n->channels * n->inner;
    size_t count = batch * n->inner;

    PARALLEL_LOOP(batch * image)
    for (size_t channel = 0; channel < n->channels; channel++) {
        size_t at = channel * n->inner;
        double mean = 0.0;
        double deviations = 0.0;
        struct norm_channel norm;

        for (size_t i = 0; i < batch; i++)
            mean += kernels->sum(x + i * image + at, n->inner);
        mean /= (double)count;
        for (size_t i = 0; i < batch; i++)
            deviations += kernels->squared_deviations(x + i * image + at, n->inner, mean);
        update_statistics(n, channel, mean, deviations, count);
        n->mean[channel] = (float)mean;
        norm = channel_of(n, channel);
        normalise_planes(kernels, n, &norm, at, x, residual, y, batch);
    }
}

static void images_evaluate(const struct cpu *cpu, const struct batch_norm *n, const float *x,
                            const float *residual, float *y, size_t batch)
{
    PARALLEL_LOOP(batch * n->channels * n->inner)
    for (size_t channel = 0; channel < n->channels; channel++) {
        struct norm_channel norm = {.mean = n->running_mean[channel],
                                    .inverse_std =
                                        1.0f / sqrtf(n->running_var[channel] + n->epsilon),
                                    .weight = n->weight[channel],
                                    .bias = n->bias[channel],
                                    .relu = n->activation == ACTIVATION_RELU};

        normalise_planes(cpu->images, n, &norm, channel * n->inner, x, residual, y, batch);
    }
}

static void images_backward(const struct cpu *cpu, const struct batch_norm *n, const float *x,
                            const float *dy, float *dx, size_t batch, bool accumulate)
{
    const struct image_kernels *kernels = cpu->images;
    size_t image = n->channels * n->inner;
    double count = (double)(batch * n->inner);

    PARALLEL_LOOP(batch * image)
    for (size_t channel = 0; channel < n->channels; channel++) {
        struct norm_channel norm = channel_of(n, channel);
        size_t at = channel * n->inner;
        double sums[2] = {0.0, 0.0};

        for (size_t i = 0; i < batch; i++)
            kernels->norm_gradient_sums(&norm, x + i * image + at, dy + i * image + at, n->inner,
                                        sums);
        n->dbias[channel] = (accumulate ? n->dbias[channel] : 0.0f) + (float)sums[0];
        n->dweight[channel] = (accumulate ? n->dweight[channel] : 0.0f) + (float)sums[1];
        for (size_t i = 0; i < batch; i++)
            kernels->norm_gradient(&norm, x + i * image + at, dy + i * image + at,
                                   dx + i * image + at, n->inner, (float)(sums[0] / count),
                                   (float)(sums[1] / count));
    }
}

/* ---- the operations ---- */

enum status cpu_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                   const void *residual, void *y, size_t batch, struct error *err)
{
    (void)err;
    if (n->inner == 1)
        vectors_forward(n, x, residual, y, batch);
    else
        images_forward((const struct cpu *)c, n, x, residual, y, batch);
    return STATUS_OK;
}

enum status cpu_batch_norm_evaluate(struct compute *c, const struct batch_norm *n, const void *x,
                                    const void *residual, void *y, size_t batch, struct error *err)
{
    (void)err;
    if (n->inner == 1)
        vectors_evaluate(n, x, residual, y, batch);
    else
        images_evaluate((const struct cpu *)c, n, x, residual, y, batch);
    return STATUS_OK;
}

enum status cpu_batch_norm_backward(struct compute *c, const struct batch_norm *n, const void *x,
                                    const void *y, void *dy, void *dx, size_t batch, bool residual,
                                    bool accumulate_parameters, struct error *err)
{
    enum status status = STATUS_OK;

    (void)residual; /* dy is always masked */
    if (n->activation != ACTIVATION_NONE)
        status =
            cpu_activation_backward(c, n->activation, y, dy, batch * n->channels * n->inner, err);
    if (status != STATUS_OK)
        return status;
    if (n->inner == 1)
        vectors_backward(n, x, dy, dx, batch, accumulate_parameters);
    else
        images_backward((const struct cpu *)c, n, x, dy, dx, batch, accumulate_parameters);
    return STATUS_OK;
}
