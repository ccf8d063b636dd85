/*
 * Every architecture: gradients against differences of the loss along random directions, the
 * contracts of ready, await and accumulate, skipped layers, validation of ids.
 */
#include "tests/support/support.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRADIENT_TOLERANCE 0.03

static struct error err;

/* The CPU, or the device of the environment: "cuda" with the emulated GPU. */
static const char *device(void)
{
    const char *name = getenv("SPARRING_TEST_DEVICE");

    return name ? name : "cpu";
}

static struct model *open_model(const char *spec, size_t batch, struct compute **ret_compute)
{
    struct model *m = NULL;

    assert_ok(compute_open(device(), 0, 1, ret_compute, &err));
    assert_ok(model_open(spec, *ret_compute, batch, &m, &err));
    return m;
}

/* ---- gradients ---- */

struct fixture {
    struct compute *compute;
    struct model *model;
    size_t batch, count;
    float *x;
    int32_t *labels;
    float *params; /* a copy */
    double loss;
    uint64_t drop_seed; /* seed of the skipped layers, the same in each step; 0: none */
};

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);

    ck_assert_ptr_nonnull(memory);
    return memory;
}

static double uniform(double from, double to)
{
    return from + (to - from) * support_random();
}

static void random_batch(struct fixture *f)
{
    size_t classes = model_classes(f->model);
    size_t inputs = model_inputs(f->model);
    bool ids = tensor_table_find(model_table(f->model), "transformer.wte.weight") != NULL;

    for (size_t i = 0; i < f->batch * inputs; i++)
        f->x[i] = ids ? (float)floor(uniform(0, (double)classes)) : (float)uniform(-1, 1);
    for (size_t i = 0; i < f->batch * model_positions(f->model); i++)
        f->labels[i] = (int32_t)uniform(0, (double)classes);
}

/* Move parameters off their symmetric initial values: biases off 0, norms off 1. */
static struct fixture fixture_open(const char *spec, size_t batch, float scale)
{
    struct fixture f = {.batch = batch};

    f.model = open_model(spec, batch, &f.compute);
    f.count = model_table(f.model)->count;
    f.x = allocate(batch * model_inputs(f.model), sizeof(*f.x));
    f.labels = allocate(batch * model_positions(f.model), sizeof(*f.labels));
    f.params = allocate(f.count, sizeof(*f.params));
    assert_ok(model_init(f.model, (uint64_t)uniform(0, 1e9), RANDOM_TWO_ROUNDINGS, &err));
    for (size_t v = 0; v < model_table(f.model)->length; v++) {
        const struct tensor_view *view = &model_table(f.model)->views[v];
        float *values = model_params(f.model) + view->offset;

        for (size_t i = 0; i < view->count; i++) {
            if (view->dims == 1)
                values[i] += (float)uniform(-0.2, 0.2);
            else if (view->dims == 2)
                values[i] *= scale;
        }
    }
    assert_ok(model_params_changed(f.model, &err));
    memcpy(f.params, model_params(f.model), f.count * sizeof(*f.params));
    random_batch(&f);
    return f;
}

static void fixture_close(struct fixture *f)
{
    model_close(f->model);
    compute_close(f->compute);
    free(f->x);
    free(f->labels);
    free(f->params);
}

static void step(struct fixture *f, bool accumulate)
{
    f->loss = (double)NAN;
    if (f->drop_seed > 0)
        model_set_layer_drop(f->model, 0.5, f->drop_seed);
    assert_ok(
        model_step(f->model, f->x, f->labels, f->batch, accumulate, NULL, NULL, &f->loss, &err));
}

static float *copy_grads(const struct fixture *f)
{
    float *copy = allocate(f->count, sizeof(*copy));

    memcpy(copy, model_grads(f->model), f->count * sizeof(*copy));
    return copy;
}

