/*
 * cuda_rows: kernels over rows of channels, the layout of images with the channels last.  A thread
 * processes fixed channels (a pack of N that one access moves) in successive rows: per-channel data
 * is read once, and no index is divided.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_ROWS_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_ROWS_CUH

#include "worker/compute/cuda/cuda_kernel.cuh"

struct rows {
    size_t count; /* of rows */
    size_t chunk; /* rows of a block */
    unsigned chunks;
    unsigned channels, packs; /* of a row */
};

/* Block dimensions: adjacent threads process adjacent packs, at most a warp of them; both
 * dimensions are powers of two. */
static inline dim3 rows_block(size_t packs)
{
    unsigned x = 1;

    while (x < packs && x < WARP)
        x *= 2;
    return dim3(x, THREADS / x);
}

/* Plan for rows of `channels` in packs of n: about `blocks` blocks at most, whose threads process
 * at least `least` rows each. */
static inline struct rows rows_plan(size_t count, size_t channels, unsigned n, unsigned blocks,
                                    unsigned least)
{
    struct rows r = {};
    dim3 block = rows_block(channels / n);
    size_t tiles, most;
    size_t chunks;

    r.count = count;
    r.channels = (unsigned)channels;
    r.packs = (unsigned)(channels / n);
    tiles = (r.packs + block.x - 1) / block.x;
    most = (count + (size_t)block.y * least - 1) / ((size_t)block.y * least);
    chunks = tiles < blocks ? blocks / tiles : 1;
    chunks = chunks < most ? chunks : most;
    r.chunk = (count + chunks - 1) / chunks;
    r.chunks = (unsigned)((count + r.chunk - 1) / r.chunk);
    return r;
}

static inline dim3 rows_grid(const struct rows &r)
{
    unsigned x = rows_block(r.packs).x;

    return dim3((r.packs + x - 1) / x, r.chunks);
}

/* ---- in a kernel ---- */

static __device__ inline unsigned rows_pack()
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

/* Call f(index of this thread's first channel) for each of its rows. */
template <unsigned N, typename F> static __device__ inline void for_rows(const struct rows &r, F f)
{
    size_t begin = blockIdx.y * r.chunk;
    size_t end = begin + r.chunk < r.count ? begin + r.chunk : r.count;
    size_t at = (begin + threadIdx.y) * r.channels + (size_t)rows_pack() * N;
    size_t step = (size_t)blockDim.y * r.channels;

#pragma unroll 4
    for (size_t row = begin + threadIdx.y; row < end; row += blockDim.y, at += step)
        f(at);
}

/* Sum M numbers of each thread over the threads of its column, threadIdx.y, in a fixed order; the
 * first row of threads receives the sums. */
template <unsigned M> static __device__ inline void column_sums(float *mine)
{
    __shared__ float sums[M][THREADS];
    unsigned me = threadIdx.y * blockDim.x + threadIdx.x;

#pragma unroll
    for (unsigned i = 0; i < M; i++)
        sums[i][me] = mine[i];
    for (unsigned y = blockDim.y / 2; y > 0; y /= 2) {
        __syncthreads();
        if (threadIdx.y < y) {
#pragma unroll
            for (unsigned i = 0; i < M; i++)
                sums[i][me] += sums[i][me + y * blockDim.x];
        }
    }
#pragma unroll
    for (unsigned i = 0; i < M; i++)
        mine[i] = sums[i][me];
}

#endif
