/*
 * Layer normalisation against double, within a running error analysis of float32.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <math.h>
#include <stdlib.h>

static struct error err;

struct norm_case {
    struct layer_norm norm;
    size_t rows;
    struct array x, y, weight, bias, mean, inverse_std;
    struct bounded *exact_mean, *exact_inverse; /* (rows) */
};

static void norm_moments(struct norm_case *n)
{
    size_t width = n->norm.width;

    for (size_t row = 0; row < n->rows; row++) {
        const float *x = n->x.host + row * width;
        struct bounded mean = {0};
        struct bounded variance = {0};

        for (size_t j = 0; j < width; j++) /* plus a quotient and the correction by a second mean */
            bounded_add(&mean, bounded_exact((double)x[j] / (double)width), width + 4);
        /* With a mean that has the error e the mean square is the variance + e^2; each square has
         * the roundings of its difference twice, of itself, of the sum and of the quotient. */
        for (size_t j = 0; j < width; j++)
            variance.value += pow((double)x[j] - mean.value, 2.0) / (double)width;
        variance.error = mean.error * mean.error;
        variance.error += (double)(width + 5) * ROUNDING * (variance.value + variance.error);
        n->exact_mean[row] = mean;
        n->exact_inverse[row] = bounded_inverse_std(variance, (double)n->norm.epsilon);
    }
}

/* offset: added to all of x, for a mean much larger than the deviations. */
static struct norm_case norm_make(struct compute *c, size_t rows, size_t width, float offset)
{
    struct norm_case n = {
        .norm = {.width = width, .epsilon = 1e-5f},
        .rows = rows,
        .x = values_random(c, rows * width),
        .y = values_poisoned(c, rows * width),
        .weight = array_random(c, width),
        .bias = array_random(c, width),
        .mean = array_poisoned(c, rows),
        .inverse_std = array_poisoned(c, rows),
        .exact_mean = calloc(rows, sizeof(struct bounded)),
        .exact_inverse = calloc(rows, sizeof(struct bounded)),
    };

    ck_assert(n.exact_mean && n.exact_inverse);
    for (size_t i = 0; i < n.x.count; i++)
        n.x.host[i] += offset;
    array_upload(c, &n.x);
    norm_moments(&n);
    n.norm.weight = n.weight.device;
    n.norm.bias = n.bias.device;
    n.norm.mean = n.mean.device;
    n.norm.inverse_std = n.inverse_std.device;
    assert_ok(compute_layer_norm_forward(c, &n.norm, n.x.device, n.y.device, rows, &err));
    array_download(c, &n.y);
    return n;
}

static void norm_free(struct compute *c, struct norm_case *n)
{
    array_free(c, &n->x);
    array_free(c, &n->y);
    array_free(c, &n->weight);
    array_free(c, &n->bias);
    array_free(c, &n->mean);
    array_free(c, &n->inverse_std);
    free(n->exact_mean);
    free(n->exact_inverse);
}

/* The normalised value of element i. */
static struct bounded normalised(const struct norm_case *n, size_t i)
{
    size_t row = i / n->norm.width;

    return bounded_product(bounded_minus(bounded_exact((double)n->x.host[i]), n->exact_mean[row]),
                           n->exact_inverse[row]);
}

static void check_layer_norm_forward(struct compute *c, size_t rows, size_t width, float offset)
{
    struct norm_case n = norm_make(c, rows, width, offset);

    for (size_t i = 0; i < rows * width; i++) {
        struct bounded y =
            bounded_product(normalised(&n, i), bounded_exact((double)n.weight.host[i % width]));

        y = bounded_plus(y, bounded_exact((double)n.bias.host[i % width]));
        expect_bounded("layer norm forward", i, n.y.host[i], y);
    }
    norm_free(c, &n);
}

/* dy * weight of element i. */
static struct bounded weighted(const struct norm_case *n, size_t i, const float *dy)
{
    return bounded_product(bounded_exact((double)dy[i]),
                           bounded_exact((double)n->weight.host[i % n->norm.width]));
}

