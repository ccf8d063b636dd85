/*
 * Pooling and flattening: each element against its definition, in double.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* ---- max pooling ---- */

/* Index in its plane of the maximum of window (row, column): a NaN, else the first of the largest.
 */
static size_t exact_argmax(const struct pool *p, const float *plane, size_t row, size_t column)
{
    size_t best = SIZE_MAX;

    for (size_t i = 0; i < p->kernel * p->kernel; i++) {
        size_t h = row * p->stride + i / p->kernel;
        size_t w = column * p->stride + i % p->kernel;
        size_t at = (h - p->padding) * p->width + w - p->padding;

        if (h < p->padding || h - p->padding >= p->height || w < p->padding ||
            w - p->padding >= p->width)
            continue;
        if (best == SIZE_MAX || isnan(plane[at]) || plane[at] > plane[best])
            best = at;
    }
    return best;
}

/* The gradient through `argmax`, added to the existing one or not. */
static void check_pool_backward(struct compute *c, const struct pool *p, const int32_t *argmax,
                                size_t batch, bool accumulate)
{
    size_t windows = compute_windows(p->height, p->kernel, p->stride, p->padding) *
                     compute_windows(p->width, p->kernel, p->stride, p->padding);
    size_t points = p->height * p->width;
    struct array dy = images_random(c, batch, p->channels, windows);
    struct array dx = accumulate ? images_random(c, batch, p->channels, points)
                                 : images_poisoned(c, batch, p->channels, points);
    struct exact *sums = calloc(dx.count, sizeof(*sums));
    struct array indices = argmax_poisoned(c, batch, p->channels, windows);

    ck_assert_ptr_nonnull(sums);
    memcpy(indices.host, argmax, dy.count * sizeof(*argmax));
    array_upload(c, &indices);
    for (size_t i = 0; i < dx.count && accumulate; i++)
        exact_add(&sums[i], (double)dx.host[i]);
    for (size_t i = 0; i < dy.count; i++)
        exact_add(&sums[i / windows * points + (size_t)argmax[i]], (double)dy.host[i]);
    assert_ok(compute_max_pool_backward(c, p, (const int32_t *)(const void *)indices.device,
                                        dy.device, dx.device, batch, accumulate, &err));
    array_download(c, &dx);
    for (size_t i = 0; i < dx.count; i++)
        exact_expect_sum("input gradient of max pooling", i, dx.host[i], &sums[i]);
    free(sums);
    array_free(c, &indices);
    array_free(c, &dy);
    array_free(c, &dx);
}

static void check_max_pool(struct compute *c, const struct pool *p, size_t batch)
{
    size_t columns = compute_windows(p->width, p->kernel, p->stride, p->padding);
    size_t windows = compute_windows(p->height, p->kernel, p->stride, p->padding) * columns;
    size_t points = p->height * p->width;
    struct array x = images_random(c, batch, p->channels, points);
    struct array y = images_poisoned(c, batch, p->channels, windows);
    struct array argmax = argmax_poisoned(c, batch, p->channels, windows);
    int32_t *indices = malloc(y.count * sizeof(*indices));

    ck_assert_ptr_nonnull(indices);
    for (size_t i = 0; i < x.count; i++) {
        double dice = support_random();

        if (dice < 0.05)
            x.host[i] = nanf("");
        else if (dice < 0.7) /* equal values, and windows of only -infinity */
            x.host[i] = dice < 0.5 ? -INFINITY : 0.5f;
    }
    array_upload(c, &x);
    assert_ok(compute_max_pool_forward(c, p, x.device, (int32_t *)(void *)argmax.device, y.device,
                                       batch, &err));
    array_download(c, &y);
    array_download(c, &argmax);
    memcpy(indices, argmax.host, y.count * sizeof(*indices));
    for (size_t i = 0; i < y.count; i++) {
        const float *plane = x.host + i / windows * points;
        size_t at = exact_argmax(p, plane, i % windows / columns, i % columns);
        bool nan = isnan(plane[at]);

        if (nan ? !isnan(y.host[i]) || !isnan(plane[indices[i]])
                : (size_t)indices[i] != at || y.host[i] != plane[at])
            ck_abort_msg("max pooling of %zux%zu k%zu s%zu p%zu: element %zu is %g from %d, wanted "
                         "%g from %zu",
                         p->height, p->width, p->kernel, p->stride, p->padding, i,
                         (double)y.host[i], indices[i], (double)plane[at], at);
    }
    check_pool_backward(c, p, indices, batch, false);
    check_pool_backward(c, p, indices, batch, true);
    free(indices);
    array_free(c, &x);
    array_free(c, &y);
    array_free(c, &argmax);
}

