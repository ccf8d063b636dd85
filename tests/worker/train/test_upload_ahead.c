/*
 * A real trainer with uploads ahead against the same one without: equal losses and parameters, bit
 * by bit, over epochs with a shorter last batch, accumulation, skipped batches, a loader that
 * resumes at an earlier batch, and an evaluation between two steps.  On the CPU nothing is
 * uploaded.
 */
#include "tests/support/support.h"
#include "worker/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS       24u
#define SKIP_AT     5u /* skips more batches than the loader has buffers */
#define SKIPPED     11u
#define EVALUATE_AT 9u
#define REWIND_AT   14u
#define WORDS_MAX   64
#define PARAMS      4096u

static struct error err;

static const char *device(void)
{
    const char *other = getenv("SPARRING_TEST_DEVICE");

    return other ? other : "cpu";
}

static const struct scenario {
    const char *model, *data, *sync, *precision; /* precision: on a GPU */
    bool accumulates;
} scenarios[] = {
    {"mlp-bn:12-16-4", "random:59,12,4", "local", "float32", false},
    {"mlp-bn:12-16-4", "random:59,12,4", "local", "bf16", true},
    {"mlp:12-16-4", "random:59,12,4", "allreduce", "float32", true},
    {"gpt:1,1,8,4,12", "random-tokens:37,4,12", "local", "bf16", false},
};

struct outcome {
    double losses[STEPS];
    float params[PARAMS];
    size_t count;
    unsigned started; /* batches uploaded ahead */
};

struct rank {
    struct worker_options options;
    struct option_result origins;
    struct launch_env launch;
    struct trainer t;
};

static void open_trainer(struct rank *r, const struct scenario *s)
{
    bool cpu = strcmp(device(), "cpu") == 0;
    static char line[600];
    char *words[WORDS_MAX];
    char *rest = NULL;
    int count = 0;

    *r = (struct rank){.launch = {.world_size = 1}};
    (void)snprintf(line, sizeof(line),
                   "worker --model %s --data %s --sync %s --batch-size 8 --steps 1000 --lr 0.05 "
                   "--threads 1 --evaluate never --device %s --precision %s",
                   s->model, s->data, s->sync, device(), cpu ? "float32" : s->precision);
    for (char *word = strtok_r(line, " ", &rest); word && count < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    assert_ok(option_parse(&worker_option_set, count, words, &r->options, &r->origins, &err));
    assert_ok(worker_options_check(&r->options, &err));
    r->t = (struct trainer){.options = &r->options,
                            .origins = &r->origins,
                            .launch = &r->launch,
                            .world_size = 1,
                            .manifest = STRBUF_INIT,
                            .record.metrics.fd = -1};
    assert_ok(trainer_open(&r->t, &err));
}

static void close_trainer(struct rank *r)
{
    trainer_close(&r->t, NULL);
    option_result_release(&r->origins);
}

static void evaluate(struct trainer *t, const struct batch *batch)
{
    size_t size = batch->count * model_inputs(t->model) * sizeof(float);
    float *x = malloc(size);
    double loss;
    size_t correct;

    ck_assert_ptr_nonnull(x);
    memcpy(x, batch->x, size);
    assert_ok(model_evaluate(t->model, x, batch->y, batch->count, &loss, &correct, &err));
    free(x);
}

/* Evaluate, skip batches or rewind, after some steps. */
static void run_between_steps(struct trainer *t, unsigned step, const struct batch *last)
{
    struct batch left_out;

    if (step == EVALUATE_AT)
        evaluate(t, last);
    if (step == SKIP_AT) {
        assert_ok(upload_ahead_cancel(t, &err));
        for (unsigned i = 0; i < SKIPPED; i++)
            loader_next(t->loader, &left_out);
    }
    if (step == REWIND_AT) {
        uint64_t epoch = last->epoch;
        size_t offset = last->offset;

        assert_ok(upload_ahead_cancel(t, &err));
        loader_pause(t->loader);
        assert_ok(loader_resume(t->loader, epoch, offset, &err));
    }
}

static void apply_update(struct trainer *t, unsigned step)
{
    if (model_on_device(t->model)) {
        assert_ok(model_update(t->model, 0.05, step + 1, &err));
        return;
    }
    optimizer_update(&t->optimizer, step + 1, 0, model_table(t->model)->count,
                     model_params(t->model), model_grads(t->model));
    assert_ok(model_params_changed(t->model, &err));
}

static void run_steps(const struct scenario *s, bool uploads, struct outcome *ret)
{
    struct rank r;
    struct trainer *t = &r.t;

    open_trainer(&r, s);
    if (!uploads)
        model_set_issued(t->model, NULL, NULL);
    ret->started = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        bool first = !s->accumulates || step % 3 == 0;
        struct batch batch, next;

        loader_next(t->loader, &batch);
        loader_peek(t->loader, &next); /* wait until the loader has gathered it */
        assert_ok(upload_ahead_consume(t, &batch, &err));
        assert_ok(model_step(t->model, batch.x, batch.y, batch.count, !first, NULL, NULL,
                             &ret->losses[step], &err));
        ret->started += t->upload_ahead.started;
        if (!s->accumulates || step % 3 == 2)
            apply_update(t, step);
        run_between_steps(t, step, &batch);
    }
    assert_ok(model_fetch(t->model, &err));
    ret->count = model_table(t->model)->count;
    ck_assert_uint_le(ret->count, PARAMS);
    memcpy(ret->params, model_params(t->model), ret->count * sizeof(float));
    close_trainer(&r);
}

START_TEST(test_same_bits)
{
    static struct outcome uploaded, plain;
    bool cpu = strcmp(device(), "cpu") == 0;

    run_steps(&scenarios[_i], true, &uploaded);
    run_steps(&scenarios[_i], false, &plain);
    ck_assert_uint_eq(uploaded.started, cpu ? 0 : STEPS);
    ck_assert_uint_eq(plain.started, 0);
    for (unsigned i = 0; i < STEPS; i++)
        ck_assert_msg(memcmp(&uploaded.losses[i], &plain.losses[i], sizeof(double)) == 0,
                      "step %u: losses %.17g and %.17g", i, uploaded.losses[i], plain.losses[i]);
    ck_assert_uint_eq(uploaded.count, plain.count);
    ck_assert_mem_eq(uploaded.params, plain.params, uploaded.count * sizeof(float));
}
END_TEST

/* Without upload_ahead_cancel before the loader skips, a step still gets the right batch. */
START_TEST(test_another_batch)
{
    struct rank r;
    struct trainer *t = &r.t;
    struct batch batch, next;
    double loss, expected;
    size_t correct;

    open_trainer(&r, &scenarios[0]);
    loader_next(t->loader, &batch);
    loader_peek(t->loader, &next);
    assert_ok(model_step(t->model, batch.x, batch.y, batch.count, false, NULL, NULL, &loss, &err));
    for (unsigned i = 0; i < SKIPPED; i++)
        loader_next(t->loader, &batch);
    assert_ok(upload_ahead_consume(t, &batch, &err));
    ck_assert(!t->upload_ahead.started);
    assert_ok(model_evaluate(t->model, batch.x, batch.y, batch.count, &loss, &correct, &err));
    evaluate(t, &batch);
    assert_ok(model_evaluate(t->model, batch.x, batch.y, batch.count, &expected, &correct, &err));
    ck_assert(loss == expected);
    close_trainer(&r);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("upload_ahead", 60,
                       LOOP_TEST(test_same_bits, 0, sizeof(scenarios) / sizeof(scenarios[0])),
                       TEST(test_another_batch));
}
