/*
 * cuda_attention_mma: functions shared by the attention kernels on the tensor cores.  A warp
 * processes 16 or 32 rows of a block's tile and keeps their data in registers: the rows themselves
 * as operand A, their scores, and the sums (16 rows, HEAD).  Tiles of the other positions, read by
 * all warps, pass through two stages of shared memory: one is filled while the other is read.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_ATTENTION_MMA_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_ATTENTION_MMA_CUH

#include "worker/compute/cuda/cuda_attention.cuh"
#include "worker/compute/cuda/cuda_mma.cuh"

#include <type_traits>

#define LOG2_E 1.4426950408889634f

/* Elements from row to row of a tile: an odd number of 16-byte units, so that the chunks of eight
 * rows are in different banks. */
template <typename T, unsigned HEAD> static __host__ __device__ constexpr unsigned mma_pitch()
{
    return HEAD + chunk<T>();
}

/* Columns that one product sums over. */
template <typename T> static __host__ __device__ constexpr unsigned mma_depth()
{
    return MMA_BYTES / sizeof(T);
}

/* ---- tiles ---- */

template <typename T> struct alignas(16) aligned_chunk {
    T x[chunk<T>()];
};

/* Call f(row, column) for this thread's chunks of a tile (ROWS, HEAD). */
template <typename T, unsigned ROWS, unsigned HEAD, unsigned BLOCK, typename F>
static __device__ inline void each_chunk(F f)
{
    constexpr unsigned CHUNKS = HEAD / chunk<T>();

#pragma unroll
    for (unsigned i = 0; i < (ROWS * CHUNKS + BLOCK - 1) / BLOCK; i++) {
        unsigned at = i * BLOCK + threadIdx.x;

        if (ROWS * CHUNKS % BLOCK == 0 || at < ROWS * CHUNKS)
            f(at / CHUNKS, at % CHUNKS * chunk<T>());
    }
}

static __device__ inline float as_operand(float value)
{
    float rounded;
    uint32_t bits = round_tf32(value);

    memcpy(&rounded, &bits, sizeof(rounded));
    return rounded;
}

template <typename T> static __device__ inline T as_operand(T value)
{
    return value;
}

/* Start loading rows [first, first + ROWS) of this head, zeros beyond its end. from: the first
 * element of sample and head; stride: elements from position to position. */
template <typename T, unsigned ROWS, unsigned HEAD, unsigned BLOCK>
static __device__ inline void start_tile(T *tile, const T *from, size_t stride, unsigned first,
                                         const struct attention_shape &s)
{
    constexpr unsigned PITCH = mma_pitch<T, HEAD>();
    const T *rows = from + first * stride;

    if (s.chunks) {
        each_chunk<T, ROWS, HEAD, BLOCK>([&](unsigned row, unsigned column) {
            bool is_there = first + row < s.positions && column < s.head;

            copy_async(tile + row * PITCH + column, is_there ? rows + row * stride + column : from,
                       is_there);
        });
        return;
    }
    for (unsigned i = threadIdx.x; i < ROWS * HEAD; i += BLOCK) {
        unsigned row = i / HEAD;
        unsigned column = i % HEAD;
        bool is_there = first + row < s.positions && column < s.head;

        if (is_there)
            tile[row * PITCH + column] = as_operand(rows[row * stride + column]);
        else
            store_value(&tile[row * PITCH + column], 0.0f);
    }
}

/* Convert this thread's copied elements of a tile to the products' operand format, after its copies
 * have completed. */
template <typename T, unsigned ROWS, unsigned HEAD, unsigned BLOCK>
static __device__ inline void convert_tile(T *tile, const struct attention_shape &s)
{
    if (!std::is_same<T, float>::value || !s.chunks)
        return;
    each_chunk<T, ROWS, HEAD, BLOCK>([&](unsigned row, unsigned column) {
        aligned_chunk<T> *at =
            reinterpret_cast<aligned_chunk<T> *>(tile + row * mma_pitch<T, HEAD>() + column);
        aligned_chunk<T> values = *at;

#pragma unroll
        for (unsigned i = 0; i < chunk<T>(); i++)
            values.x[i] = as_operand(values.x[i]);
        *at = values;
    });
}

/* A stage: two consecutive tiles of the same positions, such as keys and values. */
template <typename T, unsigned ROWS, unsigned HEAD, unsigned BLOCK>
static __device__ inline void start_pair(T *tiles, const T *from, size_t stride,
                                         const T *second_from, size_t second_stride, unsigned first,
                                         const struct attention_shape &s)
{
    start_tile<T, ROWS, HEAD, BLOCK>(tiles, from, stride, first, s);
    start_tile<T, ROWS, HEAD, BLOCK>(tiles + ROWS * mma_pitch<T, HEAD>(), second_from,
                                     second_stride, first, s);
}

