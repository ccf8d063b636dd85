/*
 * The GPU device: the same checks against double precision as the CPU passes, a model trained on
 * both side by side, the way of the gradients to the host, and the choice of a device.  Without a
 * GPU, or without the module, every test says why it is skipped.
 */
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "tests/worker/compute/device_checks.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC  "mlp:37-66-33-10"
#define BATCH 24

static struct error err;

/* The GPU, or NULL with a line that says why there is none. */
static struct compute *open_gpu(const char *device)
{
    struct compute *c = NULL;

    (void)setenv("SPARRING_CUDA_MODULE", support_program("sparring_cuda.so"), 0);
    if (compute_open(device, 0, 1, &c, &err) == STATUS_OK)
        return c;
    ck_assert_msg(!strchr(err.text, '\n'), "not one line: %s", err.text);
    (void)printf("skipped: %s\n", err.text);
    return NULL;
}

START_TEST(test_operations)
{
    struct compute *c = open_gpu("cuda");

    if (!c)
        return;
    (void)printf("checking %s\n", compute_name(c));
    ck_assert(!compute_is_host(c));
    check_device(c, 25);
    compute_close(c);
}
END_TEST

/* ---- a model on both devices ---- */

struct trainee {
    struct compute *compute;
    struct model *model;
    struct optimizer optimizer;
};

static struct trainee trainee_open(struct compute *compute)
{
    struct trainee t = {.compute = compute};
    struct optimizer_config config = optimizer_defaults(OPTIMIZER_SGD);

    config.learning_rate = 0.05;
    config.momentum = 0.9;
    assert_ok(model_open(SPEC, compute, BATCH, &t.model, &err));
    assert_ok(model_init(t.model, 7, RANDOM_TWO_ROUNDINGS, &err));
    assert_ok(optimizer_init(&t.optimizer, &config, model_table(t.model)->count, &err));
    return t;
}

static void trainee_close(struct trainee *t)
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

static double train(struct trainee *t, const struct batch_data *b, uint64_t step)
{
    double loss = -1.0;

    assert_ok(model_step(t->model, b->x, b->labels, b->count, false, NULL, NULL, &loss, &err));
    optimizer_update(&t->optimizer, step, 0, model_table(t->model)->count, model_params(t->model),
                     model_grads(t->model));
    assert_ok(model_params_changed(t->model, &err));
    return loss;
}

/* Fifty updates: float32 on both sides, so the two drift apart by roundings only. */
START_TEST(test_fifty_steps)
{
    struct compute *gpu = open_gpu("cuda");
    struct compute *cpu = NULL;
    struct trainee on_gpu;
    struct trainee on_cpu;
    static struct batch_data batch;
    double worst_loss = 0.0;
    double worst_param = 0.0;

    if (!gpu)
        return;
    assert_ok(compute_open("cpu", 0, 1, &cpu, &err));
    on_gpu = trainee_open(gpu);
    on_cpu = trainee_open(cpu);
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
    trainee_close(&on_gpu);
    trainee_close(&on_cpu);
}
END_TEST

struct ready_log {
    struct model *model;
    float *seen; /* the slab as it was when its parts became ready */
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

/* What is called ready is final; two batches accumulate on the device; the same step gives the same
 * bits. */
START_TEST(test_gradients)
{
    struct compute *gpu = open_gpu("cuda");
    struct trainee t;
    static struct batch_data batches[2];
    struct ready_log log;
    float *first;
    size_t count;
    double loss;

    if (!gpu)
        return;
    t = trainee_open(gpu);
    count = model_table(t.model)->count;
    log = (struct ready_log){.model = t.model, .seen = calloc(count, sizeof(float))};
    first = calloc(count, sizeof(float));
    ck_assert(log.seen && first);
    random_batch(&batches[0]);
    random_batch(&batches[1]);
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
    for (size_t i = 0; i < count; i++)
        ck_assert_double_eq_tol((double)model_grads(t.model)[i],
                                (double)first[i] + (double)log.seen[i], 1e-6);
    free(first);
    free(log.seen);
    trainee_close(&t);
}
END_TEST

/* ---- choosing, and running out of memory ---- */

START_TEST(test_choice)
{
    struct compute *c = open_gpu("cuda:0");

    if (!c)
        return;
    ck_assert_msg(strncmp(compute_name(c), "cuda:0 (", 8) == 0, "%s", compute_name(c));
    compute_close(c);
    c = NULL;
    assert_fails(compute_open("cuda:1000", 0, 1, &c, &err), STATUS_UNAVAILABLE,
                 "device 'cuda:1000': no GPU 1000: this host has ");
    assert_ok(compute_open("cuda", 1000003, 1, &c, &err)); /* a local rank modulo the devices */
    compute_close(c);
    assert_ok(compute_open("auto", 0, 1, &c, &err));
    ck_assert(!compute_is_host(c));
    ck_assert_str_eq(compute_note(c), "");
    compute_close(c);
}
END_TEST

START_TEST(test_out_of_memory)
{
    struct compute *c = open_gpu("cuda");
    float *memory = NULL;

    if (!c)
        return;
    assert_fails(compute_alloc(c, SIZE_MAX / 8, "test", &memory, &err), STATUS_NO_MEMORY,
                 "of GPU memory");
    assert_fails(compute_alloc(c, SIZE_MAX / 2, "test", &memory, &err), STATUS_NO_MEMORY,
                 "overflow");
    assert_fails(compute_download_wait(c, &err), STATUS_INTERNAL, "no download");
    ck_assert_ptr_null(memory);
    check_transfers(c); /* it still works */
    compute_close(c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compute_cuda");
    TCase *tests = tcase_create("gpu");

    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, test_operations);
    tcase_add_test(tests, test_fifty_steps);
    tcase_add_test(tests, test_gradients);
    tcase_add_test(tests, test_choice);
    tcase_add_test(tests, test_out_of_memory);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
