/*
 * gpu: the GPU for a test, which says why it is skipped where there is none.
 */
#ifndef SPARRING_TESTS_WORKER_COMPUTE_GPU_H
#define SPARRING_TESTS_WORKER_COMPUTE_GPU_H

#include "worker/compute/compute.h"

/*
 * Open a GPU with the module that was built, or with SPARRING_CUDA_MODULE's.
 *   device  "cuda" or "cuda:N"
 * Returns the device, the caller's to close; NULL, and a line on stdout says why.
 */
struct compute *open_gpu(const char *device, enum precision precision);

#endif
