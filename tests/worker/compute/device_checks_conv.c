/*
 * Convolutions: each element against a sum computed from the definition.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static struct error err;

/* Data of all three directions: y[n][f][oh][ow] has the terms x[n][c][h][w] * weight[f][c][i][j]
 * with h = oh * stride + i - padding, likewise w. */
struct problem {
    struct convolution conv;
    size_t batch, rows, columns;
    struct array x, weight, bias, y;
};

static struct problem problem_make(struct compute *c, const struct convolution *shape, size_t batch)
{
    struct problem p = {.conv = *shape, .batch = batch};
    size_t patch = shape->channels * shape->kernel * shape->kernel;

    p.rows = compute_windows(shape->height, shape->kernel, shape->stride, shape->padding);
    p.columns = compute_windows(shape->width, shape->kernel, shape->stride, shape->padding);
    p.x = images_random(c, batch, shape->channels, shape->height * shape->width);
    p.y = images_random(c, batch, shape->filters, p.rows * p.columns);
    p.weight = array_random(c, shape->filters * patch);
    p.bias = array_random(c, shape->filters);
    p.conv.weight = p.weight.device;
    /* for as large a batch as the problem's, or a larger one */
    assert_ok(compute_conv_prepare(c, &p.conv, batch + random_size(3) - 1, &err));
    return p;
}

static void problem_free(struct compute *c, struct problem *p)
{
    compute_conv_release(c, &p->conv);
    compute_conv_release(c, &p->conv); /* also accepts a struct that was never prepared */
    array_free(c, &p->x);
    array_free(c, &p->y);
    array_free(c, &p->weight);
    array_free(c, &p->bias);
}

/* Fails with the shape in the text, to identify the failing case. */
static void expect_element(const struct problem *p, const char *what, size_t index, float got,
                           const struct exact *e)
{
    char text[160];

    (void)snprintf(text, sizeof(text), "%s, %zux%zux%zux%zu, %zu filters k%zu s%zu p%zu", what,
                   p->batch, p->conv.channels, p->conv.height, p->conv.width, p->conv.filters,
                   p->conv.kernel, p->conv.stride, p->conv.padding);
    exact_expect(text, index, got, e);
}

/* Row of x that output row `out` reads at tap `i`; SIZE_MAX: padding. */
static size_t input_index(const struct convolution *conv, size_t out, size_t i, size_t size)
{
    size_t at = out * conv->stride + i;

    return at < conv->padding || at - conv->padding >= size ? SIZE_MAX : at - conv->padding;
}

/* The terms of one output element. */
static struct exact exact_output(const struct problem *p, size_t n, size_t f, size_t row,
                                 size_t column)
{
    const struct convolution *s = &p->conv;
    struct exact e = {0};

    for (size_t tap = 0; tap < s->channels * s->kernel * s->kernel; tap++) {
        size_t channel = tap / (s->kernel * s->kernel);
        size_t h = input_index(s, row, tap / s->kernel % s->kernel, s->height);
        size_t w = input_index(s, column, tap % s->kernel, s->width);

        if (h != SIZE_MAX && w != SIZE_MAX)
            exact_add(
                &e,
                (double)p->x.host[((n * s->channels + channel) * s->height + h) * s->width + w] *
                    (double)p->weight.host[f * s->channels * s->kernel * s->kernel + tap]);
    }
    return e;
}

static void check_forward(struct compute *c, struct problem *p, bool bias, bool relu)
{
    size_t points = p->rows * p->columns;
    struct array y = images_poisoned(c, p->batch, p->conv.filters, points);

    p->conv.bias = bias ? p->bias.device : NULL;
    p->conv.activation = relu ? ACTIVATION_RELU : ACTIVATION_NONE;
    assert_ok(compute_conv_forward(c, &p->conv, p->x.device, y.device, p->batch, &err));
    array_download(c, &y);
    for (size_t i = 0; i < y.count; i++) {
        size_t f = i / points % p->conv.filters;
        struct exact e = exact_output(p, i / points / p->conv.filters, f, i % points / p->columns,
                                      i % p->columns);

        if (bias)
            exact_add(&e, (double)p->bias.host[f]);
        if (relu && e.value < 0.0)
            e.value = 0.0;
        expect_element(p, "convolution", i, y.host[i], &e);
    }
    array_free(c, &y);
}

