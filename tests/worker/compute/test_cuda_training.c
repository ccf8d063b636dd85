/*
 * A model trained on the GPU against the same model on the CPU, and the paths of its gradients:
 * staged through the host part by part, uploaded again as the mean, or not transferred when the
 * optimizer is on the GPU.  Without a GPU, or without the module, every test reports why it is
 * skipped.
 */
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "tests/worker/compute/gpu.h"
#include "tests/worker/model/bounded_model.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC  "mlp:37-66-33-10"
#define BATCH 24

static struct error err;

struct training {
    struct compute *compute;
    struct model *model;
    struct optimizer optimizer;
    size_t halved; /* gradients of the step that were averaged so far */
};

static struct training training_open(struct compute *compute)
{
    struct training t = {.compute = compute};
    struct optimizer_config config = optimizer_defaults(OPTIMIZER_SGD);

    config.learning_rate = 0.05;
    config.momentum = 0.9;
    assert_ok(model_open(SPEC, compute, BATCH, &t.model, &err));
    assert_ok(model_init(t.model, 7, RANDOM_TWO_ROUNDINGS, &err));
    assert_ok(optimizer_init(&t.optimizer, &config, model_table(t.model)->count, &err));
    return t;
}

static void training_close(struct training *t)
{
    optimizer_release(&t->optimizer);
    model_close(t->model);
    compute_close(t->compute);
}

struct batch_data {
    float x[BATCH * 37];
    int32_t labels[BATCH];
    size_t count;
};

static void random_batch(struct batch_data *b)
{
    b->count = 1 + (size_t)(support_random() * BATCH);
    for (size_t i = 0; i < sizeof(b->x) / sizeof(b->x[0]); i++)
        b->x[i] = (float)(2.0 * support_random() - 1.0);
    for (size_t i = 0; i < BATCH; i++)
        b->labels[i] = (int32_t)(support_random() * 10.0);
}

static double train(struct training *t, const struct batch_data *b, uint64_t step)
{
    double loss = -1.0;

    assert_ok(model_step(t->model, b->x, b->labels, b->count, false, NULL, NULL, &loss, &err));
    optimizer_update(&t->optimizer, step, 0, model_table(t->model)->count, model_params(t->model),
                     model_grads(t->model));
    assert_ok(model_params_changed(t->model, &err));
    return loss;
}

/* Fifty updates: both sides are float32, so they differ only by roundings. */
START_TEST(test_fifty_steps)
{
    struct compute *gpu = open_gpu("cuda", PRECISION_FLOAT32);
    struct compute *cpu = NULL;
    struct training on_gpu;
    struct training on_cpu;
    static struct batch_data batch;
    double worst_loss = 0.0;
    double worst_param = 0.0;

    if (!gpu)
        return;
    assert_ok(compute_open("cpu", 0, 1, &cpu, &err));
    on_gpu = training_open(gpu);
    on_cpu = training_open(cpu);
    for (uint64_t step = 1; step <= 50; step++) {
        random_batch(&batch);
        worst_loss =
            fmax(worst_loss, fabs(train(&on_gpu, &batch, step) - train(&on_cpu, &batch, step)));
    }
    for (size_t i = 0; i < model_table(on_cpu.model)->count; i++)
        worst_param = fmax(worst_param, fabs((double)model_params(on_gpu.model)[i] -
                                             (double)model_params(on_cpu.model)[i]));
    (void)printf("50 steps, GPU against CPU: losses %.1e, parameters %.1e\n", worst_loss,
                 worst_param);
    ck_assert_double_le(worst_loss, 1e-4);
    ck_assert_double_le(worst_param, 1e-4);
    training_close(&on_gpu);
    training_close(&on_cpu);
}
END_TEST

/* Averages with a rank whose gradient is zero: the mean is half of this rank's gradient. */
static void halve_gradients(void *user, size_t ready_count)
{
    struct training *t = user;

    for (; t->halved < ready_count; t->halved++)
        model_grads(t->model)[t->halved] *= 0.5f;
}

