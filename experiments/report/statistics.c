/*
 * statistics: statistics of small samples.  Every function is exact, so the same runs give the same
 * report.  Functions that sort work on copies and keep the caller's order.
 */
#include "experiments/report/statistics.h"

#include "common/base/memory.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LOW_QUANTILE   0.025
#define HIGH_QUANTILE  0.975
#define MAD_FACTOR     0.6745             /* third quartile of the normal distribution */
#define MEAN_AD_FACTOR 0.7978845608028654 /* sqrt(2 / pi) */
#define PI             3.14159265358979323846
#define TAIL_STEPS     200 /* bisections */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

void statistics_sort(double *values, size_t n)
{
    if (n > 1)
        qsort(values, n, sizeof(values[0]), compare_doubles);
}

double statistics_quantile(const double *sorted, size_t n, double q)
{
    double position;
    size_t below;

    if (n == 0)
        return (double)NAN;
    position = q * (double)(n - 1);
    below = (size_t)floor(position);
    if (below + 1 >= n)
        return sorted[n - 1];
    return sorted[below] + (position - (double)below) * (sorted[below + 1] - sorted[below]);
}

double statistics_mean(const double *values, size_t n)
{
    double sum = 0;

    if (n == 0)
        return (double)NAN;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return sum / (double)n;
}

