/*
 * Runs of PyTorch (tests/data/torch/generate.py) repeated: every architecture from the same random
 * parameters over the same random data.  Besides the losses, compares: the drawn values, parameters
 * and buffers by name and shape; the first step's gradient and the change of each tensor by
 * training, by their norms; the loss in evaluation mode afterwards.  Also checks the models' own
 * initialisation.
 */
#include "common/base/memory.h"
#include "common/base/random.h"
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "worker/model/model.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value that rounding moves to the other side of a ReLU changes the gradients of all earlier
 * layers; a network of millions of values has at most one of these in a step. */
#define GRADIENT_TOLERANCE 5e-3
#define TOLERANCE          1e-3 /* relative */
#define GRADIENT_FLOOR     1e-3 /* of the largest tensor's norm, as in generate.py */
#define MOVED_FLOOR        1e-2
#define MOVED_TOLERANCE    1e-2 /* small updates of large values */

static struct error err;

struct run {
    const char *name;
    json_t *json;
    struct compute *compute;
    struct model *model;
    struct optimizer optimizer;
    size_t batch, batches, features, positions;
    float *first; /* (parameters), before the first step */
    float *x;     /* (batches * batch, features) */
    int32_t *y;   /* (batches * batch, positions) */
    struct {
        double loss, gradient, moved, norm;
    } worst; /* relative differences */
};

static void *allocate(size_t count, size_t size)
{
    void *memory = NULL;

    assert_ok(mem_calloc_aligned(count, size, "test", &memory, &err));
    return memory;
}

static double number(const struct run *r, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    ck_assert_msg(json_is_number(value), "%s has no number '%s'", r->name, key);
    return json_number_value(value);
}

static size_t size_of(const struct run *r, const char *key)
{
    return (size_t)number(r, r->json, key);
}

static const char *text(const struct run *r, const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));

    ck_assert_msg(value != NULL, "%s has no text '%s'", r->name, key);
    return value;
}

/* ---- random parameters and data ---- */

/* A hash in the file is a decimal string: JSON numbers do not hold 64 bits. */
static void check_hash(const struct run *r, const char *what, const char *expected,
                       const void *values, size_t count)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t word;

        memcpy(&word, (const char *)values + 4 * i, sizeof(word));
        hash += word * (uint64_t)(i + 1);
    }
    ck_assert_msg(strtoull(expected, NULL, 10) == hash, "%s: %s is not what PyTorch drew", r->name,
                  what);
}

static const struct tensor_view *find_view(const struct run *r, const struct tensor_table *table,
                                           const json_t *entry)
{
    const char *name = text(r, entry, "name");
    const struct tensor_view *view = tensor_table_find(table, name);
    const json_t *shape = json_object_get(entry, "shape");

    ck_assert_msg(view != NULL, "%s: the model has no '%s'", r->name, name);
    ck_assert_msg(view->dims == json_array_size(shape), "%s: '%s' has %u dimensions", r->name, name,
                  view->dims);
    for (unsigned d = 0; d < view->dims; d++)
        ck_assert_msg(view->shape[d] == (size_t)json_integer_value(json_array_get(shape, d)),
                      "%s: '%s' is %zu in dimension %u", r->name, name, view->shape[d], d);
    return view;
}

static void draw_parameters(struct run *r)
{
    const struct tensor_table *table = model_table(r->model);
    const json_t *entries = json_object_get(r->json, "parameters");
    float *params = model_params(r->model);
    struct random random;
    json_t *entry;
    size_t i;

    assert_ok(model_init(r->model, 0, RANDOM_FMA, &err)); /* initialises the buffers */
    ck_assert_uint_eq(json_array_size(entries), table->length);
    random_seed(&random, size_of(r, "seed"));
    json_array_foreach(entries, i, entry)
    {
        const struct tensor_view *view = find_view(r, table, entry);

        random_uniform(&random, params + view->offset, view->count, number(r, entry, "from"),
                       number(r, entry, "to"), RANDOM_FMA);
        check_hash(r, view->name, text(r, entry, "init_hash"), params + view->offset, view->count);
    }
    memcpy(r->first, params, table->count * sizeof(float));
    assert_ok(model_params_changed(r->model, &err));
}

static void draw_labels(struct run *r, struct random *random)
{
    uint32_t classes = (uint32_t)size_of(r, "classes");

    for (size_t i = 0; i < r->batch * r->batches; i++)
        r->y[i] = (int32_t)(random_u32(random) % classes);
}

static void draw_images(struct run *r, struct random *random)
{
    const json_t *shape = json_object_get(r->json, "shape");
    size_t height = (size_t)json_integer_value(json_array_get(shape, 1));
    size_t width = (size_t)json_integer_value(json_array_get(shape, 2));
    size_t columns = (width + 3) / 4;
    size_t rows = (height + 3) / 4;
    size_t planes = r->batch * r->batches * (size_t)json_integer_value(json_array_get(shape, 0));
    float *coarse = allocate(planes * rows * columns, sizeof(float));

    random_uniform(random, coarse, planes * rows * columns, -1, 1, RANDOM_FMA);
    random_uniform(random, r->x, planes * height * width, -0.25, 0.25, RANDOM_FMA);
    for (size_t p = 0; p < planes; p++)
        for (size_t h = 0; h < height; h++)
            for (size_t w = 0; w < width; w++)
                r->x[(p * height + h) * width + w] += coarse[(p * rows + h / 4) * columns + w / 4];
    free(coarse);
    draw_labels(r, random);
}

