/*
 * cuda_tile: a product of tiles in shared memory by a block of 256 threads, with the sums in
 * registers: float32 by fused multiply-adds, 16 bits by the tensor cores (WMMA).
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_TILE_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_TILE_CUH

#include "worker/compute/cuda/cuda_kernel.cuh"

#ifdef CUDA_EMULATOR
#include "tests/support/cuda_emulator/emulator_wmma.h"
#else
#include <mma.h>
#endif

#define TILE_THREADS 256u
#define TILE_GRID    16u /* float32: a thread has every 16th row and column */
#define TILE_WARPS   (TILE_THREADS / WARP)

/* Elements from row to row: what keeps a warp's accesses in different banks. */
template <typename T> static __host__ __device__ constexpr unsigned tile_pitch(unsigned columns)
{
    return sizeof(T) == sizeof(float) ? columns + 1 : columns + 8;
}

#define SUMS_PITCH(columns) ((columns) + 4u) /* of float sums, which WMMA stores in fours */

/* Sums C (M, N) of products of tiles, M and N multiples of 16. */
template <typename T, unsigned M, unsigned N> struct tile_sums {
    static constexpr unsigned TILES = M / 16 * (N / 16);
    static constexpr unsigned MINE = (TILES + TILE_WARPS - 1) / TILE_WARPS;
    typedef nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum_fragment;

    sum_fragment sums[MINE];

    __device__ void zero()
    {
        for (unsigned i = 0; i < MINE; i++)
            nvcuda::wmma::fill_fragment(sums[i], 0.0f);
    }

    /* C += op(A) op(B): A is (M, k), transposed (k, M) in memory; B (k, N) or (N, k). */
    template <bool TRANSPOSE_A, bool TRANSPOSE_B>
    __device__ void add(const T *a, unsigned a_pitch, const T *b, unsigned b_pitch, unsigned k)
    {
        using namespace nvcuda::wmma;
        typedef typename std::conditional<TRANSPOSE_A, col_major, row_major>::type a_layout;
        typedef typename std::conditional<TRANSPOSE_B, col_major, row_major>::type b_layout;
        unsigned warp = threadIdx.x / WARP;

#pragma unroll
        for (unsigned i = 0; i < MINE; i++) {
            unsigned tile = warp + i * TILE_WARPS;
            unsigned row = tile / (N / 16) * 16;
            unsigned column = tile % (N / 16) * 16;

            if (tile >= TILES)
                continue; /* the whole warp */
            for (unsigned at = 0; at < k; at += 16) {
                fragment<matrix_a, 16, 16, 16, T, a_layout> left;
                fragment<matrix_b, 16, 16, 16, T, b_layout> right;

                load_matrix_sync(
                    left, TRANSPOSE_A ? a + at * a_pitch + row : a + row * a_pitch + at, a_pitch);
                load_matrix_sync(
                    right, TRANSPOSE_B ? b + column * b_pitch + at : b + at * b_pitch + column,
                    b_pitch);
                mma_sync(sums[i], left, right, sums[i]);
            }
        }
    }

    /* From and to floats with a pitch of SUMS_PITCH(N). */
    __device__ void load(const float *c)
    {
        for (unsigned i = 0; i < MINE; i++) {
            unsigned tile = threadIdx.x / WARP + i * TILE_WARPS;

            if (tile < TILES)
                nvcuda::wmma::load_matrix_sync(
                    sums[i], c + tile / (N / 16) * 16 * SUMS_PITCH(N) + tile % (N / 16) * 16,
                    SUMS_PITCH(N), nvcuda::wmma::mem_row_major);
        }
    }

    __device__ void store(float *c) const
    {
        for (unsigned i = 0; i < MINE; i++) {
            unsigned tile = threadIdx.x / WARP + i * TILE_WARPS;

            if (tile < TILES)
                nvcuda::wmma::store_matrix_sync(
                    c + tile / (N / 16) * 16 * SUMS_PITCH(N) + tile % (N / 16) * 16, sums[i],
                    SUMS_PITCH(N), nvcuda::wmma::mem_row_major);
        }
    }
};

template <unsigned M, unsigned N> struct tile_sums<float, M, N> {
    static constexpr unsigned ROWS = M / TILE_GRID;
    static constexpr unsigned COLUMNS = N / TILE_GRID;

    float sums[ROWS][COLUMNS];

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
                sums[i][j] = 0.0f;
    }

    template <bool TRANSPOSE_A, bool TRANSPOSE_B>
    __device__ void add(const float *a, unsigned a_pitch, const float *b, unsigned b_pitch,
                        unsigned k)
    {
        for (unsigned at = 0; at < k; at++) {
            float left[ROWS], right[COLUMNS];

#pragma unroll
            for (unsigned i = 0; i < ROWS; i++)
                left[i] = TRANSPOSE_A ? a[at * a_pitch + row(i)] : a[row(i) * a_pitch + at];
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; j++)
                right[j] = TRANSPOSE_B ? b[column(j) * b_pitch + at] : b[at * b_pitch + column(j)];
#pragma unroll
            for (unsigned i = 0; i < ROWS; i++)
#pragma unroll
                for (unsigned j = 0; j < COLUMNS; j++)
                    sums[i][j] += left[i] * right[j];
        }
    }

    __device__ void load(const float *c)
    {
#pragma unroll
        for (unsigned i = 0; i < ROWS; i++)
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; j++)
                sums[i][j] = c[row(i) * SUMS_PITCH(N) + column(j)];
    }

    __device__ void store(float *c) const
    {
#pragma unroll
        for (unsigned i = 0; i < ROWS; i++)
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; j++)
                c[row(i) * SUMS_PITCH(N) + column(j)] = sums[i][j];
    }
};

#endif