static double loss_at(struct fixture *f, const struct tensor_view *view, const double *direction,
                      double h)
{
    for (size_t i = 0; i < view->count; i++)
        model_params(f->model)[view->offset + i] =
            (float)((double)f->params[view->offset + i] + h * direction[i]);
    assert_ok(model_params_changed(f->model, &err));
    step(f, false);
    memcpy(model_params(f->model), f->params, f->count * sizeof(float));
    assert_ok(model_params_changed(f->model, &err));
    return f->loss;
}

static double norm_of(const float *values, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sqrt(sum);
}

/*
 * Relative error of a view's gradient against the central difference of the loss along a direction.
 * The direction is half the gradient's own, so that the loss changes far more than float32
 * rounding, and half random, so that elements without a gradient are detected.  The step changes
 * the loss by 2e-4, and its rounding (about 1e-8: a mean over rows) is a small part of that; the
 * rest of the error is curvature, and ReLUs and maxima that change sides.
 */
static double difference_error(struct fixture *f, const struct tensor_view *view,
                               const float *grads, double change)
{
    double *direction = allocate(view->count, sizeof(*direction));
    double norm = norm_of(grads + view->offset, view->count);
    double noise = 0, slope = 0, h, measured;

    for (size_t i = 0; i < view->count; i++) {
        direction[i] = uniform(-1, 1);
        noise += direction[i] * direction[i];
    }
    for (size_t i = 0; i < view->count; i++) {
        direction[i] = direction[i] / sqrt(noise) + (double)grads[view->offset + i] / norm;
        slope += direction[i] * (double)grads[view->offset + i];
    }
    h = change / 2 / fabs(slope);
    measured = (loss_at(f, view, direction, h) - loss_at(f, view, direction, -h)) / (2 * h);
    free(direction);
    return fabs(measured - slope) / fabs(slope);
}

static const struct {
    const char *spec;
    size_t batch;
    size_t every; /* check every n-th view of large models */
    size_t flat;  /* views without a gradient */
    float scale;  /* of the initial matrices, where their gradients are too small for differences */
} shapes[] = {
    {"linear:6-5-4", 5, 1, 0, 1},
    {"mlp-bn:6-9-9-4", 9, 1, 2, 1},
    {"cnn:2x9x8-conv4-pool-conv6k5s2p1-bn-fc7-bn-fc3", 9, 1, 2, 1},
    {"cnn:3x7x7-conv5k2p0-conv4k3s2p2-poolk3-fc4", 6, 1, 0, 1},
    {"lenet", 4, 1, 0, 1},
    {"gpt:2,2,8,6,13", 3, 1, 0, 10},
    {"gpt:1,1,4,1,5", 6, 1, 0, 10},
    {"resnet18:2x9x8,5", 4, 13, 0, 1},
    {"vgg11:1x32x33,4", 2, 9, 0, 10},
};

/* A direction along which too many ReLUs change sides is not informative, and a shorter step has
 * fewer of them.  A wrong gradient fails along all directions. */
static double least_error(struct fixture *f, const struct tensor_view *view, const float *grads)
{
    double best = (double)INFINITY;
    double change = 2e-4;

    for (int tries = 0; tries < 20 && best > GRADIENT_TOLERANCE; tries++, change *= 0.8)
        best = fmin(best, difference_error(f, view, grads, change));
    return best;
}

/* A bias before a batch norm has no effect.  Its gradient is the rounding of a sum of up to 90
 * terms (90 * 2^-24), which its weight's gradient sums with factors: less than 5e-7 of that in 8000
 * values, while the smallest of all other biases was 0.015. */
static bool is_flat(const struct tensor_view *view, const float *grads)
{
    return strstr(view->name, ".bias") != NULL &&
           norm_of(grads + view->offset, view->count) <=
               1e-5 * norm_of(grads + view[-1].offset, view[-1].count);
}

