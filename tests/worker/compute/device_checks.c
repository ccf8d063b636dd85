/*
 * device_checks: transfers, linear layers with ReLU, softmax and cross-entropy, and the list of all
 * checks.  The other operations are in device_checks_*.c.
 */
#include "tests/worker/compute/device_checks.h"

#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"

#include <math.h>
#include <stdlib.h>

static struct error err;

/* ---- operations ---- */

void check_transfers(struct compute *c)
{
    float *pinned = NULL;
    struct array a = array_random(c, 1001);
    float *device = NULL;

    assert_ok(compute_alloc(c, 1001, "test", &device, &err));
    assert_ok(compute_alloc_host(c, 1001, &pinned, &err));
    ck_assert(pinned[0] == 0.0f && pinned[1000] == 0.0f);
    assert_ok(compute_download(c, pinned, device, 1001, &err));
    ck_assert(pinned[0] == 0.0f && pinned[1000] == 0.0f); /* device memory is zeroed too */
    assert_ok(compute_upload(c, device, a.host, 1001, &err));
    for (size_t i = 0; i < COMPUTE_DOWNLOADS_MAX; i++)
        assert_ok(compute_download_start(c, pinned + 10 * i, device + 10 * i, 10, &err));
    for (size_t i = 0; i < COMPUTE_DOWNLOADS_MAX; i++) {
        assert_ok(compute_download_wait(c, &err));
        for (size_t j = 0; j < 10; j++)
            ck_assert(pinned[10 * i + j] == a.host[10 * i + j]);
    }
    ck_assert(pinned[640] == 0.0f);
    assert_ok(compute_synchronize(c, &err));
    compute_free(c, device);
    compute_free_host(c, pinned);
    compute_free(c, NULL);
    compute_free_host(c, NULL);
    array_free(c, &a);
}

void check_linear_forward(struct compute *c, size_t batch, size_t in, size_t out, bool relu)
{
    struct array x = values_random(c, batch * in);
    struct array weight = array_random(c, out * in);
    struct array bias = array_random(c, out);
    struct array y = values_poisoned(c, batch * out);

    struct linear linear = {.in = in,
                            .out = out,
                            .weight = weight.device,
                            .bias = bias.device,
                            .activation = relu ? ACTIVATION_RELU : ACTIVATION_NONE};

    assert_ok(compute_linear_forward(c, &linear, x.device, NULL, NULL, y.device, batch, &err));
    array_download(c, &y);
    for (size_t i = 0; i < batch * out; i++) {
        struct exact e = {0};

        exact_add(&e, (double)bias.host[i % out]);
        for (size_t k = 0; k < in; k++)
            exact_add(&e, (double)x.host[i / out * in + k] * (double)weight.host[i % out * in + k]);
        if (relu && e.value < 0.0)
            e.value = 0.0;
        exact_expect(relu ? "linear forward with relu" : "linear forward", i, y.host[i], &e);
    }
    array_free(c, &x);
    array_free(c, &weight);
    array_free(c, &bias);
    array_free(c, &y);
}

void check_relu_backward(struct compute *c, size_t count)
{
    struct array y = values_random(c, count);
    struct array dy = values_random(c, count);
    float *before = malloc(count * sizeof(float));

    ck_assert_ptr_nonnull(before);
    for (size_t i = 0; i < count; i++) {
        before[i] = dy.host[i];
        if (support_random() < 0.3)
            y.host[i] = i % 2 ? 0.0f : -0.0f;
    }
    array_upload(c, &y);
    assert_ok(compute_activation_backward(c, ACTIVATION_RELU, y.device, dy.device, count, &err));
    array_download(c, &dy);
    for (size_t i = 0; i < count; i++)
        if (dy.host[i] != (y.host[i] > 0.0f ? before[i] : 0.0f))
            ck_abort_msg("relu backward: element %zu of %zu", i, count);
    free(before);
    array_free(c, &y);
    array_free(c, &dy);
}

void check_linear_backward_weight(struct compute *c, size_t batch, size_t in, size_t out,
                                  bool accumulate)
{
    const char *what = accumulate ? "weight gradient, accumulated" : "weight gradient";
    struct array x = values_random(c, batch * in);
    struct array dy = values_random(c, batch * out);
    struct array start = array_random(c, out * in + out);
    struct array gradient =
        accumulate ? array_make(c, out * in + out) : array_poisoned(c, out * in + out);
    struct linear linear = {
        .in = in, .out = out, .dweight = gradient.device, .dbias = gradient.device + out * in};

    if (accumulate)
        assert_ok(compute_upload(c, gradient.device, start.host, start.count, &err));
    assert_ok(
        compute_linear_backward_weight(c, &linear, x.device, dy.device, batch, accumulate, &err));
    array_download(c, &gradient);
    for (size_t i = 0; i < out * in + out; i++) {
        bool is_bias = i >= out * in;
        size_t row = is_bias ? i - out * in : i / in;
        struct exact e = {0};

        if (accumulate)
            exact_add(&e, (double)start.host[i]);
        for (size_t k = 0; k < batch; k++)
            exact_add(&e, (double)dy.host[k * out + row] *
                              (is_bias ? 1.0 : (double)x.host[k * in + i % in]));
        exact_expect(what, i, gradient.host[i], &e);
    }
    array_free(c, &x);
    array_free(c, &dy);
    array_free(c, &start);
    array_free(c, &gradient);
}

