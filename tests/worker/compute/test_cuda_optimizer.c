/*
 * The optimizer on the GPU: the host's bits, the 16-bit copies of parameters, a layer's step as a
 * graph, and fp16's loss scaling.  Without a GPU, or without the module, every test reports why it
 * is skipped.
 */
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

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

/* ---- updates against the host's ---- */

struct optimizer_pair { /* the same parameters, updated by the host's optimizer and by the
                           device's */
    struct optimizer host;
    float *expected; /* owned, for free(): the host's parameters */
    struct array params;
    struct compute_update update;
};

static void optimizer_pair_open(struct compute *c, struct optimizer_pair *t,
                                const struct optimizer_config *config, size_t count)
{
    *t = (struct optimizer_pair){.params = array_random(c, count)};
    t->expected = array_copy(&t->params);
    t->update = (struct compute_update){.params = t->params.device, .count = count};
    assert_ok(optimizer_init(&t->host, config, count, &err));
    for (unsigned s = 0; s < t->host.states; s++)
        assert_ok(compute_alloc(c, count, "state", &t->update.state[s], &err));
}

static void optimizer_pair_close(struct compute *c, struct optimizer_pair *t)
{
    compute_free(c, t->update.state[0]);
    compute_free(c, t->update.state[1]);
    optimizer_release(&t->host);
    free(t->expected);
    array_free(c, &t->params);
}

/* The device's and the host's update have the same bits. host_step 0: the host skips the update. */
static void optimizer_pair_update(struct compute *c, struct optimizer_pair *t,
                                  const struct array *grads, double rate, uint64_t step,
                                  uint64_t host_step)
{
    size_t count = t->update.count;

    t->update.grads = grads->device;
    assert_ok(compute_optimizer_update(c, &t->host.config, rate, step, &t->update, &err));
    if (host_step > 0)
        optimizer_update_at(&t->host, rate, host_step, 0, count, t->expected, grads->host);
    array_download(c, &t->params);
    for (size_t i = 0; i < count; i++)
        if (t->params.host[i] != t->expected[i])
            ck_abort_msg("step %u: element %zu is %.9g, wanted %.9g", (unsigned)step, i,
                         (double)t->params.host[i], (double)t->expected[i]);
}

START_TEST(test_optimizer)
{
    struct compute *c = open_gpu("cuda", PRECISION_FLOAT32);
    struct optimizer_config config = optimizer_of(_i);
    struct optimizer_pair t;

    if (!c)
        return;
    optimizer_pair_open(c, &t, &config, random_size(5000));
    for (uint64_t step = 1; step <= 5; step++) {
        struct array grads = array_random(c, t.update.count);

        optimizer_pair_update(c, &t, &grads, 0.1 / (double)step, step, step);
        array_free(c, &grads);
    }
    optimizer_pair_close(c, &t);
    compute_close(c);
}
END_TEST

/* ---- copies in 16 bits ---- */

/* A product by 1 reads a view's copy, which must be the parameters rounded to 16 bits. */
static void expect_copy(struct compute *c, const struct array *params, size_t start, size_t count)
{
    struct linear linear = {.in = 1, .out = count, .weight = params->device + start};
    struct array one = values_random(c, 1);
    struct array wanted = values_random(c, count);
    struct array y = values_poisoned(c, count);

    one.host[0] = 1.0f;
    array_upload(c, &one);
    memcpy(wanted.host, params->host + start, count * sizeof(float));
    array_upload(c, &wanted);
    array_download(c, &wanted);
    assert_ok(compute_linear_forward(c, &linear, one.device, NULL, NULL, y.device, 1, &err));
    array_download(c, &y);
    for (size_t i = 0; i < count; i++)
        if (y.host[i] != wanted.host[i])
            ck_abort_msg("copy of element %zu + %zu: %g, wanted %g", start, i, (double)y.host[i],
                         (double)wanted.host[i]);
    array_free(c, &one);
    array_free(c, &wanted);
    array_free(c, &y);
}

