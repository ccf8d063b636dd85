/*
 * cpu_math: functions shared by kernels that are compiled once per vector width: an exponential in
 * plain arithmetic, which the compiler can vectorise, and sums over 32 lanes in an order that does
 * not depend on the width.  Every width gives the same bits.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_MATH_H
#define SPARRING_WORKER_COMPUTE_CPU_MATH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * e^x within 1 unit in the last place for normal results; below 2^-126 within the smallest
 * subnormal, 0 at -infinity, infinity above 88.73, NaN of NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, so that n times the first is exact.
 * Source: Cephes' expf (Moshier), with the power of two applied in two halves for subnormals.
 */
static inline float math_exp(float x)
{
    const float to_integer = 0x1.8p23f; /* added: the sum's last bits are the rounded integer */
    const uint32_t to_integer_bits = 0x4B400000u;
    float sum, n, r, p, first, second;
    uint32_t power, half;

    x = -104.0f > x ? -104.0f : x; /* propagates NaN */
    x = 89.0f < x ? 89.0f : x;
    sum = x * 1.44269504f + to_integer;
    n = sum - to_integer;
    memcpy(&power, &sum, sizeof(power));
    power -= to_integer_bits;
    r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    half = (uint32_t)((int32_t)power >> 1);
    power = (power - half + 127u) << 23;
    half = (half + 127u) << 23;
    memcpy(&first, &half, sizeof(first));
    memcpy(&second, &power, sizeof(second));
    return p * first * second;
}

/* ---- sums ---- */

#define LANES 32

#if defined(__AVX512F__)
#define LANES_REGISTER 16
#elif defined(__AVX__)
#define LANES_REGISTER 8
#else
#define LANES_REGISTER 4
#endif
#define LANES_PARTS (LANES / LANES_REGISTER)

typedef float lanes_part __attribute__((vector_size(4 * LANES_REGISTER)));
typedef int32_t lanes_mask __attribute__((vector_size(4 * LANES_REGISTER)));

struct lanes {
    lanes_part part[LANES_PARTS];
};

static inline struct lanes lanes_load(const float *x)
{
    struct lanes l;

    memcpy(&l, x, sizeof(l));
    return l;
}

/* The first `count` < LANES from x, `fill` in the others. */
static inline struct lanes lanes_load_some(const float *x, size_t count, float fill)
{
    float values[LANES];

    for (size_t i = 0; i < LANES; i++)
        values[i] = i < count ? x[i] : fill;
    return lanes_load(values);
}

static inline void lanes_store(float *x, struct lanes l)
{
    memcpy(x, &l, sizeof(l));
}

static inline struct lanes lanes_add(struct lanes a, struct lanes b)
{
    for (int i = 0; i < LANES_PARTS; i++)
        a.part[i] += b.part[i];
    return a;
}

static inline struct lanes lanes_multiply(struct lanes a, struct lanes b)
{
    for (int i = 0; i < LANES_PARTS; i++)
        a.part[i] *= b.part[i];
    return a;
}

static inline struct lanes lanes_subtract_number(struct lanes a, float number)
{
    for (int i = 0; i < LANES_PARTS; i++)
        a.part[i] -= number;
    return a;
}

/* a > b ? a : b: b where one is a NaN. */
static inline lanes_part part_larger(lanes_part a, lanes_part b)
{
    lanes_mask larger = a > b;

    return (lanes_part)((larger & (lanes_mask)a) | (~larger & (lanes_mask)b));
}

static inline struct lanes lanes_larger(struct lanes a, struct lanes b)
{
    for (int i = 0; i < LANES_PARTS; i++)
        b.part[i] = part_larger(a.part[i], b.part[i]);
    return b;
}

/* x's first `count` numbers, `fill` instead of the others. */
static inline struct lanes lanes_keep(struct lanes x, size_t count, float fill)
{
    for (int i = 0; i < LANES_PARTS; i++) {
        lanes_mask index;
        lanes_part filler = fill - (lanes_part){0};

        for (int j = 0; j < LANES_REGISTER; j++)
            index[j] = i * LANES_REGISTER + j;
        index = index < (int32_t)count;
        x.part[i] = (lanes_part)((index & (lanes_mask)x.part[i]) | (~index & (lanes_mask)filler));
    }
    return x;
}

static inline void lanes_fold(float *values, size_t half)
{
    for (size_t i = 0; i < half; i++)
        values[i] += values[i + half];
}

/* Add the upper half to the lower half repeatedly: the same order at every width. */
static inline float lanes_sum(struct lanes l)
{
    float rest[LANES_REGISTER];

    for (int parts = LANES_PARTS / 2; parts > 0; parts /= 2)
        for (int i = 0; i < parts; i++)
            l.part[i] += l.part[i + parts];
    memcpy(rest, &l.part[0], sizeof(rest));
#if LANES_REGISTER >= 16
    lanes_fold(rest, 8);
#endif
#if LANES_REGISTER >= 8
    lanes_fold(rest, 4);
#endif
    return (rest[0] + rest[2]) + (rest[1] + rest[3]);
}

static inline float lanes_largest(struct lanes l)
{
    float largest[4];

    for (int parts = LANES_PARTS / 2; parts > 0; parts /= 2)
        for (int i = 0; i < parts; i++)
            l.part[i] = part_larger(l.part[i + parts], l.part[i]);
    for (size_t i = 0; i < 4; i++) {
        largest[i] = l.part[0][i];
        for (size_t j = i + 4; j < LANES_REGISTER; j += 4)
            largest[i] = l.part[0][j] > largest[i] ? l.part[0][j] : largest[i];
    }
    for (size_t i = 1; i < 4; i++)
        largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
    return largest[0];
}

#endif
