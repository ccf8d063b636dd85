/*
 * A training step as one graph launch has the bits of single calls: two models are trained side by
 * side, and one of them may use graphs.  Batches change their size, some steps accumulate, and
 * there is an evaluation with a batch larger than any other.  If the environment names no GPU
 * (SPARRING_TEST_DEVICE), every test reports that it is skipped; on the emulated GPU all tests run.
 */
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 3, FULL = 6, LARGEST = 9, SAMPLE = 784, CLASSES = 10 };
enum { UPDATES = 18, ACCUMULATING = 4 };

static struct error err;

/* ---- models ---- */

struct training {
    struct compute *compute;
    struct model *model;
    struct optimizer optimizer;
    float *seen;  /* copy of the gradients when they became ready, or NULL */
    size_t ready; /* number of ready gradients */
};

struct training_case {
    const char *spec;
    enum precision precision;
    enum optimizer_kind kind;
    double momentum;
    enum gradient_path path;
};

static const struct training_case cases[] = {
    {"mlp:12-20-10", PRECISION_FLOAT32, OPTIMIZER_SGD, 0.0, GRADIENTS_STAY},
    {"mlp:12-20-10", PRECISION_BF16, OPTIMIZER_SGD, 0.9, GRADIENTS_STAY},
    {"mlp:12-20-10", PRECISION_FP16, OPTIMIZER_ADAMW, 0.0, GRADIENTS_STAY},
    {"mlp-bn:12-20-10", PRECISION_FLOAT32, OPTIMIZER_SGD, 0.9, GRADIENTS_STAY},
    {"mlp-bn:12-20-10", PRECISION_FP16, OPTIMIZER_SGD, 0.9, GRADIENTS_STAY},
    {"lenet", PRECISION_FLOAT32, OPTIMIZER_ADAM, 0.0, GRADIENTS_STAY},
    {"lenet", PRECISION_BF16, OPTIMIZER_SGD, 0.9, GRADIENTS_STAY},
    {"gpt:1,2,16,12,10", PRECISION_FLOAT32, OPTIMIZER_ADAMW, 0.0, GRADIENTS_STAY},
    {"gpt:1,2,16,12,10", PRECISION_FP16, OPTIMIZER_ADAMW, 0.0, GRADIENTS_STAY},
};

static struct compute *open_gpu(enum precision precision)
{
    const char *device = getenv("SPARRING_TEST_DEVICE");
    struct compute_config config = {.device = device, .threads = 1, .precision = precision};
    struct compute *c = NULL;

    if (!device) {
        (void)printf("skipped: SPARRING_TEST_DEVICE names no GPU\n");
        return NULL;
    }
    assert_ok(compute_open_config(&config, &c, &err));
    return c;
}

static bool training_open(struct training *t, const struct training_case *s, bool graphs)
{
    struct optimizer_config config = optimizer_defaults(s->kind);

    *t = (struct training){.compute = open_gpu(s->precision)};
    if (!t->compute)
        return false;
    config.momentum = s->momentum;
    assert_ok(model_open(s->spec, t->compute, LARGEST, &t->model, &err));
    assert_ok(model_init(t->model, 7, RANDOM_TWO_ROUNDINGS, &err));
    assert_ok(optimizer_init(&t->optimizer, &config, model_table(t->model)->count, &err));
    assert_ok(model_keep_on_device(t->model, &t->optimizer, s->path, &err));
    model_use_graphs(t->model, graphs);
    return true;
}

static void training_close(struct training *t)
{
    optimizer_release(&t->optimizer);
    model_close(t->model);
    compute_close(t->compute);
    free(t->seen);
}

/* ---- steps ---- */

struct batch {
    float x[LARGEST * SAMPLE];
    int32_t labels[LARGEST * SAMPLE];
};

static void fill_batch(struct batch *b, const struct model *m, double scale)
{
    bool ids = model_vocabulary(m) > 0;

    for (size_t i = 0; i < LARGEST * model_inputs(m); i++)
        b->x[i] = ids ? (float)floor(support_random() * (double)model_vocabulary(m))
                      : (float)(scale * (2.0 * support_random() - 1.0));
    for (size_t i = 0; i < LARGEST * model_positions(m); i++)
        b->labels[i] = (int32_t)(support_random() * CLASSES);
}

/* The losses of update `step`: of two batches if it accumulates, and of an evaluation. */
struct losses {
    double loss[3];
    size_t correct;
};

