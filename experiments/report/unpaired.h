/*
 * unpaired: one mode in two reports, whose runs have nothing in common but the mode.  Everything is
 * about the difference of the means of two samples of logarithms, second minus first.  Pure
 * functions.
 *
 * Sources: Fisher 1935 and Pitman 1937 (the permutation test), Welch 1947, Schuirmann 1987.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_UNPAIRED_H
#define SPARRING_EXPERIMENTS_REPORT_UNPAIRED_H

#include "experiments/report/statistics.h"

#include <stddef.h>

#define UNPAIRED_RUNS_MAX 1000 /* of both */

struct sample {
    const double *values; /* logarithms; borrowed */
    size_t n;
};

struct unpaired {
    double difference;        /* of the means; NaN: one of them is empty */
    struct interval interval; /* by Welch's t; NaN with fewer than 2 runs of one */
    double p_difference;      /* of the permutation test, two-sided; 1 without runs of one */
    double p_equivalence;     /* that the difference is beyond the margin; 1 without an interval */
    double least_p;           /* smallest p_difference that so many runs can have */
};

/* `level` is that of the interval, `margin` the largest difference that counts as none.  Both
 * samples together have at most UNPAIRED_RUNS_MAX runs.  STATUS_NO_MEMORY only. */
enum status unpaired_compare(const struct sample *first, const struct sample *second, double level,
                             double margin, struct unpaired *ret, struct error *err);

#endif
