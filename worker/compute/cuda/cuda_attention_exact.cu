/*
 * Attention in float32, with fused multiply-adds.  A block of 16 x 16 threads holds a tile of
 * scores in registers, each thread every 16th row and column; 16 adjacent lanes share a row.
 * Forward: a running softmax over the tiles of keys.  Backward: the probabilities are recomputed
 * from the saved logarithms; one kernel has a tile of keys and passes over the queries after it for
 * the gradients of keys and values, another a tile of queries and passes over the keys up to it.
 * Scores are computed twice, but no two blocks add to the same element, and the result has the same
 * bits every time.
 */
#include "worker/compute/cuda/cuda_attention.cuh"
#include "worker/compute/cuda/cuda_tile.cuh"

/* Positions of a tile: fewer for wide heads, to fit into shared memory. */
template <unsigned HEAD> static constexpr unsigned tile_of()
{
    return HEAD > 64 ? 32 : 64;
}

/* Load rows [first, first + ROWS) of this head into a tile, zeros beyond its end. from: the first
 * element of sample and head; stride: elements from position to position. */
template <unsigned ROWS, unsigned HEAD>
static __device__ void load_tile(float *tile, const float *from, size_t stride, unsigned first,
                                 const struct attention_shape &s)
{
    for (unsigned i = threadIdx.x; i < ROWS * HEAD; i += TILE_THREADS) {
        unsigned row = i / HEAD;
        unsigned column = i % HEAD;
        bool is_there = first + row < s.positions && column < s.head;

        tile[row * TILE_PITCH(HEAD) + column] =
            is_there ? from[(first + row) * stride + column] : 0.0f;
    }
}

/* Store sums to memory; to: as load_tile's from. */
template <unsigned ROWS, unsigned HEAD>
static __device__ void store_sums(float *to, size_t stride, const tile_sums<ROWS, HEAD> &sums,
                                  unsigned first, const struct attention_shape &s)
{
#pragma unroll
    for (unsigned i = 0; i < sums.ROWS; i++)
#pragma unroll
        for (unsigned j = 0; j < sums.COLUMNS; j++)
            if (first + sums.row(i) < s.positions && sums.column(j) < s.head)
                to[(first + sums.row(i)) * stride + sums.column(j)] = sums.at[i][j];
}

template <unsigned ROWS, unsigned COLUMNS>
static __device__ void store_tile(float *tile, const tile_sums<ROWS, COLUMNS> &sums)
{
#pragma unroll
    for (unsigned i = 0; i < sums.ROWS; i++)
#pragma unroll
        for (unsigned j = 0; j < sums.COLUMNS; j++)
            tile[sums.row(i) * TILE_PITCH(COLUMNS) + sums.column(j)] = sums.at[i][j];
}

/* Reductions over the 16 lanes that share a row. */
static __device__ float row_max(float mine)
{
    for (unsigned offset = TILE_GRID / 2; offset > 0; offset /= 2)
        mine = fmaxf(mine, __shfl_xor_sync(FULL_WARP, mine, (int)offset));
    return mine;
}

static __device__ float row_sum(float mine)
{
    for (unsigned offset = TILE_GRID / 2; offset > 0; offset /= 2)
        mine += __shfl_xor_sync(FULL_WARP, mine, (int)offset);
    return mine;
}

/* Running softmax of a thread's rows: replaces scores by exponentials, and updates the output so
 * far, the largest score and the sum of exponentials. */
