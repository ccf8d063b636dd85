/*
 * statistics: the pure functions behind every figure of a report.  NaN means unknown; callers leave
 * NaN values out of the samples.
 *
 * The unit of a comparison is the run: steps inside a run depend on each other, so intervals and
 * tests are over one value per run.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_STATISTICS_H
#define SPARRING_EXPERIMENTS_REPORT_STATISTICS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

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
double statistics_deviation(const double *values,
                            size_t n); /* of a sample; NaN when n is below 2 */

/* Everything of struct spread; `values` in any order, not changed.  The interval is a percentile
 * bootstrap of all n^n samples that can be drawn with replacement, by the distribution of their
 * order statistics.  It needs STATISTICS_RUNS_MINIMUM values, and time in O(n log n).
 * STATUS_NO_MEMORY only.  Source: Efron and Tibshirani 1993, chapter 13. */
enum status statistics_spread(const double *values, size_t n, struct spread *ret,
                              struct error *err);

/* Modified z-score of `value`: 0.6745 |value - median| / MAD; when the MAD is 0, the mean absolute
 * deviation takes its place (factor 0.7979); 0 when all values are equal or n < 3.
 * Source: Iglewicz and Hoaglin 1993.  STATUS_NO_MEMORY only. */
enum status statistics_outlier_score(const double *values, size_t n, double value, double *ret,
                                     struct error *err);

/* P(|T| > t) of Student's distribution with so many degrees of freedom, t >= 0.
 * Source: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4. */
double statistics_student_tail(double t, size_t freedom);

/* t with P(|T| > t) = p, 0 < p < 1. */
double statistics_student_quantile(double p, size_t freedom);

/* Of a mean with the standard error `error`, by Student's t; level 0.05: 95 %. */
struct interval statistics_mean_interval(double mean, double error, size_t freedom, double level);

/* The larger p of two one-sided tests: that the mean is at least the margin, that it is at most its
 * negative.  Source: Schuirmann 1987. */
double statistics_p_beyond(double mean, double error, size_t freedom, double margin);

/* Holm's adjustment (1979), in place: each p becomes the smallest level at which it is rejected.
 * `length` of them lie `stride` bytes apart; NaN is none.  `hypotheses` are as many as were asked
 * for: at least those that are there; the others count as 1. */
void statistics_holm(double *p, size_t stride, size_t length, size_t hypotheses);

#endif
