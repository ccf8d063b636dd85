/*
 * cuda_attention: what attention's forward and backward share.  A block has one head of one sample
 * and a tile of its positions; tiles of the others pass through shared memory, so that no matrix of
 * positions by positions ever exists (Dao et al. 2022).  Head sizes are padded to a multiple of 16
 * that a kernel is compiled for, with zeros.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_ATTENTION_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_ATTENTION_CUH

#include "worker/compute/cuda/cuda_tile.cuh"

struct attention_shape {
    unsigned positions, width, head; /* head: width / heads */
    float scale;                     /* of scores */
};

static inline struct attention_shape attention_shape_of(const struct attention *a)
{
    struct attention_shape s = {};

    s.positions = (unsigned)a->positions;
    s.width = (unsigned)a->width;
    s.head = (unsigned)(a->width / a->heads);
    s.scale = 1.0f / sqrtf((float)s.head);
    return s;
}

/* Positions of a tile: in float32 with wide heads more would not fit into shared memory. */
template <typename T, unsigned HEAD> static constexpr unsigned attention_tile()
{
    return sizeof(T) == sizeof(float) && HEAD > 64 ? 32 : 64;
}

/* Rows [first, first + ROWS) of this head into a tile; zeros beyond what there is.  from: the
 * sample's and head's first element; stride: elements from position to position. */
template <typename T, unsigned ROWS, unsigned HEAD>
static __device__ void load_tile(T *tile, const T *from, size_t stride, unsigned first,
                                 const struct attention_shape &s)
{
    for (unsigned i = threadIdx.x; i < ROWS * HEAD; i += TILE_THREADS) {
        unsigned row = i / HEAD;
        unsigned column = i % HEAD;
        bool is_there = first + row < s.positions && column < s.head;

        if (is_there)
            tile[row * tile_pitch<T>(HEAD) + column] = from[(first + row) * stride + column];
        else
            put(&tile[row * tile_pitch<T>(HEAD) + column], 0.0f);
    }
}

/* Sums of a tile, with their pitch, times a factor per row, to memory. */
template <typename T, unsigned ROWS, unsigned HEAD, typename F>
static __device__ void store_tile(T *to, size_t stride, const float *sums, unsigned first,
                                  const struct attention_shape &s, F factor)
{
    for (unsigned i = threadIdx.x; i < ROWS * HEAD; i += TILE_THREADS) {
        unsigned row = i / HEAD;
        unsigned column = i % HEAD;

        if (first + row < s.positions && column < s.head)
            put(&to[(first + row) * stride + column],
                sums[row * SUMS_PITCH(HEAD) + column] * factor(row));
    }
}

/* The place of `count` elements of U in shared memory, aligned for WMMA; *used grows. */
template <typename U>
static __device__ U *shared_part(unsigned char *memory, size_t *used, size_t count)
{
    U *part = reinterpret_cast<U *>(memory + *used);

    *used += (count * sizeof(U) + 31) / 32 * 32;
    return part;
}

static constexpr size_t shared_size(size_t bytes)
{
    return (bytes + 31) / 32 * 32;
}

/* f(head_tag<HEAD>()) with the compiled size that holds `head`. */
template <unsigned SIZE> struct head_tag {
    static constexpr unsigned HEAD = SIZE;
};

template <typename F> static cudaError_t by_head(unsigned head, F f)
{
    if (head <= 16)
        return f(head_tag<16>());
    if (head <= 32)
        return f(head_tag<32>());
    if (head <= 64)
        return f(head_tag<64>());
    return f(head_tag<128>());
}

/* Launch with more than 48 KiB of shared memory. */
template <typename... Parameters, typename... Arguments>
static cudaError_t launch_large(void (*kernel)(Parameters...), dim3 grid, size_t shared_bytes,
                                cudaStream_t stream, Arguments... arguments)
{
    cudaError_t result =
        cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);

    if (result != cudaSuccess)
        return result;
    return cuda_launch(kernel, grid, TILE_THREADS, shared_bytes, stream, arguments...);
}

#endif
