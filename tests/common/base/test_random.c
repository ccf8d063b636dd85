/*
 * Reference values of the generator and of PyTorch's samples from it: published torch output for
 * both roundings, Debian 12's torch 1.13.1 for the fused one, the C++ standard for the engine.
 */
#include "common/base/random.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_8 6e-9 /* a value printed with eight digits after the point */

static struct random seeded(uint64_t seed)
{
    struct random r;

    random_seed(&r, seed);
    return r;
}

static void assert_floats(const float *values, const float *wanted, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(values[i] == wanted[i], "%s: value %zu is %.17g, wanted %.17g", what, i,
                      (double)values[i], (double)wanted[i]);
}

START_TEST(test_engine)
{
    static const uint32_t golden_137[] = {4053805790u, 2173880614u, 380293709u, 1237255315u,
                                          2986595568u};
    struct random r = seeded(5489);
    uint32_t word = 0;

    ck_assert_uint_eq(random_u32(&r), 3499211612u);
    for (int i = 1; i < 10000; i++)
        word = random_u32(&r);
    ck_assert_uint_eq(word, 4123659995u);
    r = seeded(137);
    for (size_t i = 0; i < 5; i++)
        ck_assert_uint_eq(random_u32(&r), golden_137[i]);
    r = seeded(137);
    ck_assert_uint_eq(random_u64(&r), (uint64_t)golden_137[0] << 32 | golden_137[1]);
}
END_TEST

START_TEST(test_upper_seed_bits_are_ignored)
{
    struct random a = seeded(7);
    struct random b = seeded(UINT64_C(0xdeadbeef00000007));

    ck_assert_uint_eq(random_u64(&a), random_u64(&b));
}
END_TEST

START_TEST(test_permutation)
{
    static const struct {
        uint64_t seed;
        size_t n;
        int64_t wanted[10];
    } golden[] = {
        {0, 10, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
        {1, 10, {5, 6, 1, 2, 0, 8, 9, 3, 7, 4}},
        {42, 10, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}},
        {0, 5, {4, 0, 1, 3, 2}},
        {1, 5, {0, 4, 2, 3, 1}},
        {2, 5, {3, 4, 1, 0, 2}},
    };

    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct random r = seeded(golden[i].seed);
        int64_t values[10];

        random_permutation(&r, values, golden[i].n);
        ck_assert_mem_eq(values, golden[i].wanted, golden[i].n * sizeof(values[0]));
    }
}
END_TEST

/* n - 1 draws; none for n = 0 and 1. */
START_TEST(test_permutation_draws)
{
    for (size_t n = 0; n < 6; n++) {
        struct random used = seeded(9);
        struct random counted = seeded(9);
        int64_t values[6];

        random_permutation(&used, values, n);
        for (size_t i = 1; i < n; i++)
            (void)random_u32(&counted);
        ck_assert_uint_eq(random_u32(&used), random_u32(&counted));
    }
}
END_TEST

START_TEST(test_uniform_0_1)
{
    static const float golden[] = {0.49625658988952637f, 0.7682217955589294f, 0.08847743272781372f};

    for (int fused = 0; fused < 2; fused++) {
        struct random r = seeded(0);
        float values[3];

        random_uniform(&r, values, 3, 0.0, 1.0, fused ? RANDOM_FMA : RANDOM_TWO_ROUNDINGS);
        assert_floats(values, golden, 3, "rand(3)");
    }
}
END_TEST

START_TEST(test_linear_2_1)
{
    static const struct {
        uint64_t seed;
        enum random_rounding rounding;
        float wanted[3]; /* weight (1, 2), bias (1) */
    } golden[] = {
        {0,
         RANDOM_TWO_ROUNDINGS,
         {-0.0052939653396606445f, 0.37932294607162476f, -0.5819807648658752f}},
        {0, RANDOM_FMA, {-0.005293981172144413f, 0.37932288646698f, -0.5819807648658752f}},
        {1,
         RANDOM_TWO_ROUNDINGS,
         {0.36434608697891235f, -0.3121015429496765f, -0.13708078861236572f}},
        {1, RANDOM_FMA, {0.36434608697891235f, -0.3121015429496765f, -0.13708077371120453f}},
    };

    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct random r = seeded(golden[i].seed);
        float values[3];

        random_linear_init(&r, values, values + 2, 2, 1, golden[i].rounding);
        assert_floats(values, golden[i].wanted, 3, "Linear(2, 1)");
    }
}
END_TEST

/* Two layers: the second continues the generator's sequence after the first. */
START_TEST(test_linear_chain)
{
    static const double golden[2][12] = {
        {-0.00529397, 0.37932295, -0.58198076, -0.52038747, -0.27234524, 0.18961591, -0.01401001,
         0.56065756, -0.06275153, 0.18710935, -0.21369690, -0.13899273},
        {-0.00529398, 0.37932289, -0.58198076, -0.52038747, -0.27234524, 0.18961589, -0.01401003,
         0.56065750, -0.06275152, 0.18710934, -0.21369691, -0.13899271},
    };

    for (int fused = 0; fused < 2; fused++) {
        struct random r = seeded(0);
        float values[12];

        for (size_t layer = 0; layer < 2; layer++)
            random_linear_init(&r, values + 6 * layer, values + 6 * layer + 4, 2, 2,
                               fused ? RANDOM_FMA : RANDOM_TWO_ROUNDINGS);
        for (size_t i = 0; i < 12; i++)
            ck_assert_double_eq_tol((double)values[i], golden[fused][i], DIGITS_8);
    }
}
END_TEST

