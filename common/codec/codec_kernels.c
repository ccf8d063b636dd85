/*
 * codec_kernels: casts from bytes, and signs, compiled once per vector width (see simd.h).
 *
 * Sums use SUM_LANES independent double accumulators that are reduced in a fixed order, so the
 * result has the same bits for every width, and no sum of 2^32 float32 overflows.
 */
#include "common/codec/codec_kernels.h"

#include "common/tensor/half.h"

#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define SUM_LANES 16

/* ---- 16 bits ---- */

static inline uint16_t half_at(const uint8_t *src, size_t i)
{
    uint16_t half;

    memcpy(&half, src + 2 * i, sizeof(half));
    return half;
}

#ifdef __AVX512F__
static inline __m512 wide_float16_at(const uint8_t *src, size_t i)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(src + 2 * i)));
}
#endif

static void copy_float16(float *dst, const uint8_t *src, size_t count)
{
    size_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(dst + i, wide_float16_at(src, i));
#else
    SIMD_LOOP
#endif
    for (; i < count; i++)
        dst[i] = float_from_float16(half_at(src, i));
}

static void add_float16(float *dst, const uint8_t *src, size_t count)
{
    size_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(dst + i, _mm512_add_ps(_mm512_loadu_ps(dst + i), wide_float16_at(src, i)));
#else
    SIMD_LOOP
#endif
    for (; i < count; i++)
        dst[i] += float_from_float16(half_at(src, i));
}

static void copy_bfloat16(float *dst, const uint8_t *src, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = float_from_bfloat16(half_at(src, i));
}

static void add_bfloat16(float *dst, const uint8_t *src, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] += float_from_bfloat16(half_at(src, i));
}

/* ---- signs ---- */

static inline uint8_t sign_byte(const float *src, size_t count)
{
    uint32_t byte = 0;

    for (size_t i = 0; i < count; i++)
        byte |= float_bits(src[i]) >> 31 << i;
    return (uint8_t)byte;
}

static void pack_signs(const float *src, size_t count, uint8_t *bits)
{
    size_t i = 0;

#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
        uint16_t mask = _mm512_movepi32_mask(_mm512_loadu_si512((const void *)(src + i)));

        memcpy(bits + i / 8, &mask, sizeof(mask));
    }
#elif defined(__AVX2__)
    for (; i + 8 <= count; i += 8)
        bits[i / 8] = (uint8_t)_mm256_movemask_ps(_mm256_loadu_ps(src + i));
#endif
    for (; i + 8 <= count; i += 8)
        bits[i / 8] = sign_byte(src + i, 8);
    if (i < count)
        bits[i / 8] = sign_byte(src + i, count - i);
}

/* Each element is added to one of two sums, and 0 to the other. */
static inline float without_sign(float value)
{
    uint32_t bits = float_bits(value);

    return float_from_bits(bits & ~(uint32_t)((int32_t)bits >> 31));
}

static inline float of_sign(float value)
{
    uint32_t bits = float_bits(value);

    return float_from_bits(bits & (uint32_t)((int32_t)bits >> 31) & 0x7fffffff);
}

static void signs(const float *src, size_t count, uint8_t *bits, double sums[2])
{
    double plus[SUM_LANES] = {0};
    double minus[SUM_LANES] = {0};
    size_t whole = count - count % SUM_LANES;

    pack_signs(src, count, bits);
    for (size_t i = 0; i < whole; i += SUM_LANES) {
        for (size_t l = 0; l < SUM_LANES; l++)
            plus[l] += (double)without_sign(src[i + l]);
        for (size_t l = 0; l < SUM_LANES; l++)
            minus[l] += (double)of_sign(src[i + l]);
    }
    for (size_t l = 0; whole + l < count; l++) {
        plus[l] += (double)without_sign(src[whole + l]);
        minus[l] += (double)of_sign(src[whole + l]);
    }
    for (size_t l = 0; l < SUM_LANES; l++) {
        sums[0] += plus[l];
        sums[1] += minus[l];
    }
}

/* values[0] or values[1], by the lowest bit. */
static inline float select_value(uint32_t bit, uint32_t plus, uint32_t minus)
{
    uint32_t mask = 0u - (bit & 1u);

    return float_from_bits((minus & mask) | (plus & ~mask));
}

static void copy_signs(float *dst, const uint8_t *bits, const float values[2], size_t count)
{
    uint32_t plus = float_bits(values[0]);
    uint32_t minus = float_bits(values[1]);
    size_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16) {
        uint16_t mask;

        memcpy(&mask, bits + i / 8, sizeof(mask));
        _mm512_storeu_ps(dst + i, _mm512_mask_blend_ps(mask, _mm512_set1_ps(values[0]),
                                                       _mm512_set1_ps(values[1])));
    }
#endif
    for (; i + 8 <= count; i += 8)
        for (uint32_t l = 0; l < 8; l++)
            dst[i + l] = select_value((uint32_t)bits[i / 8] >> l, plus, minus);
    for (uint32_t l = 0; i + l < count; l++)
        dst[i + l] = select_value((uint32_t)bits[i / 8] >> l, plus, minus);
}

static void add_signs(float *dst, const uint8_t *bits, const float values[2], size_t count)
{
    uint32_t plus = float_bits(values[0]);
    uint32_t minus = float_bits(values[1]);
    size_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16) {
        uint16_t mask;
        __m512 value;

        memcpy(&mask, bits + i / 8, sizeof(mask));
        value = _mm512_mask_blend_ps(mask, _mm512_set1_ps(values[0]), _mm512_set1_ps(values[1]));
        _mm512_storeu_ps(dst + i, _mm512_add_ps(_mm512_loadu_ps(dst + i), value));
    }
#endif
    for (; i + 8 <= count; i += 8)
        for (uint32_t l = 0; l < 8; l++)
            dst[i + l] += select_value((uint32_t)bits[i / 8] >> l, plus, minus);
    for (uint32_t l = 0; i + l < count; l++)
        dst[i + l] += select_value((uint32_t)bits[i / 8] >> l, plus, minus);
}

const struct codec_kernels SIMD_NAME(codec_kernels) = {
    .copy_float16 = copy_float16,
    .add_float16 = add_float16,
    .copy_bfloat16 = copy_bfloat16,
    .add_bfloat16 = add_bfloat16,
    .signs = signs,
    .copy_signs = copy_signs,
    .add_signs = add_signs,
};