template <typename T, unsigned ROWS, unsigned HEAD, unsigned BLOCK>
static __device__ inline void convert_pair(T *tiles, const struct attention_shape &s)
{
    convert_tile<T, ROWS, HEAD, BLOCK>(tiles, s);
    convert_tile<T, ROWS, HEAD, BLOCK>(tiles + ROWS * mma_pitch<T, HEAD>(), s);
}

/* ---- products; sums[m][n] is D of the warp's rows [16 m, 16 m + 16), columns [8 n, 8 n + 8) ----
 */

/* A warp's 16 * M_TILES rows of a tile as A: kept in registers, or loaded at every use. */
template <typename T, unsigned HEAD, unsigned M_TILES, bool KEPT> struct row_operand {
    static constexpr unsigned STEPS = HEAD / mma_depth<T>();

    uint32_t x[KEPT ? STEPS : 1][M_TILES][4];
    const T *rows;

    __device__ void fetch(uint32_t (&to)[M_TILES][4], unsigned k) const
    {
#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++)
            load_a(to[m], rows + m * 16 * mma_pitch<T, HEAD>() + k * mma_depth<T>(),
                   mma_pitch<T, HEAD>());
    }

    __device__ explicit row_operand(const T *of_rows) : rows(of_rows)
    {
        if constexpr (KEPT)
#pragma unroll
            for (unsigned k = 0; k < STEPS; k++)
                fetch(x[k], k);
    }

    __device__ void get(uint32_t (&to)[M_TILES][4], unsigned k) const
    {
        if constexpr (KEPT) {
#pragma unroll
            for (unsigned m = 0; m < M_TILES; m++)
#pragma unroll
                for (unsigned i = 0; i < 4; i++)
                    to[m][i] = x[k][m][i];
        } else {
            fetch(to, k);
        }
    }
};

/* Call f(sum, m, n, i) for every sum of the lane. */
template <unsigned M_TILES, unsigned N, typename F>
static __device__ inline void each_sum(float (&sums)[M_TILES][N][4], F f)
{
#pragma unroll
    for (unsigned m = 0; m < M_TILES; m++)
#pragma unroll
        for (unsigned n = 0; n < N; n++)
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                f(sums[m][n][i], m, n, i);
}

template <unsigned M_TILES, unsigned N>
static __device__ inline void fill(float (&sums)[M_TILES][N][4], float value)
{
    each_sum(sums, [&](float &sum, unsigned, unsigned, unsigned) { sum = value; });
}

template <unsigned M_TILES, unsigned N>
static __device__ inline void scale(float (&sums)[M_TILES][N][4], float factor)
{
    each_sum(sums, [&](float &sum, unsigned, unsigned, unsigned) { sum *= factor; });
}

/* Element by element. */
template <unsigned M_TILES, unsigned N>
static __device__ inline void multiply(float (&sums)[M_TILES][N][4],
                                       const float (&by)[M_TILES][N][4])
{
    each_sum(sums, [&](float &sum, unsigned m, unsigned n, unsigned i) { sum *= by[m][n][i]; });
}

/* sums (rows, 8 N) += a (rows, HEAD) times the transposed of tile (8 N, HEAD) */
template <typename T, unsigned HEAD, unsigned M_TILES, unsigned N, bool KEPT>
static __device__ inline void add_scores(float (&sums)[M_TILES][N][4],
                                         const row_operand<T, HEAD, M_TILES, KEPT> &a,
                                         const T *tile)
{
    constexpr unsigned PITCH = mma_pitch<T, HEAD>();

#pragma unroll
    for (unsigned k = 0; k < HEAD / mma_depth<T>(); k++) {
        uint32_t left[M_TILES][4];

        a.get(left, k);
#pragma unroll
        for (unsigned n = 0; n < N; n += 2) {
            uint32_t right[4];

            load_b_of_rows(right, tile + n * 8 * PITCH + k * mma_depth<T>(), PITCH);
#pragma unroll
            for (unsigned m = 0; m < M_TILES; m++) {
                multiply_add(sums[m][n], left[m], right[0], right[1], type_tag<T>());
                multiply_add(sums[m][n + 1], left[m], right[2], right[3], type_tag<T>());
            }
        }
    }
}

