/*
 * Batch normalisation against PyTorch's definition, in double.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOMENTUM 0.1f
#define EPSILON  1e-5f

static struct error err;

struct problem {
    struct batch_norm norm;
    size_t batch, count; /* values per channel */
    bool with_residual;
    struct array x, residual, dy, y;
    struct array weight, bias, dweight, dbias, running_mean, running_var, mean, inverse_std;
    struct bounded *exact_mean, *exact_var;
    size_t roundings; /* of a term of a channel's sums; the CPU's are in double and rounded once */
};

/* A channel's mean and variance.  A GPU sums differences from the first value, and their squares.
 */
static void moments(struct problem *p, size_t channel, struct bounded *ret_mean,
                    struct bounded *ret_var)
{
    size_t inner = p->norm.inner;
    double first = (double)p->x.host[channel * inner];
    struct bounded mean = {0};
    struct bounded square = {0};
    double excess;

    for (size_t i = 0; i < p->count; i++) {
        size_t at = (i / inner * p->norm.channels + channel) * inner + i % inner;
        double d = (double)p->x.host[at] - first;

        bounded_add(&mean, bounded_exact(d / (double)p->count), p->roundings);
        bounded_add(&square, bounded_exact(d * d / (double)p->count), p->roundings + 2);
    }
    excess = mean.value;
    *ret_mean = bounded_round(first + excess, mean.error);
    *ret_var = (struct bounded){square.value - excess * excess,
                                square.error + (2.0 * fabs(excess) + mean.error) * mean.error};
}

static struct problem problem_make(struct compute *c, size_t batch, size_t channels, size_t inner,
                                   bool relu, bool residual)
{
    struct problem p = {.batch = batch,
                        .count = batch * inner,
                        .with_residual = residual,
                        .roundings = compute_is_host(c) ? 2 : batch * inner + 4};

    p.x = images_random(c, batch, channels, inner);
    p.residual = images_random(c, batch, channels, inner);
    p.dy = images_random(c, batch, channels, inner);
    p.y = images_poisoned(c, batch, channels, inner);
    p.weight = array_random(c, channels);
    p.bias = array_random(c, channels);
    p.dweight = array_random(c, channels);
    p.dbias = array_random(c, channels);
    p.running_mean = array_random(c, channels);
    p.running_var = array_random(c, channels);
    p.mean = array_poisoned(c, channels);
    p.inverse_std = array_poisoned(c, channels);
    p.exact_mean = calloc(channels, sizeof(*p.exact_mean));
    p.exact_var = calloc(channels, sizeof(*p.exact_var));
    ck_assert(p.exact_mean && p.exact_var);
    for (size_t i = 0; i < channels; i++)
        p.running_var.host[i] = fabsf(p.running_var.host[i]) + 0.1f;
    array_upload(c, &p.running_var);
    p.norm = (struct batch_norm){.channels = channels,
                                 .inner = inner,
                                 .weight = p.weight.device,
                                 .bias = p.bias.device,
                                 .dweight = p.dweight.device,
                                 .dbias = p.dbias.device,
                                 .running_mean = p.running_mean.device,
                                 .running_var = p.running_var.device,
                                 .mean = p.mean.device,
                                 .inverse_std = p.inverse_std.device,
                                 .momentum = MOMENTUM,
                                 .epsilon = EPSILON,
                                 .activation = relu ? ACTIVATION_RELU : ACTIVATION_NONE};
    for (size_t i = 0; i < channels; i++)
        moments(&p, i, &p.exact_mean[i], &p.exact_var[i]);
    return p;
}

static void problem_free(struct compute *c, struct problem *p)
{
    struct array *arrays[] = {&p->x,      &p->residual,    &p->dy,           &p->y,
                              &p->weight, &p->bias,        &p->dweight,      &p->dbias,
                              &p->mean,   &p->inverse_std, &p->running_mean, &p->running_var};

    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        array_free(c, arrays[i]);
    free(p->exact_mean);
    free(p->exact_var);
}

static struct bounded normalised(float x, struct bounded mean, struct bounded variance)
{
    return bounded_product(bounded_minus(bounded_exact((double)x), mean),
                           bounded_inverse_std(variance, (double)EPSILON));
}

