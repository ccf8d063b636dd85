/*
 * vector_kernels: element-wise loops, compiled once per vector width (see simd.h).
 *
 * Arrays are equal or disjoint.  Each element is one chain of correctly rounded operations in
 * source order for every width; sum keeps a block in the first-level cache while it reads the
 * sources, so memory is read and written once.
 */
#include "common/tensor/vector_kernels.h"

#include <string.h>

#define SUM_BLOCK 1024 /* floats: 4 KiB on the stack */

static void add_to(float *dst, const float *a, const float *b, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = a[i] + b[i];
}

static void scale_to(float *dst, const float *src, float factor, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = src[i] * factor;
}

static void sum(float *dst, const float *const *src, size_t sources, size_t count)
{
    float total[SUM_BLOCK];

    for (size_t at = 0; at < count; at += SUM_BLOCK) {
        size_t length = count - at < SUM_BLOCK ? count - at : SUM_BLOCK;

        memcpy(total, src[0] + at, length * sizeof(float));
        for (size_t k = 1; k < sources; k++)
            add_to(total, total, src[k] + at, length);
        memcpy(dst + at, total, length * sizeof(float));
    }
}

static void add_bytes(float *dst, const unsigned char *bytes, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float value;

        memcpy(&value, bytes + i * sizeof(value), sizeof(value));
        dst[i] += value;
    }
}

static void scale_bytes(float *dst, const unsigned char *bytes, float factor, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float value;

        memcpy(&value, bytes + i * sizeof(value), sizeof(value));
        dst[i] = value * factor;
    }
}

static void add_scaled_bytes(float *dst, const unsigned char *bytes, float factor, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float value;

        memcpy(&value, bytes + i * sizeof(value), sizeof(value));
        dst[i] += value * factor; /* rounded twice: contraction is off */
    }
}

static void divide_uint8(float *dst, const uint8_t *src, float divisor, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dst[i] = (float)src[i] / divisor;
}

const struct vector_kernels SIMD_NAME(vector_kernels) = {
    .add_to = add_to,
    .scale_to = scale_to,
    .sum = sum,
    .add_bytes = add_bytes,
    .scale_bytes = scale_bytes,
    .add_scaled_bytes = add_scaled_bytes,
    .divide_uint8 = divide_uint8,
};
