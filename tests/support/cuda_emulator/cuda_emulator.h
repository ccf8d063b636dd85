/*
 * cuda_emulator: compiles our CUDA sources as C++ for the host.  This header is included before
 * each of them (precompiled) and provides what nvcc adds: indices, shared memory, barriers, warp
 * exchanges, atomics and the launch.  The threads of a block are fibers of one system thread that
 * switch where they wait.  README.md lists the errors that this finds, and those that it cannot.
 */
#ifndef SPARRING_TESTS_CUDA_EMULATOR_H
#define SPARRING_TESTS_CUDA_EMULATOR_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <functional>

#define CUDA_EMULATOR 1

#undef __shared__
#undef __launch_bounds__
#define __shared__             static /* blocks run sequentially */
#define __launch_bounds__(...)        /* registers are not modelled */
#define DYNAMIC_SHARED(name)   unsigned char *name = cuda_emulator::dynamic_shared()

#define threadIdx cuda_emulator::thread_index
#define blockIdx  cuda_emulator::block_index
#define blockDim  cuda_emulator::block_size
#define gridDim   cuda_emulator::grid_size

#define dlopen cuda_emulator::open_library

#define __syncthreads() cuda_emulator::block_barrier(__FILE__, __LINE__)
#define __syncwarp()    cuda_emulator::warp_barrier(0xffffffffu, __FILE__, __LINE__)
#define __shfl_sync(mask, value, lane)                                                             \
    cuda_emulator::shuffle(mask, value, (unsigned)(lane), __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits)                                                         \
    cuda_emulator::shuffle(mask, value, cuda_emulator::lane() ^ (unsigned)(bits), __FILE__,        \
                           __LINE__)
#define __shfl_down_sync(mask, value, by)                                                          \
    cuda_emulator::shuffle(mask, value,                                                            \
                           cuda_emulator::lane() + (unsigned)(by) < 32                             \
                               ? cuda_emulator::lane() + (unsigned)(by)                            \
                               : cuda_emulator::lane(),                                            \
                           __FILE__, __LINE__)

namespace cuda_emulator
{

extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

/* file and line identify the call: threads that wait together must wait at the same call. */
void block_barrier(const char *file, int line);
void warp_barrier(unsigned mask, const char *file, int line);

unsigned char *dynamic_shared(); /* of the running block; initially NaNs */
unsigned lane();

/* Publish `value` to the warp; returns when every lane of `mask` has done so, with a pointer to the
 * value of lane i at [i].  The memory is valid until the next but one exchange of the warp. */
void *const *exchange(unsigned mask, const void *value, size_t size, const char *file, int line);

template <typename T> T shuffle(unsigned mask, T value, unsigned from, const char *file, int line)
{
    T result;

    memcpy(&result, exchange(mask, &value, sizeof(value), file, line)[from], sizeof(result));
    return result;
}

/* Start a copy of 16 bytes (from NULL: zeros) for the running thread; make all started copies. */
void defer_copy(void *shared, const void *from);
void complete_deferred_copies();

/* Run `thread` in every thread of every block; misuse aborts the process with a line on stderr. */
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread);

/* Enqueue work on a stream: it runs when a caller waits for it (emulator_streams.cc). */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

/* Does the calling thread capture a stream? */
bool is_capturing();

/* cudaErrorInvalidValue or similar for a launch that no GPU accepts. */
cudaError_t check_launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes);

/* Replaces dlopen: returns this module, which has the functions of the library itself. */
void *open_library(const char *name, int flags);

} // namespace cuda_emulator

/* ---- device functions that the toolkit's headers give to nvcc only ---- */

using std::max;
using std::min;

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

static inline int __float_as_int(float x)
{
    int bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}

template <typename T> static inline T atomicAdd(T *at, T value)
{
    T before = *at;

    *at = before + value;
    return before;
}

template <typename T> static inline T atomicExch(T *at, T value)
{
    T before = *at;

    *at = value;
    return before;
}

static inline void __threadfence()
{
}

/* ---- launching ---- */

template <typename... Parameters, typename... Arguments>
static inline cudaError_t cuda_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream,
                                      Arguments... arguments)
{
    cudaError_t result = cuda_emulator::check_launch(reinterpret_cast<const void *>(kernel), grid,
                                                     block, shared_bytes);

    if (result == cudaSuccess)
        (void)cuda_emulator::enqueue(stream, [=] {
            cuda_emulator::run_grid(grid, block, shared_bytes,
                                    [&] { kernel(static_cast<Parameters>(arguments)...); });
        });
    return cudaGetLastError(); /* may be an earlier error of this thread */
}

#endif
