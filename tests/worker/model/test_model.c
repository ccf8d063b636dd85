/*
 * Models on the CPU: loss and gradients against a double-precision model and its finite
 * differences, accumulation, the order of the ready call-backs, short batches, failures.
 */
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "tests/worker/model/bounded_model.h"
#include "tests/worker/model/reference_model.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* A model with fresh random parameters and one batch of random data. */
struct fixture {
    struct compute *compute;
    struct model *model;
    struct spec spec;
    size_t batch;
    float *x;
    int32_t *labels;
    double *params; /* the model's, in double */
};

static void random_batch(struct fixture *f)
{
    for (size_t i = 0; i < f->batch * model_inputs(f->model); i++)
        f->x[i] = (float)(2.0 * support_random() - 1.0);
    for (size_t i = 0; i < f->batch; i++)
        f->labels[i] = (int32_t)(support_random() * (double)model_classes(f->model));
}

static struct fixture fixture_open(const char *spec, size_t batch, size_t max_batch)
{
    struct fixture f = {.batch = batch};
    size_t count;

    assert_ok(spec_parse(spec, &f.spec, &err));
    assert_ok(compute_open("cpu", 0, 1, &f.compute, &err));
    assert_ok(model_open(spec, f.compute, max_batch, &f.model, &err));
    count = model_table(f.model)->count;
    f.x = calloc(batch * model_inputs(f.model), sizeof(*f.x));
    f.labels = calloc(batch, sizeof(*f.labels));
    f.params = calloc(count, sizeof(*f.params));
    ck_assert(f.x && f.labels && f.params);
    assert_ok(model_init(f.model, (uint64_t)(support_random() * 1e9), RANDOM_TWO_ROUNDINGS, &err));
    for (size_t i = 0; i < count; i++)
        f.params[i] = (double)model_params(f.model)[i];
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

static double exact_loss(const struct fixture *f, uint64_t *ret_signs, size_t *ret_correct)
{
    return reference_loss(&f->spec, model_table(f->model), f->params, f->x, f->labels, f->batch,
                          ret_signs, ret_correct);
}

static double step(struct fixture *f, bool accumulate)
{
    double loss = -1.0;

    assert_ok(model_step(f->model, f->x, f->labels, f->batch, accumulate, NULL, NULL, &loss, &err));
    return loss;
}

static float *copy_grads(const struct fixture *f)
{
    size_t count = model_table(f->model)->count;
    float *copy = malloc(count * sizeof(*copy));

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, model_grads(f->model), count * sizeof(*copy));
    return copy;
}

/* Error bound of the next float32 step; the batch is drawn again if rounding may change a ReLU. */
static void bound_step(struct fixture *f, struct bounded_model *ret)
{
    do {
        random_batch(f);
        bounded_model_step(ret, &f->spec, model_table(f->model), model_params(f->model), f->x,
                           f->labels, f->batch);
    } while (ret->undecided);
}

/* The gradient slab against central differences of the double-precision loss.  A difference whose
 * two sides have different active ReLUs is skipped. */
static void check_gradients(struct fixture *f, const struct bounded_model *bounded)
{
    const double h = 1e-6;
    const double off = (double)(f->batch + 32) * 0x1p-53 * 4.0 / h; /* a loss of 4, in double */
    size_t count = model_table(f->model)->count;
    size_t checked = 0;

    for (size_t i = 0; i < count; i++) {
        double kept = f->params[i];
        uint64_t signs[2];
        size_t correct;
        double loss[2];

        f->params[i] = kept + h;
        loss[0] = exact_loss(f, &signs[0], &correct);
        f->params[i] = kept - h;
        loss[1] = exact_loss(f, &signs[1], &correct);
        f->params[i] = kept;
        if (signs[0] != signs[1])
            continue;
        checked++;
        ck_assert_double_le(fmax(loss[0], loss[1]), 4.0);
        ck_assert_double_eq_tol((double)model_grads(f->model)[i], (loss[0] - loss[1]) / (2.0 * h),
                                bounded->grads[i].error + off);
    }
    ck_assert_uint_gt(checked, count * 9 / 10);
}

