/*
 * cpu_math: what the kernels share, for files that are compiled once per vector width: the
 * exponential as plain arithmetic, so that a loop around it becomes vector code, and sums over 32
 * lanes, whose order is the same at every width.  Every width gives the same bits.
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

    x = -104.0f > x ? -104.0f : x; /* a NaN passes */
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

static inline float lanes_sum(struct lanes l)
{
    float values[LANES];

    memcpy(values, &l, sizeof(values));
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            values[i] += values[i + half];
    return values[0];
}

#endif
