/*
 * Several devices against one: the split of a batch; gradients, loss and running statistics of a
 * step against those of one model with the whole batch; accumulation of batches; a failing device.
 */
#include "tests/support/support.h"
#include "worker/train/replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX 16u

static struct error err;

/* torch.chunk's sizes: [len(c) for c in torch.arange(batch).chunk(devices)]. */
static const struct {
    size_t batch;
    unsigned devices;
    size_t wanted[8];
} cuts[] = {
    {8, 2, {4, 4}},       {7, 2, {4, 3}},    {7, 3, {3, 3, 1}},     {4, 3, {2, 2, 0}},
    {1, 4, {1, 0, 0, 0}}, {9, 4, {3, 3, 3}}, {10, 4, {3, 3, 3, 1}}, {12, 8, {2, 2, 2, 2, 2, 2}},
    {5, 1, {5}},
};

START_TEST(test_cuts)
{
    size_t sum = 0;

    for (unsigned i = 0; i < cuts[_i].devices; i++) {
        size_t at;
        size_t count = replicas_part(cuts[_i].batch, cuts[_i].devices, i, &at);

        ck_assert_uint_eq(count, cuts[_i].wanted[i]);
        ck_assert_uint_eq(at, sum);
        sum += count;
    }
    ck_assert_uint_eq(sum, cuts[_i].batch);
}
END_TEST

struct fixture {
    struct compute *computes[2];
    struct model *whole; /* the reference: the whole batch on one device */
    struct model *first;
    struct replicas *replicas;
    float *x;
    int32_t *labels;
};

/* CTest runs this program again with the emulated GPUs. */
static const char *device(void)
{
    const char *other = getenv("SPARRING_TEST_DEVICE");

    return other ? other : "cpu";
}

static struct model *open_model(const char *spec, struct compute **ret_compute)
{
    struct model *m = NULL;

    assert_ok(compute_open(device(), 0, 1, ret_compute, &err));
    assert_ok(model_open(spec, *ret_compute, BATCH_MAX, &m, &err));
    assert_ok(model_init(m, 3, RANDOM_TWO_ROUNDINGS, &err));
    return m;
}

static void fixture_open(struct fixture *b, const char *spec, unsigned devices)
{
    const struct replicas_config config = {
        .spec = spec, .device = device(), .threads = 1, .count = devices, .max_batch = BATCH_MAX};
    size_t labels;

    b->whole = open_model(spec, &b->computes[0]);
    b->first = open_model(spec, &b->computes[1]);
    assert_ok(replicas_open(&config, b->first, &b->replicas, &err));
    labels = BATCH_MAX * model_positions(b->first);
    b->x = malloc(BATCH_MAX * model_inputs(b->first) * sizeof(float));
    b->labels = malloc(labels * sizeof(int32_t));
    ck_assert(b->x && b->labels);
    for (size_t i = 0; i < BATCH_MAX * model_inputs(b->first); i++)
        b->x[i] = model_positions(b->first) > 1 ? (float)(int)(support_random() * 20)
                                                : (float)(support_random() * 4 - 2);
    for (size_t i = 0; i < labels; i++)
        b->labels[i] = (int32_t)(support_random() * (double)model_classes(b->first));
}

static void fixture_close(struct fixture *b)
{
    replicas_close(b->replicas);
    model_close(b->whole);
    model_close(b->first);
    compute_close(b->computes[0]);
    compute_close(b->computes[1]);
    free(b->x);
    free(b->labels);
}

/* Tolerance for sums over up to 96 rows in another order: 96 * 2^-24 is 6e-6; the largest error of
 * 300 draws was 8e-7.  A missing or extra row or a wrong weight changes at least a hundredth. */
static void check_close(const float *got, const float *wanted, size_t count)
{
    double largest = 1e-3;

    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)wanted[i]));
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(fabs((double)got[i] - (double)wanted[i]) <= 1e-5 * largest,
                      "element %zu of %zu: %.9g, not %.9g", i, count, (double)got[i],
                      (double)wanted[i]);
}

static void note_ready(void *user, size_t ready_count)
{
    size_t *seen = user;

    *seen += ready_count;
}

