/*
 * The optimizers against PyTorch's results (tests/data/optimizer), against formulas in double with
 * random settings, and against themselves: equal bits for every split into ranges and every width.
 */
#include "common/base/memory.h"
#include "common/optimizer/optimizer.h"
#include "common/optimizer/optimizer_kernels.h"
#include "tests/support/bounded.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* ---- one element in double, and its error bound in float32 ---- */

struct exact {
    struct bounded param, momentum, first, second;
};

/* A setting, which float32 rounds. */
static struct bounded bounded_setting(double value)
{
    return bounded_round(value, 0.0);
}

static struct bounded scaled(double factor, struct bounded value)
{
    return bounded_product(bounded_setting(factor), value);
}

static void exact_sgd(const struct optimizer_config *c, uint64_t step, struct exact *e,
                      struct bounded g)
{
    if (c->weight_decay > 0.0)
        g = bounded_plus(g, scaled(c->weight_decay, e->param));
    if (c->momentum > 0.0) {
        e->momentum = step == 1 ? g
                                : bounded_plus(scaled(c->momentum, e->momentum),
                                               scaled(1.0 - c->dampening, g));
        g = c->nesterov ? bounded_plus(g, scaled(c->momentum, e->momentum)) : e->momentum;
    }
    e->param = bounded_minus(e->param, scaled(c->learning_rate, g));
}

/* beta old + (1 - beta) new as old + (1 - beta) (new - old): the setting, the difference and the
 * product round. */
static struct bounded blended(double beta, struct bounded old, struct bounded new)
{
    double error = beta * old.error + (1.0 - beta) * new.error;

    error += 3.0 * ROUNDING * (fabs(new.value - old.value) + new.error + old.error);
    return bounded_round(beta * old.value + (1.0 - beta) * new.value, error);
}

static void exact_adam(const struct optimizer_config *c, uint64_t step, struct exact *e,
                       struct bounded g)
{
    double t = (double)step;
    struct bounded divisor;

    if (c->kind == OPTIMIZER_ADAM && c->weight_decay > 0.0)
        g = bounded_plus(g, scaled(c->weight_decay, e->param));
    else if (c->kind == OPTIMIZER_ADAMW)
        e->param = scaled(1.0 - c->learning_rate * c->weight_decay, e->param);
    e->first = blended(c->beta1, e->first, g);
    e->second =
        bounded_plus(scaled(c->beta2, e->second), bounded_product(scaled(1.0 - c->beta2, g), g));
    divisor =
        bounded_quotient(bounded_root(e->second), bounded_setting(sqrt(1.0 - pow(c->beta2, t))));
    divisor = bounded_plus(divisor, bounded_setting(c->epsilon));
    e->param = bounded_minus(
        e->param,
        bounded_quotient(scaled(c->learning_rate / (1.0 - pow(c->beta1, t)), e->first), divisor));
}

static void exact_update(const struct optimizer_config *c, uint64_t step, struct exact *exact,
                         const float *grad, size_t count)
{
    for (size_t i = 0; i < count; i++)
        (c->kind == OPTIMIZER_SGD ? exact_sgd : exact_adam)(c, step, &exact[i],
                                                            bounded_exact((double)grad[i]));
}

static void exact_start(struct exact *exact, const float *param, size_t count)
{
    for (size_t i = 0; i < count; i++)
        exact[i] = (struct exact){.param = bounded_exact((double)param[i])};
}

/* ---- PyTorch's figures ---- */

static json_t *golden_open(void)
{
    json_error_t problem;
    json_t *root = json_load_file(support_source("tests/data/optimizer/pytorch.json"), 0, &problem);

    ck_assert_msg(root != NULL, "pytorch.json: %s", problem.text);
    return root;
}

static size_t read_floats(const json_t *array, float *values, size_t limit)
{
    size_t count = json_array_size(array);

    ck_assert_uint_gt(count, 0);
    ck_assert_uint_le(count, limit);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)json_number_value(json_array_get(array, i));
    return count;
}

