/*
 * Statistics of small samples.  Everything is exact or has a fixed seed, so a report made twice
 * from the same runs is the same report.  Sorting copies keeps the callers' order.
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
    double place;
    size_t below;

    if (n == 0)
        return (double)NAN;
    place = q * (double)(n - 1);
    below = (size_t)floor(place);
    if (below + 1 >= n)
        return sorted[n - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
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
