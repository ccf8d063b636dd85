/*
 * Tests of paired runs: the sign-flip test against its definition, and the rest against values
 * worked out by hand.
 */
#include "experiments/report/paired.h"
#include "tests/support/support.h"

#include <math.h>

#define EXACT           1e-12
#define LEVEL           0.05
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static struct paired compare(const double *d, size_t n, double margin)
{
    struct paired p;
    struct error err = {0};

    assert_ok(paired_compare(d, n, LEVEL, margin, &p, &err));
    return p;
}

/* The share of all 2^n choices of signs whose sum is as far from 0. */
static double flip_by_definition(const double *d, unsigned n)
{
    double observed = 0, size = 0;
    unsigned far = 0;

    for (unsigned i = 0; i < n; i++) {
        observed += d[i];
        size += fabs(d[i]);
    }
    for (unsigned mask = 0; mask < 1u << n; mask++) {
        double sum = 0;

        for (unsigned i = 0; i < n; i++)
            sum += mask >> i & 1 ? d[i] : -d[i];
        far += fabs(sum) >= fabs(observed) - 1e-9 * size;
    }
    return (double)far / (double)(1u << n);
}

START_TEST(test_sign_flips)
{
    static const double same[] = {1, 2, 3, 4, 5, 6};
    double d[30];

    ck_assert_double_eq_tol(compare(same, 6, 0).p_difference, 2.0 / 64, EXACT);
    ck_assert_double_eq_tol(compare(same, 0, 0).p_difference, 1, EXACT);
    for (int round = 0; round < 200; round++) {
        unsigned n = 1 + (unsigned)(support_random() * 12);

        for (unsigned i = 0; i < n; i++) /* every second round has ties and zeros */
            d[i] = round % 2 ? floor(support_random() * 5) - 2 : support_random() - 0.3;
        ck_assert_double_eq_tol(compare(d, n, 0).p_difference, flip_by_definition(d, n), EXACT);
    }
    for (size_t i = 0; i < COUNT_OF(d); i++) /* too many to go through: drawn */
        d[i] = 1 + support_random();
    ck_assert_double_lt(compare(d, COUNT_OF(d), 0).p_difference, 1e-5);
    for (size_t i = 0; i < COUNT_OF(d); i++)
        d[i] = i % 2 ? 1 : -1;
    ck_assert_double_eq_tol(compare(d, COUNT_OF(d), 0).p_difference, 1, EXACT);
}
END_TEST

START_TEST(test_interval)
{
    static const double d[] = {0.1, 0.3, 0.2, 0.4, 0.0};
    const struct paired p = compare(d, COUNT_OF(d), 0.5);
    const double half = 2.7764451051977987 * sqrt(0.025 / 5); /* variance 0.1 / 4 */

    ck_assert_uint_eq(p.n, 5);
    ck_assert_double_eq_tol(p.mean, 0.2, EXACT);
    ck_assert_double_eq_tol(p.deviation, sqrt(0.025), EXACT);
    ck_assert_double_eq_tol(p.interval.low, 0.2 - half, 1e-9);
    ck_assert_double_eq_tol(p.interval.high, 0.2 + half, 1e-9);
    ck_assert(isnan(compare(d, 1, 0.5).interval.low));
    ck_assert(isnan(compare(d, 0, 0.5).mean));
}
END_TEST

/* Two blocks have one degree of freedom, where the distribution is Cauchy's. */
START_TEST(test_equivalence)
{
    static const double near[] = {0, 0.01}; /* mean and standard error 0.005 */
    static const double equal[] = {0, 0, 0};
    static const double apart[] = {0.03, 0.03};

    ck_assert_double_eq_tol(compare(near, 2, 0.01).p_equivalence, 0.25, 1e-9);
    ck_assert_double_eq_tol(compare(near, 2, 0).p_equivalence, 0.75, 1e-9);
    ck_assert_double_eq_tol(compare(near, 2, 0.005).p_equivalence, 0.5, 1e-9);
    ck_assert_double_eq(compare(equal, 3, 0.02).p_equivalence, 0);
    ck_assert_double_eq(compare(apart, 2, 0.02).p_equivalence, 1);
    ck_assert_double_eq(compare(equal, 1, 0.02).p_equivalence, 1);
}
END_TEST

START_TEST(test_how_many_blocks)
{
    struct paired p = {.n = 10, .mean = 0.05, .deviation = 0.049};

    ck_assert_uint_eq(paired_least_blocks(1, LEVEL), 6);
    ck_assert_uint_eq(paired_least_blocks(28, LEVEL), 11);
    ck_assert_uint_eq(paired_least_blocks(120, LEVEL), 13);
    /* (1.962 + 0.842)^2 (0.049 / 0.05)^2 = 7.55 */
    ck_assert_uint_eq(paired_blocks_to_decide(&p, LEVEL, log(1.02)), 8);
    /* Equal: (1.646 + 1.282)^2 (0.029 / 0.0198)^2 = 18.4 */
    p = (struct paired){.n = 10, .mean = 0, .deviation = 0.029};
    ck_assert_uint_eq(paired_blocks_to_decide(&p, LEVEL, log(1.02)), 19);
    p.mean = 0.0099; /* just between the two */
    p.deviation = 0.2;
    ck_assert_uint_eq(paired_blocks_to_decide(&p, LEVEL, log(1.02)), 0);
    p.n = 1;
    ck_assert_uint_eq(paired_blocks_to_decide(&p, LEVEL, log(1.02)), 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("paired", 60, TEST(test_sign_flips), TEST(test_interval),
                       TEST(test_equivalence), TEST(test_how_many_blocks));
}