/* The terms of the gradient of weight[f][channel][i][j]. */
static struct exact exact_dweight(const struct problem *p, size_t index)
{
    const struct convolution *s = &p->conv;
    size_t j = index % s->kernel;
    size_t i = index / s->kernel % s->kernel;
    size_t channel = index / s->kernel / s->kernel % s->channels;
    size_t f = index / s->kernel / s->kernel / s->channels;
    struct exact e = {0};

    for (size_t at = 0; at < p->batch * p->rows * p->columns; at++) {
        size_t n = at / (p->rows * p->columns);
        size_t h = input_index(s, at / p->columns % p->rows, i, s->height);
        size_t w = input_index(s, at % p->columns, j, s->width);

        if (h != SIZE_MAX && w != SIZE_MAX)
            exact_add(
                &e,
                (double)p->x.host[((n * s->channels + channel) * s->height + h) * s->width + w] *
                    (double)p->y.host[(n * s->filters + f) * p->rows * p->columns +
                                      at % (p->rows * p->columns)]);
    }
    return e;
}

static struct exact exact_dbias(const struct problem *p, size_t f)
{
    size_t points = p->rows * p->columns;
    struct exact e = {0};

    for (size_t at = 0; at < p->batch * points; at++)
        exact_add(&e,
                  (double)p->y.host[(at / points * p->conv.filters + f) * points + at % points]);
    return e;
}

static void check_backward_weight(struct compute *c, struct problem *p, bool bias, bool accumulate)
{
    size_t count = p->weight.count;
    struct array start = array_random(c, count + p->conv.filters);
    struct array gradient = array_poisoned(c, start.count);

    p->conv.dweight = gradient.device;
    p->conv.dbias = bias ? gradient.device + count : NULL;
    if (accumulate)
        assert_ok(compute_upload(c, gradient.device, start.host, start.count, &err));
    assert_ok(compute_conv_backward_weight(c, &p->conv, p->x.device, p->y.device, p->batch,
                                           accumulate, &err));
    array_download(c, &gradient);
    for (size_t i = 0; i < (bias ? gradient.count : count); i++) {
        struct exact e = i < count ? exact_dweight(p, i) : exact_dbias(p, i - count);

        if (accumulate)
            exact_add(&e, (double)start.host[i]);
        expect_element(p, i < count ? "weight gradient" : "bias gradient", i, gradient.host[i], &e);
    }
    array_free(c, &start);
    array_free(c, &gradient);
}

/* Add the terms of one output element to dx. */
static void add_input_terms(const struct problem *p, size_t at, struct exact *sums)
{
    const struct convolution *s = &p->conv;
    size_t points = p->rows * p->columns;
    size_t n = at / points / s->filters;
    size_t f = at / points % s->filters;

    for (size_t tap = 0; tap < s->channels * s->kernel * s->kernel; tap++) {
        size_t channel = tap / (s->kernel * s->kernel);
        size_t h = input_index(s, at % points / p->columns, tap / s->kernel % s->kernel, s->height);
        size_t w = input_index(s, at % p->columns, tap % s->kernel, s->width);

        if (h != SIZE_MAX && w != SIZE_MAX)
            exact_add(&sums[((n * s->channels + channel) * s->height + h) * s->width + w],
                      (double)p->y.host[at] *
                          (double)p->weight.host[f * s->channels * s->kernel * s->kernel + tap]);
    }
}

