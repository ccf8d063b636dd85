/*
 * gpu: opens the GPU for a test; without a GPU it prints why the test is skipped.
 */
#ifndef SPARRING_TESTS_WORKER_COMPUTE_GPU_H
#define SPARRING_TESTS_WORKER_COMPUTE_GPU_H

#include "worker/compute/compute.h"

/*
 * Open a GPU with the module of this build, or of SPARRING_CUDA_MODULE.
 *   device  "cuda" or "cuda:N"
 * Returns the device, to be closed by the caller; NULL: a line on stdout gives the reason.
 */
struct compute *open_gpu(const char *device, enum precision precision);

#endif