/* Views that end within a thread's elements, and views that span several units of the table. */
START_TEST(test_copies)
{
    static const size_t starts[] = {0, 8, 300, 301, 304, 1024, 2600, 2601, 2602};
    const size_t count = 2607;
    const size_t views = sizeof(starts) / sizeof(starts[0]);
    struct optimizer_config config = optimizer_of(2 * _i); /* plain, momentum, AdamW */
    struct compute *c = open_gpu("cuda", PRECISION_BF16);
    struct compute_update update = {.count = count};
    struct array params, grads;

    if (!c)
        return;
    params = array_random(c, count);
    grads = array_random(c, count);
    update.params = params.device;
    update.grads = grads.device;
    assert_ok(compute_register_params(c, params.device, count, starts, views, &err));
    for (int s = 0; s < _i; s++)
        assert_ok(compute_alloc(c, count, "state", &update.state[s], &err));
    for (int round = 0; round < 2; round++) { /* as registered, and after an update */
        for (size_t v = 0; v < views; v++)
            expect_copy(c, &params, starts[v], (v + 1 < views ? starts[v + 1] : count) - starts[v]);
        assert_ok(compute_optimizer_update(c, &config, 0.1, 1, &update, &err));
        array_download(c, &params);
    }
    for (size_t i = 0; i < 100; i++)
        params.host[500 + i] = (float)i;
    assert_ok(compute_upload(c, params.device + 501, params.host + 501, 97, &err));
    array_download(c, &params);
    for (size_t v = 0; v < views; v++)
        expect_copy(c, &params, starts[v], (v + 1 < views ? starts[v + 1] : count) - starts[v]);
    compute_free(c, update.state[0]);
    compute_free(c, update.state[1]);
    array_free(c, &params);
    array_free(c, &grads);
    compute_close(c);
}
END_TEST

/* ---- a step as a graph ---- */

enum { LAYER_IN = 19, LAYER_OUT = 7, LAYER_STRIDE = 8, LAYER_ROWS = 33 };

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
    l->y = values_poisoned(c, LAYER_ROWS * LAYER_STRIDE);
    l->params = array_random(c, count);
    l->grads = array_poisoned(c, count);
    for (size_t i = 0; i < LAYER_ROWS; i++)
        l->labels[i] = (int32_t)(support_random() * LAYER_OUT);
    /* The bias first: the weight's offset in the slab is odd. */
    l->linear = (struct linear){.in = LAYER_IN,
                                .out = LAYER_OUT,
                                .stride = LAYER_STRIDE,
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
                                            LAYER_OUT, LAYER_STRIDE, &err));
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

/* The graph holds addresses of memory that a larger batch reallocates. */
static void check_larger_batch(struct compute *c, const struct layer_step *l,
                               const struct compute_graph *graph)
{
    static const int32_t labels[2 * LAYER_ROWS];
    struct array logits = values_random(c, 2 * LAYER_ROWS * LAYER_OUT);

    assert_ok(compute_softmax_cross_entropy(c, logits.device, labels, NULL, 2 * LAYER_ROWS,
                                            LAYER_OUT, LAYER_OUT, &err));
    (void)layer_loss(c);
    assert_fails(compute_graph_launch(c, graph, l->labels, LAYER_ROWS, &l->config, 0.1, 6, &err),
                 STATUS_UNAVAILABLE, "capture it again");
    array_free(c, &logits);
}

static uint64_t skipped_updates(struct compute *c)
{
    struct gradient_scale now;

    assert_ok(compute_gradient_scale(c, &now, &err));
    return now.skipped;
}

/* A graph's launches have the bits of the captured calls. */
START_TEST(test_graph)
{
    static const enum precision precisions[] = {PRECISION_FLOAT32, PRECISION_BF16, PRECISION_FP16};
    struct compute *c = open_gpu("cuda", precisions[_i]);
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
    array_download(c, &l.params);
    after = array_copy(&l.params);
    memcpy(l.params.host, start, l.params.count * sizeof(float));
    array_upload(c, &l.params);
    assert_ok(compute_graph_begin(c, &err));
    layer_run(c, &l, 1);
    assert_ok(compute_graph_end(c, &graph, &err));
    for (uint64_t step = 1; step <= 5; step++) {
        assert_ok(compute_graph_launch(c, graph, l.labels, LAYER_ROWS, &l.config, 0.1, step, &err));
        ck_assert(layer_loss(c) == losses[step - 1]);
    }
    array_download(c, &l.params);
    for (size_t i = 0; i < l.params.count; i++)
        ck_assert(l.params.host[i] == after[i]);
    ck_assert_uint_eq(skipped_updates(c), 0);
    check_larger_batch(c, &l, graph);
    compute_graph_free(c, graph);
    free(start);
    free(after);
    layer_close(c, &l);
    compute_close(c);
}
END_TEST