static void read_number(const json_t *object, const char *key, double *value)
{
    const json_t *number = json_object_get(object, key);

    if (number)
        *value = json_number_value(number);
}

static struct optimizer_config read_config(const json_t *test)
{
    enum optimizer_kind kind = OPTIMIZER_SGD;
    const json_t *betas = json_object_get(test, "betas");
    struct optimizer_config c;

    ck_assert(optimizer_parse(json_string_value(json_object_get(test, "kind")), &kind));
    c = optimizer_defaults(kind);
    read_number(test, "lr", &c.learning_rate);
    read_number(test, "momentum", &c.momentum);
    read_number(test, "dampening", &c.dampening);
    read_number(test, "weight_decay", &c.weight_decay);
    read_number(test, "eps", &c.epsilon);
    c.nesterov = json_is_true(json_object_get(test, "nesterov"));
    if (betas) {
        c.beta1 = json_number_value(json_array_get(betas, 0));
        c.beta2 = json_number_value(json_array_get(betas, 1));
    }
    return c;
}

/* PyTorch's operations round in other places: two float32 results are twice as far apart. */
static void check_golden_case(const json_t *root, const json_t *test, size_t index)
{
    const json_t *grads = json_object_get(root, "grads");
    const json_t *after = json_object_get(test, "after");
    struct optimizer_config config = read_config(test);
    struct optimizer o;
    float param[64];
    float grad[64];
    float wanted[64];
    struct exact exact[64];
    size_t count = read_floats(json_object_get(root, "param"), param, 64);
    size_t checked = 0;

    assert_ok(optimizer_init(&o, &config, count, &err));
    exact_start(exact, param, count);
    for (size_t step = 1; step <= json_array_size(grads); step++) {
        const json_t *figures;
        char key[24];

        ck_assert_uint_eq(read_floats(json_array_get(grads, step - 1), grad, 64), count);
        optimizer_update(&o, step, 0, count, param, grad);
        exact_update(&config, step, exact, grad, count);
        (void)snprintf(key, sizeof(key), "%zu", step);
        figures = json_object_get(after, key);
        if (!figures)
            continue;
        ck_assert_uint_eq(read_floats(figures, wanted, 64), count);
        checked++;
        for (size_t i = 0; i < count; i++)
            ck_assert_msg(fabs((double)param[i] - (double)wanted[i]) <= 2.0 * exact[i].param.error,
                          "case %zu (%s), step %zu: element %zu is %.9g, PyTorch has %.9g", index,
                          optimizer_name(config.kind), step, i, (double)param[i],
                          (double)wanted[i]);
    }
    ck_assert_uint_eq(checked, 3);
    optimizer_release(&o);
}

START_TEST(test_pytorch_figures)
{
    json_t *root = golden_open();
    const json_t *cases = json_object_get(root, "cases");

    ck_assert_uint_ge(json_array_size(cases), 11);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_golden_case(root, json_array_get(cases, i), i);
    json_decref(root);
}
END_TEST

/* ---- random settings ---- */

static bool random_bool(void)
{
    return support_random() < 0.5;
}

static struct optimizer_config random_config(enum optimizer_kind kind)
{
    struct optimizer_config c = optimizer_defaults(kind);

    c.learning_rate = 0.001 + 0.1 * support_random();
    c.weight_decay = random_bool() ? 0.1 * support_random() : 0.0;
    if (kind == OPTIMIZER_SGD) {
        c.momentum = random_bool() ? 0.05 + 0.9 * support_random() : 0.0;
        c.nesterov = c.momentum > 0.0 && random_bool();
        c.dampening = !c.nesterov && random_bool() ? support_random() : 0.0;
    } else {
        c.beta1 = support_random() * 0.95;
        c.beta2 = 0.5 + 0.499 * support_random();
        c.epsilon = random_bool() ? 1e-8 : 1e-3;
    }
    return c;
}

static void fill_random(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(4.0 * (support_random() - 0.5));
}

