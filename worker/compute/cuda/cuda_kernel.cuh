/*
 * cuda_kernel: what our kernels share.  Values are float, bfloat16 or half in memory and float in
 * registers.  Reductions run over a fixed tree without atomics, so that a step gives the same bits
 * every time.  Compiled by nvcc, and by the C++ compiler for the emulator of the tests, which
 * brings a launch of its own.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_KERNEL_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_KERNEL_CUH

#include "worker/compute/cuda/cuda_internal.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef CUDA_EMULATOR
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

/* Enqueue kernel<<<grid, block, shared_bytes, stream>>>(arguments...); the launch's result. */
template <typename... Parameters, typename... Arguments>
static inline cudaError_t cuda_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream,
                                      Arguments... arguments)
{
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
    return cudaGetLastError();
}
#endif

#define WARP      32u
#define FULL_WARP 0xffffffffu
#define THREADS   256u /* of a block, where nothing else is said */

/* ---- values ---- */

static __device__ inline float to_float(float value)
{
    return value;
}

static __device__ inline float to_float(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}

static __device__ inline float to_float(__half value)
{
    return __half2float(value);
}

static __device__ inline void put(float *to, float value)
{
    *to = value;
}

static __device__ inline void put(__nv_bfloat16 *to, float value)
{
    *to = __float2bfloat16(value);
}

static __device__ inline void put(__half *to, float value)
{
    *to = __float2half(value);
}

template <typename T> struct type_tag {
    typedef T type;
};

/* f(type_tag<T>()) with the device's T. */
template <typename F> static inline cudaError_t by_type(const struct cuda *cuda, F f)
{
    switch (cuda->type) {
    case CUDA_R_16BF:
        return f(type_tag<__nv_bfloat16>());
    case CUDA_R_16F:
        return f(type_tag<__half>());
    default:
        return f(type_tag<float>());
    }
}

/* ---- grids ---- */

#define BLOCKS_MAX 4096u /* beyond it threads take several elements */

static inline unsigned blocks_for(size_t count)
{
    size_t blocks = (count + THREADS - 1) / THREADS;

    return blocks < BLOCKS_MAX ? (unsigned)blocks : BLOCKS_MAX;
}

static __device__ inline size_t grid_first()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline size_t grid_stride()
{
    return (size_t)gridDim.x * blockDim.x;
}

/* ---- reductions; every thread gets the result ---- */

template <typename T> static __device__ inline T warp_sum(T mine)
{
    for (unsigned offset = WARP / 2; offset > 0; offset /= 2)
        mine += __shfl_xor_sync(FULL_WARP, mine, (int)offset);
    return mine;
}

static __device__ inline float warp_max(float mine)
{
    for (unsigned offset = WARP / 2; offset > 0; offset /= 2)
        mine = fmaxf(mine, __shfl_xor_sync(FULL_WARP, mine, (int)offset));
    return mine;
}

/* Blocks of one dimension, a multiple of a warp. */
template <typename T> static __device__ inline T block_sum(T mine)
{
    __shared__ T warps[1024 / WARP];

    mine = warp_sum(mine);
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    mine = warps[0];
    for (unsigned w = 1; w < blockDim.x / WARP; w++)
        mine += warps[w];
    __syncthreads(); /* the shared array may be written again */
    return mine;
}

/* ---- activations ---- */

#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

/* NaNs pass. */
static __device__ inline float activate(int activation, float x)
{
    if (activation == ACTIVATION_RELU)
        return x < 0.0f ? 0.0f : x;
    if (activation == ACTIVATION_GELU)
        return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
    return x;
}

#endif