/* Check one element of y, with this mean and variance. */
static void expect_output(const struct problem *p, const char *what, size_t i, const float *x,
                          struct bounded mean, struct bounded variance)
{
    size_t channel = i / p->norm.inner % p->norm.channels;
    struct bounded expected = bounded_product(normalised(x[i], mean, variance),
                                              bounded_exact((double)p->weight.host[channel]));

    expected = bounded_plus(expected, bounded_exact((double)p->bias.host[channel]));
    if (p->with_residual)
        expected = bounded_plus(expected, bounded_exact((double)p->residual.host[i]));
    if (p->norm.activation == ACTIVATION_RELU && expected.value < 0.0)
        expected.value = 0.0;
    expect_bounded(what, i, p->y.host[i], expected);
}

static void check_evaluate(struct compute *c, struct problem *p, bool in_place)
{
    float *x = array_copy(&p->x);
    void *y = in_place ? p->x.device : p->y.device;

    assert_ok(compute_batch_norm_evaluate(
        c, &p->norm, p->x.device, p->with_residual ? p->residual.device : NULL, y, p->batch, &err));
    if (in_place) {
        array_download(c, &p->x);
        memcpy(p->y.host, p->x.host, p->x.count * sizeof(float));
        memcpy(p->x.host, x, p->x.count * sizeof(float));
        array_upload(c, &p->x);
    } else {
        array_download(c, &p->y);
    }
    for (size_t i = 0; i < p->y.count; i++) {
        size_t channel = i / p->norm.inner % p->norm.channels;

        expect_output(p, "batch norm, evaluation", i, x,
                      bounded_exact((double)p->running_mean.host[channel]),
                      bounded_exact((double)p->running_var.host[channel]));
    }
    free(x);
}

/* (1 - momentum) before + momentum now: three roundings of each share. */
static void expect_running(const char *what, size_t i, float got, float before, struct bounded now)
{
    double m = (double)MOMENTUM;
    struct bounded expected = {0};

    bounded_add(&expected, (struct bounded){m * now.value, m * now.error}, 3);
    bounded_add(&expected, bounded_exact((1.0 - m) * (double)before), 3);
    expect_near(what, i, got, expected.value, expected.error);
}

static void check_forward(struct compute *c, struct problem *p)
{
    float *mean = array_copy(&p->running_mean);
    float *variance = array_copy(&p->running_var);
    double unbiased = (double)p->count / (double)(p->count - 1);

    assert_ok(compute_batch_norm_forward(c, &p->norm, p->x.device,
                                         p->with_residual ? p->residual.device : NULL, p->y.device,
                                         p->batch, &err));
    array_download(c, &p->y);
    array_download(c, &p->running_mean);
    array_download(c, &p->running_var);
    for (size_t i = 0; i < p->y.count; i++) {
        size_t channel = i / p->norm.inner % p->norm.channels;

        expect_output(p, "batch norm", i, p->x.host, p->exact_mean[channel], p->exact_var[channel]);
    }
    for (size_t i = 0; i < p->norm.channels; i++) {
        expect_running("running mean", i, p->running_mean.host[i], mean[i], p->exact_mean[i]);
        expect_running("running variance", i, p->running_var.host[i], variance[i],
                       bounded_times(p->exact_var[i], unbiased));
    }
    free(mean);
    free(variance);
}

/* The gradient after the mask of forward's y; for free(). */
static float *masked(struct compute *c, const struct problem *p)
{
    float *dy = array_copy(&p->dy);

    array_download(c, &p->y);
    for (size_t i = 0; i < p->y.count; i++)
        if (p->norm.activation == ACTIVATION_RELU && p->y.host[i] <= 0.0f)
            dy[i] = 0.0f;
    return dy;
}

static struct bounded channel_normalised(const struct problem *p, size_t i)
{
    size_t channel = i / p->norm.inner % p->norm.channels;

    return normalised(p->x.host[i], p->exact_mean[channel], p->exact_var[channel]);
}

/* Gradients from the derivative of the definition; dy is masked; before: earlier dweight and dbias.
 */