template <unsigned HEAD, unsigned TILE> struct running_softmax {
    static constexpr unsigned ROWS = TILE / TILE_GRID;

    float maxima[ROWS], sums[ROWS];

    __device__ running_softmax()
    {
#pragma unroll
        for (unsigned i = 0; i < ROWS; i++) {
            maxima[i] = -INFINITY;
            sums[i] = 0.0f;
        }
    }

    __device__ void add(const struct attention_shape &s, tile_sums<TILE, TILE> &scores,
                        tile_sums<TILE, HEAD> &o, unsigned first, unsigned begin)
    {
#pragma unroll
        for (unsigned i = 0; i < ROWS; i++) {
            float largest = maxima[i];
            float sum = 0.0f;
            float rescale;

#pragma unroll
            for (unsigned j = 0; j < scores.COLUMNS; j++) {
                bool seen = begin + scores.column(j) <= first + scores.row(i);

                scores.at[i][j] = seen ? scores.at[i][j] * s.scale : -INFINITY;
                largest = fmaxf(largest, scores.at[i][j]);
            }
            largest = row_max(largest);
            rescale = expf(maxima[i] - largest);
#pragma unroll
            for (unsigned j = 0; j < scores.COLUMNS; j++)
                sum += scores.at[i][j] = expf(scores.at[i][j] - largest);
            sums[i] = sums[i] * rescale + row_sum(sum);
            maxima[i] = largest;
#pragma unroll
            for (unsigned j = 0; j < o.COLUMNS; j++)
                o.at[i][j] *= rescale;
        }
    }
};

template <unsigned HEAD, unsigned TILE> static constexpr size_t forward_bytes()
{
    return (3 * TILE * TILE_PITCH(HEAD) + TILE * TILE_PITCH(TILE)) * sizeof(float);
}

template <unsigned HEAD, unsigned TILE>
static __global__ void __launch_bounds__(TILE_THREADS)
    forward_kernel(struct attention_shape s, const float *qkv, float *log_sums, float *y)
{
    DYNAMIC_SHARED(memory);
    float *q = reinterpret_cast<float *>(memory);
    float *k = q + TILE * TILE_PITCH(HEAD);
    float *v = k + TILE * TILE_PITCH(HEAD);
    float *p = v + TILE * TILE_PITCH(HEAD);
    unsigned first = (gridDim.x - 1 - blockIdx.x) * TILE; /* the longest rows start first */
    size_t stride = 3 * (size_t)s.width;
    struct attention_offsets at = attention_offsets_of(s);
    running_softmax<HEAD, TILE> softmax;
    tile_sums<TILE, HEAD> o;

    o.zero();
    load_tile<TILE, HEAD>(q, qkv + at.qkv, stride, first, s);
    for (unsigned begin = 0; begin <= first; begin += TILE) {
        tile_sums<TILE, TILE> scores;

        __syncthreads(); /* the previous tiles have been read */
        load_tile<TILE, HEAD>(k, qkv + at.qkv + s.width, stride, begin, s);
        load_tile<TILE, HEAD>(v, qkv + at.qkv + 2 * s.width, stride, begin, s);
        __syncthreads();
        scores.zero();
        scores.template add<false, true>(q, TILE_PITCH(HEAD), k, TILE_PITCH(HEAD), HEAD);
        softmax.add(s, scores, o, first, begin);
        store_tile(p, scores);
        __syncwarp(); /* rows are read by the lanes that wrote them */
        o.template add<false, false>(p, TILE_PITCH(TILE), v, TILE_PITCH(HEAD), TILE);
    }
#pragma unroll
    for (unsigned i = 0; i < o.ROWS; i++) {
        unsigned row = first + o.row(i);

#pragma unroll
        for (unsigned j = 0; j < o.COLUMNS; j++)
            o.at[i][j] *= 1.0f / softmax.sums[i];
        if (threadIdx.x % TILE_GRID == 0 && row < s.positions)
            log_sums[at.rows + row] = softmax.maxima[i] + logf(softmax.sums[i]);
    }
    store_sums(y + at.y, s.width, o, first, s);
}

cudaError_t attention_exact_forward(const struct attention_shape &s, size_t batch,
                                    const struct attention_forward_call &call, cudaStream_t stream)
{
    return by_head<16, 32, 64, 128>(s.head, [&](auto head) {
        constexpr unsigned HEAD = decltype(head)::HEAD;
        constexpr unsigned TILE = tile_of<HEAD>();
        constexpr size_t BYTES = forward_bytes<HEAD, TILE>();

        static_assert(BYTES <= ATTENTION_SHARED_MAX, "too much shared memory");
        return launch_large(forward_kernel<HEAD, TILE>, attention_grid(s, TILE, batch),
                            TILE_THREADS, BYTES, stream, s, static_cast<const float *>(call.qkv),
                            call.log_sums, static_cast<float *>(call.y));
    });
}

/* ---- backward ---- */

