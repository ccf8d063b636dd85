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
/* Of values near 1, in float32: a handful of roundings of each, and those of the statistics. */
#define TOLERANCE 4e-6

static struct error err;

struct problem {
    struct batch_norm norm;
    size_t batch, count; /* values per channel */
    bool with_residual;
    struct array x, residual, dy, y;
    struct array weight, bias, dweight, dbias, running_mean, running_var, mean, inverse_std;
    double *exact_mean, *exact_var;
};

static struct problem problem_make(struct compute *c, size_t batch, size_t channels, size_t inner,
                                   bool relu, bool residual)
{
    size_t values = batch * channels * inner;
    struct problem p = {.batch = batch, .count = batch * inner, .with_residual = residual};

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
    p.exact_mean = calloc(channels, sizeof(double));
    p.exact_var = calloc(channels, sizeof(double));
    ck_assert(p.exact_mean && p.exact_var);
    for (size_t i = 0; i < channels; i++)
        p.running_var.host[i] = fabsf(p.running_var.host[i]) + 0.1f;
    array_send(c, &p.running_var);
    for (size_t i = 0; i < values; i++)
        p.exact_mean[i / inner % channels] += (double)p.x.host[i] / (double)p.count;
    for (size_t i = 0; i < values; i++) {
        double d = (double)p.x.host[i] - p.exact_mean[i / inner % channels];

        p.exact_var[i / inner % channels] += d * d / (double)p.count;
    }
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

/* One element of y, with this mean and variance. */
static void expect_output(const struct problem *p, const char *what, size_t i, const float *x,
                          double mean, double variance)
{
    size_t channel = i / p->norm.inner % p->norm.channels;
    double scale = (double)p->weight.host[channel] / sqrt(variance + (double)EPSILON);
    double wanted = ((double)x[i] - mean) * scale + (double)p->bias.host[channel];

    if (p->with_residual)
        wanted += (double)p->residual.host[i];
    if (p->norm.activation == ACTIVATION_RELU && wanted < 0.0)
        wanted = 0.0;
    expect_near(what, i, p->y.host[i], wanted, TOLERANCE * (2.0 + fabs(scale)));
}

static void check_evaluate(struct compute *c, struct problem *p, bool in_place)
{
    float *x = array_copy(&p->x);
    void *y = in_place ? p->x.device : p->y.device;

    assert_ok(compute_batch_norm_evaluate(
        c, &p->norm, p->x.device, p->with_residual ? p->residual.device : NULL, y, p->batch, &err));
    if (in_place) {
        array_receive(c, &p->x);
        memcpy(p->y.host, p->x.host, p->x.count * sizeof(float));
        memcpy(p->x.host, x, p->x.count * sizeof(float));
        array_send(c, &p->x);
    } else {
        array_receive(c, &p->y);
    }
    for (size_t i = 0; i < p->y.count; i++) {
        size_t channel = i / p->norm.inner % p->norm.channels;

        expect_output(p, "batch norm, evaluation", i, x, (double)p->running_mean.host[channel],
                      (double)p->running_var.host[channel]);
    }
    free(x);
}

static void check_forward(struct compute *c, struct problem *p)
{
    float *mean = array_copy(&p->running_mean);
    float *variance = array_copy(&p->running_var);
    double unbiased = (double)p->count / (double)(p->count - 1);

    assert_ok(compute_batch_norm_forward(c, &p->norm, p->x.device,
                                         p->with_residual ? p->residual.device : NULL, p->y.device,
                                         p->batch, &err));
    array_receive(c, &p->y);
    array_receive(c, &p->running_mean);
    array_receive(c, &p->running_var);
    for (size_t i = 0; i < p->y.count; i++) {
        size_t channel = i / p->norm.inner % p->norm.channels;

        expect_output(p, "batch norm", i, p->x.host, p->exact_mean[channel], p->exact_var[channel]);
    }
    for (size_t i = 0; i < p->norm.channels; i++) {
        double m = (double)MOMENTUM;

        expect_near("running mean", i, p->running_mean.host[i],
                    (1.0 - m) * (double)mean[i] + m * p->exact_mean[i], 1e-6);
        expect_near("running variance", i, p->running_var.host[i],
                    (1.0 - m) * (double)variance[i] + m * unbiased * p->exact_var[i], 1e-6);
    }
    free(mean);
    free(variance);
}

/* The gradient behind the mask of the y that forward has just made, for free(). */
static float *masked(struct compute *c, const struct problem *p)
{
    float *dy = array_copy(&p->dy);

    array_receive(c, &p->y);
    for (size_t i = 0; i < p->y.count; i++)
        if (p->norm.activation == ACTIVATION_RELU && p->y.host[i] <= 0.0f)
            dy[i] = 0.0f;
    return dy;
}

/* Against what the derivative of the definition says. */
static void check_backward(struct compute *c, struct problem *p, bool residual, bool accumulate)
{
    size_t channels = p->norm.channels;
    struct array apart = images_poisoned(c, p->batch, channels, p->norm.inner);
    struct array *dx = accumulate && !residual ? &p->dy : &apart; /* dx may be dy */
    float *dy = masked(c, p);
    float *before[2] = {array_copy(&p->dweight), array_copy(&p->dbias)};
    struct exact *sums = calloc(2 * channels, sizeof(*sums));

    ck_assert_ptr_nonnull(sums);
    array_send(c, &p->dy);
    assert_ok(compute_batch_norm_backward(c, &p->norm, p->x.device, p->y.device, p->dy.device,
                                          dx->device, p->batch, residual, accumulate, &err));
    array_receive(c, dx);
    if (residual)
        array_receive(c, &p->dy);
    for (size_t i = 0; i < p->dy.count && residual; i++)
        if (p->dy.host[i] != dy[i])
            ck_abort_msg("gradient of batch norm's residual: element %zu is %g, wanted %g", i,
                         (double)p->dy.host[i], (double)dy[i]);
    array_receive(c, &p->dweight);
    array_receive(c, &p->dbias);
    for (size_t i = 0; i < p->x.count; i++) {
        size_t channel = i / p->norm.inner % channels;
        double hat = ((double)p->x.host[i] - p->exact_mean[channel]) /
                     sqrt(p->exact_var[channel] + (double)EPSILON);

        exact_add(&sums[channel], (double)dy[i]);
        exact_add(&sums[channels + channel], (double)dy[i] * hat);
    }
    for (size_t i = 0; i < p->x.count; i++) {
        size_t channel = i / p->norm.inner % channels;
        double inverse = 1.0 / sqrt(p->exact_var[channel] + (double)EPSILON);
        double hat = ((double)p->x.host[i] - p->exact_mean[channel]) * inverse;
        double scale = (double)p->weight.host[channel] * inverse;
        double wanted = scale * ((double)dy[i] - sums[channel].value / (double)p->count -
                                 hat * sums[channels + channel].value / (double)p->count);

        expect_near("input gradient of batch norm", i, dx->host[i], wanted,
                    TOLERANCE * (2.0 + hat * hat + inverse * (1.0 + fabs(hat))) *
                        (1.0 + fabs(scale)));
    }
    for (size_t i = 0; i < channels; i++) {
        double inverse;

        if (accumulate) {
            exact_add(&sums[channels + i], (double)before[0][i]);
            exact_add(&sums[i], (double)before[1][i]);
        }
        /* x - mean is rounded as x is, and then as much larger as inverse makes it. */
        inverse = 1.0 / sqrt(p->exact_var[i] + (double)EPSILON);
        expect_near("weight gradient of batch norm", i, p->dweight.host[i],
                    sums[channels + i].value,
                    TOLERANCE * (1.0 + sums[channels + i].magnitude + inverse * sums[i].magnitude));
        expect_near("bias gradient of batch norm", i, p->dbias.host[i], sums[i].value,
                    TOLERANCE * (1.0 + sums[i].magnitude));
    }
    free(sums);
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
    assert_ok(compute_batch_norm_forward(c, &p.norm, (array_send(c, &p.x), p.x.device), NULL,
                                         p.y.device, batch, &err));
    check_backward(c, &p, false, true);
    problem_free(c, &p);
}

void check_batch_norm(struct compute *c, int rounds)
{
    static const size_t shapes[][3] = {
        {2, 1, 1},  {1, 1, 2},    {8, 3, 1},  {5, 300, 1}, {1, 5, 9},
        {4, 7, 49}, {3, 2, 1024}, {2, 64, 9}, {4, 16, 80}, {1, 328, 4},
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