static const struct {
    const char *spec;
    size_t batch, max_batch;
} shapes[] = {{"mlp:7-5-3", 4, 4},     {"mlp:13-9-11-3", 7, 16}, {"linear:10-5-2", 5, 5},
              {"linear:10-10", 3, 64}, {"mlp:1-1-1-1-2", 1, 1},  {"mlp:17-31-2", 33, 40}};

START_TEST(test_gradients)
{
    static struct bounded_model bounded;
    struct fixture f = fixture_open(shapes[_i].spec, shapes[_i].batch, shapes[_i].max_batch);

    for (size_t i = 0; i < model_table(f.model)->count; i++)
        model_grads(f.model)[i] = nanf(""); /* poison: every element is written */
    bound_step(&f, &bounded);
    (void)step(&f, false);
    check_gradients(&f, &bounded);
    fixture_close(&f);
}
END_TEST

START_TEST(test_loss)
{
    static struct bounded_model bounded;
    struct fixture f = fixture_open(shapes[_i].spec, shapes[_i].batch, shapes[_i].max_batch);
    size_t expected_correct;
    size_t correct = 999;
    uint64_t signs;
    double loss, expected;

    bound_step(&f, &bounded);
    expected = exact_loss(&f, &signs, &expected_correct);
    ck_assert_double_eq_tol(step(&f, false), expected, bounded.loss_error);
    assert_ok(model_evaluate(f.model, f.x, f.labels, f.batch, &loss, &correct, &err));
    ck_assert_double_eq_tol(loss, expected, bounded.loss_error);
    ck_assert_uint_eq(correct, expected_correct);
    fixture_close(&f);
}
END_TEST

/* The sum over two batches; evaluation does not change it. */
START_TEST(test_accumulate)
{
    static struct bounded_model bounded[2];
    struct fixture f = fixture_open("mlp:12-20-6", 9, 9);
    size_t count = model_table(f.model)->count;
    float *x = f.x;
    int32_t *labels = f.labels;
    float *first;
    float *second;
    double loss;
    size_t correct;

    bound_step(&f, &bounded[0]);
    (void)step(&f, false);
    first = copy_grads(&f);
    f.x = calloc(f.batch * model_inputs(f.model), sizeof(*f.x));
    f.labels = calloc(f.batch, sizeof(*f.labels));
    ck_assert(f.x && f.labels);
    bound_step(&f, &bounded[1]);
    (void)step(&f, false);
    second = copy_grads(&f);
    assert_ok(model_step(f.model, x, labels, f.batch, false, NULL, NULL, &loss, &err));
    assert_ok(model_evaluate(f.model, f.x, f.labels, f.batch, &loss, &correct, &err));
    (void)step(&f, true);
    for (size_t i = 0; i < count; i++) { /* each batch's gradient has an error on both sides */
        struct bounded sum = bounded_plus(bounded[0].grads[i], bounded[1].grads[i]);

        ck_assert_double_le(
            fabs((double)model_grads(f.model)[i] - (double)first[i] - (double)second[i]),
            2.0 * sum.error);
    }
    free(first);
    free(second);
    free(x);
    free(labels);
    fixture_close(&f);
}
END_TEST

struct ready_log {
    const struct fixture *f;
    const float *expected; /* the whole gradient */
    size_t counts[8];
    size_t length;
};

/* Gradients reported as ready are final, and nothing after them has been written yet. */
static void log_ready(void *user, size_t ready_count)
{
    struct ready_log *log = user;
    const float *grads = model_grads(log->f->model);
    size_t count = model_table(log->f->model)->count;

    ck_assert_uint_lt(log->length, 8);
    log->counts[log->length++] = ready_count;
    ck_assert_uint_le(ready_count, count);
    for (size_t i = 0; i < ready_count; i++)
        ck_assert_msg(grads[i] == log->expected[i], "element %zu was not final at %zu", i,
                      ready_count);
    for (size_t i = ready_count; i < count; i++)
        ck_assert_msg(isnan(grads[i]), "element %zu was written before its turn", i);
}

