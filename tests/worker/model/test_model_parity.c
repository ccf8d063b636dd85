/*
 * Trajectories of PyTorch DDP (tests/data/parity) repeated in one process: the batches of all ranks
 * go through the same model in turn, the gradients are scaled and summed in rank order, then one
 * update follows.  There is no communication, so a difference is numerical: sampler,
 * initialisation, model, loss or optimizer.
 */
#include "common/base/memory.h"
#include "common/checkpoint/safetensors.h"
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX        4
#define FILE_BYTES_MAX   (16u << 20)
#define FIRST_TOLERANCE  1e-5 /* of the first step's losses */
#define LATER_TOLERANCE  1e-4 /* of all losses and of the final parameters */
#define HEAD_INDICES_MAX 64

static struct error err;

static const struct parity_case {
    const char *name;  /* of the files */
    const char *model; /* our spec */
    bool mnist;
} cases[] = {
    {"seed_w2", "linear:10-5-2", false},      {"linear10_w4", "linear:10-10", false},
    {"mnist_mlp_w1", "mlp:784-128-10", true}, {"mnist_mlp_w2", "mlp:784-128-10", true},
    {"mnist_mlp_w3", "mlp:784-128-10", true},
};

struct rank {
    struct sampler sampler;
    uint64_t epoch;
    size_t at;    /* next sample of the epoch */
    float *grads; /* owned, this rank's share of the mean */
};

struct run {
    const struct parity_case *test;
    json_t *json;
    struct dataset *data;
    struct compute *compute;
    struct model *model;
    struct optimizer optimizer;
    struct rank ranks[RANKS_MAX];
    unsigned world;
    size_t batch;
    float *x;
    int32_t *labels;
    double worst_first, worst_later; /* differences of losses */
};

static double number(const struct run *r, const char *key)
{
    const json_t *value = json_object_get(r->json, key);

    ck_assert_msg(json_is_number(value), "%s has no number '%s'", r->test->name, key);
    return json_number_value(value);
}

static const char *case_file(const struct parity_case *test, const char *suffix)
{
    char name[128];

    (void)snprintf(name, sizeof(name), "tests/data/parity/%s%s", test->name, suffix);
    return support_source(name);
}

/* The spec of the case's data; NULL if it is MNIST and not available. */
static const char *data_spec(const struct parity_case *test, char *text, size_t size)
{
    const char *folder;

    if (!test->mnist)
        return case_file(test, ".data.safetensors");
    folder = support_data(test->name);
    if (!folder)
        return NULL;
    (void)snprintf(text, size, "mnist:%s/mnist", folder);
    return text;
}

static void load_slab(const struct run *r, const char *suffix, float *slab)
{
    struct safetensors file = {0};

    assert_ok(safetensors_read(case_file(r->test, suffix), FILE_BYTES_MAX, &file, &err));
    assert_ok(safetensors_load_slab(&file, model_table(r->model), slab, &err));
    safetensors_release(&file);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = NULL;

    assert_ok(mem_calloc_aligned(count, size, "test", &memory, &err));
    return memory;
}

static void open_ranks(struct run *r)
{
    for (unsigned k = 0; k < r->world; k++) {
        struct rank *rank = &r->ranks[k];

        assert_ok(sampler_init(&rank->sampler, dataset_count(r->data), k, r->world, true, false,
                               (uint64_t)number(r, "seed"), &err));
        sampler_set_epoch(&rank->sampler, 0);
        rank->grads = allocate(model_table(r->model)->count, sizeof(float));
    }
}

static void open_optimizer(struct run *r)
{
    struct optimizer_config config = optimizer_defaults(OPTIMIZER_SGD);

    config.learning_rate = number(r, "lr");
    config.momentum = number(r, "momentum");
    config.weight_decay = number(r, "weight_decay");
    assert_ok(optimizer_init(&r->optimizer, &config, model_table(r->model)->count, &err));
}

/* False: the data is not available, and a line says so. */
static bool run_open(struct run *r, const struct parity_case *test)
{
    json_error_t problem;
    char text[4200];
    struct dataset_config config = {.spec = data_spec(test, text, sizeof(text)),
                                    .split = SPLIT_TRAIN};

    *r = (struct run){.test = test};
    if (!config.spec)
        return false;
    r->json = json_load_file(case_file(test, ".json"), 0, &problem);
    ck_assert_msg(r->json != NULL, "%s: %s", test->name, problem.text);
    r->world = (unsigned)number(r, "world");
    r->batch = (size_t)number(r, "batch");
    ck_assert_uint_le(r->world, RANKS_MAX);
    config.samples = (size_t)number(r, "samples");
    assert_ok(dataset_open(&config, &r->data, &err));
    assert_ok(compute_open("cpu", 0, 1, &r->compute, &err));
    assert_ok(model_open(test->model, r->compute, r->batch, &r->model, &err));
    r->x = allocate(r->batch * model_inputs(r->model), sizeof(float));
    r->labels = allocate(r->batch, sizeof(int32_t));
    open_ranks(r);
    open_optimizer(r);
    return true;
}