static void check_random_pool(struct compute *c)
{
    size_t kernel = random_size(5);
    struct pool p = {.channels = random_size(5),
                     .height = kernel + random_size(20) - 1,
                     .width = kernel + random_size(40) - 1,
                     .kernel = kernel,
                     .stride = random_size(4),
                     .padding = random_size(kernel / 2 + 1) - 1};

    check_max_pool(c, &p, random_size(3));
}

/* ---- means ---- */

static void check_mean(struct compute *c, size_t batch, size_t channels, size_t inner)
{
    struct array x = images_random(c, batch, channels, inner);
    struct array y = values_poisoned(c, batch * channels);
    struct array start = images_random(c, batch, channels, inner);
    struct array dx = images_poisoned(c, batch, channels, inner);

    assert_ok(compute_mean_forward(c, x.device, y.device, batch, channels, inner, &err));
    array_download(c, &y);
    for (size_t i = 0; i < y.count; i++) {
        struct exact e = {0};

        for (size_t j = 0; j < inner; j++)
            exact_add(&e, (double)x.host[i * inner + j] / (double)inner);
        exact_expect_sum("mean", i, y.host[i], &e);
    }
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct array *out = accumulate ? &start : &dx;
        float *before = array_copy(out);

        assert_ok(compute_mean_backward(c, y.device, out->device, batch, channels, inner,
                                        accumulate, &err));
        array_download(c, out);
        for (size_t i = 0; i < out->count; i++) {
            struct exact e = {0};

            exact_add(&e, (double)y.host[i / inner] / (double)inner);
            if (accumulate)
                exact_add(&e, (double)before[i]);
            exact_expect_sum("input gradient of a mean", i, out->host[i], &e);
        }
        free(before);
    }
    array_free(c, &x);
    array_free(c, &y);
    array_free(c, &start);
    array_free(c, &dx);
}

/* ---- flattening ---- */

/* An image's features in the order of the host, forward and backward. */
static void check_flatten(struct compute *c, size_t batch, size_t channels, size_t inner)
{
    struct array x = images_random(c, batch, channels, inner);
    struct array y = values_poisoned(c, x.count);
    struct array start = images_random(c, batch, channels, inner);
    struct array dx = images_poisoned(c, batch, channels, inner);

    assert_ok(compute_flatten_forward(c, x.device, y.device, batch, channels, inner, &err));
    array_download(c, &y);
    for (size_t i = 0; i < y.count; i++)
        if (y.host[i] != x.host[i])
            ck_abort_msg("flattened element %zu of %zux%zux%zu is %g, wanted %g", i, batch,
                         channels, inner, (double)y.host[i], (double)x.host[i]);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct array *out = accumulate ? &start : &dx;
        float *before = array_copy(out);

        assert_ok(compute_flatten_backward(c, y.device, out->device, batch, channels, inner,
                                           accumulate, &err));
        array_download(c, out);
        for (size_t i = 0; i < out->count; i++) {
            struct exact e = {0};

            exact_add(&e, (double)y.host[i]);
            if (accumulate)
                exact_add(&e, (double)before[i]);
            exact_expect_sum("input gradient of a flatten", i, out->host[i], &e);
        }
        free(before);
    }
    array_free(c, &x);
    array_free(c, &y);
    array_free(c, &start);
    array_free(c, &dx);
}

void check_pooling(struct compute *c, int rounds)
{
    static const struct pool pools[] = {
        {1, 1, 1, 1, 1, 0},   {3, 2, 2, 2, 2, 0},   {2, 28, 28, 2, 2, 0}, {3, 9, 70, 2, 2, 0},
        {5, 13, 11, 3, 2, 1}, {1, 7, 7, 3, 3, 0},   {2, 5, 6, 2, 1, 1},   {2, 64, 64, 3, 2, 1},
        {8, 9, 17, 3, 2, 1},  {328, 4, 6, 2, 2, 0},
    };

    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++)
        check_max_pool(c, &pools[i], 1 + i % 3);
    for (int round = 0; round < rounds; round++)
        check_random_pool(c);
    check_mean(c, 1, 1, 1);
    check_mean(c, 3, 2, 49);
    check_mean(c, 2, 64, 49);
    check_mean(c, 1, 328, 4);
    for (int round = 0; round < rounds; round++)
        check_mean(c, random_size(4), random_size(40), random_size(80));
    if (!compute_channels_last(c))
        return;
    check_flatten(c, 2, 300, 7);
    check_flatten(c, 3, 8, 49);
    for (int round = 0; round < rounds; round++)
        check_flatten(c, random_size(4), random_size(40), random_size(80));
}
