/*
 * image_kernels: loops over one plane of an image each, compiled once per vector width.  Sums in
 * double keep eight partial sums; the compiler maps each group of eight doubles to as many
 * registers as the width needs.  ReLU propagates NaN, and a window with a NaN yields it, as in
 * PyTorch, so that divergence stays visible.
 */
#include "worker/compute/cpu/image_kernels.h"

#include <math.h>
#include <string.h>

#define LANES 8

typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef float floats4 __attribute__((vector_size(4 * sizeof(float))));
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

static void add_scalar(const float *x, float *y, size_t count, float scalar, bool relu)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float value = x[i] + scalar;

        y[i] = relu && value < 0.0f ? 0.0f : value;
    }
}

/* ---- max pooling ---- */

typedef int32_t ints4 __attribute__((vector_size(4 * sizeof(int32_t))));

/* A row of y and of argmax; its windows cover the rows [first, last) of x. */
struct window_row {
    size_t first, last;
    const float *x;
    int32_t *argmax;
    float *y;
};

/* One window, which may extend past the left or right border. */
static void pool_one(const struct pool *p, const struct window_row *r, size_t column)
{
    size_t left = column * p->stride;
    size_t from = left < p->padding ? 0 : left - p->padding;
    size_t to = left + p->kernel - p->padding;
    size_t at = r->first * p->width + from;
    float best = r->x[at];

    to = to < p->width ? to : p->width;
    for (size_t row = r->first; row < r->last; row++) {
        for (size_t w = from; w < to; w++) {
            float value = r->x[row * p->width + w];

            if (value > best || value != value) {
                best = value;
                at = row * p->width + w;
            }
        }
    }
    r->y[column] = best;
    r->argmax[column] = (int32_t)at;
}

/* Load in[0], in[stride], in[2 * stride], in[3 * stride], and read nothing beyond. */
static inline floats4 load_four(const float *in, size_t stride)
{
    floats4 low;
    floats4 high;

    if (stride > 2)
        return (floats4){in[0], in[stride], in[2 * stride], in[3 * stride]};
    LOAD(low, in);
    if (stride == 1)
        return low;
    LOAD(high, in + 3);
    return __builtin_shufflevector(low, high, 0, 2, 5, 7);
}

/* Four adjacent windows that do not extend past a border. */
static inline void pool_four(const struct pool *p, const struct window_row *r, size_t column,
                             size_t kernel, size_t stride)
{
    const ints4 steps = {0, (int32_t)stride, 2 * (int32_t)stride, 3 * (int32_t)stride};
    size_t left = column * stride - p->padding;
    floats4 best = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    ints4 argmax = steps + (int32_t)(r->first * p->width + left);

    for (size_t row = r->first; row < r->last; row++) {
        for (size_t w = left; w < left + kernel; w++) {
            floats4 value = load_four(r->x + row * p->width + w, stride);
            ints4 wins = (ints4)(value > best) | (ints4)(value != value);

            best = (floats4)((wins & (ints4)value) | (~wins & (ints4)best));
            argmax = (wins & (steps + (int32_t)(row * p->width + w))) | (~wins & argmax);
        }
    }
    memcpy(r->y + column, &best, sizeof(best));
    memcpy(r->argmax + column, &argmax, sizeof(argmax));
}

static void pool_row(const struct pool *p, const struct window_row *r, size_t columns)
{
    size_t from = (p->padding + p->stride - 1) / p->stride; /* windows [from, to) lie inside */
    size_t to =
        p->width + p->padding < p->kernel ? 0 : (p->width + p->padding - p->kernel) / p->stride + 1;
    size_t j = 0;

    if (to < from + 4)
        from = to = 0;
    for (; j < from; j++)
        pool_one(p, r, j);
    for (; j < to; j += 4) {
        j = j + 4 <= to ? j : to - 4; /* the last four, some of them a second time */
        if (p->stride == 2 && p->kernel == 2)
            pool_four(p, r, j, 2, 2);
        else if (p->stride == 2)
            pool_four(p, r, j, p->kernel, 2);
        else
            pool_four(p, r, j, p->kernel, p->stride);
    }
    for (; j < columns; j++)
        pool_one(p, r, j);
}

static void max_pool(const struct pool *p, const float *x, int32_t *argmax, float *y)
{
    size_t rows = (p->height + 2 * p->padding - p->kernel) / p->stride + 1;
    size_t columns = (p->width + 2 * p->padding - p->kernel) / p->stride + 1;

    for (size_t i = 0; i < rows; i++) {
        size_t top = i * p->stride;
        size_t last = top + p->kernel - p->padding;
        struct window_row r = {.first = top < p->padding ? 0 : top - p->padding,
                               .last = last < p->height ? last : p->height,
                               .x = x,
                               .argmax = argmax + i * columns,
                               .y = y + i * columns};

        pool_row(p, &r, columns);
    }
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
