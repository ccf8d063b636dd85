/*
 * The part of the CUDA runtime that the module uses, on host memory.
 *
 * Work on a stream is kept and runs when somebody waits for it, so that code which forgets to wait,
 * or overwrites what a copy has yet to read, fails here always and not sometimes.  A wait for an
 * event runs the stream it was recorded on up to there.  While a stream is captured its work goes
 * into the graph instead.  Everything is under one lock.
 */
#include "tests/support/cuda_emulator/cuda_emulator.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#define DEVICES       2
#define SHARED_STATIC ((size_t)48 * 1024)
#define SHARED_LIMIT  ((size_t)227 * 1024)

/* CUDA's own names for what it hands out; ours inside. */
struct CUgraph_st {
    std::vector<std::function<void()>> work;
};

struct CUgraphExec_st {
    std::vector<std::function<void()>> work;
};

struct CUstream_st {
    std::deque<std::function<void()>> work;
    uint64_t enqueued, done;
    struct CUgraph_st *captured;
    int device;
};

struct CUevent_st {
    struct CUstream_st *stream;
    uint64_t at; /* the stream's work up to here comes before the event */
};

namespace
{

std::recursive_mutex lock;
std::map<const char *, size_t> pinned; /* page-locked ranges by their begin */
std::map<void *, size_t> device_memory;
std::map<const void *, size_t> dynamic_limits; /* kernels that asked for more than 48 KiB */
std::set<struct CUstream_st *> streams;
size_t used_bytes;
cudaError_t last_error;
thread_local int current_device;

typedef std::lock_guard<std::recursive_mutex> guard;

/* Of the emulated GPU's memory. */
size_t total_bytes()
{
    const char *text = getenv("SPARRING_EMULATED_BYTES");

    return text ? (size_t)strtoull(text, nullptr, 10) : (size_t)1 << 32;
}

cudaError_t fail(cudaError_t error)
{
    last_error = error;
    return error;
}

void run_until(struct CUstream_st *s, uint64_t at)
{
    while (s->done < at) {
        std::function<void()> work = std::move(s->work.front());

        s->work.pop_front();
        work();
        s->done++;
    }
}

void run_everything()
{
    for (struct CUstream_st *s : streams)
        run_until(s, s->enqueued);
}

bool is_pinned(const void *at)
{
    auto after = pinned.upper_bound(static_cast<const char *>(at));

    if (after == pinned.begin())
        return false;
    --after;
    return static_cast<const char *>(at) < after->first + after->second;
}

bool is_device(const void *at)
{
    auto after = device_memory.upper_bound(const_cast<void *>(at));

    if (after == device_memory.begin())
        return false;
    --after;
    return static_cast<const char *>(at) < static_cast<char *>(after->first) + after->second;
}

} // namespace

namespace cuda_emulator
{

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work)
{
    guard g(lock);

    if (!stream || stream->device != current_device) /* our streams are all named */
        return fail(cudaErrorInvalidResourceHandle);
    if (stream->captured) {
        stream->captured->work.push_back(std::move(work));
        return cudaSuccess;
    }
    stream->work.push_back(std::move(work));
    stream->enqueued++;
    return cudaSuccess;
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

/* ---- memory ---- */

cudaError_t cudaMalloc(void **ret, size_t size)
{
    guard g(lock);
    void *memory = nullptr;

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
    guard g(lock);
    auto found = device_memory.find(memory);

    run_everything();
    if (!memory)
        return cudaSuccess;
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

    if (posix_memalign(&memory, 256, size ? size : 1) != 0)
        return fail(cudaErrorMemoryAllocation);
    memset(memory, 0xff, size);
    pinned[static_cast<char *>(memory)] = size;
    *ret = memory;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    guard g(lock);

    run_everything();
    pinned.erase(static_cast<char *>(memory));
    free(memory);
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
    return cuda_emulator::enqueue(stream, [=] { memset(memory, value, size); });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    guard g(lock);
    cudaError_t result;

    if ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) && !is_device(to))
        return fail(cudaErrorInvalidValue);
    if ((kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) && !is_device(from))
        return fail(cudaErrorInvalidValue);
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) { /* staged before the call returns */
        std::vector<char> copy(static_cast<const char *>(from),
                               static_cast<const char *>(from) + size);

        return cuda_emulator::enqueue(stream, [=] { memcpy(to, copy.data(), size); });
    }
    result = cuda_emulator::enqueue(stream, [=] { memcpy(to, from, size); });
    if (result == cudaSuccess && kind == cudaMemcpyDeviceToHost && !is_pinned(to))
        run_until(stream, stream->enqueued);
    return result;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
    guard g(lock);

    (void)flags;
    *ret = new CUstream_st();
    (*ret)->device = current_device;
    streams.insert(*ret);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard g(lock);

    run_until(stream, stream->enqueued);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard g(lock);

    if (stream->captured)
        return fail(cudaErrorStreamCaptureUnsupported);
    run_until(stream, stream->enqueued);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    guard g(lock);
    struct CUstream_st *recorded = event->stream;
    uint64_t at = event->at;

    (void)flags;
    if (!recorded || (recorded->captured && recorded != stream))
        return recorded ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
    return cuda_emulator::enqueue(stream, [=] {
        if (recorded != stream)
            run_until(recorded, at);
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    (void)flags;
    *ret = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard g(lock);

    event->stream = stream;
    event->at = stream->enqueued;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard g(lock);

    if (event->stream)
        run_until(event->stream, event->at);
    return cudaSuccess;
}

/* ---- graphs: one stream's work ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    guard g(lock);

    (void)mode;
    stream->captured = new CUgraph_st();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret)
{
    guard g(lock);

    *ret = stream->captured;
    stream->captured = nullptr;
    return *ret ? cudaSuccess : fail(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *ret = new CUgraphExec_st{graph->work};
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    guard g(lock);

    run_everything();
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    return cuda_emulator::enqueue(stream, [=] {
        for (const std::function<void()> &work : graph->work)
            work();
    });
}

/* ---- devices and errors ---- */

cudaError_t cudaGetDeviceCount(int *ret)
{
    *ret = DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= DEVICES)
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
    if (device < 0 || device >= DEVICES)
        return fail(cudaErrorInvalidDevice);
    memset(ret, 0, sizeof(*ret));
    (void)snprintf(ret->name, sizeof(ret->name), "emulated on the CPU");
    ret->major = 9;
    ret->multiProcessorCount = 4;
    ret->sharedMemPerBlockOptin = SHARED_LIMIT;
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
    guard g(lock);
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