static void count_ready(void *user, size_t ready)
{
    struct training *t = user;

    ck_assert_uint_gt(ready, t->ready);
    t->ready = ready;
}

static struct losses run_update(struct training *t, const struct batch *b, uint64_t step)
{
    struct losses l = {{0}, 0};
    size_t size = step % 5 == 4 ? SMALL : FULL;
    bool accumulates = step % 7 == 5 || step % 7 == 6;
    double rate = 0.01 / (double)step;

    t->ready = 0;
    if (accumulates)
        assert_ok(model_step(t->model, b->x, b->labels, FULL, false, NULL, NULL, &l.loss[0], &err));
    model_plan_update(t->model, rate, step);
    assert_ok(
        model_step(t->model, b->x, b->labels, size, accumulates, count_ready, t, &l.loss[1], &err));
    ck_assert_uint_eq(t->ready, model_table(t->model)->count);
    assert_ok(model_update(t->model, rate, step, &err));
    if (step == 8) /* reallocates the device's memory */
        assert_ok(model_evaluate(t->model, b->x, b->labels, LARGEST, &l.loss[2], &l.correct, &err));
    return l;
}

static void same_bits(const char *what, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            ck_abort_msg("%s, element %zu: %.9g by launches, %.9g by calls", what, i, (double)a[i],
                         (double)b[i]);
}

static uint64_t skipped_updates(struct compute *c)
{
    struct gradient_scale now;

    assert_ok(compute_gradient_scale(c, &now, &err));
    return now.skipped;
}

static void same_models(struct training *a, struct training *b)
{
    size_t count = model_table(a->model)->count;

    assert_ok(model_fetch(a->model, &err));
    assert_ok(model_fetch(b->model, &err));
    same_bits("parameters", model_params(a->model), model_params(b->model), count);
    for (unsigned s = 0; s < a->optimizer.states; s++)
        same_bits("state", a->optimizer.state[s], b->optimizer.state[s], count);
    same_bits("buffers", model_buffers(a->model), model_buffers(b->model),
              model_buffer_table(a->model)->count);
    ck_assert_uint_eq(skipped_updates(a->compute), skipped_updates(b->compute));
}

START_TEST(test_same_bits)
{
    const struct training_case *s = &cases[_i];
    struct training launched, unlaunched;
    static struct batch batch;

    if (!training_open(&launched, s, true))
        return;
    ck_assert(training_open(&unlaunched, s, false));
    for (uint64_t step = 1; step <= UPDATES; step++) {
        struct losses a, b;

        fill_batch(&batch, launched.model, 1.0);
        a = run_update(&launched, &batch, step);
        b = run_update(&unlaunched, &batch, step);
        ck_assert_msg(memcmp(&a, &b, sizeof(a)) == 0,
                      "%s, step %u: %.17g, %.17g by launches, %.17g, %.17g by calls", s->spec,
                      (unsigned)step, a.loss[0], a.loss[1], b.loss[0], b.loss[1]);
        if (step == 12)
            same_models(&launched, &unlaunched);
    }
    same_models(&launched, &unlaunched);
    ck_assert_msg(!model_graph_failure(launched.model), "%s", model_graph_failure(launched.model));
    /* The first step of each kind is not a launch: the full and the small batch, and the two that
     * accumulate. */
    ck_assert_uint_eq(model_graph_launches(launched.model), UPDATES + ACCUMULATING - 4);
    ck_assert_uint_eq(model_graph_launches(unlaunched.model), 0);
    training_close(&launched);
    training_close(&unlaunched);
}
END_TEST

/* An update with an overflow is skipped, and the scale is halved, at the same step in both models.
 */
