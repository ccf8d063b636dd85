/*
 * device_checks: each operation of a device against the same operation in double, on fresh random
 * inputs, with outputs poisoned by NaN.  Shared by the tests of the CPU and of the GPU.  An element
 * may differ by the rounding of its own sum: (terms + 8) * 2^-23 * sum of the terms' magnitudes.
 */
#ifndef SPARRING_TESTS_WORKER_COMPUTE_DEVICE_CHECKS_H
#define SPARRING_TESTS_WORKER_COMPUTE_DEVICE_CHECKS_H

#include "worker/compute/compute.h"

void check_transfers(struct compute *c);
void check_linear_forward(struct compute *c, size_t batch, size_t in, size_t out, bool relu);
void check_relu_backward(struct compute *c, size_t count);
void check_linear_backward_weight(struct compute *c, size_t batch, size_t in, size_t out,
                                  bool accumulate);
void check_linear_backward_input(struct compute *c, size_t batch, size_t in, size_t out);
void check_softmax_cross_entropy(struct compute *c, size_t batch, size_t classes);

/* Large logits, a NaN, labels outside the classes. */
void check_softmax_extremes(struct compute *c);

/* A NaN passes through ReLU, forward and backward. */
void check_relu_nan(struct compute *c);

/* Forward with bias and ReLU, both gradients; kernels from 1 to 7, strides, padding, a NaN. */
void check_convolutions(struct compute *c, int rounds);

/* Max pooling with its indices and gradient (NaN, equal values, -infinity), and means. */
void check_pooling(struct compute *c, int rounds);

/* Vectors and images: training with and without residual and ReLU, evaluation, gradients. */
void check_batch_norm(struct compute *c, int rounds);

/* Linear layers with GELU and residual, forward and backward, with aligned and unaligned rows. */
void check_linears(struct compute *c, int rounds);

/* Wide and narrow rows, a mean much larger than the deviations, a NaN. */
void check_layer_norms(struct compute *c, int rounds);

/* Causal attention: outputs, logarithms of sums, all gradients; sharp rows, a NaN. */
void check_attentions(struct compute *c, int rounds);

/* Embeddings with their gradients, and cross-entropy in place. */
void check_sequence(struct compute *c, int rounds);

/* All of the above; shapes from 1 x 1 x 1 up to `rounds` random ones. */
void check_device(struct compute *c, int rounds);

#endif
