/*
 * sequence_kernels: the loops of transformers besides the matrix products, one table per vector
 * width (common/tensor/simd.h).  Used by the CPU device and its tests.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_SEQUENCE_KERNELS_H
#define SPARRING_WORKER_COMPUTE_CPU_SEQUENCE_KERNELS_H

#include "common/tensor/simd.h"
#include "worker/compute/compute.h"

#include <stddef.h>

/* Scores of a block of queries, which begins at query `first`: row i uses the first first + i + 1
 * of its `keys` <= stride. */
struct score_rows {
    size_t rows, first, keys;
    size_t stride; /* between rows, a multiple of SCORE_LANES: rows are written in whole lanes */
};

#define SCORE_LANES 32

/* Arrays are equal or do not overlap. */
struct sequence_kernels {
    /* The maximum of a row, ignoring NaNs; -infinity if there is nothing else. */
    float (*largest)(const float *row, size_t count);
    /* y = e^(x - shift) (math_exp); returns its sum, in double over blocks.  y NULL: the sum only.
     */
    double (*exponential_sum)(const float *x, float shift, float *y, size_t count);
    /* y = factor x */
    void (*scale)(const float *x, float factor, float *y, size_t count);

    /* pre (rows, width) += bias (width; NULL: none) per row; y = gelu(pre) + residual (NULL: none).
     */
    void (*gelu)(float *pre, const float *bias, const float *residual, float *y, size_t rows,
                 size_t width);
    /* dy = dy * gelu'(pre) */
    void (*gelu_backward)(const float *pre, float *dy, size_t count);

    void (*layer_norm_forward)(const struct layer_norm *n, const float *x, float *y, size_t rows);
    /* Adds to dweight and dbias. */
    void (*layer_norm_backward)(const struct layer_norm *n, const float *x, const float *dy,
                                float *dx, size_t rows, bool accumulate_input);

    void (*add)(float *y, const float *x, size_t count);                 /* y += x */
    void (*sum)(float *y, const float *a, const float *b, size_t count); /* y = a + b */
    float (*dot)(const float *a, const float *b, size_t count);

    /* Replace scores by exp(score - maximum of the row); zeros after the visible keys up to `keys`.
     * log_sums (rows): logarithm of the sum of exponentials of the original scores; inverse_sums
     * (rows): the factor from exponentials to probabilities. */
    void (*softmax_rows)(const struct score_rows *r, float *scores, float *log_sums,
                         float *inverse_sums);
    /* Replace scores by probabilities, e^(score - log_sum); gradients = probability * (gradient -
     * shift); zeros as above. */
    void (*softmax_rows_backward)(const struct score_rows *r, float *scores, float *gradients,
                                  const float *log_sums, const float *shifts);
};

extern const struct sequence_kernels sequence_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct sequence_kernels sequence_kernels_avx2;
extern const struct sequence_kernels sequence_kernels_avx512;
#endif

#endif