static void draw_tokens(struct run *r, struct random *random)
{
    uint32_t vocabulary = (uint32_t)size_of(r, "classes");
    size_t count = r->batch * r->batches * r->positions;
    uint32_t id = (random_u32(random) & 0x7fffffff) % vocabulary;

    for (size_t i = 0; i < count; i++) {
        r->x[i] = (float)id;
        id = (5 * id + (random_u32(random) & 0x7fffffff) % 4) % vocabulary;
        r->y[i] = (int32_t)id;
    }
}

static void draw_data(struct run *r)
{
    struct random random;

    random_seed(&random, size_of(r, "seed") + 1);
    if (r->positions > 1)
        draw_tokens(r, &random);
    else
        draw_images(r, &random);
    check_hash(r, "x", text(r, r->json, "data_hash"), r->x, r->batch * r->batches * r->features);
    check_hash(r, "y", text(r, r->json, "labels_hash"), r->y, r->batch * r->batches * r->positions);
}

/* ---- the run ---- */

static void open_optimizer(struct run *r)
{
    struct optimizer_config config;
    enum optimizer_kind kind;

    ck_assert(optimizer_parse(text(r, r->json, "optimizer"), &kind));
    config = optimizer_defaults(kind);
    config.learning_rate = number(r, r->json, "lr");
    config.weight_decay = number(r, r->json, "weight_decay");
    if (kind == OPTIMIZER_SGD)
        config.momentum = number(r, r->json, "momentum");
    assert_ok(optimizer_init(&r->optimizer, &config, model_table(r->model)->count, &err));
}

static void run_open(struct run *r, const char *name)
{
    char file[128];
    json_error_t problem;

    *r = (struct run){.name = name};
    (void)snprintf(file, sizeof(file), "tests/data/torch/%s.json", name);
    r->json = json_load_file(support_source(file), 0, &problem);
    ck_assert_msg(r->json != NULL, "%s: %s", name, problem.text);
    r->batch = size_of(r, "batch");
    r->batches = size_of(r, "batches");
    assert_ok(compute_open("cpu", 0, 1, &r->compute, &err));
    assert_ok(model_open(text(r, r->json, "model"), r->compute, r->batch, &r->model, &err));
    r->features = model_inputs(r->model);
    r->positions = model_positions(r->model);
    ck_assert_uint_eq(r->features, size_of(r, "features"));
    ck_assert_uint_eq(r->positions, size_of(r, "positions"));
    ck_assert_uint_eq(model_classes(r->model), size_of(r, "classes"));
    r->first = allocate(model_table(r->model)->count, sizeof(float));
    r->x = allocate(r->batch * r->batches * r->features, sizeof(float));
    r->y = allocate(r->batch * r->batches * r->positions, sizeof(int32_t));
    draw_parameters(r);
    draw_data(r);
    open_optimizer(r);
}

static void run_close(struct run *r)
{
    optimizer_release(&r->optimizer);
    model_close(r->model);
    compute_close(r->compute);
    json_decref(r->json);
    free(r->first);
    free(r->x);
    free(r->y);
}

/* Compare relative to the expected value; `floor` replaces it where it is smaller, for example 0
 * for a bias before a batch norm. */
static void check_close(const struct run *r, const char *what, const char *which, double got,
                        double expected, double floor, double tolerance, double *worst)
{
    double difference = fabs(got - expected) / fmax(fabs(expected), floor);

    if (difference > *worst)
        *worst = difference;
    ck_assert_msg(difference <= tolerance, "%s: %s of %s is %.9g, PyTorch has %.9g", r->name, what,
                  which, got, expected);
}

/* The norm of a - b; b may be NULL. */
static double norm(const float *a, const float *b, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++) {
        double difference = (double)a[i] - (b ? (double)b[i] : 0.0);

        sum += difference * difference;
    }
    return sqrt(sum);
}

/* A figure of each parameter: its key, the floor as a fraction of the largest, and the tolerance.
 */
struct figure {
    const char *key;
    double floor_part, tolerance;
};

static const struct figure first_gradient = {"first_gradient", GRADIENT_FLOOR, GRADIENT_TOLERANCE};
static const struct figure moved = {"moved", MOVED_FLOOR, MOVED_TOLERANCE};
static const struct figure last_norm = {"norm", 0, TOLERANCE};

