/*
 * emulator_services: functions of the emulated runtime for a library beside the module
 * (emulator_nccl.cc).  The module is loaded RTLD_LOCAL, so the library gets them as a table.
 */
#ifndef SPARRING_TESTS_CUDA_EMULATOR_SERVICES_H
#define SPARRING_TESTS_CUDA_EMULATOR_SERVICES_H

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

#define CUDA_EMULATOR_SERVICES "cuda_emulator_services_get"

struct cuda_emulator_services {
    cudaError_t (*malloc)(void **ret, size_t size);
    cudaError_t (*free)(void *memory);
    cudaError_t (*get_device)(int *ret);
    cudaError_t (*get_properties)(struct cudaDeviceProp *ret, int device);

    /* Is all of it device memory of one allocation? */
    bool (*owns)(const void *memory, size_t size);

    /* Work on a stream that is tried, in its turn, until it returns true; it must not block.  It
     * runs on whichever thread waits or asks for an event, under the runtime's lock. */
    cudaError_t (*enqueue)(cudaStream_t stream, std::function<bool()> work);

    int (*device_of)(cudaStream_t stream); /* -1: no stream */
};

typedef const struct cuda_emulator_services *cuda_emulator_services_fn();

#endif