START_TEST(test_ready_order)
{
    struct fixture f = fixture_open("mlp:11-7-5-3", 6, 6);
    const struct tensor_table *t = model_table(f.model);
    struct ready_log log = {.f = &f};
    float *expected;
    double loss;

    (void)step(&f, false);
    expected = copy_grads(&f);
    log.expected = expected;
    for (size_t i = 0; i < t->count; i++)
        model_grads(f.model)[i] = nanf("");
    assert_ok(model_step(f.model, f.x, f.labels, f.batch, false, log_ready, &log, &loss, &err));
    ck_assert_uint_eq(log.length, 3);
    ck_assert_uint_eq(log.counts[0], 5 * 3 + 3);
    ck_assert_uint_eq(log.counts[1], 5 * 3 + 3 + 7 * 5 + 5);
    ck_assert_uint_eq(log.counts[2], t->count);
    free(expected);
    fixture_close(&f);
}
END_TEST

/* Parameters that arrive late: each range is written when it is awaited, and not before. */
struct arrival {
    struct fixture *f;
    const float *params; /* final values */
    size_t calls, whole; /* calls for parts of the slab, and for all of it */
    bool fails;
};

static enum status write_awaited_params(void *user, size_t offset, size_t count, struct error *why)
{
    struct arrival *a = user;
    size_t all = model_table(a->f->model)->count;

    ck_assert_uint_le(offset + count, all);
    a->calls++;
    a->whole += count == all;
    ck_assert_uint_eq(a->whole, count == all); /* only the last call is for all of it */
    if (a->fails && a->calls == 2)
        return error_set(why, STATUS_PEER_LOST, "they do not come");
    memcpy(model_params(a->f->model) + offset, a->params + offset, count * sizeof(float));
    return STATUS_OK;
}

START_TEST(test_awaited_parameters)
{
    static const char *const specs[] = {"linear:7-5-4-3", "mlp:9-8-6-4", "mlp-bn:6-5-3"};
    struct fixture f = fixture_open(specs[_i], 5, 5);
    size_t count = model_table(f.model)->count;
    float *params = malloc(count * sizeof(float));
    struct arrival a = {.f = &f, .params = params};
    double expected, loss;
    float *expected_grads;

    ck_assert_ptr_nonnull(params);
    memcpy(params, model_params(f.model), count * sizeof(float));
    expected = step(&f, false);
    expected_grads = copy_grads(&f);
    for (size_t i = 0; i < count; i++)
        model_params(f.model)[i] = NAN;
    model_set_await(f.model, write_awaited_params, &a);
    loss = step(&f, false);
    ck_assert_mem_eq(&loss, &expected, sizeof(loss));
    ck_assert_mem_eq(model_grads(f.model), expected_grads, count * sizeof(float));
    ck_assert_uint_eq(a.calls, 3 + 1); /* one per layer, and the whole slab */
    a = (struct arrival){.f = &f, .params = params, .fails = true};
    assert_fails(model_step(f.model, f.x, f.labels, f.batch, false, NULL, NULL, &loss, &err),
                 STATUS_PEER_LOST, "they do not come");
    ck_assert_uint_eq(a.calls, 2);
    free(expected_grads);
    free(params);
    fixture_close(&f);
}
END_TEST

/* A shorter batch gives the bits of a model of that size. */
START_TEST(test_short_batch)
{
    struct fixture f = fixture_open("mlp:9-8-4", 5, 32);
    struct model *small = NULL;
    size_t count = model_table(f.model)->count;
    double loss;

    assert_ok(model_open("mlp:9-8-4", f.compute, 5, &small, &err));
    memcpy(model_params(small), model_params(f.model), count * sizeof(float));
    assert_ok(model_params_changed(small, &err));
    assert_ok(model_step(small, f.x, f.labels, 5, false, NULL, NULL, &loss, &err));
    ck_assert(step(&f, false) == loss);
    for (size_t i = 0; i < count; i++)
        ck_assert(model_grads(small)[i] == model_grads(f.model)[i]);
    model_close(small);
    fixture_close(&f);
}
END_TEST

