/*
 * reduce_kernels: reductions and casts, compiled once per vector width (see simd.h).
 *
 * Each element is one chain of correctly rounded operations in source order for every width.  The
 * sums read all their inputs in one loop, so that memory bandwidth is the only limit; the pairs are
 * for blocks that stay in the first-level cache.
 */
#include "common/tensor/reduce_kernels.h"

#include "common/tensor/half.h"

#include <assert.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* ---- float32 sums of many inputs ---- */

#define T1 in0[i]
#define T2 T1 + in1[i]
#define T3 T2 + in2[i]
#define T4 T3 + in3[i]
#define T5 T4 + in4[i]
#define T6 T5 + in5[i]
#define T7 T6 + in6[i]
#define T8 T7 + in7[i]

#define S1 in0[i] * f0
#define S2 S1 + in1[i] * f1
#define S3 S2 + in2[i] * f2
#define S4 S3 + in3[i] * f3
#define S5 S4 + in4[i] * f4
#define S6 S5 + in5[i] * f5
#define S7 S6 + in6[i] * f6
#define S8 S7 + in7[i] * f7

/* The case of `inputs` terms: one loop. */
#define SUM_OF(inputs, terms)                                                                      \
    case inputs:                                                                                   \
        SIMD_LOOP                                                                                  \
        for (size_t i = 0; i < count; i++)                                                         \
            dst[i] = terms;                                                                        \
        break;

static void sum(float *dst, const float *const *in, size_t inputs, size_t count)
{
    const float *in0 = in[0], *in1 = inputs > 1 ? in[1] : in0, *in2 = inputs > 2 ? in[2] : in0;
    const float *in3 = inputs > 3 ? in[3] : in0, *in4 = inputs > 4 ? in[4] : in0;
    const float *in5 = inputs > 5 ? in[5] : in0, *in6 = inputs > 6 ? in[6] : in0;
    const float *in7 = inputs > 7 ? in[7] : in0;

    assert(inputs >= 1 && inputs <= REDUCE_FAN);
    switch (inputs) {
        SUM_OF(1, T1)
        SUM_OF(2, T2)
        SUM_OF(3, T3)
        SUM_OF(4, T4)
        SUM_OF(5, T5)
        SUM_OF(6, T6)
        SUM_OF(7, T7)
        SUM_OF(8, T8)
    }
}

static void scaled_sum(float *dst, const float *const *in, const float *f, size_t inputs,
                       size_t count)
{
    const float *in0 = in[0], *in1 = inputs > 1 ? in[1] : in0, *in2 = inputs > 2 ? in[2] : in0;
    const float *in3 = inputs > 3 ? in[3] : in0, *in4 = inputs > 4 ? in[4] : in0;
    const float *in5 = inputs > 5 ? in[5] : in0, *in6 = inputs > 6 ? in[6] : in0;
    const float *in7 = inputs > 7 ? in[7] : in0;
    float f0 = f[0], f1 = inputs > 1 ? f[1] : 0.0f, f2 = inputs > 2 ? f[2] : 0.0f;
    float f3 = inputs > 3 ? f[3] : 0.0f, f4 = inputs > 4 ? f[4] : 0.0f;
    float f5 = inputs > 5 ? f[5] : 0.0f, f6 = inputs > 6 ? f[6] : 0.0f;
    float f7 = inputs > 7 ? f[7] : 0.0f;

    assert(inputs >= 1 && inputs <= REDUCE_FAN);
    switch (inputs) {
        SUM_OF(1, S1)
        SUM_OF(2, S2)
        SUM_OF(3, S3)
        SUM_OF(4, S4)
        SUM_OF(5, S5)
        SUM_OF(6, S6)
        SUM_OF(7, S7)
        SUM_OF(8, S8)
    }
}

/* ---- pairs ---- */

#define SUM(a, b)  (a + b)
#define PROD(a, b) (a * b)
/* A NaN on either side is kept. */
#define FLOAT_MIN(a, b) (a < b || a != a ? a : b)
#define FLOAT_MAX(a, b) (a > b || a != a ? a : b)
#define INT_MIN_(a, b)  (a < b ? a : b)
#define INT_MAX_(a, b)  (a > b ? a : b)

#define PAIR(name, type, op)                                                                       \
    static void name(void *dst_bytes, const void *a_bytes, const void *b_bytes, size_t count)      \
    {                                                                                              \
        const type *a = a_bytes, *b = b_bytes;                                                     \
        type *dst = dst_bytes;                                                                     \
                                                                                                   \
        SIMD_LOOP                                                                                  \
        for (size_t i = 0; i < count; i++)                                                         \
            dst[i] = op(a[i], b[i]);                                                               \
    }

PAIR(sum_float32, float, SUM)
PAIR(prod_float32, float, PROD)
PAIR(min_float32, float, FLOAT_MIN)
PAIR(max_float32, float, FLOAT_MAX)
PAIR(sum_float64, double, SUM)
PAIR(prod_float64, double, PROD)
PAIR(min_float64, double, FLOAT_MIN)
PAIR(max_float64, double, FLOAT_MAX)
/* Unsigned, so that they wrap; the low bits of a product do not depend on signedness. */
PAIR(sum_int32, uint32_t, SUM)
PAIR(prod_int32, uint32_t, PROD)
PAIR(min_int32, int32_t, INT_MIN_)
PAIR(max_int32, int32_t, INT_MAX_)
PAIR(sum_int64, uint64_t, SUM)
PAIR(prod_int64, uint64_t, PROD)
PAIR(min_int64, int64_t, INT_MIN_)
PAIR(max_int64, int64_t, INT_MAX_)

/* ---- scaling ---- */

static void scale_float32(float *dst, const float *src, float factor, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = src[i] * factor;
}

static void scale_float64(double *dst, const double *src, double factor, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = src[i] * factor;
}

/* ---- casts ---- */

static void widen_bfloat16(float *dst, const uint16_t *src, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = float_from_bfloat16(src[i]);
}

static void narrow_bfloat16(uint16_t *dst, const float *src, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = bfloat16_from_float(src[i]);
}

static void widen_float16(float *dst, const uint16_t *src, size_t count)
{
    size_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(src + i))));
#else
    SIMD_LOOP
#endif
    for (; i < count; i++)
        dst[i] = float_from_float16(src[i]);
}

static void narrow_float16(uint16_t *dst, const float *src, size_t count)
{
    size_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((void *)(dst + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(src + i),
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    SIMD_LOOP
#endif
    for (; i < count; i++)
        dst[i] = float16_from_float(src[i]);
}

const struct reduce_kernels SIMD_NAME(reduce_kernels) = {
    .sum = sum,
    .scaled_sum = scaled_sum,
    .pair =
        {
            [TYPE_FLOAT32] = {sum_float32, prod_float32, min_float32, max_float32},
            [TYPE_FLOAT64] = {sum_float64, prod_float64, min_float64, max_float64},
            [TYPE_INT32] = {sum_int32, prod_int32, min_int32, max_int32},
            [TYPE_INT64] = {sum_int64, prod_int64, min_int64, max_int64},
        },
    .scale_float32 = scale_float32,
    .scale_float64 = scale_float64,
    .widen = {widen_bfloat16, widen_float16},
    .narrow = {narrow_bfloat16, narrow_float16},
};