static void run_close(struct run *r)
{
    for (unsigned k = 0; k < r->world; k++) {
        sampler_release(&r->ranks[k].sampler);
        free(r->ranks[k].grads);
    }
    optimizer_release(&r->optimizer);
    model_close(r->model);
    compute_close(r->compute);
    dataset_close(r->data);
    json_decref(r->json);
    free(r->x);
    free(r->labels);
}

static void check_sampler(const struct run *r)
{
    const json_t *heads = json_object_get(r->json, "first_epoch_indices_head");

    for (unsigned k = 0; k < r->world; k++) {
        const json_t *head = json_array_get(heads, k);

        ck_assert_uint_eq(json_array_size(head), HEAD_INDICES_MAX);
        for (size_t i = 0; i < HEAD_INDICES_MAX; i++)
            ck_assert_int_eq(r->ranks[k].sampler.order[i],
                             json_integer_value(json_array_get(head, i)));
    }
}

/* The rank's next batch into r->x; the last one of an epoch is shorter. */
static size_t next_batch(struct run *r, struct rank *rank)
{
    size_t count;

    if (rank->at == rank->sampler.length) {
        sampler_set_epoch(&rank->sampler, ++rank->epoch);
        rank->at = 0;
    }
    count = rank->sampler.length - rank->at;
    if (count > r->batch)
        count = r->batch;
    dataset_gather(r->data, rank->sampler.order + rank->at, count, r->x, r->labels);
    rank->at += count;
    return count;
}

static void check_loss(struct run *r, size_t step, unsigned rank, double loss)
{
    const json_t *losses = json_array_get(json_object_get(r->json, "losses"), rank);
    double expected = json_number_value(json_array_get(losses, step));
    double difference = fabs(loss - expected);
    double *worst = step == 0 ? &r->worst_first : &r->worst_later;

    if (difference > *worst)
        *worst = difference;
    ck_assert_msg(difference <= (step == 0 ? FIRST_TOLERANCE : LATER_TOLERANCE),
                  "%s, step %zu, rank %u: loss %.9g, PyTorch has %.9g", r->test->name, step, rank,
                  loss, expected);
}

/* As DDP averages: each rank's gradient times float(1 / world), then the sum. */
static void train_step(struct run *r, size_t step)
{
    size_t count = model_table(r->model)->count;
    const float *shares[RANKS_MAX];

    for (unsigned k = 0; k < r->world; k++) {
        size_t samples = next_batch(r, &r->ranks[k]);
        double loss = -1.0;

        assert_ok(model_step(r->model, r->x, r->labels, samples, false, NULL, NULL, &loss, &err));
        check_loss(r, step, k, loss);
        vector_scale_to(r->ranks[k].grads, model_grads(r->model), (float)(1.0 / r->world), count);
        shares[k] = r->ranks[k].grads;
    }
    vector_sum(model_grads(r->model), shares, r->world, count);
    optimizer_update(&r->optimizer, step + 1, 0, count, model_params(r->model),
                     model_grads(r->model));
    assert_ok(model_params_changed(r->model, &err));
}

static double worst_param(const struct run *r)
{
    size_t count = model_table(r->model)->count;
    float *expected = allocate(count, sizeof(float));
    double worst = 0.0;

    load_slab(r, ".final.safetensors", expected);
    for (size_t i = 0; i < count; i++)
        worst = fmax(worst, fabs((double)model_params(r->model)[i] - (double)expected[i]));
    free(expected);
    return worst;
}

static void train(struct run *r, const char *init)
{
    size_t steps = (size_t)number(r, "steps");
    double worst;

    check_sampler(r);
    for (size_t step = 0; step < steps; step++)
        train_step(r, step);
    worst = worst_param(r);
    (void)printf("%s from %s: first step %.1e, all %.1e, final parameters %.1e\n", r->test->name,
                 init, r->worst_first, r->worst_later, worst);
    ck_assert_double_le(worst, LATER_TOLERANCE);
}

/* Seeded: the weights are PyTorch's bit for bit before the first step. */
START_TEST(test_from_seed)
{
    struct run r;
    float *expected;
    size_t count;

    if (!run_open(&r, &cases[_i]))
        return;
    count = model_table(r.model)->count;
    expected = allocate(count, sizeof(float));
    assert_ok(model_init(r.model, (uint64_t)number(&r, "seed"), RANDOM_FMA, &err));
    load_slab(&r, ".init.safetensors", expected);
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(model_params(r.model)[i] == expected[i], "element %zu is %.9g, not %.9g", i,
                      (double)model_params(r.model)[i], (double)expected[i]);
    free(expected);
    train(&r, "the seed");
    run_close(&r);
}
END_TEST

START_TEST(test_from_file)
{
    struct run r;

    if (!run_open(&r, &cases[_i]))
        return;
    load_slab(&r, ".init.safetensors", model_params(r.model));
    assert_ok(model_params_changed(r.model, &err));
    train(&r, "the file");
    run_close(&r);
}
END_TEST

int main(void)
{
    int count = sizeof(cases) / sizeof(cases[0]);

    return SUPPORT_RUN("model_parity", 100, LOOP_TEST(test_from_seed, 0, count),
                       LOOP_TEST(test_from_file, 0, count));
}
