/*
 * Tests of unpaired runs: the permutation test against its definition, intervals and equivalence
 * against values worked out by hand, and how often they are wrong.
 */
#include "experiments/report/unpaired.h"
#include "tests/support/support.h"

#include <math.h>

#define EXACT           1e-12
#define LEVEL           0.05
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static struct unpaired compare(const double *a, size_t n_a, const double *b, size_t n_b,
                               double margin)
{
    const struct sample first = {a, n_a}, second = {b, n_b};
    struct unpaired u;
    struct error err = {0};

    assert_ok(unpaired_compare(&first, &second, LEVEL, margin, &u, &err));
    return u;
}

/* The share of all choices of n_a of the values that part the means as far. */
static double permute_by_definition(const double *all, unsigned n_a, unsigned n)
{
    double observed = 0;
    unsigned far = 0, ways = 0;

    for (unsigned round = 0; round < 2; round++) { /* the first one finds what was observed */
        for (unsigned mask = 0; mask < 1u << n; mask++) {
            double sums[2] = {0, 0}, apart;

            if ((unsigned)__builtin_popcount(mask) != n_a)
                continue;
            for (unsigned i = 0; i < n; i++)
                sums[mask >> i & 1 ? 0 : 1] += all[i];
            apart = fabs(sums[0] / n_a - sums[1] / (n - n_a));
            if (round == 0 && mask == (1u << n_a) - 1)
                observed = apart;
            ways += round;
            far += round == 1 && apart >= observed - 1e-9;
        }
    }
    return (double)far / ways;
}

START_TEST(test_permutations)
{
    static const double low[] = {1, 2, 3, 4, 5}, high[] = {6, 7, 8, 9, 10};
    double all[12], many[60];

    ck_assert_double_eq_tol(compare(low, 5, high, 5, 0).p_difference, 2.0 / 252, EXACT);
    ck_assert_double_eq_tol(compare(low, 5, high, 5, 0).least_p, 2.0 / 252, EXACT);
    ck_assert_double_eq_tol(compare(low, 3, high, 1, 0).p_difference, 1.0 / 4, EXACT);
    ck_assert_double_eq_tol(compare(low, 3, high, 1, 0).least_p, 1.0 / 4, EXACT);
    ck_assert_double_eq(compare(low, 0, high, 5, 0).p_difference, 1);
    for (int round = 0; round < 200; round++) {
        unsigned n_a = 1 + (unsigned)(support_random() * 6);
        unsigned n_b = 1 + (unsigned)(support_random() * 6);

        for (unsigned i = 0; i < n_a + n_b; i++) /* every second round has ties */
            all[i] = round % 2 ? floor(support_random() * 5) : support_random();
        ck_assert_double_eq_tol(compare(all, n_a, all + n_a, n_b, 0).p_difference,
                                permute_by_definition(all, n_a, n_a + n_b), EXACT);
    }
    for (size_t i = 0; i < COUNT_OF(many); i++) /* too many to go through: drawn */
        many[i] = (double)i;
    ck_assert_double_lt(compare(many, 30, many + 30, 30, 0).p_difference, 1e-5);
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = i % 2 ? 1 : -1;
    ck_assert_double_eq_tol(compare(many, 30, many + 30, 30, 0).p_difference, 1, EXACT);
}
END_TEST

/* Two samples of 2: variances 0.5 and 0.5, a standard error of sqrt(0.5) and 2 degrees of freedom,
 * where P(|T| > t) = 1 - t / sqrt(2 + t^2). */
START_TEST(test_welch)
{
    static const double a[] = {0, 1}, b[] = {3, 4}, same[] = {2, 2, 2}, apart[] = {2.5, 2.5};
    const struct unpaired u = compare(a, 2, b, 2, 4);
    const double half = 4.302652729911275 * sqrt(0.5), t = 1 / sqrt(0.5);

    ck_assert_double_eq_tol(u.difference, 3, EXACT);
    ck_assert_double_eq_tol(u.interval.low, 3 - half, 1e-9);
    ck_assert_double_eq_tol(u.interval.high, 3 + half, 1e-9);
    ck_assert_double_eq_tol(u.p_equivalence, (1 - t / sqrt(2 + t * t)) / 2, EXACT);
    ck_assert_double_eq_tol(compare(a, 2, b, 2, 2).p_equivalence, 1 - (1 - t / sqrt(2 + t * t)) / 2,
                            EXACT);
    ck_assert_double_eq(compare(same, 3, apart, 2, 1).p_equivalence, 0);
    ck_assert_double_eq(compare(same, 3, apart, 2, 0.1).p_equivalence, 1);
    ck_assert(isnan(compare(a, 2, b, 1, 1).interval.low));
    ck_assert(isnan(compare(a, 0, b, 1, 1).difference));
}
END_TEST

/* Of 2000 pairs of samples of one distribution 100 intervals in the mean miss it; more
 * than 160, 6 standard deviations (9.7) above, would be chance in less than one of 10^8. */
START_TEST(test_coverage)
{
    unsigned missed = 0, different = 0;

    for (int round = 0; round < 2000; round++) {
        double a[8], b[5];
        struct unpaired u;

        for (size_t i = 0; i < COUNT_OF(a); i++)
            a[i] = support_random() + support_random() + support_random();
        for (size_t i = 0; i < COUNT_OF(b); i++)
            b[i] = support_random() + support_random() + support_random();
        u = compare(a, COUNT_OF(a), b, COUNT_OF(b), 0.02);
        missed += u.interval.low > 0 || u.interval.high < 0;
        different += u.p_difference <= LEVEL;
    }
    ck_assert_uint_lt(missed, 160);
    ck_assert_uint_lt(different, 160);
    ck_assert_uint_gt(different, 40);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unpaired");
    TCase *cases = tcase_create("unpaired");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_permutations);
    tcase_add_test(cases, test_welch);
    tcase_add_test(cases, test_coverage);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