static void check_backward_input(struct compute *c, struct problem *p, bool accumulate)
{
    size_t points = p->conv.height * p->conv.width;
    struct array dx = accumulate ? images_random(c, p->batch, p->conv.channels, points)
                                 : images_poisoned(c, p->batch, p->conv.channels, points);
    struct exact *sums = calloc(p->x.count, sizeof(*sums));

    ck_assert_ptr_nonnull(sums);
    for (size_t i = 0; i < p->x.count && accumulate; i++)
        exact_add(&sums[i], (double)dx.host[i]);
    for (size_t at = 0; at < p->y.count; at++)
        add_input_terms(p, at, sums);
    assert_ok(compute_conv_backward_input(c, &p->conv, p->y.device, dx.device, p->batch, accumulate,
                                          &err));
    array_download(c, &dx);
    for (size_t i = 0; i < dx.count; i++)
        expect_element(p, "input gradient of a convolution", i, dx.host[i], &sums[i]);
    free(sums);
    array_free(c, &dx);
}

/* All three directions, with and without the optional parts. */
static void check_shape(struct compute *c, size_t batch, const struct convolution *shape)
{
    struct problem p = problem_make(c, shape, batch);

    for (int flag = 0; flag < 2; flag++) {
        check_forward(c, &p, !flag, flag);
        check_forward(c, &p, flag, flag);
        check_backward_weight(c, &p, !flag, flag);
        check_backward_input(c, &p, flag);
    }
    problem_free(c, &p);
}

/* Fewer images than prepared for; a NaN passes ReLU and reaches the outputs that read it. */
static void check_nan(struct compute *c)
{
    const struct convolution shape = {
        .channels = 3, .height = 6, .width = 5, .filters = 4, .kernel = 1, .stride = 1};
    struct problem p = problem_make(c, &shape, 5);

    p.batch = 2;
    p.x.host[7] = nanf("");
    array_upload(c, &p.x);
    p.conv.activation = ACTIVATION_RELU;
    assert_ok(compute_conv_forward(c, &p.conv, p.x.device, p.y.device, p.batch, &err));
    array_download(c, &p.y);
    for (size_t i = 0; i < 2 * 4 * 30; i++)
        if (!isnan(p.y.host[i]) != !(i < 4 * 30 && i % 30 == 7))
            ck_abort_msg("convolution of a NaN: element %zu is %g", i, (double)p.y.host[i]);
    problem_free(c, &p);
}

static struct convolution random_shape(void)
{
    static const size_t kernels[] = {1, 2, 3, 3, 5, 7};
    struct convolution s = {.channels = random_size(20),
                            .height = random_size(13),
                            .width = random_size(21),
                            .filters = random_size(40),
                            .kernel = kernels[random_size(6) - 1],
                            .stride = random_size(3),
                            .padding = random_size(4) - 1};

    while (s.height + 2 * s.padding < s.kernel)
        s.height++;
    while (s.width + 2 * s.padding < s.kernel)
        s.width++;
    return s;
}

void check_convolutions(struct compute *c, int rounds)
{
    /* channels, height, width, filters, kernel, stride, padding */
    static const struct convolution shapes[] = {
        {1, 1, 1, 1, 1, 1, 0, .weight = NULL},   {3, 1, 1, 5, 3, 1, 1, .weight = NULL},
        {1, 28, 28, 6, 5, 1, 2, .weight = NULL}, {3, 32, 32, 16, 3, 1, 1, .weight = NULL},
        {17, 8, 8, 33, 3, 2, 1, .weight = NULL}, {16, 14, 14, 24, 3, 1, 1, .weight = NULL},
        {64, 4, 4, 20, 3, 1, 1, .weight = NULL}, {12, 8, 8, 40, 1, 2, 0, .weight = NULL},
        {36, 9, 7, 13, 1, 1, 0, .weight = NULL}, {3, 23, 19, 8, 7, 2, 3, .weight = NULL},
        {2, 3, 40, 3, 2, 3, 3, .weight = NULL},  {50, 3, 3, 70, 3, 1, 1, .weight = NULL},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_shape(c, 1 + i % 3, &shapes[i]);
    for (int round = 0; round < rounds; round++) {
        struct convolution shape = random_shape();

        check_shape(c, random_size(4), &shape);
    }
    check_nan(c);
}
