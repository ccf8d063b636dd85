/*
 * The GPU device: the same checks against double precision as the CPU passes, a model trained on
 * both side by side, the way of the gradients to the host, and the choice of a device.  Without a
 * GPU, or without the module, every test says why it is skipped.
 */
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
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
static struct compute *open_precise(const char *device, enum precision precision)
{
    struct compute_config config = {.device = device, .threads = 1, .precision = precision};
    struct compute *c = NULL;

    (void)setenv("SPARRING_CUDA_MODULE", support_program("sparring_cuda.so"), 0);
    if (compute_open_config(&config, &c, &err) == STATUS_OK)
        return c;
    ck_assert_msg(!strchr(err.text, '\n'), "not one line: %s", err.text);
    (void)printf("skipped: %s\n", err.text);
    return NULL;
}

static struct compute *open_gpu(const char *device)
{
    return open_precise(device, PRECISION_FLOAT32);
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

/* Coarser values; what is counted, chosen or copied is exact all the same. */
START_TEST(test_precisions)
{
    const enum precision precision = _i == 0 ? PRECISION_TF32 : PRECISION_BF16;
    struct compute *c = open_precise("cuda", precision);

    if (!c)
        return;
    ck_assert_int_eq(compute_precision(c), precision);
    expect_precision(precision);
    check_device(c, 2);
    compute_close(c);
}
END_TEST

/* ---- the optimizer, and a step as a graph ---- */

static struct optimizer_config optimizer_of(int i)
{
    struct optimizer_config config = optimizer_defaults(i < 3    ? OPTIMIZER_SGD
                                                        : i == 3 ? OPTIMIZER_ADAM
                                                                 : OPTIMIZER_ADAMW);

