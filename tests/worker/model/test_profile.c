/*
 * Models of --model profile:FILE: parameters, times and gradients are those of the file; files that
 * are wrong are refused with the member that is.
 */
#include "common/base/file.h"
#include "tests/support/support.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define BATCH 3

static struct error err;

static const char *write_profile(const char *text)
{
    const char *path = support_path("profile.json");

    assert_ok(file_write_atomic(path, text, strlen(text), &err));
    return path;
}

static enum status open_profile(const char *text, struct compute *compute, struct model **ret)
{
    char spec[4200];

    (void)snprintf(spec, sizeof(spec), "profile:%s", write_profile(text));
    return model_open(spec, compute, BATCH, ret, &err);
}

static struct model *open_good(const char *text, struct compute **ret_compute)
{
    struct model *m = NULL;

    assert_ok(compute_open("cpu", 0, 1, ret_compute, &err));
    assert_ok(open_profile(text, *ret_compute, &m));
    return m;
}

/* Moments of the gradients of one step. */
struct moments {
    clockid_t clock;
    size_t ready[8];
    double us[8];
    size_t count;
};

static double now_us(clockid_t clock)
{
    struct timespec now;

    ck_assert_int_eq(clock_gettime(clock, &now), 0);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void note_moment(void *user, size_t ready_count)
{
    struct moments *m = user;

    ck_assert_uint_lt(m->count, 8);
    m->ready[m->count] = ready_count;
    m->us[m->count++] = now_us(m->clock);
}

static void step(struct model *m, bool accumulate, struct moments *moments)
{
    const float x[BATCH] = {0};
    const int32_t labels[BATCH] = {1, 0, 1};
    double loss = 0;

    moments->count = 0;
    assert_ok(model_step(m, x, labels, BATCH, accumulate, note_moment, moments, &loss, &err));
    ck_assert_double_eq_tol(loss, log(2), 1e-6); /* two equal logits, and float32 */
}

#define LAYERS                                                                                     \
    "\"layers\": [{\"name\": \"conv\", \"forward_us\": 3000, \"backward_us\": 2500.5, "            \
    "\"parameters\": {\"weight\": [4, 3, 2, 2], \"bias\": [4]}}, "                                 \
    "{\"name\": \"relu\", \"forward_us\": 500, \"backward_us\": 700}, "                            \
    "{\"name\": \"head\", \"forward_us\": 1000, \"backward_us\": 2000, \"bytes\": 400}]}"

static const char *const kinds[] = {"busy", "idle"};

/* A layer's gradients are ready once its backward, and that of the layers behind it, have taken
 * their time: of the processor where the layers are busy, else on the clock. */
START_TEST(test_times_and_gradients)
{
    bool busy = _i == 0;
    struct moments at = {.clock = busy ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC};
    char text[1024];
    struct compute *compute;
    struct model *m;
    float first[152];

    (void)snprintf(text, sizeof(text), "{\"version\": 1, \"compute\": \"%s\", " LAYERS, kinds[_i]);
    m = open_good(text, &compute);
    ck_assert_uint_eq(model_table(m)->count, 48 + 4 + 100);
    ck_assert_uint_ne(model_times_hash(m), 0);
    assert_ok(model_init(m, 1, RANDOM_TWO_ROUNDINGS, &err));
    for (int round = 0; round < 2; round++) {
        double start = now_us(at.clock);

        step(m, false, &at);
        ck_assert_uint_eq(at.count, 2);
        ck_assert_uint_eq(at.ready[0], 100);
        ck_assert_uint_eq(at.ready[1], 152);
        ck_assert_double_ge(at.us[0] - start, 4500 + 2000);
        ck_assert_double_ge(at.us[1] - start, 4500 + 2000 + 700 + 2500.5);
        if (round == 0)
            memcpy(first, model_grads(m), sizeof(first));
        ck_assert_mem_eq(first, model_grads(m), sizeof(first));
    }
    for (size_t i = 1; i < 152; i++)
        ck_assert(i == 100 || first[i] != 0.0f); /* each layer's first one is 0 */
    step(m, true, &at);
    for (size_t i = 0; i < 152; i++)
        ck_assert(model_grads(m)[i] == (busy ? 2 : 1) * first[i]);
    model_close(m);
    compute_close(compute);
}
END_TEST

START_TEST(test_parameters)
{
    static const char *const names[] = {"conv.weight", "conv.bias", "head.weight"};
    struct compute *compute;
    struct model *m = open_good(
        "{\"version\": 1, \"name\": \"n\", \"batch\": 3, \"bytes\": 608, " LAYERS, &compute);
    const struct tensor_table *t = model_table(m);

    ck_assert_uint_eq(t->length, 3);
    for (size_t i = 0; i < 3; i++)
        ck_assert_str_eq(t->views[i].name, names[i]);
    ck_assert_uint_eq(t->views[0].dims, 4);
    ck_assert_uint_eq(t->views[0].shape[1], 3);
    ck_assert_uint_eq(t->views[2].count, 100);
    model_close(m);
    compute_close(compute);
}
END_TEST

/* Ranks compare a number of the times: any other time, or kind of compute, gives another. */
START_TEST(test_times_hash)
{
#define ONE(compute, forward, backward)                                                            \
    "{\"version\": 1, \"compute\": \"" compute "\", \"layers\": [{\"name\": \"a\", \"bytes\": 4, " \
    "\"forward_us\": " forward ", \"backward_us\": " backward "}]}"
    static const char *const texts[] = {ONE("busy", "1", "2"), ONE("idle", "1", "2"),
                                        ONE("busy", "2", "1"), ONE("busy", "1", "2.001")};
    uint64_t hashes[4];

    for (size_t i = 0; i < 4; i++) {
        struct compute *compute;
        struct model *m = open_good(texts[i], &compute);

        hashes[i] = model_times_hash(m);
        for (size_t k = 0; k < i; k++)
            ck_assert_uint_ne(hashes[i], hashes[k]);
        model_close(m);
        compute_close(compute);
    }
}
END_TEST

#define LAYER "\"forward_us\": 1, \"backward_us\": 1"
static const struct {
    const char *text, *part;
} refused[] = {
    {"", "profile.json:1:0: "},
    {"{\"version\": 1, \"version\": 1}", "duplicate object key"},
    {"[1]", "the file: expected a JSON object"},
    {"{\"layers\": []}", "version: expected 1, the only one"},
    {"{\"version\": 2}", "version: expected 1, the only one"},
    {"{\"version\": 1.0}", "version: expected an integer from 0"},
    {"{\"version\": 1, \"layer\": []}", "layer: there is no such member"},
    {"{\"version\": 1, \"batch\": -1}", "batch: expected an integer from 0"},
    {"{\"version\": 1, \"bytes\": \"4\"}", "bytes: expected an integer from 0"},
    {"{\"version\": 1, \"compute\": \"lazy\"}", "compute: expected \"busy\" or \"idle\""},
    {"{\"version\": 1, \"compute\": 1}", "compute: expected \"busy\" or \"idle\""},
    {"{\"version\": 1}", "layers: expected an array of 1 to 4096 layers"},
    {"{\"version\": 1, \"layers\": []}", "layers: expected an array of 1 to 4096 layers"},
    {"{\"version\": 1, \"layers\": [1]}", "layers[0].name: expected a name"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"\"}]}", "layers[0].name: expected a name"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", \"weight\": 1}]}",
     "layers[0].weight: there is no such member"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\"}]}",
     "layers[0].forward_us: expected a number of microseconds"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", \"forward_us\": 1, \"backward_us\": -1}]}",
     "layers[0].backward_us: expected a number of microseconds from 0 to 60000000"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", \"forward_us\": 1e8, \"backward_us\": 1}]}",
     "layers[0].forward_us: expected a number of microseconds from 0 to 60000000"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER ", \"bytes\": 3}]}",
     "layers[0].bytes: expected a multiple of 4"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER
     ", \"bytes\": 4, \"parameters\": {}}]}",
     "layers[0].bytes: expected either this or parameters"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER ", \"parameters\": []}]}",
     "layers[0].parameters: expected an object of names and shapes"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER ", \"parameters\": {\"w\": 4}}]}",
     "parameter a.w: expected a shape"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER ", \"parameters\": {\"w\": [0]}}]}",
     "parameter a.w: expected a shape"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER
     ", \"parameters\": {\"w\": [1, 1, 1, 1, 1, 1, 1]}}]}",
     "parameter a.w: expected a shape"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER ", \"bytes\": 4}, "
     "{\"name\": \"a\", " LAYER ", \"bytes\": 4}]}",
     "tensor 'a.weight' is there twice"},
    {"{\"version\": 1, \"layers\": [{\"name\": \"a\", " LAYER "}]}",
     "layers: expected at least one parameter"},
    {"{\"version\": 1, \"bytes\": 8, \"layers\": [{\"name\": \"a\", " LAYER ", \"bytes\": 4}]}",
     "bytes is 8, but the layers have 4"},
    {"{\"version\": 1, \"batch\": 4, \"layers\": [{\"name\": \"a\", " LAYER ", \"bytes\": 4}]}",
     "are of steps of 4 samples, not of 3 (--batch-size)"},
};

START_TEST(test_refusals)
{
    struct compute *compute;
    struct model *m = NULL;

    assert_ok(compute_open("cpu", 0, 1, &compute, &err));
    assert_fails(open_profile(refused[_i].text, compute, &m), STATUS_CONFIG, refused[_i].part);
    assert_fails(model_open("profile:/nonexistent/p.json", compute, BATCH, &m, &err),
                 STATUS_NOT_FOUND, "/nonexistent/p.json");
    compute_close(compute);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("profile", 0, LOOP_TEST(test_times_and_gradients, 0, 2),
                       TEST(test_parameters), TEST(test_times_hash),
                       LOOP_TEST(test_refusals, 0, sizeof(refused) / sizeof(refused[0])));
}
