/*
 * statistics: statistics of small samples.  Every function is exact or has a fixed seed, so the
 * same runs give the same report.  Functions that sort work on copies and keep the caller's order.
 */
#include "experiments/report/statistics.h"

#include "common/base/memory.h"
#include "common/base/random.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RESAMPLE_SEED  20240229u
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

/* Median of n values drawn with replacement from `values`, in `scratch`. */
static double resampled_median(struct random *random, const double *values, size_t n,
                               double *scratch)
{
    for (size_t i = 0; i < n; i++)
        scratch[i] = values[(size_t)(((uint64_t)random_u32(random) * n) >> 32)];
    statistics_sort(scratch, n);
    return statistics_quantile(scratch, n, 0.5);
}

/* Percentile interval of the median. */
static enum status bootstrap(const double *values, size_t n, struct interval *ret,
                             struct error *err)
{
    struct random *random = NULL;
    double *results = NULL;
    double *scratch = NULL;
    enum status status;

    status = mem_calloc(1, sizeof(*random), "a generator", &random, err);
    if (status == STATUS_OK)
        status = mem_calloc(STATISTICS_RESAMPLES, sizeof(double), "resamples", &results, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(double), "a resample", &scratch, err);
    if (status == STATUS_OK) {
        random_seed(random, RESAMPLE_SEED);
        for (size_t i = 0; i < STATISTICS_RESAMPLES; i++)
            results[i] = resampled_median(random, values, n, scratch);
        statistics_sort(results, STATISTICS_RESAMPLES);
        ret->low = statistics_quantile(results, STATISTICS_RESAMPLES, LOW_QUANTILE);
        ret->high = statistics_quantile(results, STATISTICS_RESAMPLES, HIGH_QUANTILE);
    }
    free(random);
    free(results);
    free(scratch);
    return status;
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
        status = bootstrap(sorted, n, &spread.interval, err);
    free(sorted);
    if (status == STATUS_OK)
        *ret = spread;
    return status;
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
