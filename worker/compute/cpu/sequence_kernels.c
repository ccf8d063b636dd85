/*
 * sequence_kernels: exponentials, GELU and layer normalisation, compiled once per vector width;
 * every width gives the same bits.  A row fits in the first-level cache, so a row passes through
 * several simple loops instead of one that the compiler cannot vectorise.
 */
#include "worker/compute/cpu/sequence_kernels.h"

#include "worker/compute/cpu/cpu_math.h"

#include <math.h>

#define SUM_BLOCK 1024 /* floats: 4 KiB; longer sums continue in double */

_Static_assert(SCORE_LANES == LANES, "rows are written over up to whole lanes");

static float largest(const float *row, size_t count)
{
    struct lanes best = lanes_load_some(row, 0, -INFINITY);
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        best = lanes_larger(lanes_load(row + i), best);
    if (i < count)
        best = lanes_larger(lanes_load_some(row + i, count - i, -INFINITY), best);
    return lanes_largest(best);
}

static float sum_of(const float *x, size_t count)
{
    struct lanes sums = lanes_load_some(x, 0, 0.0f);
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        sums = lanes_add(sums, lanes_load(x + i));
    if (i < count)
        sums = lanes_add(sums, lanes_load_some(x + i, count - i, 0.0f));
    return lanes_sum(sums);
}

static double exponential_sum(const float *x, float shift, float *y, size_t count)
{
    float block[SUM_BLOCK];
    double sum = 0.0;

    for (size_t at = 0; at < count; at += SUM_BLOCK) {
        size_t length = count - at < SUM_BLOCK ? count - at : SUM_BLOCK;
        const float *in = x + at;
        float *out = y ? y + at : block;

        SIMD_LOOP
        for (size_t i = 0; i < length; i++)
            out[i] = math_exp(in[i] - shift);
        sum += (double)sum_of(out, length);
    }
    return sum;
}

static void scale(const float *x, float factor, float *y, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        y[i] = factor * x[i];
}

static void add(float *y, const float *x, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}

/* ---- GELU: x * sigmoid(2u), which is x (1 + tanh u) / 2; u = sqrt(2 / pi) (x + 0.044715 x^3) ----
 */

#define GELU_LINEAR 1.59576912f /* 2 sqrt(2 / pi) */
#define GELU_CUBIC  (GELU_LINEAR * 0.044715f)

static float gelu_sigmoid(float x)
{
    return 1.0f / (1.0f + math_exp(-(x * (GELU_LINEAR + GELU_CUBIC * (x * x)))));
}

static void gelu_row(const float *pre, const float *residual, float *y, size_t count)
{
    if (!residual) {
        SIMD_LOOP
        for (size_t i = 0; i < count; i++)
            y[i] = pre[i] * gelu_sigmoid(pre[i]);
        return;
    }
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        y[i] = pre[i] * gelu_sigmoid(pre[i]) + residual[i];
}

/* Row by row, so that the values with the bias added are still cached. */
static void gelu(float *pre, const float *bias, const float *residual, float *y, size_t rows,
                 size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        size_t at = row * width;

        if (bias)
            add(pre + at, bias, width);
        gelu_row(pre + at, residual ? residual + at : NULL, y + at, width);
    }
}

static void gelu_backward(const float *pre, float *dy, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float x = pre[i];
        float s = gelu_sigmoid(x);

        dy[i] *= s + x * (s * (1.0f - s)) * (GELU_LINEAR + 3.0f * GELU_CUBIC * (x * x));
    }
}

/* ---- layer normalisation ---- */

/* The mean and the biased variance of a row, from deviations from a first mean; the mean of these
 * corrects the rounding of the first mean. */
static float row_moments(const float *x, size_t width, float *ret_variance)
{
    float mean = sum_of(x, width) / (float)width;
    struct lanes sums = lanes_load_some(x, 0, 0.0f);
    struct lanes squares = sums;
    size_t i = 0;
    float rest;

    for (; i < width; i += LANES) {
        struct lanes d = lanes_subtract_number(
            i + LANES <= width ? lanes_load(x + i) : lanes_load_some(x + i, width - i, mean), mean);

        sums = lanes_add(sums, d);
        squares = lanes_add(squares, lanes_multiply(d, d));
    }
    rest = lanes_sum(sums) / (float)width;
    *ret_variance = lanes_sum(squares) / (float)width - rest * rest;
    return mean + rest;
}

static void layer_norm_forward(const struct layer_norm *n, const float *x, float *y, size_t rows)
{
    const float *weight = n->weight;
    const float *bias = n->bias;

    for (size_t row = 0; row < rows; row++, x += n->width, y += n->width) {
        float variance;
        float mean = row_moments(x, n->width, &variance);
        float inverse = 1.0f / sqrtf(variance + n->epsilon);

        n->mean[row] = mean;
        n->inverse_std[row] = inverse;
        SIMD_LOOP
        for (size_t j = 0; j < n->width; j++)
            y[j] = (x[j] - mean) * inverse * weight[j] + bias[j];
    }
}

/* dx of one row needs the means of g = dy * weight and of g * normalised; *ret_projection receives
 * the latter. */
