/*
 * cuda_attention: declarations shared by the attention kernels.  A block processes one head of one
 * sample and a tile of its positions; tiles of the other positions pass through shared memory, so
 * that no matrix of positions by positions exists (Dao et al. 2022).  In float32 a kernel sums as
 * the CPU does (cuda_attention_exact.cu); in 16 bits and TF32 the tensor cores multiply
 * (cuda_attention_*ward.cu).  Head sizes are padded with zeros to one that a kernel is compiled
 * for.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_ATTENTION_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_ATTENTION_CUH

#include "worker/compute/cuda/cuda_kernel.cuh"

/* bytes of a block: the limit of compute capability 8.6, 8.9 and 12.0 */
#define ATTENTION_SHARED_MAX 101376u

struct attention_shape {
    unsigned positions, width, head; /* head: width / heads */
    float scale;                     /* of scores */
    bool chunks;                     /* all rows of heads consist of aligned 16-byte chunks */
};

struct attention_forward_call { /* as compute_attention_forward; on the device */
    const void *qkv;
    float *log_sums;
    void *y;
};

struct attention_backward_call {
    const void *qkv;
    const float *log_sums;
    const void *y, *dy;
    void *dqkv;
    float *deltas; /* (batch, heads, positions), scratch: dy . y of each head */
};

/* Offsets in elements of a block's sample and head: in qkv, in y, in log_sums and deltas. */
struct attention_offsets {
    size_t qkv, y, rows;
};

/* Blocks are (tiles, heads, batch). */
static __device__ inline struct attention_offsets
attention_offsets_of(const struct attention_shape &s)
{
    size_t position = (size_t)blockIdx.z * s.positions;
    struct attention_offsets o;

    o.y = position * s.width + blockIdx.y * s.head;
    o.qkv = position * s.width * 3 + blockIdx.y * s.head;
    o.rows = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * s.positions;
    return o;
}

static inline dim3 attention_grid(const struct attention_shape &s, unsigned tile, size_t batch)
{
    return dim3((s.positions + tile - 1) / tile, s.width / s.head, (unsigned)batch);
}

/* Call f(head_tag<HEAD>()) with the first compiled size >= `head`. */
template <unsigned SIZE> struct head_tag {
    static constexpr unsigned HEAD = SIZE;
};

template <unsigned FIRST, unsigned... MORE, typename F>
static inline cudaError_t by_head(unsigned head, F f)
{
    if constexpr (sizeof...(MORE) > 0)
        if (head > FIRST)
            return by_head<MORE...>(head, f);
    return f(head_tag<FIRST>());
}

/* Launch with more than 48 KiB of shared memory. */
template <typename... Parameters, typename... Arguments>
static cudaError_t launch_large(void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                                size_t shared_bytes, cudaStream_t stream, Arguments... arguments)
{
    cudaError_t result =
        cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);

    if (result != cudaSuccess)
        return result;
    return cuda_launch(kernel, grid, threads, shared_bytes, stream, arguments...);
}

/* cuda_attention_exact.cu: float32 */
cudaError_t attention_exact_forward(const struct attention_shape &s, size_t batch,
                                    const struct attention_forward_call &call, cudaStream_t stream);
cudaError_t attention_exact_backward(const struct attention_shape &s, size_t batch,
                                     const struct attention_backward_call &call,
                                     cudaStream_t stream);

/* cuda_attention_forward.cu, cuda_attention_backward.cu: 16 bits, and TF32 where values are float32
 */
cudaError_t attention_mma_forward(const struct cuda *cuda, const struct attention_shape &s,
                                  size_t batch, const struct attention_forward_call &call);
cudaError_t attention_mma_backward(const struct cuda *cuda, const struct attention_shape &s,
                                   size_t batch, const struct attention_backward_call &call);

#endif
