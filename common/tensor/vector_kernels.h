/*
 * vector_kernels: the inner loops of the vector_ functions of tensor.h, one table per vector width.
 * Internal to tensor and its tests; other callers use the vector_ functions.
 */
#ifndef SPARRING_COMMON_TENSOR_VECTOR_KERNELS_H
#define SPARRING_COMMON_TENSOR_VECTOR_KERNELS_H

#include "common/tensor/simd.h"

#include <stddef.h>
#include <stdint.h>

/* Arguments as in tensor.h. */
struct vector_kernels {
    void (*add_to)(float *dst, const float *a, const float *b, size_t count);
    void (*scale_to)(float *dst, const float *src, float factor, size_t count);
    void (*sum)(float *dst, const float *const *src, size_t sources, size_t count);
    void (*add_bytes)(float *dst, const unsigned char *bytes, size_t count);
    void (*scale_bytes)(float *dst, const unsigned char *bytes, float factor, size_t count);
    void (*add_scaled_bytes)(float *dst, const unsigned char *bytes, float factor, size_t count);
    void (*divide_uint8)(float *dst, const uint8_t *src, float divisor, size_t count);
};

extern const struct vector_kernels vector_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct vector_kernels vector_kernels_avx2;
extern const struct vector_kernels vector_kernels_avx512;
#endif

#endif
