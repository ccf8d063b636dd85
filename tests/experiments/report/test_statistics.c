/*
 * Statistics against numpy 1.24 (quantiles), all samples of a bootstrap, tables (Student's
 * distribution), and values computed by hand.
 */
#include "experiments/report/statistics.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT           1e-12
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const double ring[] = {121.0, 119.5, 120.25, 123.75, 118.0};

START_TEST(test_quantiles_as_numpy)
{
    static const double golden[][2] = {{0, -2.5},     {0.025, -2.05}, {0.1, -0.7},
                                       {0.25, 1.8},   {0.5, 4.75},    {0.75, 6.0},
                                       {0.95, 9.875}, {0.99, 10.775}, {1, 11.0}};
    double values[] = {3.1, -2.5, 7.25, 0.5, 11.0, 4.75, 4.75};

    statistics_sort(values, COUNT_OF(values));
    for (size_t i = 0; i < COUNT_OF(golden); i++)
        ck_assert_double_eq_tol(statistics_quantile(values, COUNT_OF(values), golden[i][0]),
                                golden[i][1], EXACT);
}
END_TEST

START_TEST(test_quantiles_of_little)
{
    static const double one[] = {7};
    static const double two[] = {1, 2};

    ck_assert(isnan(statistics_quantile(NULL, 0, 0.5)));
    ck_assert(isnan(statistics_mean(NULL, 0)));
    ck_assert_double_eq(statistics_quantile(one, 1, 0.99), 7);
    ck_assert_double_eq(statistics_quantile(two, 2, 0.5), 1.5);
    ck_assert_double_eq(statistics_mean(two, 2), 1.5);
}
END_TEST

START_TEST(test_spread)
{
    struct spread spread;
    struct error err = {0};

    assert_ok(statistics_spread(ring, COUNT_OF(ring), &spread, &err));
    ck_assert_uint_eq(spread.n, 5);
    ck_assert_double_eq(spread.median, 120.25);
    ck_assert_double_eq(spread.q1, 119.5);
    ck_assert_double_eq(spread.q3, 121.0);
    ck_assert_double_eq_tol(spread.interval.low, 118.0, EXACT);
    ck_assert_double_eq_tol(spread.interval.high, 123.75, EXACT);
    ck_assert_double_eq(ring[1], 119.5); /* the values stay where they were */
    assert_ok(statistics_spread(ring, 2, &spread, &err));
    ck_assert_double_eq(spread.median, 120.25);
    ck_assert(isnan(spread.interval.low) && isnan(spread.interval.high));
    assert_ok(statistics_spread(ring, 0, &spread, &err));
    ck_assert(isnan(spread.median) && spread.n == 0);
}
END_TEST

/* The interval from the medians of all n^n samples of n values. */
static struct interval interval_of_all(const double *values, size_t n)
{
    size_t draws[6] = {0}, count = 0;
    double *medians = calloc(46656, sizeof(*medians)); /* 6^6 */
    struct interval interval;
    size_t advanced;

    ck_assert_ptr_nonnull(medians);
    do {
        double sample[6];

        for (size_t i = 0; i < n; i++)
            sample[i] = values[draws[i]];
        statistics_sort(sample, n);
        medians[count++] = statistics_quantile(sample, n, 0.5);
        for (advanced = 0; advanced < n && ++draws[advanced] == n; advanced++)
            draws[advanced] = 0;
    } while (advanced < n);
    statistics_sort(medians, count);
    interval.low = medians[(size_t)ceil(0.025 * (double)count) - 1];
    interval.high = medians[(size_t)ceil(0.975 * (double)count) - 1];
    free(medians);
    return interval;
}

START_TEST(test_interval_of_all_samples)
{
    for (size_t n = 3; n <= 6; n++)
        for (int round = 0; round < 5; round++) {
            struct spread spread;
            struct interval wanted;
            struct error err = {0};
            double values[6];

            for (size_t i = 0; i < n; i++) /* few values: some are equal */
                values[i] = round == 0 ? support_random() : floor(9 * support_random());
            wanted = interval_of_all(values, n);
            assert_ok(statistics_spread(values, n, &spread, &err));
            ck_assert_double_eq_tol(spread.interval.low, wanted.low, EXACT);
            ck_assert_double_eq_tol(spread.interval.high, wanted.high, EXACT);
        }
}
END_TEST

/* Of 1, 2, ..., n: as far below the median as above it, about 1.96 of its standard errors, which is
 * n / sqrt(4 n) of a uniform distribution, to one value. */
