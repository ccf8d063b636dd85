/*
 * Difficulty of the built-in digits, measured with the real loader, model and optimizer: a linear
 * model must be worse than one with a hidden layer, or the set would not show whether training
 * works.
 */
#include "common/base/memory.h"
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "worker/data/loader.h"
#include "worker/model/model.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 32

static struct error err;

struct training {
    struct dataset *train;
    struct dataset *test;
    struct sampler sampler;
    struct loader *loader;
    struct compute *compute;
    struct model *model;
    struct optimizer optimizer;
    uint64_t step;
    float *x; /* (BATCH, features), a test batch */
};

static void training_open(struct training *t, const char *spec, uint64_t seed)
{
    struct dataset_config data = {.spec = "digits", .split = SPLIT_TRAIN, .seed = seed};
    struct optimizer_config sgd = optimizer_defaults(OPTIMIZER_SGD);

    *t = (struct training){0};
    sgd.learning_rate = 0.05;
    sgd.momentum = 0.9;
    assert_ok(dataset_open(&data, &t->train, &err));
    data.split = SPLIT_TEST;
    assert_ok(dataset_open(&data, &t->test, &err));
    assert_ok(sampler_init(&t->sampler, dataset_count(t->train), 0, 1, true, false, seed, &err));
    assert_ok(loader_open(t->train, &t->sampler, BATCH, NULL, &t->loader, &err));
    assert_ok(compute_open("cpu", 0, 1, &t->compute, &err));
    assert_ok(model_open(spec, t->compute, BATCH, &t->model, &err));
    assert_ok(model_init(t->model, seed, RANDOM_FMA, &err));
    assert_ok(optimizer_init(&t->optimizer, &sgd, model_table(t->model)->count, &err));
    assert_ok(mem_calloc(BATCH * dataset_features(t->test), sizeof(float), "batch", &t->x, &err));
}

static void training_close(struct training *t)
{
    free(t->x);
    optimizer_release(&t->optimizer);
    model_close(t->model);
    compute_close(t->compute);
    loader_close(t->loader);
    sampler_release(&t->sampler);
    dataset_close(t->test);
    dataset_close(t->train);
}

static void train_epoch(struct training *t)
{
    struct batch batch = {0};

    while (!batch.last_of_epoch) {
        double loss;

        loader_next(t->loader, &batch);
        assert_ok(
            model_step(t->model, batch.x, batch.y, batch.count, false, NULL, NULL, &loss, &err));
        optimizer_update(&t->optimizer, ++t->step, 0, model_table(t->model)->count,
                         model_params(t->model), model_grads(t->model));
        assert_ok(model_params_changed(t->model, &err));
    }
}

/* Percent of the test split that is classified correctly. */
static double test_accuracy(struct training *t)
{
    size_t total = dataset_count(t->test);
    size_t right = 0;

    for (size_t at = 0; at < total; at += BATCH) {
        size_t count = total - at < BATCH ? total - at : BATCH;
        int64_t indices[BATCH];
        int32_t y[BATCH];
        double loss;
        size_t correct;

        for (size_t i = 0; i < count; i++)
            indices[i] = (int64_t)(at + i);
        dataset_gather(t->test, indices, count, t->x, y);
        assert_ok(model_evaluate(t->model, t->x, y, count, &loss, &correct, &err));
        right += correct;
    }
    return 100 * (double)right / (double)total;
}

/* The best test accuracy of `epochs` epochs. */
static double best_accuracy(const char *spec, uint64_t seed, unsigned epochs)
{
    struct training t;
    double best = 0;

    training_open(&t, spec, seed);
    (void)printf("%s, seed %ju:", spec, (uintmax_t)seed);
    for (unsigned epoch = 0; epoch < epochs; epoch++) {
        double accuracy;

        train_epoch(&t);
        accuracy = test_accuracy(&t);
        (void)printf(" %.2f", accuracy);
        if (accuracy > best)
            best = accuracy;
    }
    (void)printf(" %%\n");
    training_close(&t);
    return best;
}

START_TEST(a_hidden_layer_is_needed)
{
    double linear = best_accuracy("linear:784-10", (uint64_t)_i, 6);
    double mlp = best_accuracy("mlp:784-128-10", (uint64_t)_i, 6);

    ck_assert_double_gt(linear, 75); /* the set can be learned */
    ck_assert_double_lt(linear, 95);
    ck_assert_double_ge(mlp, 97);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("digits_learning", 100, LOOP_TEST(a_hidden_layer_is_needed, 0, 2));
}
