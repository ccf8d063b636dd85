/*
 * statistics: the few pure functions behind every figure of a report.  NaN stands for "unknown";
 * callers leave NaN values out before they come here.
 *
 * The unit of a comparison is the run: steps inside a run depend on each other, so intervals and
 * tests are over one value per run.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_STATISTICS_H
#define SPARRING_EXPERIMENTS_REPORT_STATISTICS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define STATISTICS_RESAMPLES    10000
#define STATISTICS_OUTLIER      3.5 /* modified z-score above which a run is flagged */
#define STATISTICS_RUNS_MINIMUM 3   /* runs of each mode below which there is no interval */

struct interval {
    double low, high; /* both NaN: no interval */
};

/* Median and quartiles of one figure over the runs of a mode, and a 95 % interval of the median. */
struct spread {
    size_t n;
    double median, q1, q3;
    struct interval interval;
};

/* Sort ascending, in place. */
void statistics_sort(double *values, size_t n);

/* Quantile `q` in [0, 1] of sorted values, linear between neighbours (numpy's default, type 7 of
 * Hyndman and Fan 1996).  NaN when n is 0. */
double statistics_quantile(const double *sorted, size_t n, double q);

double statistics_mean(const double *values, size_t n); /* NaN when n is 0 */

/* Everything of struct spread; `values` in any order, not changed.  The interval is a percentile
 * bootstrap: STATISTICS_RESAMPLES times as many values are drawn anew with replacement, by a
 * generator of fixed seed, so the same runs give the same interval.  It needs
 * STATISTICS_RUNS_MINIMUM values.  Source: Efron and Tibshirani 1993, chapter 13. */
enum status statistics_spread(const double *values, size_t n, struct spread *ret,
                              struct error *err);

/* Modified z-score of `value`: 0.6745 |value - median| / MAD; when the MAD is 0, the mean absolute
 * deviation takes its place (factor 0.7979); 0 when all values are equal or n < 3.
 * Source: Iglewicz and Hoaglin 1993.  STATUS_NO_MEMORY only. */
enum status statistics_outlier_score(const double *values, size_t n, double value, double *ret,
                                     struct error *err);

#endif
