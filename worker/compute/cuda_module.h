/*
 * cuda_module: the compute entry point of sparring_cuda.so.  Read by the C compiler (the loader,
 * cuda_loader.c) and by the CUDA compiler (the module, cuda/).
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_MODULE_H
#define SPARRING_WORKER_COMPUTE_CUDA_MODULE_H

#include "worker/compute/compute_ops.h"

/* Increment with every change of struct compute_ops, struct compute or this function: the module
 * rejects a caller of another version. */
#define CUDA_MODULE_VERSION 10u
#define CUDA_MODULE_SYMBOL  "sparring_cuda_open"

#ifdef __cplusplus
extern "C" {
#endif

/* version: the caller's CUDA_MODULE_VERSION. index < 0: the configuration's local_rank modulo the
 * devices; config->device is not read.  Error texts name what is missing: driver, device, memory.
 */
typedef enum status cuda_module_open_fn(unsigned version, int index,
                                        const struct compute_config *config,
                                        struct compute **ret_compute, struct error *err);

/* Defined in the module only; the loader looks it up by name. */
cuda_module_open_fn sparring_cuda_open;

#ifdef __cplusplus
}
#endif

#endif