/* dx of one row. */
static void expect_row_gradient(const struct norm_case *n, size_t row, const float *dy,
                                const float *dx, const float *start)
{
    size_t width = n->norm.width;
    struct bounded sum = {0};
    struct bounded projection = {0};

    for (size_t i = row * width; i < (row + 1) * width;
         i++) { /* terms of the sums, and quotients */
        bounded_add(&sum, weighted(n, i, dy), width + 1);
        bounded_add(&projection, bounded_product(weighted(n, i, dy), normalised(n, i)), width + 1);
    }
    sum = bounded_times(sum, 1.0 / (double)width);
    projection = bounded_times(projection, 1.0 / (double)width);
    for (size_t i = row * width; i < (row + 1) * width; i++) {
        struct bounded d = bounded_minus(weighted(n, i, dy), sum);

        d = bounded_minus(d, bounded_product(normalised(n, i), projection));
        d = bounded_product(d, n->exact_inverse[row]);
        if (start)
            d = bounded_plus(d, bounded_exact((double)start[i]));
        expect_bounded("layer norm, input gradient", i, dx[i], d);
    }
}

static void expect_norm_parameters(const struct norm_case *n, const float *dy, const float *start,
                                   const struct array *gradient)
{
    size_t width = n->norm.width;

    for (size_t j = 0; j < width; j++) {
        struct bounded weight = {0};
        struct bounded bias = {0};

        if (start) {
            bounded_add(&weight, bounded_exact((double)start[j]), n->rows + 1);
            bounded_add(&bias, bounded_exact((double)start[width + j]), n->rows + 1);
        }
        for (size_t i = j; i < n->rows * width; i += width) {
            struct bounded d = bounded_exact((double)dy[i]);

            bounded_add(&weight, bounded_product(d, normalised(n, i)), n->rows + 1);
            bounded_add(&bias, d, n->rows + 1);
        }
        expect_bounded("layer norm, weight gradient", j, gradient->host[j], weight);
        expect_bounded("layer norm, bias gradient", j, gradient->host[width + j], bias);
    }
}

static void check_layer_norm_backward(struct compute *c, size_t rows, size_t width, bool add_input,
                                      bool add_parameters)
{
    struct norm_case n = norm_make(c, rows, width, 0.5f);
    struct array dy = values_random(c, rows * width);
    struct array dx = add_input ? values_random(c, rows * width) : values_poisoned(c, rows * width);
    struct array gradient =
        add_parameters ? array_random(c, 2 * width) : array_poisoned(c, 2 * width);
    float *dx_before = array_copy(&dx);
    float *before = array_copy(&gradient);

    n.norm.dweight = gradient.device;
    n.norm.dbias = gradient.device + width;
    assert_ok(compute_layer_norm_backward(c, &n.norm, n.x.device, dy.device, dx.device, rows,
                                          add_input, add_parameters, &err));
    array_download(c, &dx);
    array_download(c, &gradient);
    for (size_t row = 0; row < rows; row++)
        expect_row_gradient(&n, row, dy.host, dx.host, add_input ? dx_before : NULL);
    expect_norm_parameters(&n, dy.host, add_parameters ? before : NULL, &gradient);
    free(dx_before);
    free(before);
    array_free(c, &dy);
    array_free(c, &dx);
    array_free(c, &gradient);
    norm_free(c, &n);
}

/* A NaN affects only its own row. */
static void check_layer_norm_nan(struct compute *c)
{
    struct norm_case n = norm_make(c, 3, 40, 0.0f);

    n.x.host[45] = nanf("");
    array_upload(c, &n.x);
    assert_ok(compute_layer_norm_forward(c, &n.norm, n.x.device, n.y.device, 3, &err));
    array_download(c, &n.y);
    for (size_t i = 0; i < 120; i++)
        if ((i / 40 == 1) != (bool)isnan(n.y.host[i]))
            ck_abort_msg("layer norm of a row with a NaN: element %zu is %g", i,
                         (double)n.y.host[i]);
    norm_free(c, &n);
}

static void check_norm_shape(struct compute *c, size_t rows, size_t width)
{
    check_layer_norm_forward(c, rows, width, 0.0f);
    check_layer_norm_forward(c, rows, width, 100.0f);
    for (int variant = 0; variant < 4; variant++)
        check_layer_norm_backward(c, rows, width, variant % 2 == 0, variant / 2 == 0);
}

void check_layer_norms(struct compute *c, int rounds)
{
    check_norm_shape(c, 1, 1);
    check_norm_shape(c, 3, 128);
    check_norm_shape(c, 600, 31);
    check_norm_shape(c, 1550, 8); /* more rows than a GPU's blocks process at once */
    check_norm_shape(c, 6, 1024);
    check_norm_shape(c, 6, 1032);
    check_layer_norm_nan(c);
    for (int round = 0; round < rounds; round++)
        check_norm_shape(c, random_size(50), random_size(200));
}
