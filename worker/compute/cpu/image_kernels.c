/*
 * image_kernels: loops over one plane of an image each, compiled once per vector width.  Sums in
 * double keep eight partial sums side by side; the compiler makes of each eight doubles as many
 * registers as the width needs.  A NaN passes through ReLU and wins a pooling window, as in
 * PyTorch: a run that diverges must not look healthy.
 */
#include "worker/compute/cpu/image_kernels.h"

#include <math.h>
#include <string.h>

#define LANES 8

typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));

#define LOAD(to, from) memcpy(&(to), (from), sizeof(to)) /* one unaligned load */
#define WIDEN(values)  __builtin_convertvector(values, doubles)

static double add_lanes(const doubles *lanes)
{
    const doubles l = *lanes;

    return ((l[0] + l[4]) + (l[1] + l[5])) + ((l[2] + l[6]) + (l[3] + l[7]));
}

static double sum(const float *x, size_t count)
{
    doubles lanes = {0};
    double rest = 0.0;
    size_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        floats values;

        LOAD(values, x + i);
        lanes += WIDEN(values);
    }
    for (; i < count; i++)
        rest += (double)x[i];
    return add_lanes(&lanes) + rest;
}

static double squared_deviations(const float *x, size_t count, double mean)
{
    doubles lanes = {0};
    double rest = 0.0;
    size_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        floats values;
        doubles d;

        LOAD(values, x + i);
        d = WIDEN(values) - mean;
        lanes += d * d;
    }
    for (; i < count; i++)
        rest += ((double)x[i] - mean) * ((double)x[i] - mean);
    return add_lanes(&lanes) + rest;
}

static void normalise(const struct norm_channel *n, const float *x, const float *residual, float *y,
                      size_t count)
{
    const struct norm_channel c = *n;

    if (residual) {
        SIMD_LOOP
        for (size_t i = 0; i < count; i++) {
            float value = (x[i] - c.mean) * c.inverse_std * c.weight + c.bias + residual[i];

            y[i] = c.relu && value < 0.0f ? 0.0f : value;
        }
    } else {
        SIMD_LOOP
        for (size_t i = 0; i < count; i++) {
            float value = (x[i] - c.mean) * c.inverse_std * c.weight + c.bias;

            y[i] = c.relu && value < 0.0f ? 0.0f : value;
        }
    }
}

static void norm_gradient_sums(const struct norm_channel *n, const float *x, const float *dy,
                               size_t count, double sums[2])
{
    const struct norm_channel c = *n;
    doubles plain = {0};
    doubles products = {0};
    double rest[2] = {0.0, 0.0};
    size_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        floats values;
        floats gradient;

        LOAD(values, x + i);
        LOAD(gradient, dy + i);
        values = (values - c.mean) * c.inverse_std;
        plain += WIDEN(gradient);
        products += WIDEN(gradient) * WIDEN(values);
    }
    for (; i < count; i++) {
        rest[0] += (double)dy[i];
        rest[1] += (double)dy[i] * (double)((x[i] - c.mean) * c.inverse_std);
    }
    sums[0] += add_lanes(&plain) + rest[0];
    sums[1] += add_lanes(&products) + rest[1];
}

static void norm_gradient(const struct norm_channel *n, const float *x, const float *dy, float *dx,
                          size_t count, float mean_dy, float mean_product)
{
    const struct norm_channel c = *n;
    const float scale = c.weight * c.inverse_std;

    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dx[i] = scale * (dy[i] - mean_dy - (x[i] - c.mean) * c.inverse_std * mean_product);
}

static void add_scalar(float *y, size_t count, float bias, bool relu)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float value = y[i] + bias;

        y[i] = relu && value < 0.0f ? 0.0f : value;
    }
}

/* ---- max pooling ---- */

/* One row of x against the windows [from, to) of one row of y: in[i * stride] lies at `at` + i *
 * stride in its plane. */
static inline void larger(const float *in, int32_t at, size_t stride, int32_t *chosen, float *y,
                          size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float value = in[i * stride];
        bool wins = value > y[i] || value != value;

        y[i] = wins ? value : y[i];
        chosen[i] = wins ? at + (int32_t)(i * stride) : chosen[i];
    }
}

static void max_pool_row(const struct pool *p, const float *x, size_t top, int32_t *chosen,
                         float *y, size_t columns)
{
    size_t first = top < p->padding ? 0 : top - p->padding; /* rows of x: [first, last) */
    size_t last = top + p->kernel - p->padding;

    if (last > p->height)
        last = p->height;
    for (size_t j = 0; j < columns; j++) {
        size_t left = j * p->stride;

        y[j] = -INFINITY;
        chosen[j] = (int32_t)(first * p->width + (left < p->padding ? 0 : left - p->padding));
    }
    for (size_t row = first; row < last; row++) {
        for (size_t k = 0; k < p->kernel; k++) {
            /* Windows whose k-th column is inside: left + k - padding in [0, width). */
            size_t from = k < p->padding ? (p->padding - k + p->stride - 1) / p->stride : 0;
            size_t to =
                p->width + p->padding <= k ? 0 : (p->width + p->padding - k - 1) / p->stride + 1;
            size_t at;

            to = to < columns ? to : columns;
            if (from >= to)
                continue;
            at = row * p->width + from * p->stride + k - p->padding;
            if (p->stride == 2)
                larger(x + at, (int32_t)at, 2, chosen + from, y + from, to - from);
            else if (p->stride == 1)
                larger(x + at, (int32_t)at, 1, chosen + from, y + from, to - from);
            else
                larger(x + at, (int32_t)at, p->stride, chosen + from, y + from, to - from);
        }
    }
}

static void max_pool(const struct pool *p, const float *x, int32_t *chosen, float *y)
{
    size_t rows = (p->height + 2 * p->padding - p->kernel) / p->stride + 1;
    size_t columns = (p->width + 2 * p->padding - p->kernel) / p->stride + 1;

    for (size_t i = 0; i < rows; i++)
        max_pool_row(p, x, i * p->stride, chosen + i * columns, y + i * columns, columns);
}

const struct image_kernels SIMD_NAME(image_kernels) = {
    .sum = sum,
    .squared_deviations = squared_deviations,
    .normalise = normalise,
    .norm_gradient_sums = norm_gradient_sums,
    .norm_gradient = norm_gradient,
    .add_scalar = add_scalar,
    .max_pool = max_pool,
};
