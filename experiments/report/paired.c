/*
 * The sign-flip test counts the ways to choose signs of d whose sum is as far from 0 as the one
 * seen.  Up to ENUMERATED_MAX blocks it goes through all of them (each differs from the one before
 * in one sign, so that each takes one addition); beyond, it draws FLIPS of them, and the one seen
 * counts as drawn, so that the p is never too small (Phipson and Smyth 2010).
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
#define ROUNDING       1e-10 /* of sums of d, as a share of the sum of |d| */
#define PI             3.14159265358979323846
#define NORMAL_0_8     0.8416212335729143 /* quantiles of the normal distribution */
#define NORMAL_0_9     1.2815515655446004
#define TAIL_STEPS     200 /* bisections */

/* Between t and -t, over half its terms' series: 1 + (a/b) c + (a (a+2))/(b (b+2)) c^2 + ... */
static double series(double first, double c, size_t terms)
{
    double term = 1, sum = terms > 0 ? 1 : 0;

    for (size_t i = 1; i < terms; i++) {
        const double above = first + 2 * (double)(i - 1);

        term *= above / (above + 1) * c;
        sum += term;
    }
    return sum;
}

double paired_student_tail(double t, size_t freedom)
{
    const double angle = atan(t / sqrt((double)freedom));
    const double cosine = cos(angle);
    const double square = cosine * cosine;
    double inside;

    if (freedom % 2 == 0)
        inside = sin(angle) * series(1, square, freedom / 2);
    else
        inside = 2 / PI * (angle + sin(angle) * cosine * series(2, square, (freedom - 1) / 2));
    return inside < 1 ? 1 - inside : 0;
}

double paired_student_quantile(double p, size_t freedom)
{
    double low = 0, high = 1;

    while (paired_student_tail(high, freedom) > p)
        high *= 2;
    for (int i = 0; i < TAIL_STEPS && low < high; i++) {
        const double middle = low + (high - low) / 2;

        if (paired_student_tail(middle, freedom) > p)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* ---- the sign-flip test ---- */

static double flip_all(const double *d, size_t n, double limit)
{
    const uint64_t ways = UINT64_C(1) << (n - 1); /* the others are these with all signs turned */
    double sum = 0;
    uint64_t far = 0, minus = 0;

    for (size_t i = 0; i < n; i++)
        sum += d[i];
    for (uint64_t k = 1;; k++) {
        size_t place;

        far += fabs(sum) >= limit;
        if (k == ways)
            break;
        place = (size_t)__builtin_ctzll(k); /* Gray's code: the place whose sign turns */
        sum += minus >> place & 1 ? 2 * d[place] : -2 * d[place];
        minus ^= UINT64_C(1) << place;
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

/* ---- all of it ---- */

static double deviation_of(const double *d, size_t n, double mean)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (d[i] - mean) * (d[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : (double)NAN;
}

/* The larger of two one-sided tests: that the mean is at least the margin, that it is at most its
 * negative. */
static double beyond(const struct paired *p, double margin)
{
    const double room = margin - fabs(p->mean);
    const double tail = paired_student_tail(fabs(room) / (p->deviation / sqrt((double)p->n)),
                                            p->n - 1); /* 0 / 0 is NaN */

    if (p->deviation == 0)
        return room > 0 ? 0 : 1;
    return room > 0 ? tail / 2 : 1 - tail / 2;
}

enum status paired_compare(const double *d, size_t n, double level, double margin,
                           struct paired *ret, struct error *err)
{
    struct paired p = {.n = n,
                       .mean = statistics_mean(d, n),
                       .interval = {(double)NAN, (double)NAN},
                       .p_equivalence = 1};
    enum status status = flip_signs(d, n, &p.p_difference, err);

    if (status != STATUS_OK)
        return status;
    p.deviation = deviation_of(d, n, p.mean);
    if (n > 1) {
        const double half = paired_student_quantile(level, n - 1) * p.deviation / sqrt((double)n);

        p.interval = (struct interval){p.mean - half, p.mean + half};
        p.p_equivalence = beyond(&p, margin);
    }
    *ret = p;
    return STATUS_OK;
}

static double *element(double *p, size_t stride, size_t i)
{
    return (double *)(void *)((char *)p + i * stride);
}

void paired_holm(double *p, size_t stride, size_t length, size_t hypotheses)
{
    double reached = 0;

    /* Each round takes the least of those not yet adjusted, which are then kept below 0. */
    for (size_t left = hypotheses; left > 0; left--) {
        double *least = NULL;

        for (size_t i = 0; i < length; i++) {
            double *other = element(p, stride, i);

            if (*other >= 0 && (!least || *other < *least))
                least = other;
        }
        if (!least)
            break;
        reached = fmax(reached, fmin(1, *least * (double)left));
        *least = -1 - reached;
    }
    for (size_t i = 0; i < length; i++)
        if (*element(p, stride, i) < 0)
            *element(p, stride, i) = -1 - *element(p, stride, i);
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
    const double two_sided = paired_student_quantile(level, PAIRED_BLOCKS_MAX);
    const double one_sided = paired_student_quantile(2 * level, PAIRED_BLOCKS_MAX);
    double different, equal;

    if (p->n < 2 || !isfinite(p->deviation))
        return 0;
    different = blocks_for(two_sided + NORMAL_0_8, p->deviation, fabs(p->mean));
    equal = blocks_for(one_sided + NORMAL_0_9, p->deviation, margin - fabs(p->mean));
    different = fmax(fmin(different, equal), (double)paired_least_blocks(1, level));
    return different <= PAIRED_BLOCKS_MAX ? (size_t)different : 0;
}