START_TEST(test_table)
{
    struct fixture f = fixture_open("mlp:784-128-10", 1, 1);
    const struct tensor_table *t = model_table(f.model);

    ck_assert_uint_eq(t->length, 4);
    ck_assert_str_eq(t->views[0].name, "fc1.weight");
    ck_assert_str_eq(t->views[3].name, "fc2.bias");
    ck_assert(t->views[0].shape[0] == 128 && t->views[0].shape[1] == 784);
    ck_assert_uint_eq(t->views[3].offset, 0);
    ck_assert_uint_eq(model_inputs(f.model), 784);
    ck_assert_uint_eq(model_classes(f.model), 10);
    fixture_close(&f);
}
END_TEST

START_TEST(test_refused_input)
{
    struct fixture f = fixture_open("mlp:3-4-2", 2, 2);
    struct model *m = NULL;
    double loss = 7.0;

    assert_fails(model_step(f.model, f.x, f.labels, 3, false, NULL, NULL, &loss, &err),
                 STATUS_INVALID, "3 samples, the model takes 1 to 2");
    assert_fails(model_step(f.model, f.x, f.labels, 0, false, NULL, NULL, &loss, &err),
                 STATUS_INVALID, "0 samples");
    f.labels[1] = 2;
    assert_fails(model_step(f.model, f.x, f.labels, 2, false, NULL, NULL, &loss, &err), STATUS_DATA,
                 "label 2");
    ck_assert(loss == 7.0);
    assert_fails(model_open("mlp:3", f.compute, 2, &m, &err), STATUS_CONFIG, "position 6");
    assert_fails(model_open("mlp:3-2", f.compute, 0, &m, &err), STATUS_INVALID, "0 samples");
    assert_fails(model_open("cnn:2048x1x1-conv1k1024-fc1", f.compute, 1, &m, &err), STATUS_CONFIG,
                 "conv1: 2048 x 1048576 weights of a filter are too many");
    assert_fails(model_open("gpt:1,1,1,65536,2", f.compute, 32768, &m, &err), STATUS_CONFIG,
                 "32768 x 65536 rows of a batch are too many");
    model_close(NULL);
    fixture_close(&f);
}
END_TEST

/* Each allocation of model_open in turn fails: it returns an error and leaks nothing. */
START_TEST(test_failing_allocations)
{
    struct compute *c = NULL;
    struct model *m = NULL;
    size_t n = 0;
    enum status status = STATUS_NO_MEMORY;

    assert_ok(compute_open("cpu", 0, 1, &c, &err));
    while (status != STATUS_OK) {
        ck_assert_uint_lt(++n, 60);
        mem_fail_nth(n);
        status = model_open("mlp:5-4-3", c, 2, &m, &err);
        ck_assert(status == STATUS_OK || status == STATUS_NO_MEMORY);
    }
    ck_assert_uint_ge(n, 15); /* the program, tables, slabs, activations; then success */
    mem_fail_nth(0);
    model_close(m);
    compute_close(c);
}
END_TEST

int main(void)
{
    int count = sizeof(shapes) / sizeof(shapes[0]);

    return SUPPORT_RUN("model", 60, LOOP_TEST(test_gradients, 0, count),
                       LOOP_TEST(test_loss, 0, count), TEST(test_accumulate),
                       TEST(test_ready_order), LOOP_TEST(test_awaited_parameters, 0, 3),
                       TEST(test_short_batch), TEST_CASE("contracts", 0), TEST(test_table),
                       TEST(test_refused_input), TEST(test_failing_allocations));
}
