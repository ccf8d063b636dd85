/*
 * paired: the sign-flip test counts the assignments of signs to d whose sum is at least as far from
 * 0 as the observed one.  Up to ENUMERATED_MAX blocks it enumerates all of them in Gray code (each
 * differs from the one before in one sign and costs one addition); beyond, it draws FLIPS of them
 * and counts the observed one as drawn, so that p is never too small (Phipson and Smyth 2010).
 */
#include "experiments/report/paired.h"

#include "common/base/memory.h"
#include "common/base/random.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define ENUMERATED_MAX 22
#define FLIPS          1000000u
#define FLIP_SEED      20261123u
#define ROUNDING       1e-10              /* of sums of d, as a share of the sum of |d| */
#define NORMAL_0_8     0.8416212335729143 /* quantiles of the normal distribution */
#define NORMAL_0_9     1.2815515655446004

/* ---- the sign-flip test ---- */

static double flip_all(const double *d, size_t n, double limit)
{
    const uint64_t ways = UINT64_C(1)
                          << (n - 1); /* by symmetry: the other half has all signs turned */
    double sum = 0;
    uint64_t far = 0, minus = 0;

    for (size_t i = 0; i < n; i++)
        sum += d[i];
    for (uint64_t k = 1;; k++) {
        size_t position;

        far += fabs(sum) >= limit;
        if (k == ways)
            break;
        position = (size_t)__builtin_ctzll(k); /* Gray code: the position whose sign turns */
        sum += minus >> position & 1 ? 2 * d[position] : -2 * d[position];
        minus ^= UINT64_C(1) << position;
    }
    return (double)far / (double)ways;
}

static enum status flip_some(const double *d, size_t n, double limit, double *ret,
                             struct error *err)
{
    struct random *random = NULL;
    uint64_t far = 0;
    enum status status = mem_calloc(1, sizeof(*random), "a generator", &random, err);

    if (status != STATUS_OK)
        return status;
    random_seed(random, FLIP_SEED);
    for (unsigned k = 0; k < FLIPS; k++) {
        double sum = 0;
        uint32_t bits = 0;

        for (size_t i = 0; i < n; i++) {
            if (i % 32 == 0)
                bits = random_u32(random);
            sum += bits >> (i % 32) & 1 ? d[i] : -d[i];
        }
        far += fabs(sum) >= limit;
    }
    free(random);
    *ret = ((double)far + 1) / (FLIPS + 1.0);
    return STATUS_OK;
}

static enum status flip_signs(const double *d, size_t n, double *ret, struct error *err)
{
    double sum = 0, size = 0, limit;

    for (size_t i = 0; i < n; i++) {
        sum += d[i];
        size += fabs(d[i]);
    }
    limit = fabs(sum) - ROUNDING * size;
    if (n > ENUMERATED_MAX)
        return flip_some(d, n, limit, ret, err);
    *ret = n > 0 ? flip_all(d, n, limit) : 1;
    return STATUS_OK;
}

enum status paired_compare(const double *d, size_t n, double level, double margin,
                           struct paired *ret, struct error *err)
{
    struct paired p = {.n = n,
                       .mean = statistics_mean(d, n),
                       .deviation = statistics_deviation(d, n),
                       .interval = {(double)NAN, (double)NAN},
                       .p_equivalence = 1};
    enum status status = flip_signs(d, n, &p.p_difference, err);

    if (status != STATUS_OK)
        return status;
    if (n > 1) {
        const double error = p.deviation / sqrt((double)n);

        p.interval = statistics_mean_interval(p.mean, error, n - 1, level);
        p.p_equivalence = statistics_p_beyond(p.mean, error, n - 1, margin);
    }
    *ret = p;
    return STATUS_OK;
}

size_t paired_least_blocks(size_t pairs, double level)
{
    size_t n = 1;

    while (ldexp(2, -(int)n) > level / (double)pairs)
        n++;
    return n;
}

static double blocks_for(double quantiles, double deviation, double distance)
{
    const double root = quantiles * deviation / distance;

    return distance > 0 ? ceil(root * root) : (double)INFINITY;
}

size_t paired_blocks_to_decide(const struct paired *p, double level, double margin)
{
    const double two_sided = statistics_student_quantile(level, PAIRED_BLOCKS_MAX);
    const double one_sided = statistics_student_quantile(2 * level, PAIRED_BLOCKS_MAX);
    double different, equal;

    if (p->n < 2 || !isfinite(p->deviation))
        return 0;
    different = blocks_for(two_sided + NORMAL_0_8, p->deviation, fabs(p->mean));
    equal = blocks_for(one_sided + NORMAL_0_9, p->deviation, margin - fabs(p->mean));
    different = fmax(fmin(different, equal), (double)paired_least_blocks(1, level));
    return different <= PAIRED_BLOCKS_MAX ? (size_t)different : 0;
}