START_TEST(test_overflow)
{
    static const struct training_case training_case = {"mlp:12-20-10", PRECISION_FP16,
                                                       OPTIMIZER_SGD, 0.9, GRADIENTS_STAY};
    struct training launched, unlaunched;
    static struct batch batch;

    if (!training_open(&launched, &training_case, true))
        return;
    ck_assert(training_open(&unlaunched, &training_case, false));
    for (size_t i = 0; i < model_table(unlaunched.model)->count; i++)
        model_params(unlaunched.model)[i] *= 30.0f;
    memcpy(model_params(launched.model), model_params(unlaunched.model),
           model_table(unlaunched.model)->count * sizeof(float));
    assert_ok(model_params_changed(unlaunched.model, &err));
    assert_ok(model_params_changed(launched.model, &err));
    for (uint64_t step = 1; step <= UPDATES; step++) {
        struct losses a, b;

        fill_batch(&batch, launched.model, 1.0);
        a = run_update(&launched, &batch, step);
        b = run_update(&unlaunched, &batch, step);
        ck_assert_msg(memcmp(&a, &b, sizeof(a)) == 0, "step %u: %.17g by launches, %.17g by calls",
                      (unsigned)step, a.loss[1], b.loss[1]);
    }
    same_models(&launched, &unlaunched);
    ck_assert_uint_gt(skipped_updates(launched.compute), 0);
    ck_assert_uint_lt(skipped_updates(launched.compute), UPDATES / 2);
    ck_assert_ptr_null(model_graph_failure(launched.model));
    ck_assert_uint_eq(model_graph_launches(launched.model), UPDATES + ACCUMULATING - 4);
    training_close(&launched);
    training_close(&unlaunched);
}
END_TEST

enum { SIZES = 18 };

static const struct {
    const char *spec;
    size_t sizes[SIZES];
    uint64_t launches;
} many[] = {
    {"mlp-bn:12-20-10", {8, 8, 8, 7, 6, 5, 4, 3, 2, 8, 8, 2, 2, 9, 9, 8, 3, 3}, 9},
    {"lenet", {8, 8, 8, 7, 6, 5, 4, 3, 2, 1, 8, 1, 1, 9, 9, 7, 3, 3}, 7},
};

/* More batch sizes than cached graphs or plans of convolutions: entries are replaced, and all steps
 * run. */
START_TEST(test_many_sizes)
{
    const struct training_case training_case = {many[_i].spec, PRECISION_FLOAT32, OPTIMIZER_ADAM,
                                                0.0, GRADIENTS_STAY};
    struct training launched, unlaunched;
    static struct batch batch;

    if (!training_open(&launched, &training_case, true))
        return;
    ck_assert(training_open(&unlaunched, &training_case, false));
    for (uint64_t step = 1; step <= SIZES; step++) {
        double loss[2];

        fill_batch(&batch, launched.model, 1.0);
        for (int i = 0; i < 2; i++) {
            struct training *t = i == 0 ? &launched : &unlaunched;

            model_plan_update(t->model, 0.01, step);
            assert_ok(model_step(t->model, batch.x, batch.labels, many[_i].sizes[step - 1], false,
                                 NULL, NULL, &loss[i], &err));
            assert_ok(model_update(t->model, 0.01, step, &err));
        }
        ck_assert(loss[0] == loss[1]);
    }
    same_models(&launched, &unlaunched);
    ck_assert_ptr_null(model_graph_failure(launched.model));
    ck_assert_uint_eq(model_graph_launches(launched.model), many[_i].launches);
    training_close(&launched);
    training_close(&unlaunched);
}
END_TEST

/* A launch makes the same checks as the calls, and a rejected step has no effect. */
START_TEST(test_refusals)
{
    const struct training_case *s = &cases[_i];
    struct training t;
    static struct batch batch;
    double loss;
    int32_t label;

    if (!training_open(&t, s, true))
        return;
    fill_batch(&batch, t.model, 1.0);
    for (uint64_t step = 1; step <= 3; step++)
        (void)run_update(&t, &batch, step);
    ck_assert_uint_eq(model_graph_launches(t.model), 2);
    label = batch.labels[1];
    batch.labels[1] = CLASSES;
    assert_fails(
        model_step(t.model, batch.x, batch.labels, FULL, false, count_ready, &t, &loss, &err),
        STATUS_DATA, "row 1 of the batch: label 10, but 10 classes");
    batch.labels[1] = label;
    (void)run_update(&t, &batch, 4);
    batch.x[0] = NAN;
    if (model_vocabulary(t.model) == 0) {
        t.ready = 0;
        model_plan_update(t.model, 0.01, 5);
        assert_ok(
            model_step(t.model, batch.x, batch.labels, FULL, false, count_ready, &t, &loss, &err));
        ck_assert(isnan(loss));
    }
    training_close(&t);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "model_graph", 100, LOOP_TEST(test_same_bits, 0, sizeof(cases) / sizeof(cases[0])),
        TEST(test_overflow), LOOP_TEST(test_many_sizes, 0, sizeof(many) / sizeof(many[0])),
        LOOP_TEST(test_refusals, 0, 2));
}
