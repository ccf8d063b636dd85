/*
 * reduce_kernels: the inner loops of reduce.h, one table per vector width.  Internal to tensor and
 * its tests; other callers use the functions of reduce.h.
 */
#ifndef SPARRING_COMMON_TENSOR_REDUCE_KERNELS_H
#define SPARRING_COMMON_TENSOR_REDUCE_KERNELS_H

#include "common/tensor/simd.h"

#include <stddef.h>
#include <stdint.h>

#define REDUCE_FAN 8 /* inputs that one loop reads at once */

/* Computation types; float16 and bfloat16 are computed in float32. */
enum reduce_type { TYPE_FLOAT32, TYPE_FLOAT64, TYPE_INT32, TYPE_INT64, TYPE_COUNT };

enum reduce_pair { PAIR_SUM, PAIR_PROD, PAIR_MIN, PAIR_MAX, PAIR_COUNT };

enum half_type { HALF_BFLOAT16, HALF_FLOAT16, HALF_COUNT };

/* Arrays are equal or disjoint; any alignment of the element type. */
struct reduce_kernels {
    /* dst = in[0] + in[1] + ... of 1 to REDUCE_FAN inputs, ascending */
    void (*sum)(float *dst, const float *const *in, size_t inputs, size_t count);
    /* likewise, in[k] * factors[k] */
    void (*scaled_sum)(float *dst, const float *const *in, const float *factors, size_t inputs,
                       size_t count);
    /* dst = a op b */
    void (*pair[TYPE_COUNT][PAIR_COUNT])(void *dst, const void *a, const void *b, size_t count);
    void (*scale_float32)(float *dst, const float *src, float factor, size_t count);
    void (*scale_float64)(double *dst, const double *src, double factor, size_t count);
    void (*widen[HALF_COUNT])(float *dst, const uint16_t *src, size_t count);
    void (*narrow[HALF_COUNT])(uint16_t *dst, const float *src, size_t count);
};

extern const struct reduce_kernels reduce_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct reduce_kernels reduce_kernels_avx2;
extern const struct reduce_kernels reduce_kernels_avx512;
#endif

#endif
