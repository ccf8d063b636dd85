/*
 * mlp-bn and LayerDrop: training against PyTorch's BatchNorm1d (tests/data/ddp), checkpoints with
 * buffers; a skipped layer against the model without it.
 */
#include "common/checkpoint/safetensors.h"
#include "common/optimizer/optimizer.h"
#include "tests/support/support.h"
#include "tests/worker/model/bounded_model.h"
#include "worker/model/model.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH_MAX 16
#define BATCH_MAX 16

static struct error err;

static struct model *open_model(const char *spec, size_t batch, struct compute **ret_compute)
{
    struct model *m = NULL;

    assert_ok(compute_open("cpu", 0, 1, ret_compute, &err));
    assert_ok(model_open(spec, *ret_compute, batch, &m, &err));
    return m;
}

/* ---- PyTorch ---- */

static void read_state(const struct model *m, const json_t *state, float *slab)
{
    const struct tensor_table *t = model_state_table(m);

    ck_assert_uint_eq(json_object_size(state), t->length);
    for (size_t v = 0; v < t->length; v++) {
        const struct tensor_view *view = &t->views[v];
        const json_t *list = json_object_get(state, view->name);
        bool is_count = view->kind == TENSOR_INT64;

        ck_assert_msg(json_array_size(list) == (is_count ? 1 : view->count), "%s", view->name);
        if (is_count)
            tensor_set_int64(slab + view->offset,
                             (int64_t)json_number_value(json_array_get(list, 0)));
        for (size_t i = 0; !is_count && i < view->count; i++)
            slab[view->offset + i] = (float)json_number_value(json_array_get(list, i));
    }
}

/* The difference of two float32 steps is at most the sum of their bounds. */
static void compare_gradients(struct model *m, const json_t *gradients,
                              const struct bounded_model *bounded)
{
    const struct tensor_table *t = model_table(m);

    for (size_t v = 0; v < t->length; v++) {
        const json_t *list = json_object_get(gradients, t->views[v].name);

        ck_assert_uint_eq(json_array_size(list), t->views[v].count);
        for (size_t i = 0; i < t->views[v].count; i++)
            ck_assert_double_le(fabs((double)model_grads(m)[t->views[v].offset + i] -
                                     json_number_value(json_array_get(list, i))),
                                2.0 * bounded->grads[t->views[v].offset + i].error);
    }
}

static void compare_state(struct model *m, const json_t *state)
{
    const struct tensor_table *t = model_state_table(m);
    float *slab = calloc(t->count, sizeof(*slab));

    ck_assert_ptr_nonnull(slab);
    read_state(m, state, slab);
    for (size_t v = 0; v < t->length; v++) {
        const float *got = model_params(m) + t->views[v].offset;
        const float *expected = slab + t->views[v].offset;

        if (t->views[v].kind == TENSOR_INT64)
            ck_assert_int_eq(tensor_get_int64(got), tensor_get_int64(expected));
        for (size_t i = 0; t->views[v].kind == TENSOR_FLOAT32 && i < t->views[v].count; i++)
            ck_assert_double_eq_tol((double)got[i], (double)expected[i],
                                    2e-4 * (1 + fabs((double)expected[i])));
    }
    free(slab);
}