/* deltas: dy . y of each head, one warp per position and head. */
static __global__ void deltas_kernel(struct attention_shape s, const float *y, const float *dy,
                                     float *deltas, unsigned heads, size_t count)
{
    size_t at = grid_first() / WARP; /* (batch, positions, heads) */
    float sum = 0.0f;

    if (at >= count)
        return; /* the whole warp */
    for (unsigned i = threadIdx.x % WARP; i < s.head; i += WARP)
        sum += y[at * s.head + i] * dy[at * s.head + i];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) {
        size_t position = at / heads % s.positions;

        deltas[(at / heads / s.positions * heads + at % heads) * s.positions + position] = sum;
    }
}

template <unsigned HEAD, unsigned TILE> static constexpr size_t backward_bytes()
{
    return (4 * TILE * TILE_PITCH(HEAD) + 2 * TILE * TILE_PITCH(TILE)) * sizeof(float);
}

/* A block's tiles in shared memory. */
template <unsigned HEAD, unsigned TILE> struct backward_tiles {
    float *q, *k, *v, *dy;
    float *p, *dscores; /* (queries, keys) */

    __device__ explicit backward_tiles(unsigned char *memory)
    {
        q = reinterpret_cast<float *>(memory);
        k = q + TILE * TILE_PITCH(HEAD);
        v = k + TILE * TILE_PITCH(HEAD);
        dy = v + TILE * TILE_PITCH(HEAD);
        p = dy + TILE * TILE_PITCH(HEAD);
        dscores = p + TILE * TILE_PITCH(TILE);
    }

    /* Compute p and dscores of the tile of queries from `first` and of keys from `begin`; all four
     * tiles are loaded. log_sums, deltas: of this head.  Other threads need a barrier before
     * reading. */
    __device__ void score(const struct attention_shape &s, const float *log_sums,
                          const float *deltas, unsigned first, unsigned begin)
    {
        tile_sums<TILE, TILE> scores, slopes;

        scores.zero();
        scores.template add<false, true>(q, TILE_PITCH(HEAD), k, TILE_PITCH(HEAD), HEAD);
        slopes.zero();
        slopes.template add<false, true>(dy, TILE_PITCH(HEAD), v, TILE_PITCH(HEAD), HEAD);
#pragma unroll
        for (unsigned i = 0; i < scores.ROWS; i++) {
            unsigned query = first + scores.row(i);
            bool is_there = query < s.positions;
            float log_sum = is_there ? log_sums[query] : 0.0f;
            float delta = is_there ? deltas[query] : 0.0f;

#pragma unroll
            for (unsigned j = 0; j < scores.COLUMNS; j++) {
                bool seen = begin + scores.column(j) <= query && is_there;
                float e = seen ? expf(scores.at[i][j] * s.scale - log_sum) : 0.0f;

                scores.at[i][j] = e;
                slopes.at[i][j] = e * (slopes.at[i][j] - delta) * s.scale;
            }
        }
        store_tile(p, scores);
        store_tile(dscores, slopes);
    }
};

/* Gradients of a tile of keys and values. */
template <unsigned HEAD, unsigned TILE>
static __global__ void __launch_bounds__(TILE_THREADS)
    keys_kernel(struct attention_shape s, const float *qkv, const float *log_sums,
                const float *deltas, const float *dy, float *dqkv)
{
    DYNAMIC_SHARED(memory);
    backward_tiles<HEAD, TILE> tiles(memory);
    tile_sums<TILE, HEAD> dk, dv;
    unsigned begin = blockIdx.x * TILE; /* the longest columns start first */
    size_t stride = 3 * (size_t)s.width;
    struct attention_offsets at = attention_offsets_of(s);

    dk.zero();
    dv.zero();
    load_tile<TILE, HEAD>(tiles.k, qkv + at.qkv + s.width, stride, begin, s);
    load_tile<TILE, HEAD>(tiles.v, qkv + at.qkv + 2 * s.width, stride, begin, s);
    for (unsigned first = begin; first < s.positions; first += TILE) {
        load_tile<TILE, HEAD>(tiles.q, qkv + at.qkv, stride, first, s);
        load_tile<TILE, HEAD>(tiles.dy, dy + at.y, s.width, first, s);
        __syncthreads();
        tiles.score(s, log_sums + at.rows, deltas + at.rows, first, begin);
        __syncthreads();
        dv.template add<true, false>(tiles.p, TILE_PITCH(TILE), tiles.dy, TILE_PITCH(HEAD), TILE);
        dk.template add<true, false>(tiles.dscores, TILE_PITCH(TILE), tiles.q, TILE_PITCH(HEAD),
                                     TILE);
        __syncthreads(); /* the tiles are read */
    }
    store_sums(dqkv + at.qkv + s.width, stride, dk, begin, s);
    store_sums(dqkv + at.qkv + 2 * s.width, stride, dv, begin, s);
}

