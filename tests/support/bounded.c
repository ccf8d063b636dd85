/*
 * bounded: forward error bounds of float32 operations.  Each function computes the value in double
 * precision and adds the propagated errors of its operands to the rounding of its own result.
 */
#include "tests/support/bounded.h"

#include <math.h>

struct bounded bounded_exact(double value)
{
    return (struct bounded){value, 0.0};
}

struct bounded bounded_round(double value, double error)
{
    return (struct bounded){value, error + ROUNDING * (fabs(value) + error)};
}

struct bounded bounded_product(struct bounded a, struct bounded b)
{
    return bounded_round(a.value * b.value,
                         fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error);
}

struct bounded bounded_plus(struct bounded a, struct bounded b)
{
    return bounded_round(a.value + b.value, a.error + b.error);
}

struct bounded bounded_minus(struct bounded a, struct bounded b)
{
    return bounded_round(a.value - b.value, a.error + b.error);
}

struct bounded bounded_times(struct bounded a, double by)
{
    return bounded_round(a.value * by, a.error * fabs(by));
}

struct bounded bounded_quotient(struct bounded a, struct bounded b)
{
    double value = a.value / b.value;
    double least = fmax(fabs(b.value) - b.error, 0.0);

    return bounded_round(value, (a.error + fabs(value) * b.error) / least);
}

struct bounded bounded_root(struct bounded a)
{
    double value = sqrt(a.value);

    /* concave: largest error below */
    return bounded_round(value, value - sqrt(fmax(a.value - a.error, 0.0)));
}

void bounded_add(struct bounded *sum, struct bounded term, size_t roundings)
{
    sum->value += term.value;
    sum->error += term.error + (double)roundings * ROUNDING * (fabs(term.value) + term.error);
}

struct bounded bounded_inverse_std(struct bounded variance, double epsilon)
{
    double least = (fmax(variance.value - variance.error, 0.0) + epsilon) * (1.0 - ROUNDING);
    double value = 1.0 / sqrt(variance.value + epsilon);

    /* Convex and decreasing: the error is largest at the least variance.  Two operations round. */
    return bounded_round(value, (1.0 / sqrt(least) - value) * (1.0 + ROUNDING) + ROUNDING * value);
}