static bool check_draw(size_t shape, char *ret_why, size_t size)
{
    struct fixture f = fixture_open(shapes[shape].spec, shapes[shape].batch, shapes[shape].scale);
    const struct tensor_table *t = model_table(f.model);
    size_t flat = 0;
    bool agrees = true;
    float *grads;

    for (size_t i = 0; i < f.count; i++)
        model_grads(f.model)[i] = nanf(""); /* poison: every element is written */
    step(&f, false);
    grads = copy_grads(&f);
    ck_assert(isfinite(norm_of(grads, f.count)));
    for (size_t v = 0; agrees && v < t->length; v += shapes[shape].every) {
        double error = 0;

        if (is_flat(&t->views[v], grads))
            flat++;
        else
            error = least_error(&f, &t->views[v], grads);
        agrees = error <= GRADIENT_TOLERANCE;
        (void)snprintf(ret_why, size, "%s: off by %g of it", t->views[v].name, error);
    }
    if (agrees)
        (void)snprintf(ret_why, size, "%zu flat views", flat);
    free(grads);
    fixture_close(&f);
    return agrees && flat == shapes[shape].flat;
}

/* In one draw of a thousand no ReLU is active, or one is so close to 0 that float32 cannot
 * difference the loss next to it.  A wrong gradient fails in each draw. */
START_TEST(test_gradients)
{
    char why[256];
    bool agrees = false;

    for (int draws = 0; draws < 3 && !agrees; draws++)
        agrees = check_draw((size_t)_i, why, sizeof(why));
    ck_assert_msg(agrees, "%s, in the last of three draws", why);
}
END_TEST

/* ---- contracts of the call-backs ---- */

struct ready_log {
    struct fixture *f;
    const float *expected; /* the whole gradient */
    bool after_reads;      /* model_set_ready_after_reads */
    size_t last;
};

/* Gradients reported as ready are final. */
static void log_ready(void *user, size_t ready_count)
{
    struct ready_log *log = user;

    ck_assert_uint_gt(ready_count, log->last);
    ck_assert_uint_le(ready_count, log->f->count);
    ck_assert_mem_eq(model_grads(log->f->model), log->expected, ready_count * sizeof(float));
    log->last = ready_count;
}

START_TEST(test_ready_is_final)
{
    struct fixture f = fixture_open(shapes[_i].spec, shapes[_i].batch, shapes[_i].scale);
    struct ready_log log = {.f = &f};
    float *expected;

    step(&f, false);
    expected = copy_grads(&f);
    log.expected = expected;
    for (size_t i = 0; i < f.count; i++)
        model_grads(f.model)[i] = nanf("");
    assert_ok(model_step(f.model, f.x, f.labels, f.batch, false, log_ready, &log, &f.loss, &err));
    ck_assert_uint_eq(log.last, f.count);
    free(expected);
    fixture_close(&f);
}
END_TEST

/* Parameters that arrive late: each range is written when it is awaited, and not before. */
static enum status write_awaited_params(void *user, size_t offset, size_t count, struct error *why)
{
    struct fixture *f = user;

    (void)why;
    ck_assert_uint_le(offset + count, f->count);
    memcpy(model_params(f->model) + offset, f->params + offset, count * sizeof(float));
    return STATUS_OK;
}

/* After ready has reported an element, its parameter is read until the next call only, or not any
 * more: overwrite the elements of the previous call, or of this one. */
static void overwrite_read_params(void *user, size_t ready_count)
{
    struct ready_log *log = user;
    const size_t count = log->after_reads ? ready_count : log->last;

    for (size_t i = 0; i < count; i++)
        model_params(log->f->model)[i] = nanf("");
    log->last = ready_count;
}

