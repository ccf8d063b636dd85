/*
 * bounded: a value in double precision, and a bound of the error of a correct float32 result.
 * This is a running error analysis: an operation propagates the errors of its operands and adds the
 * rounding of its own result.  A fused operation rounds less, so the bounds hold for it, too.  Used
 * by the tests of operations, optimizers and models.
 * Source: Higham 2002, section 3.3.
 */
#ifndef SPARRING_TESTS_SUPPORT_BOUNDED_H
#define SPARRING_TESTS_SUPPORT_BOUNDED_H

#include <stddef.h>

#define ROUNDING 0x1p-24 /* relative error of one float32 operation */

struct bounded {
    double value, error;
};

/* A value without error. */
struct bounded bounded_exact(double value);
/* The result of one float32 operation whose operands contribute an error of `error`. */
struct bounded bounded_round(double value, double error);
struct bounded bounded_product(struct bounded a, struct bounded b);
struct bounded bounded_plus(struct bounded a, struct bounded b);
struct bounded bounded_minus(struct bounded a, struct bounded b);
struct bounded bounded_times(struct bounded a, double by);
struct bounded bounded_quotient(struct bounded a, struct bounded b);
struct bounded bounded_root(struct bounded a); /* square root; a >= 0 */

/* Add a term to a sum in which each term is rounded at most `roundings` times: n for a sum of n
 * terms in any order. */
void bounded_add(struct bounded *sum, struct bounded term, size_t roundings);

/* 1 / sqrt(variance + epsilon) */
struct bounded bounded_inverse_std(struct bounded variance, double epsilon);

#endif
