/*
 * emulator_memory: memory of the emulated GPU, page-locked memory, and copies between them.  New
 * memory contains NaNs.  As in CUDA, a copy from pageable memory is staged before the call returns.
 */
#include "tests/support/cuda_emulator/emulator_runtime.h"

#include <cstdlib>
#include <map>
#include <vector>

using namespace cuda_emulator;

namespace
{

std::map<const char *, size_t> pinned; /* size by begin */
std::map<void *, size_t> device_memory;
size_t used_bytes;

/* Size of the emulated GPU's memory. */
size_t total_bytes()
{
    const char *text = getenv("SPARRING_EMULATED_BYTES");

    return text ? (size_t)strtoull(text, nullptr, 10) : (size_t)1 << 32;
}

bool is_pinned(const void *at)
{
    guard g(lock);
    auto after = pinned.upper_bound(static_cast<const char *>(at));

    if (after == pinned.begin())
        return false;
    --after;
    return static_cast<const char *>(at) < after->first + after->second;
}

bool is_device(const void *at)
{
    return is_owned(at, 1);
}

} // namespace

bool cuda_emulator::is_owned(const void *memory, size_t size)
{
    guard g(lock);
    auto after = device_memory.upper_bound(const_cast<void *>(memory));

    if (after == device_memory.begin())
        return false;
    --after;
    return static_cast<const char *>(memory) + size <=
           static_cast<char *>(after->first) + after->second;
}

cudaError_t cudaMalloc(void **ret, size_t size)
{
    guard g(lock);
    void *memory = nullptr;

    if (invalidates_capture())
        return cudaErrorStreamCaptureUnsupported;
    if (size > total_bytes() - used_bytes || posix_memalign(&memory, 256, size ? size : 1) != 0)
        return fail(cudaErrorMemoryAllocation);
    memset(memory, 0xff, size); /* NaNs */
    device_memory[memory] = size;
    used_bytes += size;
    *ret = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    if (invalidates_capture())
        return cudaErrorStreamCaptureUnsupported;
    run_all_streams();
    if (!memory)
        return cudaSuccess;

    guard g(lock);
    auto found = device_memory.find(memory);

    if (found == device_memory.end())
        return fail(cudaErrorInvalidValue);
    used_bytes -= found->second;
    device_memory.erase(found);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **ret, size_t size)
{
    guard g(lock);
    void *memory = nullptr;

    if (invalidates_capture())
        return cudaErrorStreamCaptureUnsupported;
    if (posix_memalign(&memory, 256, size ? size : 1) != 0)
        return fail(cudaErrorMemoryAllocation);
    memset(memory, 0xff, size);
    pinned[static_cast<char *>(memory)] = size;
    *ret = memory;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    if (invalidates_capture())
        return cudaErrorStreamCaptureUnsupported;
    run_all_streams();

    guard g(lock);

    pinned.erase(static_cast<char *>(memory));
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret, size_t size, unsigned flags)
{
    (void)flags;
    return cudaMallocHost(ret, size);
}

cudaError_t cudaHostRegister(void *memory, size_t size, unsigned flags)
{
    guard g(lock);
    char *begin = static_cast<char *>(memory);
    auto after = pinned.lower_bound(begin);

    (void)flags;
    if (is_pinned(begin) || (after != pinned.end() && after->first < begin + size))
        return fail(cudaErrorHostMemoryAlreadyRegistered);
    pinned[begin] = size;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    guard g(lock);

    return pinned.erase(static_cast<char *>(memory)) == 1 ? cudaSuccess
                                                          : fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *ret, const void *at)
{
    guard g(lock);

    *ret = {};
    ret->type = is_device(at)   ? cudaMemoryTypeDevice
                : is_pinned(at) ? cudaMemoryTypeHost
                                : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    guard g(lock);

    *available = total_bytes() - used_bytes;
    *total = total_bytes();
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream)
{
    if (!is_device(memory))
        return fail(cudaErrorInvalidValue);
    return enqueue(stream, [=] { memset(memory, value, size); });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t result;

    if (kind == cudaMemcpyDefault)
        kind = is_device(from) ? (is_device(to) ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                               : (is_device(to) ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
    if ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) && !is_device(to))
        return fail(cudaErrorInvalidValue);
    if ((kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) && !is_device(from))
        return fail(cudaErrorInvalidValue);
    if (((kind == cudaMemcpyHostToDevice && !is_pinned(from)) ||
         (kind == cudaMemcpyDeviceToHost && !is_pinned(to))) &&
        invalidates_capture()) /* a graph would copy at each launch */
        return cudaErrorStreamCaptureUnsupported;
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) { /* staged before the call returns */
        std::vector<char> copy(static_cast<const char *>(from),
                               static_cast<const char *>(from) + size);

        return enqueue(stream, [=] { memcpy(to, copy.data(), size); });
    }
    result = enqueue(stream, [=] { memcpy(to, from, size); });
    if (result == cudaSuccess && kind == cudaMemcpyDeviceToHost && !is_pinned(to))
        run_stream(stream);
    return result;
}
