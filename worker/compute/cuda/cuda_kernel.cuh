/*
 * cuda_kernel: functions shared by our kernels.  Values are float, bfloat16 or half in memory and
 * float in registers.  Reductions use a fixed tree without atomics, so that a step gives the same
 * bits every time.  Compiled by nvcc, and by the C++ compiler for the emulator of the tests, which
 * defines its own launch.
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
#define THREADS   256u /* of a block, by default */

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

static __device__ inline void store_value(float *to, float value)
{
    *to = value;
}

static __device__ inline void store_value(__nv_bfloat16 *to, float value)
{
    *to = __float2bfloat16(value);
}

static __device__ inline void store_value(__half *to, float value)
{
    *to = __float2half(value);
}

template <typename T> struct type_tag {
    typedef T type;
};

/* Call f(type_tag<T>()) with the device's T. */
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

/* ---- 16 bytes at a time ---- */

/* N contiguous values that are moved by one access, or by two of 16 bytes each, and are aligned to
 * it. */
template <typename T, unsigned N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack {
    T at[N];
};

template <unsigned N, typename T> static __device__ inline void load(float *to, const T *from)
{
    const pack<T, N> p = *reinterpret_cast<const pack<T, N> *>(from);

#pragma unroll
    for (unsigned i = 0; i < N; i++)
        to[i] = to_float(p.at[i]);
}

/* Two values as one word. */
static __device__ inline uint32_t pack_two(const __nv_bfloat16 *, float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

static __device__ inline uint32_t pack_two(const __half *, float low, float high)
{
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

template <unsigned N> static __device__ inline void store(float *to, const float *from)
{
    pack<float, N> p;

#pragma unroll
    for (unsigned i = 0; i < N; i++)
        p.at[i] = from[i];
    *reinterpret_cast<pack<float, N> *>(to) = p;
}

/* Store the words in one access.  Assembly, because the compiler may split a plain store. */
static __device__ inline void store_words(void *to, const uint32_t (&w)[4])
{
#ifdef CUDA_EMULATOR
    memcpy(to, w, sizeof(w));
#else
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
#endif
}

static __device__ inline void store_words(void *to, const uint32_t (&w)[2])
{
#ifdef CUDA_EMULATOR
    memcpy(to, w, sizeof(w));
#else
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
#endif
}

template <unsigned N, typename T> static __device__ inline void store(T *to, const float *from)
{
    if constexpr (N == 1) {
        store_value(to, from[0]);
    } else {
        uint32_t words[N / 2];

#pragma unroll
        for (unsigned i = 0; i < N / 2; i++)
            words[i] = pack_two(to, from[2 * i], from[2 * i + 1]);
        store_words(to, words);
    }
}

template <unsigned N> struct count_tag {
    static constexpr unsigned count = N;
};

/* Call f(type_tag<T>(), count_tag<N>()): N values per 16 bytes if `whole`, else 1. */
template <typename F> static inline cudaError_t by_pack(const struct cuda *cuda, bool whole, F f)
{
    return by_type(cuda, [&](auto tag) {
        typedef typename decltype(tag)::type T;

        return whole ? f(tag, count_tag<16 / sizeof(T)>()) : f(tag, count_tag<1>());
    });
}

/* Whether by_pack may use whole packs: the addresses (NULL counts) and rows of `width` values begin
 * at multiples of 16 bytes. */
template <typename... P>
static inline bool can_pack(const struct cuda *cuda, size_t width, const P *...addresses)
{
    return width * cuda->value_size % 16 == 0 &&
           ((reinterpret_cast<uintptr_t>(addresses) % 16 == 0) && ...);
}

/* ---- grids ---- */

#define BLOCKS_MAX 4096u /* with more, each thread processes several elements */

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
    __syncthreads(); /* before the shared array is written again */
    return mine;
}

/* ---- activations ---- */

#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

/* Propagates NaN. */
static __device__ inline float activate(int activation, float x)
{
    if (activation == ACTIVATION_RELU)
        return x < 0.0f ? 0.0f : x;
    if (activation == ACTIVATION_GELU)
        return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
    return x;
}

#endif
