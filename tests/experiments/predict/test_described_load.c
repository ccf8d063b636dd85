/*
 * The load of a model that is described: when which gradients are ready, and the buckets.
 */
#include "experiments/predict/described_load.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIB 1048576.0

static struct error err;
static struct job_load load;

static void teardown(void)
{
    job_load_release(&load);
}

static void check_ready(size_t i, double bytes, double at_s)
{
    ck_assert_msg(load.cost.ready[i].bytes == bytes && fabs(load.cost.ready[i].at_s - at_s) < 1e-12,
                  "%zu: %g bytes at %g", i, load.cost.ready[i].bytes, load.cost.ready[i].at_s);
}

static const char profile[] =
    "{\"version\": 1, \"batch\": 16, \"layers\": ["
    "{\"name\": \"a\", \"forward_us\": 1000, \"backward_us\": 2000, \"bytes\": 4194304},"
    "{\"name\": \"b\", \"forward_us\": 500, \"backward_us\": 700},"
    "{\"name\": \"c\", \"forward_us\": 3000, \"backward_us\": 5000, \"bytes\": 2097152}]}";

/* Backward ends with the last layer first; the first bucket closes at 1 MiB. */
START_TEST(test_profile)
{
    const char *path = support_write("model.json", profile, strlen(profile));
    char model[600];

    (void)snprintf(model, sizeof(model), "profile:%s", path);
    assert_ok(described_load_read(model, 0, 0, &load, &err));
    ck_assert_uint_eq(load.cost.ready_count, 3);
    check_ready(0, 2 * MIB, 0.0095);
    check_ready(1, 2 * MIB, 0.0102);
    check_ready(2, 6 * MIB, 0.0122);
    ck_assert(fabs(load.cost.compute_s - 0.0122) < 1e-12 && load.batch == 16);
    ck_assert_uint_eq(load.bucket_count, 2);
    ck_assert(load.buckets[0] == 2 * MIB && load.buckets[1] == 4 * MIB);
}
END_TEST

/* linear:10-5-2: fc2.bias, fc2.weight, fc1.bias, fc1.weight in the last two thirds of the step. */
START_TEST(test_model)
{
    static const double counts[] = {2, 12, 17, 67};

    assert_ok(described_load_read("linear:10-5-2", 0, 0.3, &load, &err));
    ck_assert_uint_eq(load.cost.ready_count, 4);
    for (size_t i = 0; i < 4; i++)
        check_ready(i, 4 * counts[i], 0.1 + 0.2 * counts[i] / 67);
    ck_assert(load.bucket_count == 1 && load.buckets[0] == 4 * 67 && load.batch == 32);
}
END_TEST

START_TEST(test_parameters)
{
    double sum = 0;

    assert_ok(described_load_read("", 25.6e6, 0.3, &load, &err));
    check_ready(0, 4e5, 0.1 + 0.2 / 256);
    check_ready(255, 102.4e6, 0.3);
    for (size_t i = 0; i < load.bucket_count; i++)
        sum += load.buckets[i];
    ck_assert(sum == 102.4e6 && load.buckets[0] == 1.2e6 && load.buckets[1] == 26.4e6);
    job_load_release(&load);
    assert_ok(described_load_read("", 300, 0.3, &load, &err)); /* not a multiple of 256 */
    ck_assert(load.bucket_count == 1 && load.buckets[0] == 1200);
}
END_TEST

static const struct {
    const char *model;
    double parameters, step_s;
    const char *message;
} mistakes[] = {
    {"", 0, 1, "no model"},
    {"", 0.5, 1, "--parameters: a model has at least 1"},
    {"mlp:4-2", 8, 1, "--parameters stands for a model, and the experiment has 'mlp:4-2'"},
    {"mlp:4-2", 0, 0, "how long a step of 'mlp:4-2' takes is not known: add --step-ms"},
    {"", 8, 0, "how long a step of '--parameters' takes is not known"},
    {"profile:x.json", 0, 1, "--step-ms: 'profile:x.json' has its own times"},
    {"mlp:4-", 0, 1, "mlp:4-"},
};

START_TEST(test_mistakes)
{
    assert_fails(described_load_read(mistakes[_i].model, mistakes[_i].parameters,
                                     mistakes[_i].step_s, &load, &err),
                 STATUS_CONFIG, mistakes[_i].message);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("described_load", 30, CHECKED_FIXTURE(NULL, teardown), TEST(test_profile),
                       TEST(test_model), TEST(test_parameters),
                       LOOP_TEST(test_mistakes, 0, sizeof(mistakes) / sizeof(mistakes[0])));
}
