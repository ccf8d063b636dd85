/*
 * optimizer_kernels: the update loops, one table per vector width (common/tensor/simd.h).  Internal
 * to optimizer and its tests; other callers use optimizer_update.
 */
#ifndef SPARRING_COMMON_OPTIMIZER_OPTIMIZER_KERNELS_H
#define SPARRING_COMMON_OPTIMIZER_OPTIMIZER_KERNELS_H

#include "common/optimizer/optimizer_terms.h"
#include "common/tensor/simd.h"

#include <stddef.h>

/* Arrays of count elements that do not overlap; grad is not changed. */
struct optimizer_kernels {
    void (*sgd)(const struct sgd_terms *t, float *param, const float *grad, size_t count);
    void (*sgd_momentum)(const struct sgd_terms *t, float *param, const float *grad, float *buffer,
                         size_t count);
    void (*adam)(const struct adam_terms *t, float *param, const float *grad, float *first_moment,
                 float *second_moment, size_t count);
};

extern const struct optimizer_kernels optimizer_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct optimizer_kernels optimizer_kernels_avx2;
extern const struct optimizer_kernels optimizer_kernels_avx512;
#endif

#endif