START_TEST(test_against_double)
{
    enum { COUNT = 67, STEPS = 20 };

    for (int round = 0; round < 60; round++) {
        struct optimizer_config c = random_config((enum optimizer_kind)_i);
        struct optimizer o;
        struct exact exact[COUNT];
        float param[COUNT];
        float grad[COUNT];

        fill_random(param, COUNT);
        exact_start(exact, param, COUNT);
        assert_ok(optimizer_init(&o, &c, COUNT, &err));
        for (uint64_t step = 1; step <= STEPS; step++) {
            fill_random(grad, COUNT);
            optimizer_update(&o, step, 0, COUNT, param, grad);
            exact_update(&c, step, exact, grad, COUNT);
        }
        for (size_t i = 0; i < COUNT; i++)
            ck_assert_double_le(fabs((double)param[i] - exact[i].param.value),
                                exact[i].param.error);
        optimizer_release(&o);
    }
}
END_TEST

/* ---- ranges ---- */

enum { SLAB = 1003, SLAB_STEPS = 5 };

static void update_in_pieces(struct optimizer *o, uint64_t step, float *param, const float *grad)
{
    size_t at = 0;

    while (at < SLAB) {
        size_t count = (size_t)(support_random() * 150);

        if (count > SLAB - at)
            count = SLAB - at;
        optimizer_update(o, step, at, count, param + at, grad + at);
        at += count;
    }
}

START_TEST(test_ranges)
{
    for (int round = 0; round < 20; round++) {
        struct optimizer_config c = random_config((enum optimizer_kind)_i);
        struct optimizer whole;
        struct optimizer pieces;
        float param[2][SLAB];
        float grad[SLAB];

        fill_random(param[0], SLAB);
        memcpy(param[1], param[0], sizeof(param[0]));
        assert_ok(optimizer_init(&whole, &c, SLAB, &err));
        assert_ok(optimizer_init(&pieces, &c, SLAB, &err));
        for (uint64_t step = 1; step <= SLAB_STEPS; step++) {
            fill_random(grad, SLAB);
            optimizer_update(&whole, step, 0, SLAB, param[0], grad);
            update_in_pieces(&pieces, step, param[1], grad);
        }
        for (size_t i = 0; i < SLAB; i++)
            ck_assert_msg(param[0][i] == param[1][i], "element %zu differs by range", i);
        for (unsigned s = 0; s < whole.states; s++)
            for (size_t i = 0; i < SLAB; i++)
                ck_assert(whole.state[s][i] == pieces.state[s][i]);
        optimizer_release(&whole);
        optimizer_release(&pieces);
    }
}
END_TEST

/* ---- widths ---- */

struct arrays {
    float param[SLAB], first[SLAB], second[SLAB];
};

static const struct optimizer_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(optimizer_kernels);

static float random_term(void)
{
    return random_bool() ? (float)support_random() : 0.0f;
}

static void run_level(int level, const struct sgd_terms *sgd, const struct adam_terms *adam,
                      struct arrays *a, const float *grad, size_t count)
{
    const struct optimizer_kernels *k = tables[level];

    k->sgd(sgd, a->param, grad, count);
    k->sgd_momentum(sgd, a->param, grad, a->first, count);
    k->adam(adam, a->param, grad, a->first, a->second, count);
}

START_TEST(test_widths)
{
    for (int round = 0; round < 200; round++) {
        size_t count = round < 80 ? (size_t)round : (size_t)(support_random() * SLAB);
        struct sgd_terms sgd = {0.1f,          random_term(), random_term(),
                                random_term(), random_bool(), random_bool()};
        struct adam_terms adam = {0.99f, random_term(), random_term(), 0.9f,
                                  0.1f,  0.01f,         0.5f,          1e-8f};
        struct arrays baseline;
        struct arrays wide;
        float grad[SLAB];

        fill_random(grad, SLAB);
        fill_random(baseline.param, SLAB);
        fill_random(baseline.first, SLAB);
        for (size_t i = 0; i < SLAB; i++)
            baseline.second[i] = (float)support_random();
        wide = baseline;
        run_level(SIMD_BASELINE, &sgd, &adam, &baseline, grad, count);
        run_level(_i, &sgd, &adam, &wide, grad, count);
        for (size_t i = 0; i < SLAB; i++)
            ck_assert_msg(
                baseline.param[i] == wide.param[i] && baseline.first[i] == wide.first[i] &&
                    baseline.second[i] == wide.second[i],
                "%s: element %zu of %zu differs", simd_level_name((enum simd_level)_i), i, count);
    }
}
END_TEST