START_TEST(test_interval_of_many)
{
    const size_t n = (size_t)_i;
    const double middle = (double)(n + 1) / 2, error = sqrt((double)n) / 2;
    double *values = calloc(n, sizeof(*values));
    struct spread spread;
    struct error err = {0};

    ck_assert_ptr_nonnull(values);
    for (size_t i = 0; i < n; i++)
        values[i] = (double)(n - i);
    assert_ok(statistics_spread(values, n, &spread, &err));
    ck_assert_double_eq_tol(spread.interval.low + spread.interval.high, 2 * middle, EXACT * middle);
    ck_assert_double_eq_tol((spread.interval.high - middle) / error, 1.96, 1 / error);
    free(values);
}
END_TEST

static double outlier(const double *values, size_t n, double value)
{
    double score = -1;
    struct error err = {0};

    assert_ok(statistics_outlier_score(values, n, value, &score, &err));
    return score;
}

START_TEST(test_outlier_scores)
{
    static const double plain[] = {10, 11, 12, 13, 30};
    static const double mostly_equal[] = {5, 5, 5, 5, 100};
    static const double equal[] = {5, 5, 5};

    /* Median 12, absolute deviations 2 1 0 1 18, MAD 1. */
    ck_assert_double_eq_tol(outlier(plain, 5, 30), 0.6745 * 18, EXACT);
    ck_assert_double_eq_tol(outlier(plain, 5, 12), 0, EXACT);
    /* MAD 0, mean absolute deviation 19. */
    ck_assert_double_eq_tol(outlier(mostly_equal, 5, 100), 0.7978845608028654 * 95 / 19, 1e-9);
    ck_assert_double_gt(outlier(mostly_equal, 5, 100), STATISTICS_OUTLIER);
    ck_assert_double_eq(outlier(equal, 3, 5), 0);
    ck_assert_double_eq(outlier(plain, 2, 11), 0);
}
END_TEST

START_TEST(test_student)
{
    static const struct {
        size_t freedom;
        double t; /* P(|T| > t) = 0.05 */
    } table[] = {{1, 12.706204736432095}, {2, 4.302652729911275},   {4, 2.7764451051977987},
                 {9, 2.2621571627409915}, {30, 2.0422724563012373}, {999, 1.962341461133449}};

    for (size_t i = 0; i < COUNT_OF(table); i++)
        ck_assert_double_eq_tol(statistics_student_quantile(0.05, table[i].freedom), table[i].t,
                                1e-9);
    ck_assert_double_eq_tol(statistics_student_tail(1, 1), 0.5, EXACT); /* Cauchy's */
    ck_assert_double_eq_tol(statistics_student_tail(1, 2), 1 - 1 / sqrt(3.0), EXACT);
    for (size_t freedom = 1; freedom < 60; freedom++) {
        ck_assert_double_eq_tol(statistics_student_tail(0, freedom), 1, EXACT);
        for (double p = 0.001; p < 1; p += 0.0997)
            ck_assert_double_eq_tol(
                statistics_student_tail(statistics_student_quantile(p, freedom), freedom), p, 1e-9);
    }
}
END_TEST

START_TEST(test_holm)
{
    double p[] = {0.01, 0.04, 0.03, 0.005};
    static const double adjusted[] = {0.03, 0.06, 0.06, 0.02};
    double large[] = {0.9, 0, 0.8};
    struct {
        double p, other;
    } every_second[] = {{0.01, -7}, {(double)NAN, -7}, {0.02, -7}};

    statistics_holm(p, sizeof(*p), COUNT_OF(p), COUNT_OF(p));
    for (size_t i = 0; i < COUNT_OF(p); i++)
        ck_assert_double_eq_tol(p[i], adjusted[i], EXACT);
    statistics_holm(large, sizeof(*large), COUNT_OF(large), COUNT_OF(large));
    ck_assert_double_eq_tol(large[0], 1, EXACT);
    ck_assert_double_eq_tol(large[1], 0, EXACT);
    ck_assert_double_eq_tol(large[2], 1, EXACT);
    statistics_holm(&every_second->p, sizeof(*every_second), COUNT_OF(every_second), 4);
    ck_assert_double_eq_tol(every_second[0].p, 0.04,
                            EXACT); /* four were asked for, two are there */
    ck_assert(isnan(every_second[1].p));
    ck_assert_double_eq_tol(every_second[2].p, 0.06, EXACT);
    ck_assert_double_eq(every_second[0].other, -7);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report statistics", 60, TEST(test_quantiles_as_numpy),
                       TEST(test_quantiles_of_little), TEST(test_spread),
                       TEST(test_interval_of_all_samples),
                       LOOP_TEST(test_interval_of_many, 1000, 1002), TEST(test_outlier_scores),
                       TEST(test_student), TEST(test_holm));
}