START_TEST(test_linear_10)
{
    static const float fused_42[] = {0.24176831543445587f, 0.2624715566635132f,
                                     -0.07408346235752106f};
    float values[11];
    struct random r = seeded(42);

    random_linear_init(&r, values, values + 10, 10, 1, RANDOM_FMA);
    assert_floats(values, fused_42, 3, "Linear(10, .), seed 42, fused");
    r = seeded(42);
    random_linear_init(&r, values, values + 10, 10, 1, RANDOM_TWO_ROUNDINGS);
    assert_floats(values, &(float){0.24176833033561707f}, 1, "Linear(10, .), seed 42, two");
    r = seeded(0);
    random_linear_init(&r, values, values + 10, 10, 1, RANDOM_FMA);
    assert_floats(values, &(float){-0.002367540495470166f}, 1, "Linear(10, .), seed 0, fused");
    r = seeded(0);
    random_linear_init(&r, values, values + 10, 10, 1, RANDOM_TWO_ROUNDINGS);
    assert_floats(values, &(float){-0.0023675262928009033f}, 1, "Linear(10, .), seed 0, two");
}
END_TEST

/* fan_in 0: no weight, and a bias of zeros that still takes its draws. */
START_TEST(test_linear_without_inputs)
{
    struct random r = seeded(3);
    struct random drawn = seeded(3);
    float bias[2] = {7.0f, 7.0f};

    random_linear_init(&r, NULL, bias, 0, 2, RANDOM_FMA);
    ck_assert(bias[0] == 0.0f && bias[1] == 0.0f);
    (void)random_u64(&drawn);
    ck_assert_uint_eq(random_u32(&r), random_u32(&drawn));
}
END_TEST

/* Where a rounding matters, about half of the values differ, by a few units of the bound's ulp. */
START_TEST(test_roundings_differ_as_documented)
{
    enum { COUNT = 100000 };
    float *values = malloc(2 * COUNT * sizeof(float));
    struct random a = seeded(11);
    struct random b = seeded(11);
    size_t differing = 0;

    ck_assert_ptr_nonnull(values);
    random_uniform(&a, values, COUNT, -0.3, 0.3, RANDOM_TWO_ROUNDINGS);
    random_uniform(&b, values + COUNT, COUNT, -0.3, 0.3, RANDOM_FMA);
    for (size_t i = 0; i < COUNT; i++) {
        differing += values[i] != values[COUNT + i];
        ck_assert_double_eq_tol((double)values[i], (double)values[COUNT + i], 0x1p-24);
    }
    ck_assert_uint_gt(differing, COUNT * 45 / 100);
    ck_assert_uint_lt(differing, COUNT * 60 / 100);
    free(values);
}
END_TEST

START_TEST(test_normal)
{
    enum { COUNT = 200000 };
    float *values = malloc(COUNT * sizeof(float));
    struct random r = seeded(1 + (uint64_t)(support_random() * 1e9));
    double moments[4] = {0};

    ck_assert_ptr_nonnull(values);
    random_normal(&r, values, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        for (int k = 0; k < 4; k++)
            moments[k] += pow((double)values[i], k + 1) / COUNT;
    /* Six standard errors of each moment: sqrt(1, 2, 15, 96) / sqrt(COUNT). */
    ck_assert_double_eq_tol(moments[0], 0.0, 6 * 1.0 / sqrt(COUNT));
    ck_assert_double_eq_tol(moments[1], 1.0, 6 * sqrt(2.0) / sqrt(COUNT));
    ck_assert_double_eq_tol(moments[2], 0.0, 6 * sqrt(15.0) / sqrt(COUNT));
    ck_assert_double_eq_tol(moments[3], 3.0, 6 * sqrt(96.0) / sqrt(COUNT));
    free(values);
}
END_TEST

/* Fewer than 16 values from a fresh seed follow torch.randn's own Box-Muller (torch 1.13.1). */
START_TEST(test_normal_as_small_randn)
{
    static const double golden[] = {-0.4867807626724243, -0.6038215756416321,  -0.5580962300300598,
                                    0.6675242781639099,  -0.19741509854793549, 1.9427834749221802,
                                    -1.4017020463943481, -0.7625571489334106};
    struct random r = seeded(5);
    float values[8];

    random_normal(&r, values, 8);
    for (size_t i = 0; i < 8; i++)
        ck_assert_double_eq_tol((double)values[i], golden[i], 3e-7);
}
END_TEST

/* An odd count ends in half a pair: the prefix is the same and nothing after it is written. */
START_TEST(test_normal_odd_count)
{
    struct random a = seeded(5);
    struct random b = seeded(5);
    float whole[8];
    float odd[8] = {0, 0, 0, 0, 0, 0, 0, 99.0f};

    random_normal(&a, whole, 8);
    random_normal(&b, odd, 7);
    assert_floats(odd, whole, 7, "odd count");
    ck_assert(odd[7] == 99.0f);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("random", 0, TEST(test_engine), TEST(test_upper_seed_bits_are_ignored),
                       TEST(test_permutation), TEST(test_permutation_draws), TEST(test_uniform_0_1),
                       TEST(test_linear_2_1), TEST(test_linear_chain), TEST(test_linear_10),
                       TEST(test_linear_without_inputs), TEST(test_roundings_differ_as_documented),
                       TEST(test_normal), TEST(test_normal_as_small_randn),
                       TEST(test_normal_odd_count));
}