static float gradient_means(const float *x, const float *dy, const float *weight, float mean,
                            float inverse, size_t width, float *ret_projection)
{
    struct lanes sums = lanes_load_some(x, 0, 0.0f);
    struct lanes products = sums;

    for (size_t i = 0; i < width; i += LANES) {
        size_t left = width - i;
        bool whole = left >= LANES;
        struct lanes d = lanes_subtract_number(
            whole ? lanes_load(x + i) : lanes_load_some(x + i, left, mean), mean);
        struct lanes g = lanes_multiply(
            whole ? lanes_load(dy + i) : lanes_load_some(dy + i, left, 0.0f),
            whole ? lanes_load(weight + i) : lanes_load_some(weight + i, left, 0.0f));

        sums = lanes_add(sums, g);
        products = lanes_add(products, lanes_multiply(g, d));
    }
    *ret_projection = lanes_sum(products) * inverse / (float)width;
    return lanes_sum(sums) / (float)width;
}

static void layer_norm_backward(const struct layer_norm *n, const float *x, const float *dy,
                                float *dx, size_t rows, bool accumulate_input)
{
    const float *weight = n->weight;
    float *dweight = n->dweight;
    float *dbias = n->dbias;
    size_t width = n->width;

    for (size_t row = 0; row < rows; row++, x += width, dy += width, dx += width) {
        float mean = n->mean[row];
        float inverse = n->inverse_std[row];
        float projection;
        float shift = gradient_means(x, dy, weight, mean, inverse, width, &projection);

        SIMD_LOOP
        for (size_t j = 0; j < width; j++) {
            float normalised = (x[j] - mean) * inverse;
            float gradient = (dy[j] * weight[j] - shift - normalised * projection) * inverse;

            dweight[j] += dy[j] * normalised;
            dbias[j] += dy[j];
            dx[j] = accumulate_input ? dx[j] + gradient : gradient;
        }
    }
}

/* ---- attention and embedding ---- */

static void sum(float *y, const float *a, const float *b, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        y[i] = a[i] + b[i];
}

static float dot(const float *a, const float *b, size_t count)
{
    struct lanes sums = lanes_load_some(a, 0, 0.0f);
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        sums = lanes_add(sums, lanes_multiply(lanes_load(a + i), lanes_load(b + i)));
    if (i < count)
        sums = lanes_add(sums, lanes_multiply(lanes_load_some(a + i, count - i, 0.0f),
                                              lanes_load_some(b + i, count - i, 0.0f)));
    return lanes_sum(sums);
}

/* Number of elements of a row that are processed for `visible` keys: whole lanes. */
static size_t whole_lanes(size_t visible)
{
    return (visible + LANES - 1) / LANES * LANES;
}

/* Fill the elements of the last lanes, from `visible` to `end`, with `value`. */
static void mask_hidden_keys(float *row, size_t visible, size_t end, float value)
{
    float *last = row + end - LANES;

    lanes_store(last, lanes_keep(lanes_load(last), LANES - (end - visible), value));
}

static void zero_lanes(float *row, size_t from, size_t to)
{
    for (; from < to; from += LANES)
        memset(row + from, 0, LANES * sizeof(float));
}

static void softmax_rows(const struct score_rows *r, float *scores, float *log_sums,
                         float *inverse_sums)
{
    for (size_t i = 0; i < r->rows; i++, scores += r->stride) {
        size_t visible = r->first + i + 1;
        size_t end = whole_lanes(visible);
        float max, total;

        mask_hidden_keys(scores, visible, end, -INFINITY);
        max = largest(scores, end);
        for (size_t at = 0; at < end; at += LANES)
            for (size_t k = at; k < at + LANES; k++)
                scores[k] = math_exp(scores[k] - max);
        zero_lanes(scores, end, r->keys);
        total = sum_of(scores, end);
        log_sums[i] = max + logf(total);
        inverse_sums[i] = 1.0f / total;
    }
}

static void softmax_rows_backward(const struct score_rows *r, float *restrict scores,
                                  float *restrict gradients, const float *log_sums,
                                  const float *shifts)
{
    for (size_t i = 0; i < r->rows; i++, scores += r->stride, gradients += r->stride) {
        size_t visible = r->first + i + 1;
        size_t end = whole_lanes(visible);
        float log_sum = log_sums[i];
        float shift = shifts[i];

        mask_hidden_keys(scores, visible, end, -INFINITY);
        mask_hidden_keys(gradients, visible, end, 0.0f);
        for (size_t at = 0; at < end; at += LANES) {
            SIMD_LOOP
            for (size_t k = at; k < at + LANES; k++) {
                scores[k] = math_exp(scores[k] - log_sum);
                gradients[k] = scores[k] * (gradients[k] - shift);
            }
        }
        zero_lanes(scores, end, r->keys);
        zero_lanes(gradients, end, r->keys);
    }
}

const struct sequence_kernels SIMD_NAME(sequence_kernels) = {
    .largest = largest,
    .exponential_sum = exponential_sum,
    .scale = scale,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .add = add,
    .sum = sum,
    .dot = dot,
    .softmax_rows = softmax_rows,
    .softmax_rows_backward = softmax_rows_backward,
};