/* The gradient of a tile of queries. */
template <unsigned HEAD, unsigned TILE>
static __global__ void __launch_bounds__(TILE_THREADS)
    queries_kernel(struct attention_shape s, const float *qkv, const float *log_sums,
                   const float *deltas, const float *dy, float *dqkv)
{
    DYNAMIC_SHARED(memory);
    backward_tiles<HEAD, TILE> tiles(memory);
    tile_sums<TILE, HEAD> dq;
    unsigned first = (gridDim.x - 1 - blockIdx.x) * TILE;
    size_t stride = 3 * (size_t)s.width;
    struct attention_offsets at = attention_offsets_of(s);

    dq.zero();
    load_tile<TILE, HEAD>(tiles.q, qkv + at.qkv, stride, first, s);
    load_tile<TILE, HEAD>(tiles.dy, dy + at.y, s.width, first, s);
    for (unsigned begin = 0; begin <= first; begin += TILE) {
        load_tile<TILE, HEAD>(tiles.k, qkv + at.qkv + s.width, stride, begin, s);
        load_tile<TILE, HEAD>(tiles.v, qkv + at.qkv + 2 * s.width, stride, begin, s);
        __syncthreads();
        tiles.score(s, log_sums + at.rows, deltas + at.rows, first, begin);
        __syncwarp(); /* rows are read by the lanes that wrote them */
        dq.template add<false, false>(tiles.dscores, TILE_PITCH(TILE), tiles.k, TILE_PITCH(HEAD),
                                      TILE);
        __syncthreads(); /* the tiles are read */
    }
    store_sums(dqkv + at.qkv, stride, dq, first, s);
}

template <unsigned HEAD>
static cudaError_t launch_backward(const struct attention_shape &s, size_t batch,
                                   const struct attention_backward_call &call, cudaStream_t stream)
{
    constexpr unsigned TILE = tile_of<HEAD>();
    constexpr size_t BYTES = backward_bytes<HEAD, TILE>();
    const float *qkv = static_cast<const float *>(call.qkv);
    const float *dy = static_cast<const float *>(call.dy);
    unsigned heads = s.width / s.head;
    size_t count = batch * s.positions * heads;
    size_t blocks = (count * WARP + THREADS - 1) / THREADS;
    const dim3 grid = attention_grid(s, TILE, batch);
    cudaError_t result =
        cuda_launch(deltas_kernel, (unsigned)blocks, THREADS, 0, stream, s,
                    static_cast<const float *>(call.y), dy, call.deltas, heads, count);

    static_assert(BYTES <= ATTENTION_SHARED_MAX, "too much shared memory");
    if (result == cudaSuccess)
        result = launch_large(keys_kernel<HEAD, TILE>, grid, TILE_THREADS, BYTES, stream, s, qkv,
                              call.log_sums, call.deltas, dy, static_cast<float *>(call.dqkv));
    if (result == cudaSuccess)
        result = launch_large(queries_kernel<HEAD, TILE>, grid, TILE_THREADS, BYTES, stream, s, qkv,
                              call.log_sums, call.deltas, dy, static_cast<float *>(call.dqkv));
    return result;
}

cudaError_t attention_exact_backward(const struct attention_shape &s, size_t batch,
                                     const struct attention_backward_call &call,
                                     cudaStream_t stream)
{
    return by_head<16, 32, 64, 128>(s.head, [&](auto head) {
        return launch_backward<decltype(head)::HEAD>(s, batch, call, stream);
    });
}
