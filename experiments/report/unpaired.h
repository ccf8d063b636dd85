/*
 * unpaired: compares one mode in two reports, which were measured at different times.  All results
 * are about the difference of the means of two samples of logarithms, second minus first.  Pure
 * functions.
 *
 * Runs are not independent: on a shared machine, runs that are close in time have correlated
 * throughput, and a report's mean drifts from that of the next report.  So intervals are widened by
 * the correlation of neighbouring runs, and only a difference beyond a margin counts.
 *
 * Sources: Welch 1947; Schuirmann 1987 (equivalence); Murphy and Myors 1999 (differences beyond a
 * margin); Bartlett 1946 (the variance of a mean of correlated values).
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_UNPAIRED_H
#define SPARRING_EXPERIMENTS_REPORT_UNPAIRED_H

#include "experiments/report/statistics.h"

#include <stddef.h>

#define UNPAIRED_CORRELATION_MAX 0.5 /* cap: estimates from few runs are noisy */

struct sample {
    const double *values; /* logarithms, in the order of the runs; borrowed */
    size_t n;
};

struct unpaired {
    double difference;        /* of the means; NaN: one of them is empty */
    struct interval interval; /* NaN with fewer than STATISTICS_RUNS_MINIMUM runs of one */
    double p_difference;      /* p-value: not beyond the margin, two-sided; 1 without an interval */
    double p_equivalence;     /* p-value: beyond the margin; 1 without an interval */
};

/* Correlation of neighbours within the samples, pooled, 0 to UNPAIRED_CORRELATION_MAX.  A sample's
 * own mean makes independent values look like -1/n, which is added back. */
double unpaired_correlation(const struct sample *samples, size_t count);

/* `correlation` is that of neighbours in both samples, `level` that of the interval, `margin` the
 * largest difference that counts as none. */
struct unpaired unpaired_compare(const struct sample *first, const struct sample *second,
                                 double correlation, double level, double margin);

#endif
