/*
 * sequence_kernels: the loops of transformers beside the matrix products, one table per vector
 * width (common/tensor/simd.h).  Inside the library and for its tests.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_SEQUENCE_KERNELS_H
#define SPARRING_WORKER_COMPUTE_CPU_SEQUENCE_KERNELS_H

#include "common/tensor/simd.h"
#include "worker/compute/compute.h"

#include <stddef.h>

/* Scores of a block of queries: row i sees the first before + i + 1 of its `keys` <= stride. */
struct score_rows {
    size_t rows, before, keys;
    size_t stride; /* between rows, a multiple of SCORE_LANES: as far rows are written over */
};

#define SCORE_LANES 32

/* Arrays are equal or do not overlap. */
struct sequence_kernels {
    /* The largest of a row; a NaN never is, -infinity where nothing else is there. */
    float (*largest)(const float *row, size_t count);
    /* y = e^(x - shift) (math_exp); returns its sum, in double over blocks.  y NULL: the sum only.
     */
    double (*exponential_sum)(const float *x, float shift, float *y, size_t count);
    void (*scale)(float *x, float factor, size_t count);

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

    /* Scores become exponentials, less their largest; beyond what a row sees zeros up to `keys`.
     * log_sums (rows): logarithm of the sum of exponentials of the scores as they were;
     * inverse_sums (rows): what makes probabilities of the exponentials. */
    void (*softmax_rows)(const struct score_rows *r, float *scores, float *log_sums,
                         float *inverse_sums);
    /* Scores become probabilities, e^(score - log_sum); gradients = probability * (gradient -
     * shift) * factor; zeros likewise. */
    void (*softmax_rows_backward)(const struct score_rows *r, float *scores, float *gradients,
                                  const float *log_sums, const float *shifts, float factor);
};

extern const struct sequence_kernels sequence_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct sequence_kernels sequence_kernels_avx2;
extern const struct sequence_kernels sequence_kernels_avx512;
#endif

#endif