double statistics_deviation(const double *values, size_t n)
{
    const double mean = statistics_mean(values, n);
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (values[i] - mean) * (values[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : (double)NAN;
}

static enum status sorted_copy(const double *values, size_t n, double **ret, struct error *err)
{
    enum status status = mem_calloc(n, sizeof(double), "a sample", ret, err);

    if (status != STATUS_OK)
        return status;
    if (n > 0)
        memcpy(*ret, values, n * sizeof(double));
    statistics_sort(*ret, n);
    return STATUS_OK;
}

/* How many of the ascending values are at most x. */
static size_t count_to(const double *sorted, size_t n, double x)
{
    size_t low = 0, high = n;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (sorted[middle] <= x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* binomial(n, k) p^k q^(n - k). */
static double binomial_term(size_t n, size_t k, double p, double q)
{
    const double rest = (double)(n - k);

    if ((p <= 0 && k > 0) || (q <= 0 && k < n))
        return 0;
    return exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma(rest + 1) +
               (k > 0 ? (double)k * log(p) : 0) + (k < n ? rest * log(q) : 0));
}

/*
 * P(median of n values drawn with replacement <= x).  With k = ceil(n/2), the k-th smallest is at
 * most x where k or more of the draws are among the count_to(x) values up to x.  An even n has its
 * median between the k-th and the next one: what is left to subtract is that the k-th is value i,
 * the next one beyond the last value j with (i + j) / 2 <= x; then k draws have i as their largest.
 */
static double resampled_median_up_to(const double *sorted, size_t n, double x)
{
    const size_t k = (n + 1) / 2, reached = count_to(sorted, n, x);
    double sum = 0;

    for (size_t m = k; m <= n; m++)
        sum += binomial_term(n, m, (double)reached / (double)n, (double)(n - reached) / (double)n);
    for (size_t i = 0; i < reached && n % 2 == 0; i++) {
        const size_t to = count_to(sorted, n, x + (x - sorted[i]));
        const double beyond = (double)(n - to) / (double)n;

        sum -= binomial_term(n, k, (double)(i + 1) / (double)n, beyond) -
               binomial_term(n, k, (double)i / (double)n, beyond);
    }
    return sum;
}

/* The smallest x for which that is at least q: bisection down to neighbouring numbers. */
static double resampled_median_quantile(const double *sorted, size_t n, double q)
{
    double low = sorted[0], high = sorted[n - 1];
    double middle = low + (high - low) / 2;

    if (resampled_median_up_to(sorted, n, low) >= q)
        return low;
    while (low < middle && middle < high) {
        if (resampled_median_up_to(sorted, n, middle) >= q)
            high = middle;
        else
            low = middle;
        middle = low + (high - low) / 2;
    }
    return high;
}

enum status statistics_spread(const double *values, size_t n, struct spread *ret, struct error *err)
{
    struct spread spread = {.n = n, .interval = {(double)NAN, (double)NAN}};
    double *sorted = NULL;
    enum status status = sorted_copy(values, n, &sorted, err);

    if (status != STATUS_OK)
        return status;
    spread.median = statistics_quantile(sorted, n, 0.5);
    spread.q1 = statistics_quantile(sorted, n, 0.25);
    spread.q3 = statistics_quantile(sorted, n, 0.75);
    if (n >= STATISTICS_RUNS_MINIMUM)
        spread.interval = (struct interval){resampled_median_quantile(sorted, n, LOW_QUANTILE),
                                            resampled_median_quantile(sorted, n, HIGH_QUANTILE)};
    free(sorted);
    *ret = spread;
    return STATUS_OK;
}

enum status statistics_outlier_score(const double *values, size_t n, double value, double *ret,
                                     struct error *err)
{
    double *sorted = NULL;
    double median;
    double mad;
    double mean_ad;
    enum status status;

    if (n < 3) {
        *ret = 0;
        return STATUS_OK;
    }
    status = sorted_copy(values, n, &sorted, err);
    if (status != STATUS_OK)
        return status;
    median = statistics_quantile(sorted, n, 0.5);
    for (size_t i = 0; i < n; i++)
        sorted[i] = fabs(sorted[i] - median);
    statistics_sort(sorted, n);
    mad = statistics_quantile(sorted, n, 0.5);
    mean_ad = statistics_mean(sorted, n);
    free(sorted);
    if (mad > 0)
        *ret = MAD_FACTOR * fabs(value - median) / mad;
    else
        *ret = mean_ad > 0 ? MEAN_AD_FACTOR * fabs(value - median) / mean_ad : 0;
    return STATUS_OK;
}

/* ---- intervals and tests ---- */

/* The series of P(|T| < t): 1 + (a/b) c + (a (a+2))/(b (b+2)) c^2 + ..., a = first, b = a + 1. */
static double student_series(double first, double c, size_t terms)
{
    double term = 1, sum = terms > 0 ? 1 : 0;

    for (size_t i = 1; i < terms; i++) {
        const double above = first + 2 * (double)(i - 1);

        term *= above / (above + 1) * c;
        sum += term;
    }
    return sum;
}

double statistics_student_tail(double t, size_t freedom)
{
    const double angle = atan(t / sqrt((double)freedom));
    const double cosine = cos(angle);
    const double square = cosine * cosine;
    double inside;

    if (freedom % 2 == 0)
        inside = sin(angle) * student_series(1, square, freedom / 2);
    else
        inside =
            2 / PI * (angle + sin(angle) * cosine * student_series(2, square, (freedom - 1) / 2));
    return inside < 1 ? 1 - inside : 0;
}

double statistics_student_quantile(double p, size_t freedom)
{
    double low = 0, high = 1;

    while (statistics_student_tail(high, freedom) > p)
        high *= 2;
    for (int i = 0; i < TAIL_STEPS && low < high; i++) {
        const double middle = low + (high - low) / 2;

        if (statistics_student_tail(middle, freedom) > p)
            low = middle;
        else
            high = middle;
    }
    return high;
}

struct interval statistics_mean_interval(double mean, double error, size_t freedom, double level)
{
    const double half = statistics_student_quantile(level, freedom) * error;

    return (struct interval){mean - half, mean + half};
}

double statistics_p_beyond(double mean, double error, size_t freedom, double margin)
{
    const double room = margin - fabs(mean);
    double tail;

    if (error == 0)
        return room > 0 ? 0 : 1;
    tail = statistics_student_tail(fabs(room) / error, freedom) / 2;
    return room > 0 ? tail : 1 - tail;
}

static double *element(double *p, size_t stride, size_t i)
{
    return (double *)(void *)((char *)p + i * stride);
}

void statistics_holm(double *p, size_t stride, size_t length, size_t hypotheses)
{
    double reached = 0;

    /* Each round adjusts the least of the values not yet adjusted; adjusted ones are marked by a
     * negative value, -1 - p. */
    for (size_t left = hypotheses; left > 0; left--) {
        double *least = NULL;

        for (size_t i = 0; i < length; i++) {
            double *other = element(p, stride, i);

            if (*other >= 0 && (!least || *other < *least))
                least = other;
        }
        if (!least)
            break;
        reached = fmax(reached, fmin(1, *least * (double)left));
        *least = -1 - reached;
    }
    for (size_t i = 0; i < length; i++)
        if (*element(p, stride, i) < 0)
            *element(p, stride, i) = -1 - *element(p, stride, i);
}
