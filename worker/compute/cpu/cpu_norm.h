/*
 * cpu_norm: batch normalisation on the CPU; the formulas are those of compute.h.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_NORM_H
#define SPARRING_WORKER_COMPUTE_CPU_NORM_H

#include "worker/compute/compute.h"

void cpu_norm_forward(const struct batch_norm *n, float *x, float *y, size_t batch);
void cpu_norm_evaluate(const struct batch_norm *n, const float *x, float *y, size_t batch);
void cpu_norm_backward(const struct batch_norm *n, const float *normalised, const float *dy,
                       float *dx, size_t batch, bool accumulate);

#endif
