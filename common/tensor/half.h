/*
 * half: converts one element between float32 and the 16-bit formats, with integer arithmetic and no
 * branches, so that compilers vectorise loops of them.  The bits equal those of the processors' own
 * conversions: ties to even, subnormals kept, overflow becomes infinity, a NaN stays a NaN (made
 * quiet, upper payload kept).
 */
#ifndef SPARRING_COMMON_TENSOR_HALF_H
#define SPARRING_COMMON_TENSOR_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float float_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float float_from_bfloat16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    uint32_t quiet = (bits & 0x7fffffff) > 0x7f800000 ? 0x00400000 : 0;

    return float_from_bits(bits | quiet);
}

static inline uint16_t bfloat16_from_float(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    uint32_t nan = bits | 0x00400000;

    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded) >> 16);
}

#define HALF_REBIAS ((uint32_t)(127 - 15) << 23) /* between the two formats' exponents */

static inline float float_from_float16(uint16_t half)
{
    uint32_t sign = ((uint32_t)half & 0x8000) << 16;
    uint32_t rest = (uint32_t)half & 0x7fff;
    uint32_t normal = (rest << 13) + HALF_REBIAS;
    uint32_t tiny = float_bits((float)(int32_t)rest * 0x1p-24f); /* subnormals: exact */
    uint32_t quiet = rest > 0x7c00 ? 0x00400000 : 0;
    uint32_t special = (rest << 13) | 0x7f800000 | quiet;
    uint32_t bits = rest < 0x0400 ? tiny : normal;

    return float_from_bits(sign | (rest >= 0x7c00 ? special : bits));
}

static inline uint16_t float16_from_float(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t rest = bits & 0x7fffffff;
    uint32_t based = rest - HALF_REBIAS;
    uint32_t normal = (based + 0xfff + ((based >> 13) & 1)) >> 13;
    /* Between 0.5 and 1 a float's last place is float16's smallest subnormal: the addition rounds.
     */
    uint32_t tiny = float_bits(float_from_bits(rest) + 0.5f) - 0x3f000000;
    uint32_t nan = 0x7e00 | ((rest >> 13) & 0x3ff);
    uint32_t half = rest < 0x38800000 ? tiny : normal;

    half = rest >= 0x47800000 ? 0x7c00 : half; /* 65536: no float16 */
    return (uint16_t)(sign | (rest > 0x7f800000 ? nan : half));
}

#endif