/* Upload the mean part by part. */
static void upload_mean(struct training *t)
{
    size_t count = model_table(t->model)->count;

    ck_assert_uint_eq(t->halved, count);
    for (size_t at = 0; at < count; at += 37)
        assert_ok(
            model_grads_arrived(t->model, at, count - at < 37 ? count - at : (size_t)37, &err));
    t->halved = 0;
}

/* The third step accumulates two batches, the fifth has a zero gradient; after the sixth the host
 * changes the parameters and state of both models. */
enum { ACCUMULATED = 3, ZERO_GRADIENT = 5, CHANGED = 6, LAST = 8 };

static void staged_gradients(struct training *t, const struct batch_data *b, uint64_t step)
{
    double loss;

    if (step == ZERO_GRADIENT) {
        assert_ok(model_clear_grads(t->model, &err));
        halve_gradients(t, model_table(t->model)->count);
        return;
    }
    if (step == ACCUMULATED)
        assert_ok(model_step(t->model, b->x, b->labels, 1, false, NULL, NULL, &loss, &err));
    assert_ok(model_step(t->model, b->x, b->labels, b->count, step == ACCUMULATED, halve_gradients,
                         t, &loss, &err));
}

static void change_on_host(struct training *t)
{
    assert_ok(model_fetch(t->model, &err));
    for (size_t i = 0; i < model_table(t->model)->count; i++) {
        model_params(t->model)[i] += 0.01f;
        t->optimizer.state[0][i] *= 2.0f;
    }
    assert_ok(model_restore(t->model, &err));
}

/* Staged gradients, with the optimizer on the GPU and on the host: the same bits. */
START_TEST(test_staged)
{
    struct compute *gpu = open_gpu("cuda", PRECISION_FLOAT32);
    struct training resident;
    struct training host;
    static struct batch_data batch;

    if (!gpu)
        return;
    host = training_open(open_gpu("cuda", PRECISION_FLOAT32));
    resident = training_open(gpu);
    assert_ok(model_keep_on_device(resident.model, &resident.optimizer, GRADIENTS_STAGED, &err));
    for (uint64_t step = 1; step <= LAST; step++) {
        random_batch(&batch);
        staged_gradients(&resident, &batch, step);
        upload_mean(&resident);
        assert_ok(model_update(resident.model, 0.05, step, &err));
        staged_gradients(&host, &batch, step);
        host.halved = 0;
        optimizer_update(&host.optimizer, step, 0, model_table(host.model)->count,
                         model_params(host.model), model_grads(host.model));
        assert_ok(model_params_changed(host.model, &err));
        if (step == CHANGED) {
            change_on_host(&host);
            change_on_host(&resident);
        }
    }
    assert_ok(model_fetch(resident.model, &err));
    for (size_t i = 0; i < model_table(host.model)->count; i++) {
        ck_assert(model_params(resident.model)[i] == model_params(host.model)[i]);
        ck_assert(resident.optimizer.state[0][i] == host.optimizer.state[0][i]);
    }
    training_close(&resident);
    training_close(&host);
}
END_TEST

/* With the optimizer on the GPU, model_fetch returns the same parameters and state. */
START_TEST(test_on_device)
{
    struct compute *gpu = open_gpu("cuda", PRECISION_FLOAT32);
    struct compute *other = NULL;
    struct training resident;
    struct training staged;
    static struct batch_data batch;
    double loss, expected;

    if (!gpu)
        return;
    other = open_gpu("cuda", PRECISION_FLOAT32);
    resident = training_open(gpu);
    staged = training_open(other);
    assert_ok(model_keep_on_device(resident.model, &resident.optimizer, GRADIENTS_STAY, &err));
    ck_assert(model_on_device(resident.model) && !model_on_device(staged.model));
    for (uint64_t step = 1; step <= 10; step++) {
        random_batch(&batch);
        expected = train(&staged, &batch, step);
        assert_ok(model_step(resident.model, batch.x, batch.labels, batch.count, false, NULL, NULL,
                             &loss, &err));
        ck_assert(loss == expected);
        assert_ok(model_update(resident.model, 0.05, step, &err));
    }
    assert_ok(model_fetch(resident.model, &err));
    for (size_t i = 0; i < model_table(staged.model)->count; i++) {
        ck_assert(model_params(resident.model)[i] == model_params(staged.model)[i]);
        ck_assert(resident.optimizer.state[0][i] == staged.optimizer.state[0][i]);
    }
    training_close(&resident);
    training_close(&staged);
}
END_TEST

