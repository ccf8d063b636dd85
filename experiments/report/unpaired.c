/*
 * The permutation test counts the ways to choose which of all runs are the first sample that part
 * the means as far as those seen.  Up to WAYS_MAX of them it goes through all; beyond, it draws,
 * and the one seen counts as drawn, so that the p is never too small (Phipson and Smyth 2010).
 * Degrees of freedom are rounded down, which makes intervals wider.
 */
#include "experiments/report/unpaired.h"

#include "common/base/memory.h"
#include "common/base/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WAYS_MAX  2e6
#define DRAWS     200000u
#define DRAW_SEED 20261124u
#define ROUNDING  1e-10 /* of sums, as a share of the sum of magnitudes */

/* All runs, less their mean: a choice of the first n of them with sum s parts the means by s times
 * a constant, so that sums are all that the test compares. */
struct pool {
    double *values; /* owned */
    size_t n, total;
    double limit; /* of |s|, from which on a choice is as far apart as the one seen */
};

/* Ways to choose n of total. */
static double count_ways(size_t n, size_t total)
{
    double ways = 1;

    for (size_t i = 1; i <= n; i++)
        ways *= (double)(total - n + i) / (double)i;
    return round(ways);
}

static enum status make_pool(const struct sample *first, const struct sample *second,
                             struct pool *ret, struct error *err)
{
    struct pool p = {.n = first->n, .total = first->n + second->n};
    double mean, sum = 0, size = 0;
    enum status status = mem_calloc(p.total, sizeof(double), "two samples", &p.values, err);

    if (status != STATUS_OK)
        return status;
    memcpy(p.values, first->values, first->n * sizeof(double));
    memcpy(p.values + first->n, second->values, second->n * sizeof(double));
    mean = statistics_mean(p.values, p.total);
    for (size_t i = 0; i < p.total; i++) {
        p.values[i] -= mean;
        sum += i < p.n ? p.values[i] : 0;
        size += fabs(p.values[i]);
    }
    p.limit = fabs(sum) - ROUNDING * size;
    *ret = p;
    return STATUS_OK;
}

/* The next choice of as many places, in lexical order of place[]; false after the last one. */
static bool choose_next(size_t *place, size_t n, size_t total)
{
    size_t i = n;

    while (i > 0 && place[i - 1] == total - n + i - 1)
        i--;
    if (i == 0)
        return false;
    place[i - 1]++;
    for (; i < n; i++)
        place[i] = place[i - 1] + 1;
    return true;
}

static double choose_all(const struct pool *p)
{
    size_t place[64]; /* WAYS_MAX leaves no more */
    double far = 0, ways = 0;

    for (size_t i = 0; i < p->n; i++)
        place[i] = i;
    do {
        double sum = 0;

        for (size_t i = 0; i < p->n; i++)
            sum += p->values[place[i]];
        far += fabs(sum) >= p->limit;
        ways++;
    } while (choose_next(place, p->n, p->total));
    return far / ways;
}

static enum status choose_some(struct pool *p, double *ret, struct error *err)
{
    struct random *random = NULL;
    unsigned far = 0;
    enum status status = mem_calloc(1, sizeof(*random), "a generator", &random, err);

    if (status != STATUS_OK)
        return status;
    random_seed(random, DRAW_SEED);
    for (unsigned k = 0; k < DRAWS; k++) {
        double sum = 0;

        for (size_t i = 0; i < p->n && i < p->total; i++) { /* Fisher and Yates, as far as needed */
            const size_t other = i + random_u32(random) % (p->total - i);
            const double value = p->values[other];

            p->values[other] = p->values[i];
            p->values[i] = value;
            sum += value;
        }
        far += fabs(sum) >= p->limit;
    }
    free(random);
    *ret = (far + 1.0) / (DRAWS + 1.0);
    return STATUS_OK;
}

static enum status permute(const struct sample *first, const struct sample *second,
                           struct unpaired *u, struct error *err)
{
    const double ways = count_ways(first->n, first->n + second->n);
    struct pool pool;
    enum status status = make_pool(first, second, &pool, err);

    if (status != STATUS_OK)
        return status;
    if (ways > WAYS_MAX || first->n > 64) {
        u->least_p = 1 / (DRAWS + 1.0);
        status = choose_some(&pool, &u->p_difference, err);
    } else {
        u->least_p = (first->n == second->n ? 2 : 1) / ways;
        u->p_difference = choose_all(&pool);
    }
    free(pool.values);
    return status;
}

static double error_of_mean(const struct sample *s)
{
    return statistics_deviation(s->values, s->n) / sqrt((double)s->n);
}

static void by_welch(const struct sample *first, const struct sample *second, double level,
                     double margin, struct unpaired *u)
{
    const double a = pow(error_of_mean(first), 2), b = pow(error_of_mean(second), 2);
    const double freedom =
        (a + b) * (a + b) / (a * a / (double)(first->n - 1) + b * b / (double)(second->n - 1));
    const size_t whole = freedom > 1 ? (size_t)freedom : 1; /* NaN without any spread */

    u->interval = statistics_mean_interval(u->difference, sqrt(a + b), whole, level);
    u->p_equivalence = statistics_p_beyond(u->difference, sqrt(a + b), whole, margin);
}

enum status unpaired_compare(const struct sample *first, const struct sample *second, double level,
                             double margin, struct unpaired *ret, struct error *err)
{
    struct unpaired u = {.difference = statistics_mean(second->values, second->n) -
                                       statistics_mean(first->values, first->n),
                         .interval = {(double)NAN, (double)NAN},
                         .p_difference = 1,
                         .p_equivalence = 1,
                         .least_p = 1};
    enum status status = STATUS_OK;

    if (first->n > 0 && second->n > 0)
        status = permute(first, second, &u, err);
    if (status != STATUS_OK)
        return status;
    if (first->n > 1 && second->n > 1)
        by_welch(first, second, level, margin, &u);
    *ret = u;
    return STATUS_OK;
}
