/*
 * emulator_services: functions of the emulated runtime for another library (emulator_nccl.cc).  The
 * module is loaded with RTLD_LOCAL, so the library receives them as a table.
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

    /* True if the range lies in one allocation of device memory. */
    bool (*owns)(const void *memory, size_t size);

    /* Enqueue work on a stream; it is retried in stream order until it returns true.  It must not
     * block; any thread that waits for or queries an event runs it, under the runtime's lock. */
    cudaError_t (*enqueue)(cudaStream_t stream, std::function<bool()> work);

    int (*device_of)(cudaStream_t stream); /* -1: no stream */
};

typedef const struct cuda_emulator_services *cuda_emulator_services_fn();

#endif