static const struct {
    const char *spec;
    unsigned devices;
} shapes[] = {
    {"mlp:12-20-5", 2},    {"mlp:12-20-5", 3},
    {"linear:7-4", 5},     {"cnn:1x8x8-conv4-pool-fc6-fc5", 3},
    {"gpt:1,2,8,6,20", 2},
};

/* Includes batches smaller than the previous one, in which a device has no samples. */
START_TEST(test_one_step_of_all)
{
    struct fixture b = {.x = NULL};
    static const size_t batches[] = {16, 7, 4, 1, 13};
    double learning_rate = 0.1;

    fixture_open(&b, shapes[_i].spec, shapes[_i].devices);
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        size_t count = model_table(b.first)->count, seen = 0;
        double wanted, got;

        assert_ok(model_step(b.whole, b.x, b.labels, batches[i], false, NULL, NULL, &wanted, &err));
        assert_ok(replicas_step(b.replicas, b.x, b.labels, batches[i], false, note_ready, &seen,
                                &got, &err));
        ck_assert_uint_eq(seen, count);
        ck_assert_double_eq_tol(got, wanted, 1e-6 * fmax(1, wanted));
        check_close(model_grads(b.first), model_grads(b.whole), count);
        for (size_t k = 0; k < count; k++) /* both continue with equal parameters */
            model_params(b.whole)[k] = model_params(b.first)[k] -=
                (float)learning_rate * model_grads(b.first)[k];
        assert_ok(model_params_changed(b.whole, &err));
        assert_ok(model_params_changed(b.first, &err));
    }
    fixture_close(&b);
}
END_TEST

START_TEST(test_batches_add_up)
{
    struct fixture b = {.x = NULL};
    double loss;

    fixture_open(&b, "mlp:12-20-5", 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(model_step(b.whole, b.x, b.labels, 5 + i, i > 0, NULL, NULL, &loss, &err));
        assert_ok(replicas_step(b.replicas, b.x, b.labels, 5 + i, i > 0, NULL, NULL, &loss, &err));
    }
    check_close(model_grads(b.first), model_grads(b.whole), model_table(b.first)->count);
    fixture_close(&b);
}
END_TEST

/* The statistics are the first device's, over its part.  Every step copies them to the other
 * devices, whose earlier ones have no effect. */
START_TEST(test_running_statistics)
{
    struct fixture b = {.x = NULL};
    size_t at, buffers;
    double loss;

    fixture_open(&b, "mlp-bn:12-20-5", 2);
    buffers = model_buffer_table(b.first)->count;
    ck_assert_uint_gt(buffers, 0);
    for (unsigned i = 0; i < 3; i++) {
        size_t own = replicas_part(11, 2, 0, &at);

        assert_ok(model_step(b.whole, b.x, b.labels, own, false, NULL, NULL, &loss, &err));
        assert_ok(replicas_step(b.replicas, b.x, b.labels, 11, false, NULL, NULL, &loss, &err));
        ck_assert_mem_eq(model_buffers(b.first), model_buffers(b.whole), buffers * sizeof(float));
    }
    fixture_close(&b);
}
END_TEST

START_TEST(test_a_device_that_fails)
{
    struct fixture b = {.x = NULL};
    const struct replicas_config none = {.spec = "linear:7-4", .device = "cpu", .threads = 1};
    double loss;

    fixture_open(&b, "linear:7-4", 3);
    b.labels[7] = 99; /* in the second device's part */
    assert_fails(replicas_step(b.replicas, b.x, b.labels, 16, false, NULL, NULL, &loss, &err),
                 STATUS_DATA, "device 1: ");
    b.labels[7] = 1;
    assert_ok(replicas_step(b.replicas, b.x, b.labels, 16, false, NULL, NULL, &loss, &err));
    assert_fails(replicas_open(&none, b.first, &b.replicas, &err), STATUS_INVALID, "0 devices");
    fixture_close(&b);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("replicas", 60, LOOP_TEST(test_cuts, 0, sizeof(cuts) / sizeof(cuts[0])),
                       LOOP_TEST(test_one_step_of_all, 0, sizeof(shapes) / sizeof(shapes[0])),
                       TEST(test_batches_add_up), TEST(test_running_statistics),
                       TEST(test_a_device_that_fails));
}
