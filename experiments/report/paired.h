/*
 * paired: compares two modes over blocks.  A block is one run of every mode, adjacent in time, with
 * one seed; effects common to a block (a busy host, a warm processor) cancel in the ratio.  d is
 * log(figure of the first / figure of the second) of a block, and all results are about the mean of
 * d.  Pure functions.
 *
 * Source: Fisher 1935 (the sign-flip test).
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_PAIRED_H
#define SPARRING_EXPERIMENTS_REPORT_PAIRED_H

#include "experiments/report/statistics.h"

#include <stddef.h>

#define PAIRED_BLOCKS_MAX 1000

struct paired {
    size_t n;                 /* blocks */
    double mean, deviation;   /* of d; NaN: n is 0, or below 2 */
    struct interval interval; /* of the mean, by Student's t; NaN with n below 2 */
    double p_difference;      /* of the sign-flip test, two-sided; 1 with n of 0 */
    double p_equivalence;     /* that the mean is beyond the margin; 1 with n below 2 */
};

/* `level` is that of the interval (0.05: 95 %), `margin` the largest log-ratio that counts as
 * equal. n is at most PAIRED_BLOCKS_MAX.  STATUS_NO_MEMORY only. */
enum status paired_compare(const double *d, size_t n, double level, double margin,
                           struct paired *ret, struct error *err);

/* Fewest blocks with which one of `pairs` can be found different at `level`: the sign-flip test of
 * n blocks has p >= 2 / 2^n, and Holm requires level / pairs of the first one. */
size_t paired_least_blocks(size_t pairs, double level);

/* Blocks with which such a pair would be decided (different or equivalent) with a power of 80 %, by
 * the normal approximation, at most PAIRED_BLOCKS_MAX; 0: more than that, or not known. */
size_t paired_blocks_to_decide(const struct paired *p, double level, double margin);

#endif