/* The norms of slab - minus; minus may be NULL. */
static void check_norms(struct run *r, const struct figure *figure, const float *slab,
                        const float *minus, double *worst)
{
    const json_t *entries = json_object_get(r->json, "parameters");
    double largest = 0;
    json_t *entry;
    size_t i;

    json_array_foreach(entries, i, entry) largest = fmax(largest, number(r, entry, figure->key));
    json_array_foreach(entries, i, entry)
    {
        const struct tensor_view *view = find_view(r, model_table(r->model), entry);
        size_t at = view->offset;

        check_close(
            r, figure->key, view->name, norm(slab + at, minus ? minus + at : NULL, view->count),
            number(r, entry, figure->key), figure->floor_part * largest, figure->tolerance, worst);
    }
}

static void train_step(struct run *r, size_t step)
{
    size_t at = r->batch * (step % r->batches);
    size_t count = model_table(r->model)->count;
    const json_t *losses = json_object_get(r->json, "losses");
    double loss = -1;
    char which[32];

    assert_ok(model_step(r->model, r->x + at * r->features, r->y + at * r->positions, r->batch,
                         false, NULL, NULL, &loss, &err));
    (void)snprintf(which, sizeof(which), "step %zu", step);
    check_close(r, "loss", which, loss, json_number_value(json_array_get(losses, step)), 0,
                TOLERANCE, &r->worst.loss);
    if (step == 0)
        check_norms(r, &first_gradient, model_grads(r->model), NULL, &r->worst.gradient);
    optimizer_update(&r->optimizer, step + 1, 0, count, model_params(r->model),
                     model_grads(r->model));
    assert_ok(model_params_changed(r->model, &err));
}

static void check_buffers(struct run *r)
{
    const json_t *entries = json_object_get(r->json, "buffers");
    const struct tensor_table *table = model_buffer_table(r->model);
    json_t *entry;
    size_t i;

    ck_assert_uint_eq(json_array_size(entries), table->length);
    json_array_foreach(entries, i, entry)
    {
        const struct tensor_view *view = find_view(r, table, entry);
        const float *values = model_buffers(r->model) + view->offset;

        if (view->kind == TENSOR_INT64)
            ck_assert_int_eq(tensor_get_int64(values), (int64_t)number(r, entry, "norm"));
        else
            check_close(r, "norm", view->name, norm(values, NULL, view->count),
                        number(r, entry, "norm"), 0, TOLERANCE, &r->worst.norm);
    }
}

static void check_evaluation(struct run *r)
{
    double loss = -1;
    size_t correct = 0;
    size_t expected = size_of(r, "evaluate_correct");

    assert_ok(model_evaluate(r->model, r->x, r->y, r->batch, &loss, &correct, &err));
    check_close(r, "loss", "evaluation", loss, number(r, r->json, "evaluate_loss"), 0, TOLERANCE,
                &r->worst.loss);
    ck_assert_msg(correct + 1 >= expected && correct <= expected + 1, "%s: %zu correct, not %zu",
                  r->name, correct, expected);
}

static const char *const names[] = {"mlp_bn",   "cnn",      "lenet", "gpt",
                                    "resnet18", "resnet50", "vgg11", "resnet18_stem"};

/* From a seed: the same values as PyTorch for uniform distributions, else values of the same
 * spread: the norms of two draws of n normal values differ by about 1 / sqrt(n). */
START_TEST(test_starts_as_pytorch)
{
    struct run r;
    json_t *entry;
    size_t i;

    run_open(&r, names[_i]);
    assert_ok(model_init(r.model, size_of(&r, "seed"), RANDOM_FMA, &err));
    json_array_foreach(json_object_get(r.json, "parameters"), i, entry)
    {
        const struct tensor_view *view = find_view(&r, model_table(r.model), entry);
        const float *values = model_params(r.model) + view->offset;
        double expected = number(&r, entry, "seeded_norm");
        double got = norm(values, NULL, view->count);

        ck_assert_msg(fabs(got - expected) <= 6 / sqrt((double)view->count) * expected,
                      "%s: %s begins with the norm %g, PyTorch's with %g", r.name, view->name, got,
                      expected);
        if (json_object_get(entry, "seeded_hash"))
            check_hash(&r, view->name, text(&r, entry, "seeded_hash"), values, view->count);
    }
    run_close(&r);
}
END_TEST

START_TEST(test_repeats_pytorch)
{
    struct run r;

    run_open(&r, names[_i]);
    for (size_t step = 0; step < size_of(&r, "steps"); step++)
        train_step(&r, step);
    check_norms(&r, &moved, model_params(r.model), r.first, &r.worst.moved);
    check_norms(&r, &last_norm, model_params(r.model), NULL, &r.worst.norm);
    check_buffers(&r);
    check_evaluation(&r);
    (void)printf("%s: losses %.1e, first gradient %.1e, moved %.1e, norms %.1e\n", r.name,
                 r.worst.loss, r.worst.gradient, r.worst.moved, r.worst.norm);
    run_close(&r);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("torch_parity", 100,
                       LOOP_TEST(test_starts_as_pytorch, 0, sizeof(names) / sizeof(names[0])),
                       LOOP_TEST(test_repeats_pytorch, 0, sizeof(names) / sizeof(names[0])));
}