    config.learning_rate = 0.05;
    config.weight_decay = i % 2 ? 0.02 : 0.0;
    config.momentum = i == 1 || i == 2 ? 0.9 : 0.0;
    config.nesterov = i == 2;
    return config;
}

/* The same bits as the host's. */
START_TEST(test_optimizer)
{
    struct compute *c = open_gpu("cuda");
    struct optimizer_config config = optimizer_of(_i);
    size_t count = 1 + (size_t)(support_random() * 5000.0);
    struct optimizer host;
    struct compute_update update = {.count = count};
    struct array params, grads;
    float *expected;

    if (!c)
        return;
    params = array_random(c, count);
    expected = array_copy(&params);
    assert_ok(optimizer_init(&host, &config, count, &err));
    for (unsigned s = 0; s < host.states; s++)
        assert_ok(compute_alloc(c, count, "state", &update.state[s], &err));
    for (uint64_t step = 1; step <= 5; step++) {
        grads = array_random(c, count);
        update.params = params.device;
        update.grads = grads.device;
        assert_ok(compute_optimizer_update(c, &config, 0.1 / (double)step, step, &update, &err));
        optimizer_update_at(&host, 0.1 / (double)step, step, 0, count, expected, grads.host);
        array_receive(c, &params);
        for (size_t i = 0; i < count; i++)
            if (params.host[i] != expected[i])
                ck_abort_msg("optimizer %d, step %u: element %zu is %.9g, wanted %.9g", _i,
                             (unsigned)step, i, (double)params.host[i], (double)expected[i]);
        array_free(c, &grads);
    }
    compute_free(c, update.state[0]);
    compute_free(c, update.state[1]);
    optimizer_release(&host);
    free(expected);
    array_free(c, &params);
    compute_close(c);
}
END_TEST

enum { LAYER_IN = 19, LAYER_OUT = 7, LAYER_ROWS = 33 };

struct layer_step { /* a linear layer's training step, all on the device */
    struct linear linear;
    struct array x, y, params, grads;
    struct compute_update update;
    struct optimizer_config config;
    int32_t labels[LAYER_ROWS];
};

static void layer_open(struct compute *c, struct layer_step *l)
{
    static const size_t starts[] = {0, LAYER_OUT};
    size_t count = LAYER_OUT + LAYER_OUT * LAYER_IN;

    *l = (struct layer_step){.config = optimizer_of(1)};
    l->x = values_random(c, LAYER_ROWS * LAYER_IN);
    l->y = values_poisoned(c, LAYER_ROWS * LAYER_OUT);
    l->params = array_random(c, count);
    l->grads = array_poisoned(c, count);
    for (size_t i = 0; i < LAYER_ROWS; i++)
        l->labels[i] = (int32_t)(support_random() * LAYER_OUT);
    /* The bias first: the weight's place in the slab is an odd one. */
    l->linear = (struct linear){.in = LAYER_IN,
                                .out = LAYER_OUT,
                                .bias = l->params.device,
                                .weight = l->params.device + LAYER_OUT,
                                .dbias = l->grads.device,
                                .dweight = l->grads.device + LAYER_OUT};
    l->update = (struct compute_update){
        .params = l->params.device, .grads = l->grads.device, .count = count};
    assert_ok(compute_alloc(c, count, "momentum", &l->update.state[0], &err));
    assert_ok(compute_register_params(c, l->params.device, count, starts, 2, &err));
}

static void layer_close(struct compute *c, struct layer_step *l)
{
    compute_free(c, l->update.state[0]);
    array_free(c, &l->x);
    array_free(c, &l->y);
    array_free(c, &l->params);
    array_free(c, &l->grads);
}

static void layer_run(struct compute *c, struct layer_step *l, uint64_t step)
{
    assert_ok(compute_linear_forward(c, &l->linear, l->x.device, NULL, NULL, l->y.device,
                                     LAYER_ROWS, &err));
    assert_ok(compute_softmax_cross_entropy(c, l->y.device, l->labels, l->y.device, LAYER_ROWS,
                                            LAYER_OUT, &err));
    assert_ok(compute_linear_backward_weight(c, &l->linear, l->x.device, l->y.device, LAYER_ROWS,
                                             false, &err));
    assert_ok(compute_optimizer_update(c, &l->config, 0.1, step, &l->update, &err));
}

static double layer_loss(struct compute *c)
{
    double loss = -1.0;
    size_t correct = 0;

    assert_ok(compute_loss_wait(c, &loss, &correct, &err));
    return loss;
}

/* The graph has the places of memory that a larger batch gives up. */
static void check_larger_batch(struct compute *c, const struct layer_step *l,
                               const struct compute_graph *graph)
{
    static const int32_t labels[2 * LAYER_ROWS];
    struct array logits = values_random(c, 2 * LAYER_ROWS * LAYER_OUT);

    assert_ok(compute_softmax_cross_entropy(c, logits.device, labels, NULL, 2 * LAYER_ROWS,
                                            LAYER_OUT, &err));
    (void)layer_loss(c);
    assert_fails(compute_graph_launch(c, graph, l->labels, LAYER_ROWS, &l->config, 0.1, 6, &err),
                 STATUS_UNAVAILABLE, "note it again");
    array_free(c, &logits);
}

/* A graph's launches are the calls that it noted: the same bits. */
START_TEST(test_graph)
{
    static const enum precision precisions[] = {PRECISION_FLOAT32, PRECISION_BF16, PRECISION_FP16};
    struct compute *c = open_precise("cuda", precisions[_i]);
    struct layer_step l;
    struct compute_graph *graph = NULL;
    double losses[5];
    float *start, *after;

    if (!c)
        return;
    layer_open(c, &l);
    start = array_copy(&l.params);
    for (uint64_t step = 1; step <= 5; step++) {
        layer_run(c, &l, step);
        losses[step - 1] = layer_loss(c);
        ck_assert(step == 1 || losses[step - 1] < losses[step - 2]);
    }
    array_receive(c, &l.params);
    after = array_copy(&l.params);
    memcpy(l.params.host, start, l.params.count * sizeof(float));
    array_send(c, &l.params);
    assert_ok(compute_graph_begin(c, &err));
    layer_run(c, &l, 1);
    assert_ok(compute_graph_end(c, &graph, &err));
    for (uint64_t step = 1; step <= 5; step++) {
        assert_ok(compute_graph_launch(c, graph, l.labels, LAYER_ROWS, &l.config, 0.1, step, &err));
        ck_assert(layer_loss(c) == losses[step - 1]);
    }
    array_receive(c, &l.params);
    for (size_t i = 0; i < l.params.count; i++)
        ck_assert(l.params.host[i] == after[i]);
    ck_assert_uint_eq(compute_skipped_updates(c), 0);
    check_larger_batch(c, &l, graph);
    compute_graph_free(c, graph);
    free(start);
    free(after);
    layer_close(c, &l);
    compute_close(c);
}
END_TEST

/* A gradient that is not finite changes nothing but the scale. */
START_TEST(test_overflow)
{
    struct compute *c = open_precise("cuda", PRECISION_FP16);
    struct layer_step l;
    float *start;

    if (!c)
        return;
    layer_open(c, &l);
    layer_run(c, &l, 1);
    (void)layer_loss(c);
    array_receive(c, &l.params);
    start = array_copy(&l.params);
    l.grads.host[3] = INFINITY;
    array_send(c, &l.grads);
    assert_ok(compute_optimizer_update(c, &l.config, 0.1, 2, &l.update, &err));
    array_receive(c, &l.params);
    for (size_t i = 0; i < l.params.count; i++)
        ck_assert(l.params.host[i] == start[i]);
    layer_run(c, &l, 2);
    (void)layer_loss(c);
    ck_assert_uint_eq(compute_skipped_updates(c), 1);
    array_receive(c, &l.params);
    ck_assert(l.params.host[0] != start[0] && isfinite(l.params.host[0]));
    free(start);
    layer_close(c, &l);
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

/* With the optimizer on the GPU the host gets the same parameters and state when it asks. */
START_TEST(test_on_device)
{
    struct compute *gpu = open_gpu("cuda");
    struct compute *other = NULL;
    struct trainee resident;
    struct trainee staged;
    static struct batch_data batch;
    double loss, expected;

    if (!gpu)
        return;
    other = open_gpu("cuda");
    resident = trainee_open(gpu);
    staged = trainee_open(other);
    assert_ok(model_keep_on_device(resident.model, &resident.optimizer, &err));
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
    trainee_close(&resident);
    trainee_close(&staged);
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
    tcase_add_loop_test(tests, test_precisions, 0, 2);
    tcase_add_loop_test(tests, test_optimizer, 0, 5);
    tcase_add_loop_test(tests, test_graph, 0, 3);
    tcase_add_test(tests, test_overflow);
    tcase_add_test(tests, test_fifty_steps);
    tcase_add_test(tests, test_on_device);
    tcase_add_test(tests, test_gradients);
    tcase_add_test(tests, test_choice);
    tcase_add_test(tests, test_out_of_memory);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