void check_linear_backward_input(struct compute *c, size_t batch, size_t in, size_t out)
{
    struct array dy = values_random(c, batch * out);
    struct array weight = array_random(c, out * in);
    struct array dx = values_poisoned(c, batch * in);

    struct linear linear = {.in = in, .out = out, .weight = weight.device};

    assert_ok(compute_linear_backward_input(c, &linear, dy.device, dx.device, batch, false, &err));
    array_download(c, &dx);
    for (size_t i = 0; i < batch * in; i++) {
        struct exact e = {0};

        for (size_t k = 0; k < out; k++)
            exact_add(&e, (double)dy.host[i / in * out + k] * (double)weight.host[k * in + i % in]);
        exact_expect("input gradient", i, dx.host[i], &e);
    }
    array_free(c, &dy);
    array_free(c, &weight);
    array_free(c, &dx);
}

/* ---- softmax and cross-entropy ---- */

#define DOUBLE 0x1p-50 /* relative: a few operations in double */

struct softmax_row {
    double max, sum;
    double off; /* relative, of the sum in float32 */
    size_t best;
};

/* Relative error of e^x: the difference and its product with a rounded log2(e) contribute 3u of x,
 * and the exponential 2 units in the last place. */
static double exponential_off(double x)
{
    return ROUNDING * (3.0 * fabs(x) + 4.0);
}

static struct softmax_row exact_row(const float *row, size_t classes)
{
    struct softmax_row r = {.max = (double)row[0]};

    for (size_t j = 1; j < classes; j++) {
        if ((double)row[j] > r.max) {
            r.max = (double)row[j];
            r.best = j;
        }
    }
    for (size_t j = 0; j < classes; j++) {
        double x = (double)row[j] - r.max;

        r.sum += exp(x);
        r.off += exp(x) * exponential_off(x);
    }
    /* Any order of sums; a GPU merges parts at most 24 times, each with an exponential. */
    r.off = r.off / r.sum + (double)classes * ROUNDING +
            fmin((double)classes - 1.0, 24.0) * exponential_off(0.0);
    return r;
}

static void check_gradient(const float *row, const float *gradient, const struct softmax_row *r,
                           size_t label, size_t batch, size_t classes)
{
    for (size_t j = 0; j < classes; j++) {
        double p = exp((double)row[j] - r->max) / r->sum;
        double hot = j == label ? 1.0 : 0.0;
        /* The factor 1 / (sum * batch), its product and 1 / batch round, then the difference. */
        double off = p * (exponential_off((double)row[j] - r->max) + r->off + 3.0 * ROUNDING) +
                     hot * ROUNDING;

        expect_bounded("softmax gradient", j, gradient[j],
                       bounded_round((p - hot) / (double)batch, off / (double)batch));
    }
}

void check_softmax_cross_entropy(struct compute *c, size_t batch, size_t classes)
{
    size_t stride = compute_row_stride(c, classes);
    struct array logits = values_random(c, batch * stride);
    struct array gradient = values_poisoned(c, batch * stride);
    int32_t *labels = malloc(batch * sizeof(*labels));
    double expected_loss = 0.0;
    double loss_off = 0.0; /* the relative error of a sum is the absolute error of its logarithm,
                              computed in double */
    size_t expected_correct = 0;

    ck_assert_ptr_nonnull(labels);
    for (size_t i = 0; i < batch * stride; i++)
        logits.host[i] *= 10.0f;
    for (size_t i = 0; i < batch; i++)
        labels[i] = (int32_t)(support_random() * (double)classes);
    array_upload(c, &logits);
    assert_ok(compute_softmax_cross_entropy(c, logits.device, labels, gradient.device, batch,
                                            classes, stride, &err));
    array_download(c, &gradient);
    for (size_t i = 0; i < batch; i++) {
        const float *row = logits.host + i * stride;
        struct softmax_row r = exact_row(row, classes);

        expected_loss += (log(r.sum) + r.max - (double)row[labels[i]]) / (double)batch;
        loss_off += (r.off + DOUBLE * fabs(r.max - (double)row[labels[i]])) / (double)batch;
        expected_correct += r.best == (size_t)labels[i];
        check_gradient(row, gradient.host + i * stride, &r, (size_t)labels[i], batch, classes);
    }
    for (int call = 0; call < 3; call++) { /* the one above; evaluation; over the logits */
        double loss = -1.0;
        size_t correct = batch + 1;

        if (call > 0)
            assert_ok(compute_softmax_cross_entropy(c, logits.device, labels,
                                                    call == 2 ? logits.device : NULL, batch,
                                                    classes, stride, &err));
        assert_ok(compute_loss_wait(c, &loss, &correct, &err));
        ck_assert_double_le(fabs(loss - expected_loss), loss_off);
        ck_assert_uint_eq(correct, expected_correct);
    }
    array_download(c, &logits);
    for (size_t i = 0; i < batch; i++) {
        ck_assert_mem_eq(logits.host + i * stride, gradient.host + i * stride,
                         classes * sizeof(float));
        for (size_t j = classes; j < stride; j++) /* the gaps between rows are not written */
            ck_assert(isnan(gradient.host[i * stride + j]));
    }
    free(labels);
    array_free(c, &logits);
    array_free(c, &gradient);
}