static void train_as_pytorch(struct model *m, const json_t *file, size_t batch, float *first_x,
                             int32_t *first_y)
{
    const json_t *losses = json_object_get(file, "losses");
    size_t features = model_inputs(m);
    static struct bounded_model bounded;
    struct spec spec;
    struct optimizer_config config = optimizer_defaults(OPTIMIZER_SGD);
    struct optimizer optimizer;

    assert_ok(spec_parse(json_string_value(json_object_get(file, "spec")), &spec, &err));
    config.learning_rate = json_number_value(json_object_get(file, "lr"));
    config.momentum = json_number_value(json_object_get(file, "momentum"));
    assert_ok(optimizer_init(&optimizer, &config, model_table(m)->count, &err));
    for (size_t step = json_array_size(losses);
         step-- > 0;) { /* the first batch remains in first_x */
        size_t at = json_array_size(losses) - 1 - step;
        float x[BATCH_MAX * WIDTH_MAX];
        int32_t y[BATCH_MAX];
        double loss;

        for (size_t i = 0; i < batch * features; i++)
            x[i] = (float)json_number_value(
                json_array_get(json_object_get(file, "x"), at * batch * features + i));
        for (size_t i = 0; i < batch; i++)
            y[i] = (int32_t)json_integer_value(
                json_array_get(json_object_get(file, "y"), at * batch + i));
        if (at == 0) {
            bounded_model_step(&bounded, &spec, model_table(m), model_params(m), x, y, batch);
            memcpy(first_x, x, batch * features * sizeof(*x));
            memcpy(first_y, y, batch * sizeof(*y));
        }
        assert_ok(model_step(m, x, y, batch, false, NULL, NULL, &loss, &err));
        ck_assert_double_eq_tol(loss, json_number_value(json_array_get(losses, at)), 1e-4);
        if (at == 0)
            compare_gradients(m, json_object_get(file, "gradients"), &bounded);
        optimizer_update(&optimizer, at + 1, 0, model_table(m)->count, model_params(m),
                         model_grads(m));
    }
    optimizer_release(&optimizer);
}

START_TEST(test_as_pytorch)
{
    json_t *file = json_load_file(support_source("tests/data/ddp/batch_norm.json"), 0, NULL);
    size_t batch = (size_t)json_integer_value(json_object_get(file, "batch"));
    struct compute *compute;
    struct model *m =
        open_model(json_string_value(json_object_get(file, "spec")), BATCH_MAX, &compute);
    float x[BATCH_MAX * WIDTH_MAX];
    int32_t y[BATCH_MAX];
    double loss;
    size_t correct;

    read_state(m, json_object_get(file, "before"), model_params(m));
    train_as_pytorch(m, file, batch, x, y);
    compare_state(m, json_object_get(file, "after"));
    assert_ok(model_evaluate(m, x, y, batch, &loss, &correct, &err));
    ck_assert_double_eq_tol(loss, json_number_value(json_object_get(file, "evaluation")), 1e-3);
    compare_state(m, json_object_get(file, "after")); /* evaluation does not change statistics */
    json_decref(file);
    model_close(m);
    compute_close(compute);
}
END_TEST

START_TEST(test_checkpoint_holds_buffers)
{
    const char *path = support_path("bn.safetensors");
    struct compute *compute;
    struct compute *other_compute;
    struct model *m = open_model("mlp-bn:4-5-3", 4, &compute);
    struct model *other = open_model("mlp-bn:4-5-3", 4, &other_compute);
    struct safetensors file;
    float x[16];
    int32_t y[4] = {0, 1, 2, 1};
    double loss[2];
    size_t correct;
    float *tracked;

    for (size_t i = 0; i < 16; i++)
        x[i] = (float)support_random();
    assert_ok(model_init(m, 1, RANDOM_TWO_ROUNDINGS, &err));
    assert_ok(model_init(other, 2, RANDOM_TWO_ROUNDINGS, &err));
    assert_ok(model_step(m, x, y, 4, false, NULL, NULL, &loss[0], &err));
    assert_ok(safetensors_save_slab(path, model_state_table(m), model_params(m), NULL, 0, &err));
    assert_ok(safetensors_read(path, 1 << 20, &file, &err));
    ck_assert_ptr_nonnull(safetensors_find(&file, "1.running_var"));
    ck_assert_uint_eq(safetensors_find(&file, "1.num_batches_tracked")->dims, 0);
    ck_assert_str_eq(safetensors_find(&file, "1.num_batches_tracked")->dtype, "I64");
    assert_ok(safetensors_load_slab(&file, model_state_table(other), model_params(other), &err));
    safetensors_release(&file);
    assert_ok(model_evaluate(m, x, y, 4, &loss[0], &correct, &err));
    assert_ok(model_evaluate(other, x, y, 4, &loss[1], &correct, &err));
    ck_assert(loss[0] == loss[1]);
    ck_assert_uint_eq(model_buffer_table(m)->count, 12);
    tracked = model_buffers(m) +
              tensor_table_find(model_buffer_table(m), "1.num_batches_tracked")->offset;
    ck_assert_int_eq(tensor_get_int64(tracked), 1);
    tensor_set_int64(tracked, INT64_C(1) << 40); /* float32 could not count further */
    assert_ok(model_step(m, x, y, 4, false, NULL, NULL, &loss[0], &err));
    ck_assert_int_eq(tensor_get_int64(tracked), (INT64_C(1) << 40) + 1);
    assert_fails(model_step(m, x, y, 1, false, NULL, NULL, &loss[0], &err), STATUS_DATA,
                 "batch normalisation '1' needs more than 1 value per channel");
    ck_assert_ptr_nonnull(strstr(err.text, "has a batch of 1 sample"));
    model_close(m);
    model_close(other);
    compute_close(compute);
    compute_close(other_compute);
}
END_TEST

