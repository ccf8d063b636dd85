/*
 * image_kernels: the CPU's loops over the planes of images (one channel of one image: height *
 * width contiguous floats), one table per vector width (common/tensor/simd.h).  Sums run in double
 * over eight lanes at every width, so every width gives the same bits.  Used by the CPU device and
 * its tests.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_IMAGE_KERNELS_H
#define SPARRING_WORKER_COMPUTE_CPU_IMAGE_KERNELS_H

#include "common/tensor/simd.h"
#include "worker/compute/compute.h"

/* Batch normalisation of one channel: x becomes (x - mean) * inverse_std * weight + bias. */
struct norm_channel {
    float mean, inverse_std, weight, bias;
    bool relu;
};

/* Arrays do not overlap unless said. */
struct image_kernels {
    double (*sum)(const float *x, size_t count);
    /* Sum of (x - mean) squared. */
    double (*squared_deviations)(const float *x, size_t count, double mean);
    /* y = activation(norm(x) + residual (NULL: none)); y may be x. */
    void (*normalise)(const struct norm_channel *n, const float *x, const float *residual, float *y,
                      size_t count);
    /* sums[0] += sum of dy, sums[1] += sum of dy * (x - mean) * inverse_std. */
    void (*norm_gradient_sums)(const struct norm_channel *n, const float *x, const float *dy,
                               size_t count, double sums[2]);
    /* dx = scale * (dy - mean_dy - (x - mean) * inverse_std * mean_product); dx may be dy. */
    void (*norm_gradient)(const struct norm_channel *n, const float *x, const float *dy, float *dx,
                          size_t count, float mean_dy, float mean_product);
    /* y = x + scalar, with relu then max(y, 0); y may be x. */
    void (*add_scalar)(const float *x, float *y, size_t count, float scalar, bool relu);
    /* One plane; y and chosen are (rows, columns) of the output. */
    void (*max_pool)(const struct pool *p, const float *x, int32_t *argmax, float *y);
};

extern const struct image_kernels image_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct image_kernels image_kernels_avx2;
extern const struct image_kernels image_kernels_avx512;
#endif

#endif