/* ---- fp16's scale ---- */

/* A gradient that is not finite changes only the scale. */
START_TEST(test_overflow)
{
    struct compute *c = open_gpu("cuda", PRECISION_FP16);
    struct layer_step l;
    float *start;

    if (!c)
        return;
    layer_open(c, &l);
    layer_run(c, &l, 1);
    (void)layer_loss(c);
    array_download(c, &l.params);
    start = array_copy(&l.params);
    l.grads.host[3] = INFINITY;
    array_upload(c, &l.grads);
    assert_ok(compute_optimizer_update(c, &l.config, 0.1, 2, &l.update, &err));
    array_download(c, &l.params);
    for (size_t i = 0; i < l.params.count; i++)
        ck_assert(l.params.host[i] == start[i]);
    layer_run(c, &l, 2);
    (void)layer_loss(c);
    ck_assert_uint_eq(skipped_updates(c), 1);
    array_download(c, &l.params);
    ck_assert(l.params.host[0] != start[0] && isfinite(l.params.host[0]));
    free(start);
    layer_close(c, &l);
    compute_close(c);
}
END_TEST

/* dlogits of one row of two equal logits: half the scale. */
static void check_scale(struct compute *c, float scale)
{
    static const int32_t label;
    struct array logits = values_random(c, 2);

    memset(logits.host, 0, 2 * sizeof(float));
    array_upload(c, &logits);
    assert_ok(
        compute_softmax_cross_entropy(c, logits.device, &label, logits.device, 1, 2, 2, &err));
    (void)layer_loss(c);
    array_download(c, &logits);
    ck_assert_msg(logits.host[1] == scale / 2, "%g, not %g", (double)logits.host[1],
                  (double)scale / 2);
    array_free(c, &logits);
}

/* A skipped update does not count for AdamW, and the next gradients have another scale. */
START_TEST(test_scale_as_torch)
{
    static const bool bad[] = {false, true, false, true, true, false, false};
    struct compute *c = open_gpu("cuda", PRECISION_FP16);
    struct optimizer_config config = optimizer_of(4);
    struct gradient_scale now;
    struct optimizer_pair t;
    struct array grads;
    float scale = 65536;
    uint64_t made = 0;

    if (!c)
        return;
    optimizer_pair_open(c, &t, &config, 100);
    for (uint64_t step = 1; step <= sizeof(bad) / sizeof(bad[0]); step++) {
        check_scale(c, scale);
        grads = array_random(c, t.update.count);
        if (bad[step - 1]) {
            scale /= 2;
            grads.host[step] = step % 2 ? (float)NAN : (float)-INFINITY;
            array_upload(c, &grads);
        }
        optimizer_pair_update(c, &t, &grads, 0.05, step, bad[step - 1] ? 0 : ++made);
        array_free(c, &grads);
    }
    assert_ok(compute_gradient_scale(c, &now, &err));
    ck_assert(now.scale == scale && now.good == 2 && now.skipped == 3);
    now.good = 1999;
    assert_ok(compute_set_gradient_scale(c, &now, &err));
    grads = array_random(c, t.update.count);
    optimizer_pair_update(c, &t, &grads, 0.05, 8, ++made);
    check_scale(c, 2 * scale);
    assert_ok(compute_gradient_scale(c, &now, &err));
    ck_assert(now.scale == 2 * scale && now.good == 0 && now.skipped == 3);
    now = (struct gradient_scale){.scale = 0x1p126f, .good = 1999, .skipped = 3};
    assert_ok(compute_set_gradient_scale(c, &now, &err));
    optimizer_pair_update(c, &t, &grads, 0.05, 9, ++made);
    assert_ok(compute_gradient_scale(c, &now, &err));
    ck_assert(now.scale == 0x1p126f && now.good == 0);
    now.scale = 0.5f;
    assert_fails(compute_set_gradient_scale(c, &now, &err), STATUS_INVALID, "0.5");
    array_free(c, &grads);
    optimizer_pair_close(c, &t);
    compute_close(c);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cuda_optimizer", 100, LOOP_TEST(test_optimizer, 0, 5),
                       LOOP_TEST(test_copies, 0, 3), LOOP_TEST(test_graph, 0, 3),
                       TEST(test_overflow), TEST(test_scale_as_torch));
}