/* ---- LayerDrop ---- */

static void copy_view(struct model *to, const char *to_name, struct model *from,
                      const char *from_name)
{
    const struct tensor_view *a = tensor_table_find(model_table(to), to_name);
    const struct tensor_view *b = tensor_table_find(model_table(from), from_name);

    ck_assert(a && b && a->count == b->count);
    memcpy(model_params(to) + a->offset, model_params(from) + b->offset, a->count * sizeof(float));
}

static void same_gradient(struct model *a, const char *a_name, struct model *b, const char *b_name)
{
    const struct tensor_view *x = tensor_table_find(model_table(a), a_name);
    const struct tensor_view *y = tensor_table_find(model_table(b), b_name);

    ck_assert_int_eq(
        memcmp(model_grads(a) + x->offset, model_grads(b) + y->offset, x->count * sizeof(float)),
        0);
}

static void check_skipped(struct model *m, struct model *without)
{
    const struct tensor_view *weight = tensor_table_find(model_table(m), "fc2.weight");

    for (size_t i = 0; i < weight->count; i++)
        ck_assert(model_grads(m)[weight->offset + i] == 0.0f);
    same_gradient(m, "fc1.weight", without, "fc1.weight");
    same_gradient(m, "fc1.bias", without, "fc1.bias");
    same_gradient(m, "fc3.weight", without, "fc2.weight");
    same_gradient(m, "fc3.bias", without, "fc2.bias");
}

START_TEST(test_a_skipped_layer_is_not_there)
{
    struct compute *computes[2];
    struct model *m = open_model("mlp:6-8-8-3", 4, &computes[0]);
    struct model *without = open_model("mlp:6-8-3", 4, &computes[1]);
    float x[24];
    int32_t y[4] = {0, 1, 2, 1};
    int skipped = 0;

    for (size_t i = 0; i < 24; i++)
        x[i] = (float)support_random() - 0.5f;
    assert_ok(model_init(m, 1, RANDOM_TWO_ROUNDINGS, &err));
    copy_view(without, "fc1.weight", m, "fc1.weight");
    copy_view(without, "fc1.bias", m, "fc1.bias");
    copy_view(without, "fc2.weight", m, "fc3.weight");
    copy_view(without, "fc2.bias", m, "fc3.bias");
    model_set_layer_drop(m, 0.5, 7);
    for (int n = 0; n < 40; n++) {
        const bool *used = model_used(m);
        double loss[2];
        size_t correct;

        assert_ok(model_step(m, x, y, 4, false, NULL, NULL, &loss[0], &err));
        assert_ok(model_step(without, x, y, 4, false, NULL, NULL, &loss[1], &err));
        ck_assert(used[0] && used[1] && used[2] == used[3] && used[4] && used[5]);
        ck_assert((loss[0] == loss[1]) == !used[2]);
        if (!used[2])
            check_skipped(m, without);
        skipped += !used[2];
        assert_ok(model_evaluate(m, x, y, 4, &loss[0], &correct, &err));
        ck_assert(loss[0] != loss[1]); /* evaluation skips nothing */
    }
    ck_assert_int_ge(skipped, 10);
    ck_assert_int_le(skipped, 30);
    model_close(m);
    model_close(without);
    compute_close(computes[0]);
    compute_close(computes[1]);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("batch_norm", 0, TEST(test_as_pytorch), TEST(test_checkpoint_holds_buffers),
                       TEST(test_a_skipped_layer_is_not_there));
}
