/*
 * emulator_runtime: the part of the CUDA runtime that the module uses: devices, errors, limits of a
 * launch, and the table of functions for other libraries (emulator_services.h).
 */
#include "tests/support/cuda_emulator/emulator_runtime.h"
#include "tests/support/cuda_emulator/emulator_services.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <unistd.h>

#define DEVICES       2 /* per process; one for all with SPARRING_EMULATED_ONE_GPU */
#define SHARED_STATIC ((size_t)48 * 1024)
#define SHARED_LIMIT  ((size_t)227 * 1024)

using namespace cuda_emulator;

namespace
{

std::map<const void *, size_t> dynamic_limits; /* kernels with more than 48 KiB */
thread_local cudaError_t last_error;
thread_local int current_device;

} // namespace

namespace cuda_emulator
{

std::recursive_mutex lock;

cudaError_t fail(cudaError_t error)
{
    last_error = error;
    return error;
}

int device_in_use()
{
    return current_device;
}

cudaError_t check_launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
    guard g(lock);
    auto limit = dynamic_limits.find(kernel);

    if (shared_bytes > (limit == dynamic_limits.end() ? SHARED_STATIC : limit->second))
        return fail(cudaErrorInvalidValue);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
        grid.x > 2147483647u || block.x * block.y * block.z == 0 ||
        (size_t)block.x * block.y * block.z > 1024)
        return fail(cudaErrorInvalidConfiguration);
    return cudaSuccess;
}

} // namespace cuda_emulator

/* ---- devices ---- */

static int devices()
{
    return getenv("SPARRING_EMULATED_ONE_GPU") ? 1 : DEVICES;
}

cudaError_t cudaGetDeviceCount(int *ret)
{
    *ret = devices();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= devices())
        return fail(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *ret)
{
    *ret = current_device;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *ret)
{
    *ret = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
    pid_t owner = getpid();

    if (device < 0 || device >= devices())
        return fail(cudaErrorInvalidDevice);
    if (devices() == 1)
        owner = 0;
    memset(ret, 0, sizeof(*ret));
    (void)snprintf(ret->name, sizeof(ret->name), "emulated on the CPU");
    ret->major = 9;
    ret->multiProcessorCount = 4;
    ret->sharedMemPerBlockOptin = SHARED_LIMIT;
    memcpy(ret->uuid.bytes, &owner, sizeof(owner));
    ret->uuid.bytes[15] = (char)device;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret, const void *kernel)
{
    (void)kernel;
    memset(ret, 0, sizeof(*ret));
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    guard g(lock);

    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || (size_t)value > SHARED_LIMIT)
        return fail(cudaErrorInvalidValue);
    dynamic_limits[kernel] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulated GPU";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

/* ---- services for other libraries ---- */

extern "C" __attribute__((visibility("default"))) const struct cuda_emulator_services *
cuda_emulator_services_get()
{
    static const struct cuda_emulator_services services = {
        cudaMalloc, cudaFree,       cudaGetDevice, cudaGetDeviceProperties,
        is_owned,   enqueue_polled, device_of};

    return &services;
}