static void expect_gradients(const struct problem *p, const float *dx, const float *dy,
                             float *const before[2])
{
    size_t channels = p->norm.channels;
    struct bounded *sums = calloc(2 * channels, sizeof(*sums)); /* of dy, and of its products with
                                                                   the normalised x */

    ck_assert_ptr_nonnull(sums);
    for (size_t i = 0; i < p->x.count; i++) {
        size_t channel = i / p->norm.inner % channels;
        struct bounded d = bounded_exact((double)dy[i]);

        bounded_add(&sums[channel], d, p->roundings);
        bounded_add(&sums[channels + channel], bounded_product(d, channel_normalised(p, i)),
                    p->roundings);
    }
    for (size_t i = 0; i < p->x.count; i++) {
        size_t channel = i / p->norm.inner % channels;
        struct bounded scale =
            bounded_product(bounded_exact((double)p->weight.host[channel]),
                            bounded_inverse_std(p->exact_var[channel], (double)EPSILON));
        struct bounded mean = bounded_times(sums[channel], 1.0 / (double)p->count);
        struct bounded slope = bounded_times(sums[channels + channel], 1.0 / (double)p->count);
        struct bounded d = bounded_minus(bounded_exact((double)dy[i]), mean);

        d = bounded_minus(d, bounded_product(channel_normalised(p, i), slope));
        expect_bounded("input gradient of batch norm", i, dx[i], bounded_product(scale, d));
    }
    for (size_t i = 0; i < channels; i++) {
        if (before) {
            sums[channels + i] =
                bounded_plus(sums[channels + i], bounded_exact((double)before[0][i]));
            sums[i] = bounded_plus(sums[i], bounded_exact((double)before[1][i]));
        }
        expect_bounded("weight gradient of batch norm", i, p->dweight.host[i], sums[channels + i]);
        expect_bounded("bias gradient of batch norm", i, p->dbias.host[i], sums[i]);
    }
    free(sums);
}

static void check_backward(struct compute *c, struct problem *p, bool residual, bool accumulate)
{
    size_t channels = p->norm.channels;
    struct array apart = images_poisoned(c, p->batch, channels, p->norm.inner);
    struct array *dx = accumulate && !residual ? &p->dy : &apart; /* dx may be dy */
    float *dy = masked(c, p);
    float *before[2] = {array_copy(&p->dweight), array_copy(&p->dbias)};

    array_upload(c, &p->dy);
    assert_ok(compute_batch_norm_backward(c, &p->norm, p->x.device, p->y.device, p->dy.device,
                                          dx->device, p->batch, residual, accumulate, &err));
    array_download(c, dx);
    if (residual)
        array_download(c, &p->dy);
    for (size_t i = 0; i < p->dy.count && residual; i++)
        if (p->dy.host[i] != dy[i])
            ck_abort_msg("gradient of batch norm's residual: element %zu is %g, wanted %g", i,
                         (double)p->dy.host[i], (double)dy[i]);
    array_download(c, &p->dweight);
    array_download(c, &p->dbias);
    expect_gradients(p, dx->host, dy, accumulate ? before : NULL);
    free(before[0]);
    free(before[1]);
    free(dy);
    array_free(c, &apart);
}

static void check_shape(struct compute *c, size_t batch, size_t channels, size_t inner, int flags)
{
    struct problem p = problem_make(c, batch, channels, inner, flags & 1, flags & 2);

    check_evaluate(c, &p, false);
    check_evaluate(c, &p, true);
    check_forward(c, &p);
    check_backward(c, &p, p.with_residual, false);
    assert_ok(compute_batch_norm_forward(c, &p.norm, (array_upload(c, &p.x), p.x.device), NULL,
                                         p.y.device, batch, &err));
    check_backward(c, &p, false, true);
    problem_free(c, &p);
}

void check_batch_norm(struct compute *c, int rounds)
{
    static const size_t shapes[][3] = {
        {2, 1, 1},    {1, 1, 2},  {8, 3, 1},   {5, 300, 1}, {1, 5, 9},    {4, 7, 49},
        {3, 2, 1024}, {2, 64, 9}, {4, 16, 80}, {1, 328, 4}, {4, 16, 260},
    };
    const struct batch_norm single = {.channels = 4, .inner = 1};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int flags = 0; flags < 4; flags++)
            check_shape(c, shapes[i][0], shapes[i][1], shapes[i][2], flags);
    for (int round = 0; round < rounds; round++)
        check_shape(c, 1 + random_size(8), random_size(40), random_size(70), round % 4);
    assert_fails(compute_batch_norm_forward(c, &single, NULL, NULL, NULL, 1, &err), STATUS_DATA,
                 "more than 1 value per channel");
}