START_TEST(test_parameters_come_and_go)
{
    struct fixture f = fixture_open(shapes[_i].spec, shapes[_i].batch, shapes[_i].scale);
    double expected_loss;
    float *expected;

    if (!compute_is_host(f.compute)) { /* await needs parameters in host memory */
        fixture_close(&f);
        return;
    }
    step(&f, false);
    expected_loss = f.loss;
    expected = copy_grads(&f);
    model_set_await(f.model, write_awaited_params, &f);
    for (int after_reads = 0; after_reads < 2; after_reads++) {
        struct ready_log log = {.f = &f, .after_reads = after_reads};

        for (size_t i = 0; i < f.count; i++)
            model_params(f.model)[i] = nanf("");
        model_set_ready_after_reads(f.model, log.after_reads);
        assert_ok(model_step(f.model, f.x, f.labels, f.batch, false, overwrite_read_params, &log,
                             &f.loss, &err));
        ck_assert(f.loss == expected_loss);
        ck_assert_mem_eq(model_grads(f.model), expected, f.count * sizeof(float));
    }
    free(expected);
    fixture_close(&f);
}
END_TEST

static void exchange_batch(struct fixture *f, struct fixture *other)
{
    float *x = f->x;
    int32_t *labels = f->labels;

    f->x = other->x;
    f->labels = other->labels;
    other->x = x;
    other->labels = labels;
}

/* The sum over two batches, within the rounding of three sums over rows: 60 draws of each small
 * model differed by at most 6.1e-8 of the norm. */
START_TEST(test_accumulate)
{
    struct fixture f = fixture_open(shapes[_i].spec, shapes[_i].batch, shapes[_i].scale);
    struct fixture second = {.model = f.model, .batch = f.batch};
    float *grads[2];
    double scale, worst = 0;

    second.x = allocate(f.batch * model_inputs(f.model), sizeof(*f.x));
    second.labels = allocate(f.batch * model_positions(f.model), sizeof(*f.labels));
    random_batch(&second);
    exchange_batch(&f, &second);
    step(&f, false);
    grads[1] = copy_grads(&f);
    exchange_batch(&f, &second);
    step(&f, false);
    grads[0] = copy_grads(&f);
    exchange_batch(&f, &second);
    step(&f, true);
    scale = norm_of(grads[0], f.count) + norm_of(grads[1], f.count);
    for (size_t i = 0; i < f.count; i++)
        worst = fmax(worst, fabs((double)model_grads(f.model)[i] - (double)grads[0][i] -
                                 (double)grads[1][i]));
    ck_assert_double_le(worst, 1e-6 * scale);
    free(grads[0]);
    free(grads[1]);
    free(second.x);
    free(second.labels);
    fixture_close(&f);
}
END_TEST

/* ---- LayerDrop ---- */

static size_t used_views(const struct model *m)
{
    size_t count = 0;

    for (size_t v = 0; v < model_table(m)->length; v++)
        count += model_used(m)[v];
    return count;
}

/* A parameter without a gradient has a zero gradient, and its value does not affect the loss. */
static void check_unused(struct fixture *f, double loss)
{
    const struct tensor_table *t = model_table(f->model);
    double sum = 0;

    for (size_t v = 0; v < t->length; v++) {
        const struct tensor_view *view = &t->views[v];

        for (size_t i = 0; i < view->count && !model_used(f->model)[v]; i++) {
            sum += fabs((double)model_grads(f->model)[view->offset + i]);
            model_params(f->model)[view->offset + i] = nanf("");
        }
    }
    ck_assert(sum == 0);
    assert_ok(model_params_changed(f->model, &err));
    step(f, false);
    ck_assert(f->loss == loss);
}

static const struct {
    const char *spec;
    size_t blocks, views; /* number of blocks that may be skipped, and parameters of each */
} dropping[] = {
    {"gpt:3,2,8,6,13", 3, 12}, {"mlp-bn:6-8-8-8-8-3", 3, 4}, {"resnet18:1x8x8,4", 5, 6}};

