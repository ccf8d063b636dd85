/*
 * cpu_kernels: the CPU's loops besides the matrix products, one table per vector width
 * (common/tensor/simd.h).  Used by the CPU device and its tests.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_KERNELS_H
#define SPARRING_WORKER_COMPUTE_CPU_KERNELS_H

#include "common/tensor/simd.h"

#include <stdbool.h>
#include <stddef.h>

/* Arrays do not overlap. */
struct cpu_kernels {
    /* y (batch, out) += bias (out; NULL: none) per row; relu: then y = max(y, 0); then y +=
     * residual (batch, out; NULL: none). */
    void (*epilogue)(float *y, const float *bias, const float *residual, size_t batch, size_t out,
                     bool relu);
    /* dy = 0 where y <= 0 */
    void (*relu_backward)(const float *y, float *dy, size_t count);
    /* sums (out) = or += the sums of dy's columns; dy (batch, out). */
    void (*column_sums)(const float *dy, float *sums, size_t batch, size_t out, bool accumulate);
};

extern const struct cpu_kernels cpu_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
#endif

#endif