static double loss_of(struct compute *c, struct array *logits, size_t batch, const int32_t *labels,
                      size_t *ret_correct)
{
    double loss = -1.0;

    array_upload(c, logits);
    assert_ok(compute_softmax_cross_entropy(c, logits->device, labels, NULL, batch,
                                            logits->count / batch, logits->count / batch, &err));
    assert_ok(compute_loss_wait(c, &loss, ret_correct, &err));
    return loss;
}

void check_softmax_extremes(struct compute *c)
{
    struct array logits = values_random(c, 6);
    int32_t labels[2] = {0, 1};
    size_t correct = 9;

    for (size_t i = 0; i < 6; i++)
        logits.host[i] = i == 0 ? 8192.0f : i == 5 ? -8192.0f : 0.0f;
    /* Row 0: the label holds all the mass.  Row 1: 0, 0, -8192.0: two equal ones, the first wins.
     */
    ck_assert_double_eq_tol(loss_of(c, &logits, 2, labels, &correct), log(2.0) / 2.0, DOUBLE);
    ck_assert_uint_eq(correct, 1);
    labels[0] = 1;
    ck_assert_double_eq_tol(loss_of(c, &logits, 2, labels, &correct), (8192.0 + log(2.0)) / 2.0,
                            8192.0 * DOUBLE);
    logits.host[4] = nanf("");
    ck_assert(isnan(loss_of(c, &logits, 2, labels, &correct)));
    labels[1] = 3;
    assert_fails(compute_softmax_cross_entropy(c, logits.device, labels, NULL, 2, 3, 3, &err),
                 STATUS_DATA, "row 1 of the batch: label 3, but 3 classes");
    labels[1] = -1;
    assert_fails(compute_softmax_cross_entropy(c, logits.device, labels, NULL, 2, 3, 3, &err),
                 STATUS_DATA, "label -1");
    array_free(c, &logits);
}

void check_relu_nan(struct compute *c)
{
    struct array x = values_random(c, 1);
    struct array y = values_poisoned(c, 1);
    struct array dy = values_random(c, 1);
    struct array weight = array_random(c, 1);
    struct linear linear = {.in = 1,
                            .out = 1,
                            .weight = weight.device,
                            .bias = weight.device,
                            .activation = ACTIVATION_RELU};

    x.host[0] = nanf("");
    array_upload(c, &x);
    assert_ok(compute_linear_forward(c, &linear, x.device, NULL, NULL, y.device, 1, &err));
    array_download(c, &y);
    ck_assert(isnan(y.host[0]));
    dy.host[0] = 3.0f;
    array_upload(c, &dy);
    assert_ok(compute_activation_backward(c, ACTIVATION_RELU, y.device, dy.device, 1, &err));
    array_download(c, &dy);
    ck_assert(dy.host[0] == 3.0f);
    array_free(c, &x);
    array_free(c, &y);
    array_free(c, &weight);
    array_free(c, &dy);
}

static void check_shape(struct compute *c, size_t batch, size_t in, size_t out)
{
    check_linear_forward(c, batch, in, out, false);
    check_linear_forward(c, batch, in, out, true);
    check_linear_backward_weight(c, batch, in, out, false);
    check_linear_backward_weight(c, batch, in, out, true);
    check_linear_backward_input(c, batch, in, out);
    check_relu_backward(c, batch * out);
    check_softmax_cross_entropy(c, batch, out);
}

void check_device(struct compute *c, int rounds)
{
    check_transfers(c);
    check_shape(c, 1, 1, 1);
    check_shape(c, 7, 33, 1030); /* a row longer than one block of threads */
    check_shape(c, 129, 5, 3);
    for (int round = 0; round < rounds; round++)
        check_shape(c, random_size(70), random_size(90), random_size(90));
    check_softmax_extremes(c);
    check_relu_nan(c);
    check_convolutions(c, rounds);
    check_pooling(c, rounds);
    check_batch_norm(c, rounds);
    check_linears(c, rounds);
    check_layer_norms(c, rounds);
    check_attentions(c, rounds);
    check_sequence(c, rounds);
}
