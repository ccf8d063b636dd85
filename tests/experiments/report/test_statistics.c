/*
 * Statistics against numpy 1.24 (quantiles, and the bootstrap written again in Python over numpy's
 * mt19937), against enumeration of all permutations, and against values worked out by hand.
 */
#include "experiments/report/statistics.h"
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

#define EXACT           1e-12
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const double ring[] = {121.0, 119.5, 120.25, 123.75, 118.0};
static const double server[] = {91.5, 90.0, 92.25, 89.75, 95.0, 90.5};

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

START_TEST(test_bootstrap_as_in_python)
{
    static const double three[] = {10, 11, 12};
    static const double other_three[] = {5, 6, 7};
    struct interval interval;
    struct interval again;
    struct error err = {0};

    assert_ok(
        statistics_ratio_interval(ring, COUNT_OF(ring), server, COUNT_OF(server), &interval, &err));
    ck_assert_double_eq_tol(interval.low, 1.2843537414965986, EXACT);
    ck_assert_double_eq_tol(interval.high, 1.35989010989011, EXACT);
    assert_ok(
        statistics_ratio_interval(ring, COUNT_OF(ring), server, COUNT_OF(server), &again, &err));
    ck_assert(interval.low == again.low && interval.high == again.high);
    assert_ok(statistics_ratio_interval(three, 3, other_three, 3, &interval, &err));
    ck_assert_double_eq_tol(interval.low, 10.0 / 7, EXACT);
    ck_assert_double_eq_tol(interval.high, 12.0 / 5, EXACT);
    assert_ok(statistics_ratio_interval(three, 3, other_three, 2, &interval, &err));
    ck_assert(isnan(interval.low) && isnan(interval.high));
}
END_TEST

static double rank_p(const double *a, size_t n_a, const double *b, size_t n_b)
{
    double p = -1;
    struct error err = {0};

    assert_ok(statistics_rank_test(a, n_a, b, n_b, &p, &err));
    return p;
}

START_TEST(test_rank_test_by_hand)
{
    static const double low[] = {1, 2, 3, 4, 5};
    static const double high[] = {6, 7, 8, 9, 10};
    static const double tied_a[] = {1, 2, 3};
    static const double tied_b[] = {2, 3, 4, 4};

    /* Two of the 252 ways to pick 5 of 10 ranks are as extreme as 1..5: itself and 6..10. */
    ck_assert_double_eq_tol(rank_p(low, 5, high, 5), 2.0 / 252, EXACT);
    ck_assert_double_eq_tol(rank_p(low, 3, high, 3), 2.0 / 20, EXACT);
    ck_assert_double_eq_tol(rank_p(ring, 5, server, 6), 2.0 / 462, EXACT);
    ck_assert_double_eq_tol(rank_p(tied_a, 3, tied_b, 4), 7.0 / 35, EXACT);
    ck_assert_double_eq_tol(rank_p(low, 5, low, 5), 1.0, EXACT);
    ck_assert(isnan(rank_p(low, 0, high, 5)));
}
END_TEST

/* The definition, by enumerating every subset of size n_a as a bit mask. */
static double enumerate_p(const double *all, unsigned n, unsigned n_a)
{
    double ranks[16];
    double observed = 0;
    double mean = (double)n_a * (n + 1) / 2;
    unsigned long extreme = 0;
    unsigned long total = 0;

    for (unsigned i = 0; i < n; i++) {
        double below = 0;
        double equal = 0;

        for (unsigned k = 0; k < n; k++) {
            below += all[k] < all[i];
            equal += all[k] == all[i];
        }
        ranks[i] = below + (equal + 1) / 2;
        observed += i < n_a ? ranks[i] : 0;
    }
    for (unsigned mask = 0; mask < 1u << n; mask++) {
        double sum = 0;

        if ((unsigned)__builtin_popcount(mask) != n_a)
            continue;
        for (unsigned i = 0; i < n; i++)
            sum += mask >> i & 1 ? ranks[i] : 0;
        total++;
        extreme += fabs(sum - mean) >= fabs(observed - mean) - 1e-9;
    }
    return (double)extreme / (double)total;
}

START_TEST(test_rank_test_against_enumeration)
{
    for (int round = 0; round < 200; round++) {
        unsigned n_a = 1 + (unsigned)(support_random() * 6);
        unsigned n_b = 1 + (unsigned)(support_random() * 6);
        double all[16];

        for (unsigned i = 0; i < n_a + n_b; i++)
            all[i] = floor(support_random() * 8); /* many ties */
        ck_assert_double_eq_tol(rank_p(all, n_a, all + n_a, n_b), enumerate_p(all, n_a + n_b, n_a),
                                1e-9);
    }
}
END_TEST

START_TEST(test_rank_test_at_its_limit)
{
    double values[101];

    for (size_t i = 0; i < COUNT_OF(values); i++)
        values[i] = (double)i;
    ck_assert_double_le(rank_p(values, 50, values + 50, 50), 1e-20);
    ck_assert(isnan(rank_p(values, 50, values + 50, 51)));
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

int main(void)
{
    Suite *suite = suite_create("report statistics");
    TCase *cases = tcase_create("all");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_quantiles_as_numpy);
    tcase_add_test(cases, test_quantiles_of_little);
    tcase_add_test(cases, test_spread);
    tcase_add_test(cases, test_bootstrap_as_in_python);
    tcase_add_test(cases, test_rank_test_by_hand);
    tcase_add_test(cases, test_rank_test_against_enumeration);
    tcase_add_test(cases, test_rank_test_at_its_limit);
    tcase_add_test(cases, test_outlier_scores);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
