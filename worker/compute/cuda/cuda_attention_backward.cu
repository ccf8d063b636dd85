/*
 * Attention, backward: the probabilities are computed again from the kept logarithms.  One kernel
 * has a tile of keys and passes over the queries behind it for the gradients of keys and values,
 * another a tile of queries and passes over the keys up to it: scores are computed twice, but no
 * two blocks add to one place, so that the result has the same bits every time.
 */
#include "worker/compute/cuda/cuda_attention.cuh"

/* deltas (batch, heads, positions): dy . y of each head, a warp each. */
template <typename T>
static __global__ void deltas_kernel(struct attention_shape s, const T *y, const T *dy,
                                     float *deltas, unsigned heads, size_t count)
{
    size_t at = grid_first() / WARP; /* (batch, positions, heads) */
    float sum = 0.0f;

    if (at >= count)
        return; /* the whole warp */
    for (unsigned i = threadIdx.x % WARP; i < s.head; i += WARP)
        sum += to_float(y[at * s.head + i]) * to_float(dy[at * s.head + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) {
        size_t position = at / heads % s.positions;

        deltas[(at / heads / s.positions * heads + at % heads) * s.positions + position] = sum;
    }
}

template <typename T, unsigned HEAD, unsigned TILE> static constexpr size_t backward_bytes()
{
    return 4 * shared_size(TILE * tile_pitch<T>(HEAD) * sizeof(T)) +
           shared_size(TILE * SUMS_PITCH(TILE) * sizeof(float)) +
           2 * shared_size(TILE * tile_pitch<T>(TILE) * sizeof(T)) +
           shared_size(TILE * SUMS_PITCH(HEAD) * sizeof(float)) * (sizeof(T) == sizeof(float));
}

/* A block's tiles in shared memory; sums lie over the first ones when these are done. */
template <typename T, unsigned HEAD, unsigned TILE> struct backward_tiles {
    T *q, *k, *v, *dy;
    float *products;
    T *p, *dscores; /* (queries, keys) */
    float *sums;    /* (TILE, HEAD) with its pitch */

    __device__ explicit backward_tiles(unsigned char *memory)
    {
        size_t used = 0;

        q = shared_part<T>(memory, &used, TILE * tile_pitch<T>(HEAD));
        k = shared_part<T>(memory, &used, TILE * tile_pitch<T>(HEAD));
        v = shared_part<T>(memory, &used, TILE * tile_pitch<T>(HEAD));
        dy = shared_part<T>(memory, &used, TILE * tile_pitch<T>(HEAD));
        products = shared_part<float>(memory, &used, TILE * SUMS_PITCH(TILE));
        p = shared_part<T>(memory, &used, TILE * tile_pitch<T>(TILE));
        dscores = shared_part<T>(memory, &used, TILE * tile_pitch<T>(TILE));
        sums = reinterpret_cast<float *>(memory);
    }

    /* p and dscores of the tile of queries from `first` and of keys from `begin`; all four tiles
     * are there.  log_sums, deltas: of this head. */
    __device__ void score(const struct attention_shape &s, const float *log_sums,
                          const float *deltas, unsigned first, unsigned begin)
    {
        tile_sums<T, TILE, TILE> sums_of_scores;

        sums_of_scores.zero();
        sums_of_scores.template add<false, true>(q, tile_pitch<T>(HEAD), k, tile_pitch<T>(HEAD),
                                                 HEAD);
        sums_of_scores.store(products);
        __syncthreads();
        for (unsigned i = threadIdx.x; i < TILE * TILE; i += TILE_THREADS) {
            unsigned row = i / TILE;
            unsigned column = i % TILE;
            bool seen = begin + column <= first + row && first + row < s.positions;

            put(&p[row * tile_pitch<T>(TILE) + column],
                seen ? expf(products[row * SUMS_PITCH(TILE) + column] * s.scale -
                            log_sums[first + row])
                     : 0.0f);
        }
        __syncthreads();
        sums_of_scores.zero();
        sums_of_scores.template add<false, true>(dy, tile_pitch<T>(HEAD), v, tile_pitch<T>(HEAD),
                                                 HEAD);
        sums_of_scores.store(products);
        __syncthreads();
        for (unsigned i = threadIdx.x; i < TILE * TILE; i += TILE_THREADS) {
            unsigned row = i / TILE;
            unsigned column = i % TILE;
            float delta = first + row < s.positions ? deltas[first + row] : 0.0f;

            put(&dscores[row * tile_pitch<T>(TILE) + column],
                to_float(p[row * tile_pitch<T>(TILE) + column]) *
                    (products[row * SUMS_PITCH(TILE) + column] - delta) * s.scale);
        }
        __syncthreads();
    }
};

/* Gradients of a tile of keys and values. */
template <typename T, unsigned HEAD, unsigned TILE>
static __global__ void __launch_bounds__(TILE_THREADS)
    keys_kernel(struct attention_shape s, const T *qkv, const float *log_sums, const float *deltas,
                const T *dy, T *dqkv)
{
    DYNAMIC_SHARED(memory);
    backward_tiles<T, HEAD, TILE> tiles(memory);
    tile_sums<T, TILE, HEAD> dk;
    tile_sums<T, TILE, HEAD> dv;
    unsigned begin = blockIdx.x * TILE; /* the longest columns start first */
    size_t stride = 3 * (size_t)s.width;
    size_t offset = blockIdx.z * s.positions * stride + blockIdx.y * s.head;
    size_t y_offset = blockIdx.z * s.positions * (size_t)s.width + blockIdx.y * s.head;
    size_t head = (blockIdx.z * (size_t)gridDim.y + blockIdx.y) * s.positions;

    dk.zero();
    dv.zero();
    load_tile<T, TILE, HEAD>(tiles.k, qkv + offset + s.width, stride, begin, s);
    load_tile<T, TILE, HEAD>(tiles.v, qkv + offset + 2 * s.width, stride, begin, s);
    for (unsigned first = begin; first < s.positions; first += TILE) {
        load_tile<T, TILE, HEAD>(tiles.q, qkv + offset, stride, first, s);
        load_tile<T, TILE, HEAD>(tiles.dy, dy + y_offset, s.width, first, s);
        __syncthreads();
        tiles.score(s, log_sums + head, deltas + head, first, begin);
        dv.template add<true, false>(tiles.p, tile_pitch<T>(TILE), tiles.dy, tile_pitch<T>(HEAD),
                                     TILE);
        dk.template add<true, false>(tiles.dscores, tile_pitch<T>(TILE), tiles.q,
                                     tile_pitch<T>(HEAD), TILE);
        __syncthreads(); /* the tiles are read */
    }
    dk.store(tiles.sums);
    __syncthreads();
    store_tile<T, TILE, HEAD>(dqkv + offset + s.width, stride, tiles.sums, begin, s,
                              [](unsigned) { return 1.0f; });
    __syncthreads();
    dv.store(tiles.sums);
    __syncthreads();
    store_tile<T, TILE, HEAD>(dqkv + offset + 2 * s.width, stride, tiles.sums, begin, s,
                              [](unsigned) { return 1.0f; });
}

/* The gradient of a tile of queries. */
template <typename T, unsigned HEAD, unsigned TILE>
static __global__ void __launch_bounds__(TILE_THREADS)
    queries_kernel(struct attention_shape s, const T *qkv, const float *log_sums,
                   const float *deltas, const T *dy, T *dqkv)
{
    DYNAMIC_SHARED(memory);
    backward_tiles<T, HEAD, TILE> tiles(memory);
    tile_sums<T, TILE, HEAD> dq;
    unsigned first = (gridDim.x - 1 - blockIdx.x) * TILE;
    size_t stride = 3 * (size_t)s.width;
    size_t offset = blockIdx.z * s.positions * stride + blockIdx.y * s.head;
    size_t y_offset = blockIdx.z * s.positions * (size_t)s.width + blockIdx.y * s.head;
    size_t head = (blockIdx.z * (size_t)gridDim.y + blockIdx.y) * s.positions;

    dq.zero();
    load_tile<T, TILE, HEAD>(tiles.q, qkv + offset, stride, first, s);
    load_tile<T, TILE, HEAD>(tiles.dy, dy + y_offset, s.width, first, s);
    for (unsigned begin = 0; begin <= first; begin += TILE) {
        load_tile<T, TILE, HEAD>(tiles.k, qkv + offset + s.width, stride, begin, s);
        load_tile<T, TILE, HEAD>(tiles.v, qkv + offset + 2 * s.width, stride, begin, s);
        __syncthreads();
        tiles.score(s, log_sums + head, deltas + head, first, begin);
        dq.template add<false, false>(tiles.dscores, tile_pitch<T>(TILE), tiles.k,
                                      tile_pitch<T>(HEAD), TILE);
        __syncthreads(); /* the tiles are read */
    }
    dq.store(tiles.sums);
    __syncthreads();
    store_tile<T, TILE, HEAD>(dqkv + offset, stride, tiles.sums, first, s,
                              [](unsigned) { return 1.0f; });
}

template <typename T, unsigned HEAD>
static cudaError_t launch_backward(struct cuda *cuda, const struct attention *a,
                                   const struct attention_shape &s, const void *qkv,
                                   const float *log_sums, const void *y, const void *dy, void *dqkv,
                                   size_t batch)
{
    constexpr unsigned TILE = attention_tile<T, HEAD>();
    const dim3 grid((s.positions + TILE - 1) / TILE, (unsigned)a->heads, (unsigned)batch);
    size_t count = batch * a->positions * a->heads;
    size_t blocks = (count * WARP + THREADS - 1) / THREADS;
    float *deltas = static_cast<float *>(cuda->partials.memory);
    cudaError_t result = cuda_launch(deltas_kernel<T>, (unsigned)blocks, THREADS, 0, cuda->work, s,
                                     static_cast<const T *>(y), static_cast<const T *>(dy), deltas,
                                     (unsigned)a->heads, count);

    if (result == cudaSuccess)
        result = launch_large(keys_kernel<T, HEAD, TILE>, grid, backward_bytes<T, HEAD, TILE>(),
                              cuda->work, s, static_cast<const T *>(qkv), log_sums, deltas,
                              static_cast<const T *>(dy), static_cast<T *>(dqkv));
    if (result == cudaSuccess)
        result = launch_large(queries_kernel<T, HEAD, TILE>, grid, backward_bytes<T, HEAD, TILE>(),
                              cuda->work, s, static_cast<const T *>(qkv), log_sums, deltas,
                              static_cast<const T *>(dy), static_cast<T *>(dqkv));
    return result;
}

enum status cuda_attention_backward(struct compute *c, const struct attention *a, const void *qkv,
                                    const float *log_sums, const void *y, const void *dy,
                                    void *dqkv, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct attention_shape s = attention_shape_of(a);
    enum status status =
        cuda_reserve(cuda, &cuda->partials, batch * a->heads * a->positions * sizeof(float),
                     "attention's deltas", err);

    if (status != STATUS_OK)
        return status;
    return status_from_cuda(
        by_type(cuda,
                [&](auto type) {
                    return by_head(s.head, [&](auto head) {
                        return launch_backward<typename decltype(type)::type, decltype(head)::HEAD>(
                            cuda, a, s, qkv, log_sums, y, dy, dqkv, batch);
                    });
                }),
        "attention's backward kernels", err);
}
