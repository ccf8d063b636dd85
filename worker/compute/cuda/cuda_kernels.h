/*
 * cuda_kernels: the GPU's loops beside the matrix products, each with its twin in cpu_kernels.c or
 * cpu.c.  Every function enqueues on `stream` and returns the launch's result.  Matrices are
 * row-major in device memory; counts are > 0.  Sums run in a fixed order: equal inputs give equal
 * bits.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_KERNELS_H
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include <stddef.h>
#include <stdint.h>

struct cuda_row { /* of softmax and cross-entropy */
    double loss;
    unsigned long long correct; /* 1: the label has the first largest logit */
};

/* y (batch, out) += bias (out); relu: then y = 0 where y < 0. */
cudaError_t cuda_add_bias(cudaStream_t stream, float *y, const float *bias, size_t batch,
                          size_t out, bool relu);

/* dy = 0 where y <= 0. */
cudaError_t cuda_relu_backward(cudaStream_t stream, const float *y, float *dy, size_t count);

/* sums (out) = or += the sums of dy's columns; dy (batch, out). */
cudaError_t cuda_column_sums(cudaStream_t stream, const float *dy, float *sums, size_t batch,
                             size_t out, bool accumulate);

/* One pass over each row of logits (batch, classes): rows (batch) get loss and hit, dlogits (NULL:
 * none) the gradient of the mean loss; then the first element of rows gets the mean loss and the
 * number of hits. */
cudaError_t cuda_softmax_cross_entropy(cudaStream_t stream, const float *logits,
                                       const int32_t *labels, float *dlogits, struct cuda_row *rows,
                                       size_t batch, size_t classes);

/* cudaErrorNoKernelImageForDevice when the module has no code for the current device. */
cudaError_t cuda_kernels_check(void);

#endif
