/*
 * Linear layers of transformers against double: with GELU, with a residual, without bias, and the
 * input gradient that includes the backward of the previous activation.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <math.h>
#include <stdlib.h>

static struct error err;

#define SLOPE_MAX 1.13 /* maximum of GELU's derivative */

/* s = (1 + tanh(z / 2)) / 2; GELU is x s. float32 computes z with 8 roundings at most, and (1 + t)
 * / 2 or 1 / (1 + e^-z) with 4u; results below u / 8 may be lost. */
static struct bounded sigmoid_of(double x)
{
    double z = 2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
    double left = 1.0 / (1.0 + exp(fabs(z)));
    double error =
        left < ROUNDING / 8.0 ? left : ROUNDING * (8.0 * fabs(z) * left * (1.0 - left) + 4.0);

    return (struct bounded){1.0 / (1.0 + exp(-z)), error};
}

/* s + x s (1 - s) z'; z' has 5 roundings. */
static struct bounded gelu_slope(double x)
{
    double factor = 2.0 * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
    struct bounded s = sigmoid_of(x);
    struct bounded p = bounded_product(s, bounded_minus(bounded_exact(1.0), s));

    p = bounded_product(bounded_product(bounded_exact(x), p),
                        bounded_round(factor, 4.0 * ROUNDING * factor));
    return bounded_plus(s, p);
}

static struct bounded activate(enum activation activation, struct bounded x)
{
    struct bounded y;

    if (activation != ACTIVATION_GELU)
        return activation == ACTIVATION_RELU && x.value < 0.0 ? (struct bounded){0.0, x.error} : x;
    y = bounded_product(bounded_exact(x.value), sigmoid_of(x.value));
    y.error += SLOPE_MAX * x.error;
    return y;
}

/* Parameters are adjacent as in a model's slab, aligned as a float is. */
static void check_linear(struct compute *c, const struct linear *shape, size_t rows, bool bias,
                         bool residual)
{
    struct linear l = *shape;
    bool gelu = l.activation == ACTIVATION_GELU;
    struct array x = values_random(c, rows * l.in);
    size_t first = rows % 2;
    size_t second = first + l.out * l.in;
    struct array params = array_random(c, second + l.out);
    struct array r = values_random(c, rows * l.out);
    struct array pre = values_poisoned(c, rows * l.out);
    struct array y = values_poisoned(c, rows * l.out);

    l.weight = params.device + first;
    l.bias = bias ? params.device + second : NULL;
    assert_ok(compute_linear_forward(c, &l, x.device, residual ? r.device : NULL,
                                     gelu ? pre.device : NULL, y.device, rows, &err));
    array_download(c, &y);
    array_download(c, &pre);
    for (size_t i = 0; i < rows * l.out; i++) {
        struct exact e = {0};
        struct bounded expected;

        if (bias)
            exact_add(&e, (double)params.host[second + i % l.out]);
        for (size_t k = 0; k < l.in; k++)
            exact_add(&e, (double)x.host[i / l.out * l.in + k] *
                              (double)params.host[first + i % l.out * l.in + k]);
        if (gelu)
            exact_expect("GELU's input", i, pre.host[i], &e);
        expected = activate(l.activation, exact_product(&e));
        if (residual)
            expected = bounded_plus(expected, bounded_exact((double)r.host[i]));
        expect_bounded("linear forward", i, y.host[i], expected);
    }
    array_free(c, &x);
    array_free(c, &params);
    array_free(c, &r);
    array_free(c, &pre);
    array_free(c, &y);
}

static void check_gelu_backward(struct compute *c, size_t count)
{
    static const float extremes[] = {0.0f, -0.0f, 100.0f, -100.0f, 1e4f, -1e4f, 1e-30f, -5.5f};
    struct array pre = values_random(c, count);
    struct array dy = values_random(c, count);
    float *before = array_copy(&dy);

    for (size_t i = 0; i < count; i++)
        pre.host[i] = i < sizeof(extremes) / sizeof(extremes[0]) ? extremes[i] : 6 * pre.host[i];
    array_upload(c, &pre);
    assert_ok(compute_activation_backward(c, ACTIVATION_GELU, pre.device, dy.device, count, &err));
    array_download(c, &dy);
    for (size_t i = 0; i < count; i++)
        expect_bounded(
            "GELU backward", i, dy.host[i],
            bounded_product(bounded_exact((double)before[i]), gelu_slope((double)pre.host[i])));
    free(before);
    array_free(c, &pre);
    array_free(c, &dy);
}

