/*
 * cuda_tile: a product of float32 tiles in shared memory by a block of 256 threads, with fused
 * multiply-adds and the sums in registers.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_TILE_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_TILE_CUH

#include "worker/compute/cuda/cuda_kernel.cuh"

#define TILE_THREADS 256u
#define TILE_GRID    16u /* a thread processes every 16th row and column */

/* Elements from row to row: odd, so that a warp's accesses are in different banks. */
#define TILE_PITCH(columns) ((columns) + 1u)

/* Sums C (M, N) of products of tiles, M and N multiples of 16. */
template <unsigned M, unsigned N> struct tile_sums {
    static constexpr unsigned ROWS = M / TILE_GRID;
    static constexpr unsigned COLUMNS = N / TILE_GRID;

    float at[ROWS][COLUMNS];

    __device__ static unsigned row(unsigned i)
    {
        return threadIdx.x / TILE_GRID + i * TILE_GRID;
    }

    __device__ static unsigned column(unsigned j)
    {
        return threadIdx.x % TILE_GRID + j * TILE_GRID;
    }

    __device__ void zero()
    {
#pragma unroll
        for (unsigned i = 0; i < ROWS; i++)
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; j++)
                at[i][j] = 0.0f;
    }

    /* C += op(A) op(B): A is (M, k), transposed (k, M) in memory; B (k, N) or (N, k). */
    template <bool TRANSPOSE_A, bool TRANSPOSE_B>
    __device__ void add(const float *a, unsigned a_pitch, const float *b, unsigned b_pitch,
                        unsigned depth)
    {
        for (unsigned k = 0; k < depth; k++) {
            float left[ROWS], right[COLUMNS];

#pragma unroll
            for (unsigned i = 0; i < ROWS; i++)
                left[i] = TRANSPOSE_A ? a[k * a_pitch + row(i)] : a[row(i) * a_pitch + k];
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; j++)
                right[j] = TRANSPOSE_B ? b[column(j) * b_pitch + k] : b[k * b_pitch + column(j)];
#pragma unroll
            for (unsigned i = 0; i < ROWS; i++)
#pragma unroll
                for (unsigned j = 0; j < COLUMNS; j++)
                    at[i][j] += left[i] * right[j];
        }
    }
};

#endif