/* sums (rows, HEAD) += weights (rows, 8 N) times tile (8 N, HEAD) */
template <typename T, unsigned HEAD, unsigned M_TILES, unsigned N>
static __device__ inline void add_weighted(float (&sums)[M_TILES][HEAD / 8][4],
                                           const float (&weights)[M_TILES][N][4], const T *tile)
{
    constexpr unsigned PITCH = mma_pitch<T, HEAD>();

#pragma unroll
    for (unsigned k = 0; k < N * 8 / mma_depth<T>(); k++) {
        uint32_t left[M_TILES][4];

#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++)
            sums_as_a(left[m], weights[m], k, type_tag<T>());
#pragma unroll
        for (unsigned n = 0; n < HEAD / 8; n += 2) {
            uint32_t right[4];

            load_b(right, tile + k * mma_depth<T>() * PITCH + n * 8, PITCH);
#pragma unroll
            for (unsigned m = 0; m < M_TILES; m++) {
                multiply_add(sums[m][n], left[m], right[0], right[1], type_tag<T>());
                multiply_add(sums[m][n + 1], left[m], right[2], right[3], type_tag<T>());
            }
        }
    }
}

/* ---- rows and columns of a lane ---- */

/* Row and column of sums[m][n][i] within the warp's rows. */
static __device__ inline unsigned lane_row(unsigned m, unsigned i)
{
    return m * 16 + threadIdx.x % WARP / 4 + i / 2 * 8;
}

static __device__ inline unsigned lane_column(unsigned n, unsigned i)
{
    return n * 8 + threadIdx.x % 4 * 2 + i % 2;
}

/* Reductions over the four lanes that share a row. */
static __device__ inline float quad_sum(float mine)
{
    mine += __shfl_xor_sync(FULL_WARP, mine, 1);
    return mine + __shfl_xor_sync(FULL_WARP, mine, 2);
}

static __device__ inline float quad_max(float mine)
{
    mine = fmaxf(mine, __shfl_xor_sync(FULL_WARP, mine, 1));
    return fmaxf(mine, __shfl_xor_sync(FULL_WARP, mine, 2));
}

/* Causal mask: set the scores of keys after their query to -infinity. row, column: positions of the
 * first row and column. */
template <bool ROWS_ARE_KEYS, unsigned M_TILES, unsigned N>
static __device__ inline void hide_later_keys(float (&scores)[M_TILES][N][4], unsigned row,
                                              unsigned column)
{
    each_sum(scores, [&](float &score, unsigned m, unsigned n, unsigned i) {
        unsigned r = row + lane_row(m, i);
        unsigned c = column + lane_column(n, i);

        if (ROWS_ARE_KEYS ? r > c : c > r)
            score = -INFINITY;
    });
}

/* ---- results ---- */

static __device__ inline void store_pair(__nv_bfloat16 *to, float first, float second)
{
    *reinterpret_cast<__nv_bfloat162 *>(to) = __floats2bfloat162_rn(first, second);
}

static __device__ inline void store_pair(__half *to, float first, float second)
{
    *reinterpret_cast<__half2 *>(to) = __floats2half2_rn(first, second);
}

static __device__ inline void store_pair(float *to, float first, float second)
{
    to[0] = first;
    to[1] = second;
}

/* Store a warp's sums to rows [0, rows) of `to`, staged in the warp's own rows of a tile that no
 * other warp still reads. */
template <typename T, unsigned HEAD, unsigned M_TILES>
static __device__ inline void store_rows(T *to, size_t stride, unsigned rows, T *stage,
                                         const float (&sums)[M_TILES][HEAD / 8][4],
                                         const struct attention_shape &s)
{
    constexpr unsigned PITCH = mma_pitch<T, HEAD>();
    unsigned lane = threadIdx.x % WARP;

#pragma unroll
    for (unsigned m = 0; m < M_TILES; m++)
#pragma unroll
        for (unsigned n = 0; n < HEAD / 8; n++)
#pragma unroll
            for (unsigned i = 0; i < 4; i += 2)
                store_pair(stage + lane_row(m, i) * PITCH + lane_column(n, i), sums[m][n][i],
                           sums[m][n][i + 1]);
    __syncwarp();
    if (s.chunks) {
        for (unsigned i = lane; i < 16 * M_TILES * HEAD / chunk<T>(); i += WARP) {
            unsigned row = i / (HEAD / chunk<T>());
            unsigned column = i % (HEAD / chunk<T>()) * chunk<T>();

            if (row < rows && column < s.head)
                *reinterpret_cast<aligned_chunk<T> *>(to + row * stride + column) =
                    *reinterpret_cast<const aligned_chunk<T> *>(stage + row * PITCH + column);
        }
        return;
    }
    for (unsigned i = lane; i < 16 * M_TILES * HEAD; i += WARP)
        if (i / HEAD < rows && i % HEAD < s.head)
            to[i / HEAD * stride + i % HEAD] = stage[i / HEAD * PITCH + i % HEAD];
}

#endif