/* A layer's input gradient times the derivative of the previous activation. */
static void check_linear_slope(struct compute *c, enum activation previous, size_t rows, size_t in,
                               size_t out)
{
    struct array dy = values_random(c, rows * out);
    struct array weight = array_random(c, out * in);
    struct array saved = values_random(c, rows * in);
    struct array dx = values_poisoned(c, rows * in);
    struct linear l = {.in = in,
                       .out = out,
                       .weight = weight.device,
                       .previous = previous,
                       .previous_saved = saved.device};

    assert_ok(compute_linear_backward_input(c, &l, dy.device, dx.device, rows, false, &err));
    array_download(c, &dx);
    for (size_t i = 0; i < rows * in; i++) {
        double x = (double)saved.host[i];
        struct bounded slope = previous == ACTIVATION_GELU ? gelu_slope(x) : bounded_exact(x > 0.0);
        struct exact e = {0};

        for (size_t k = 0; k < out; k++)
            exact_add(&e, (double)dy.host[i / in * out + k] * (double)weight.host[k * in + i % in]);
        expect_bounded("input gradient behind an activation", i, dx.host[i],
                       bounded_product(slope, exact_product(&e)));
    }
    array_free(c, &dy);
    array_free(c, &weight);
    array_free(c, &saved);
    array_free(c, &dx);
}

static void check_gelu_nan(struct compute *c)
{
    struct array x = values_random(c, 2);
    struct array weight = array_random(c, 1);
    struct array pre = values_poisoned(c, 2);
    struct array y = values_poisoned(c, 2);
    struct linear l = {.in = 1, .out = 1, .weight = weight.device, .activation = ACTIVATION_GELU};

    x.host[0] = nanf("");
    array_upload(c, &x);
    assert_ok(compute_linear_forward(c, &l, x.device, NULL, pre.device, y.device, 2, &err));
    array_download(c, &y);
    ck_assert(isnan(y.host[0]) && !isnan(y.host[1]));
    array_upload(c, &x);
    y.host[0] = y.host[1] = 1.0f;
    array_upload(c, &y);
    assert_ok(compute_activation_backward(c, ACTIVATION_GELU, pre.device, y.device, 2, &err));
    array_download(c, &y);
    ck_assert(isnan(y.host[0]) && !isnan(y.host[1]));
    array_free(c, &x);
    array_free(c, &weight);
    array_free(c, &pre);
    array_free(c, &y);
}

static void check_linear_shape(struct compute *c, size_t rows, size_t in, size_t out)
{
    for (int variant = 0; variant < 12; variant++) {
        struct linear shape = {.in = in, .out = out, .activation = (enum activation)(variant % 3)};

        check_linear(c, &shape, rows, variant / 3 % 2 == 0, variant / 6 == 0);
    }
    check_gelu_backward(c, rows * out);
    check_linear_slope(c, ACTIVATION_GELU, rows, in, out);
    check_linear_slope(c, ACTIVATION_RELU, rows, in, out);
}

void check_linears(struct compute *c, int rounds)
{
    static const size_t shapes[][3] = {
        {1, 1, 1},
        {7, 33, 65},
        {300, 16, 60} /* in more than one part: on a GPU, and on the threads of a CPU */};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        check_linear_shape(c, shapes[i][0], shapes[i][1], shapes[i][2]);
        check_linear_backward_weight(c, shapes[i][0], shapes[i][1], shapes[i][2], false);
        check_linear_backward_weight(c, shapes[i][0], shapes[i][1], shapes[i][2], true);
    }
    check_gelu_nan(c);
    for (int round = 0; round < rounds; round++)
        check_linear_shape(c, random_size(40), random_size(70), random_size(70));
}