/* ---- settings ---- */

START_TEST(test_defaults_and_names)
{
    static const char *const names[] = {"sgd", "adam", "adamw"};
    enum optimizer_kind kind = OPTIMIZER_ADAM;

    for (int i = 0; i < 3; i++) {
        ck_assert(optimizer_parse(names[i], &kind));
        ck_assert_int_eq((int)kind, i);
        ck_assert_str_eq(optimizer_name(kind), names[i]);
        ck_assert(optimizer_defaults(kind).kind == kind);
    }
    ck_assert(!optimizer_parse("Sgd", &kind) && !optimizer_parse("", &kind));
    ck_assert_double_eq(optimizer_defaults(OPTIMIZER_ADAM).weight_decay, 0.0);
    ck_assert_double_eq(optimizer_defaults(OPTIMIZER_ADAMW).weight_decay, 0.01);
    ck_assert_double_eq(optimizer_defaults(OPTIMIZER_SGD).momentum, 0.0);
}
END_TEST

static void check_init_fails(struct optimizer_config c, const char *part)
{
    struct optimizer o;

    assert_fails(optimizer_init(&o, &c, 4, &err), STATUS_INVALID, part);
    ck_assert_ptr_null(o.state[0]);
}

START_TEST(test_refused_settings)
{
    struct optimizer_config sgd = optimizer_defaults(OPTIMIZER_SGD);
    struct optimizer_config adam = optimizer_defaults(OPTIMIZER_ADAM);
    struct optimizer_config c;

#define WITH(base, field, value) (c = (base), c.field = (value), c)
    check_init_fails(WITH(sgd, learning_rate, -1.0), "learning rate -1");
    check_init_fails(WITH(sgd, learning_rate, nan("")), "learning rate");
    check_init_fails(WITH(sgd, learning_rate, HUGE_VAL), "learning rate");
    check_init_fails(WITH(sgd, momentum, -0.5), "momentum -0.5");
    check_init_fails(WITH(sgd, dampening, nan("")), "dampening");
    check_init_fails(WITH(sgd, weight_decay, -1e-9), "weight decay");
    check_init_fails(WITH(sgd, nesterov, true), "nesterov");
    check_init_fails(WITH(adam, beta1, 1.0), "beta1 1");
    check_init_fails(WITH(adam, beta2, -0.1), "beta2 -0.1");
    check_init_fails(WITH(adam, beta2, nan("")), "beta2");
    check_init_fails(WITH(adam, epsilon, -1.0), "epsilon -1");
    check_init_fails(WITH(adam, kind, (enum optimizer_kind)3), "unknown optimizer 3");
#undef WITH
    sgd.momentum = 0.9;
    sgd.nesterov = true;
    sgd.dampening = 0.1;
    check_init_fails(sgd, "dampening 0.1");
}
END_TEST

START_TEST(test_failing_allocations)
{
    struct optimizer_config adam = optimizer_defaults(OPTIMIZER_ADAM);
    struct optimizer o;

    for (size_t n = 1; n <= 2; n++) {
        mem_fail_nth(n);
        assert_fails(optimizer_init(&o, &adam, 100, &err), STATUS_NO_MEMORY, "optimizer state");
        ck_assert(!o.state[0] && !o.state[1]);
    }
    optimizer_release(NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("optimizer", 0, TEST(test_pytorch_figures),
                       LOOP_TEST(test_against_double, 0, 3), LOOP_TEST(test_ranges, 0, 3),
                       LOOP_TEST(test_widths, 1, simd_level() + 1), TEST_CASE("settings", 0),
                       TEST(test_defaults_and_names), TEST(test_refused_settings),
                       TEST(test_failing_allocations));
}