struct ready_log {
    struct model *model;
    float *seen; /* copy of the slab's parts when they became ready */
    size_t count;
    unsigned calls;
};

static void log_ready(void *user, size_t ready_count)
{
    struct ready_log *log = user;

    ck_assert_uint_gt(ready_count, log->count);
    memcpy(log->seen + log->count, model_grads(log->model) + log->count,
           (ready_count - log->count) * sizeof(float));
    log->count = ready_count;
    log->calls++;
}

/* A batch whose ReLUs do not depend on rounding, and the float32 error bound of its gradient. */
static void bounded_batch(const struct training *t, struct batch_data *batch,
                          struct bounded_model *ret)
{
    struct spec spec;

    assert_ok(spec_parse(SPEC, &spec, &err));
    do {
        random_batch(batch);
        bounded_model_step(ret, &spec, model_table(t->model), model_params(t->model), batch->x,
                           batch->labels, batch->count);
    } while (ret->undecided);
}

/* Gradients reported as ready are final; two batches accumulate on the device; the same step gives
 * the same bits. */
START_TEST(test_gradients)
{
    static struct bounded_model bounded[2];
    struct compute *gpu = open_gpu("cuda", PRECISION_FLOAT32);
    struct training t;
    static struct batch_data batches[2];
    struct ready_log log;
    float *first;
    size_t count;
    double loss;

    if (!gpu)
        return;
    t = training_open(gpu);
    count = model_table(t.model)->count;
    log = (struct ready_log){.model = t.model, .seen = calloc(count, sizeof(float))};
    first = calloc(count, sizeof(float));
    ck_assert(log.seen && first);
    bounded_batch(&t, &batches[0], &bounded[0]);
    bounded_batch(&t, &batches[1], &bounded[1]);
    for (int repeat = 0; repeat < 2; repeat++) {
        log.count = 0;
        log.calls = 0;
        assert_ok(model_step(t.model, batches[0].x, batches[0].labels, batches[0].count, false,
                             log_ready, &log, &loss, &err));
        ck_assert_uint_eq(log.calls, 3);
        ck_assert_uint_eq(log.count, count);
        for (size_t i = 0; i < count; i++) {
            ck_assert(log.seen[i] == model_grads(t.model)[i]);
            ck_assert(repeat == 0 || first[i] == log.seen[i]);
        }
        memcpy(first, model_grads(t.model), count * sizeof(float));
    }
    assert_ok(model_step(t.model, batches[1].x, batches[1].labels, batches[1].count, false, NULL,
                         NULL, &loss, &err));
    memcpy(log.seen, model_grads(t.model), count * sizeof(float));
    assert_ok(model_step(t.model, batches[0].x, batches[0].labels, batches[0].count, true, NULL,
                         NULL, &loss, &err));
    for (size_t i = 0; i < count; i++) { /* each batch's gradient has an error on both sides */
        struct bounded sum = bounded_plus(bounded[0].grads[i], bounded[1].grads[i]);

        ck_assert_double_le(
            fabs((double)model_grads(t.model)[i] - (double)first[i] - (double)log.seen[i]),
            2.0 * sum.error);
    }
    free(first);
    free(log.seen);
    training_close(&t);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cuda_training", 100, TEST(test_fifty_steps), TEST(test_on_device),
                       TEST(test_staged), TEST(test_gradients));
}