/* Skipped blocks have no effect; returns the error of the gradient before all blocks. */
static double drop_error(size_t shape, uint64_t seed, bool *ret_partly)
{
    struct fixture f = fixture_open(dropping[shape].spec, 4, 1);
    const struct tensor_table *t = model_table(f.model);
    size_t skipped;
    double loss, error;
    float *grads;

    for (size_t i = 0; i < f.count; i++)
        model_grads(f.model)[i] = nanf("");
    f.drop_seed = seed;
    step(&f, false);
    skipped = t->length - used_views(f.model);
    ck_assert_uint_eq(skipped % dropping[shape].views, 0);
    ck_assert_uint_le(skipped, dropping[shape].views * dropping[shape].blocks);
    *ret_partly |= skipped > 0 && skipped < dropping[shape].views * dropping[shape].blocks;
    grads = copy_grads(&f);
    loss = f.loss;
    error = least_error(&f, &t->views[0], grads);
    check_unused(&f, loss);
    ck_assert_mem_eq(model_grads(f.model), grads, f.count * sizeof(float));
    free(grads);
    fixture_close(&f);
    return error;
}

/* The gradients of the remaining layers are correct for any set of skipped ones. */
START_TEST(test_layer_drop)
{
    bool partly = false;

    for (uint64_t seed = 1; seed < 3 || !partly; seed++) {
        double error = (double)INFINITY;

        for (int draws = 0; draws < 3 && !(error <= GRADIENT_TOLERANCE); draws++)
            error = drop_error((size_t)_i, seed, &partly);
        ck_assert_double_le(error, GRADIENT_TOLERANCE);
    }
}
END_TEST

/* ---- input ---- */

START_TEST(test_ids)
{
    static const float wrong[] = {13, -1, 0.5f, 1e30f, INFINITY, NAN};
    struct fixture f = fixture_open("gpt:1,2,8,6,13", 3, 1);
    double loss = 7;
    size_t correct;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        f.x[2 * 6 + 4] = wrong[i];
        assert_fails(model_step(f.model, f.x, f.labels, 3, false, NULL, NULL, &loss, &err),
                     STATUS_DATA, "sample 2 of the batch, position 4: token ");
        assert_fails(model_evaluate(f.model, f.x, f.labels, 3, &loss, &correct, &err), STATUS_DATA,
                     "not one of the vocabulary's 0 to 12");
    }
    ck_assert(loss == 7);
    f.x[2 * 6 + 4] = 12;
    step(&f, false);
    f.labels[17] = 13;
    assert_fails(model_step(f.model, f.x, f.labels, 3, false, NULL, NULL, &loss, &err), STATUS_DATA,
                 "label 13");
    fixture_close(&f);
}
END_TEST

/* The first shapes are small; the others are tagged, and runs with a sanitizer exclude them. */
#define SMALL 7

static void add_cases(Suite *suite, bool large)
{
    TCase *gradients = tcase_create(large ? "large gradients" : "gradients");
    TCase *promises = tcase_create(large ? "large promises" : "promises");
    int first = large ? SMALL : 0;
    int end = large ? (int)(sizeof(shapes) / sizeof(shapes[0])) : SMALL;
    int first_drop = large ? 2 : 0;
    int end_drop = large ? 3 : 2;

    tcase_set_timeout(gradients, 100);
    tcase_set_timeout(promises, 100);
    tcase_add_loop_test(gradients, test_gradients, first, end);
    tcase_add_loop_test(gradients, test_layer_drop, first_drop, end_drop);
    end -= large; /* vgg adds no operation that the others do not use */
    tcase_add_loop_test(promises, test_ready_is_final, first, end);
    tcase_add_loop_test(promises, test_parameters_come_and_go, first, end);
    tcase_add_loop_test(promises, test_accumulate, first, end);
    if (large) {
        tcase_set_tags(gradients, "large");
        tcase_set_tags(promises, "large");
    }
    suite_add_tcase(suite, gradients);
    suite_add_tcase(suite, promises);
}

int main(void)
{
    Suite *suite = suite_create("architectures");
    TCase *ids = tcase_create("ids");

    tcase_add_test(ids, test_ids);
    suite_add_tcase(suite, ids);
    add_cases(suite, false);
    add_cases(suite, true);
    return support_run(suite);
}
