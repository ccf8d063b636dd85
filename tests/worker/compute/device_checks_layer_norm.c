/*
 * Layer normalisation against double.  A result may differ by what float32 makes of its terms, of
 * which the mean is one: a sum of all of the row, which may cancel.
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
    double *exact_mean, *exact_inverse, *typical; /* (rows); typical: the mean of |x| */
};

static void norm_moments(struct norm_case *n)
{
    size_t width = n->norm.width;

    for (size_t row = 0; row < n->rows; row++) {
        const float *x = n->x.host + row * width;
        double mean = 0.0;
        double variance = 0.0;

        for (size_t j = 0; j < width; j++) {
            mean += (double)x[j] / (double)width;
            n->typical[row] += fabs((double)x[j]) / (double)width;
        }
        for (size_t j = 0; j < width; j++)
            variance += ((double)x[j] - mean) * ((double)x[j] - mean) / (double)width;
        n->exact_mean[row] = mean;
        n->exact_inverse[row] = 1.0 / sqrt(variance + (double)n->norm.epsilon);
    }
}

/* offset: of all of x; a mean beside which the deviations are small. */
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
        .exact_mean = calloc(rows, sizeof(double)),
        .exact_inverse = calloc(rows, sizeof(double)),
        .typical = calloc(rows, sizeof(double)),
    };

    ck_assert(n.exact_mean && n.exact_inverse && n.typical);
    for (size_t i = 0; i < n.x.count; i++)
        n.x.host[i] += offset;
    array_send(c, &n.x);
    norm_moments(&n);
    n.norm.weight = n.weight.device;
    n.norm.bias = n.bias.device;
    n.norm.mean = n.mean.device;
    n.norm.inverse_std = n.inverse_std.device;
    assert_ok(compute_layer_norm_forward(c, &n.norm, n.x.device, n.y.device, rows, &err));
    array_receive(c, &n.y);
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
    free(n->typical);
}

/* The normalised value of element i, and how large the numbers were that it is made of: the mean is
 * a sum of all of the row, which may cancel. */
static double normalised(const struct norm_case *n, size_t i, double *ret_magnitude)
{
    size_t row = i / n->norm.width;

    *ret_magnitude = (fabs((double)n->x.host[i]) + n->typical[row]) * n->exact_inverse[row];
    return ((double)n->x.host[i] - n->exact_mean[row]) * n->exact_inverse[row];
}

static void check_layer_norm_forward(struct compute *c, size_t rows, size_t width, float offset)
{
    struct norm_case n = norm_make(c, rows, width, offset);

    for (size_t i = 0; i < rows * width; i++) {
        double magnitude;
        double value = normalised(&n, i, &magnitude);
        double weight = (double)n.weight.host[i % width];
        double bias = (double)n.bias.host[i % width];

        expect_near("layer norm forward", i, n.y.host[i], value * weight + bias,
                    16 * ULP * (magnitude * (1.0 + fabs(value)) * fabs(weight) + fabs(bias)));
    }
    norm_free(c, &n);
}

/* dx of one row, whose dy * weight is g. */
static void expect_row_gradient(const struct norm_case *n, size_t row, const float *dy,
                                const float *dx, const float *start)
{
    size_t width = n->norm.width;
    struct exact sum = {0};
    struct exact projection = {0};
    double magnitude;

    for (size_t j = 0; j < width; j++) {
        double g = (double)dy[row * width + j] * (double)n->weight.host[j];
        double value = normalised(n, row * width + j, &magnitude);

        exact_add(&sum, g / (double)width);
        exact_add(&projection, g * value / (double)width);
        projection.magnitude += fabs(g) * magnitude / (double)width;
    }
    for (size_t j = 0; j < width; j++) {
        size_t i = row * width + j;
        double g = (double)dy[i] * (double)n->weight.host[j];
        double value = normalised(n, i, &magnitude);
        double before = start ? (double)start[i] : 0.0;
        double size = fabs(g) + sum.magnitude + (fabs(value) + magnitude) * projection.magnitude;

        expect_near("layer norm, input gradient", i, dx[i],
                    before + (g - sum.value - value * projection.value) * n->exact_inverse[row],
                    (double)(width + 32) * ULP * (fabs(before) + n->exact_inverse[row] * size));
    }
}

static void expect_norm_parameters(const struct norm_case *n, const float *dy, const float *start,
                                   const struct array *gradient)
{
    size_t width = n->norm.width;

    for (size_t j = 0; j < width; j++) {
        struct exact weight = {0};
        struct exact bias = {0};

        if (start) {
            exact_add(&weight, (double)start[j]);
            exact_add(&bias, (double)start[width + j]);
        }
        for (size_t row = 0; row < n->rows; row++) {
            double magnitude;
            double d = (double)dy[row * width + j];

            exact_add(&weight, d * normalised(n, row * width + j, &magnitude));
            weight.magnitude += 8.0 * fabs(d) * magnitude;
            exact_add(&bias, d);
        }
        exact_expect("layer norm, weight gradient", j, gradient->host[j], &weight);
        exact_expect("layer norm, bias gradient", j, gradient->host[width + j], &bias);
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
    array_receive(c, &dx);
    array_receive(c, &gradient);
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

/* A NaN spoils its own row and no other. */
static void check_layer_norm_nan(struct compute *c)
{
    struct norm_case n = norm_make(c, 3, 40, 0.0f);

    n.x.host[45] = nanf("");
    array_send(c, &n.x);
    assert_ok(compute_layer_norm_forward(c, &n.norm, n.x.device, n.y.device, 3, &err));
    array_receive(c, &n.y);
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
    check_norm_shape(c, 130, 31);
    check_norm_shape(c, 1550, 8); /* more rows than a GPU's blocks take at once */
    check_norm_shape(c, 6, 1024);
    check_norm_shape(c, 6, 1032);
    check_layer_norm_nan(c);
    for (int round = 0; round < rounds; round++)
        check_norm_shape(c, random_size(50), random_size(200));
}
