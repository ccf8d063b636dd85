/*
 * unpaired: a mean of n values with lag-1 correlation r (and lag-k correlation r^k) has the
 * variance of a mean of n (1 - r) / (1 + r) independent values: variances grow, and degrees of
 * freedom shrink, by that factor.  Degrees of freedom are rounded down, which makes intervals
 * wider.
 */
#include "experiments/report/unpaired.h"

#include <math.h>

double unpaired_correlation(const struct sample *samples, size_t count)
{
    double products = 0, squares = 0;
    size_t used = 0, total = 0;

    for (size_t k = 0; k < count; k++) {
        const struct sample *s = &samples[k];
        const double mean = statistics_mean(s->values, s->n);

        for (size_t i = 0; i < s->n; i++) {
            squares += (s->values[i] - mean) * (s->values[i] - mean);
            if (i > 0)
                products += (s->values[i] - mean) * (s->values[i - 1] - mean);
        }
        used += s->n > 0;
        total += s->n;
    }
    if (squares <= 0)
        return 0;
    return fmin(fmax(products / squares + (double)used / (double)total, 0),
                UNPAIRED_CORRELATION_MAX);
}

static double variance_of_mean(const struct sample *s)
{
    const double deviation = statistics_deviation(s->values, s->n);

    return deviation * deviation / (double)s->n;
}

struct unpaired unpaired_compare(const struct sample *first, const struct sample *second,
                                 double correlation, double level, double margin)
{
    struct unpaired u = {.difference = statistics_mean(second->values, second->n) -
                                       statistics_mean(first->values, first->n),
                         .interval = {(double)NAN, (double)NAN},
                         .p_difference = 1,
                         .p_equivalence = 1};
    const double growth = (1 + correlation) / (1 - correlation);
    double a, b, error, freedom;
    size_t whole;

    if (first->n < STATISTICS_RUNS_MINIMUM || second->n < STATISTICS_RUNS_MINIMUM)
        return u;
    a = variance_of_mean(first);
    b = variance_of_mean(second);
    freedom =
        (a + b) * (a + b) / (a * a / (double)(first->n - 1) + b * b / (double)(second->n - 1));
    freedom /= growth;
    whole = freedom > 1 ? (size_t)freedom : 1; /* NaN without any spread */
    error = sqrt((a + b) * growth);
    u.interval = statistics_mean_interval(u.difference, error, whole, level);
    u.p_equivalence = statistics_p_beyond(u.difference, error, whole, margin);
    u.p_difference = fmin(1, 2 * (1 - u.p_equivalence));
    return u;
}
