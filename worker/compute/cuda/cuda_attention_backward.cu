/*
 * Attention on the tensor cores, backward: the probabilities are recomputed from the saved
 * logarithms.  One kernel has a tile of queries and passes over the keys up to it; another has a
 * tile of keys and passes over the queries after it, with transposed scores, so that both use the
 * weights of their sums directly from registers.  Scores are computed twice, but no two blocks add
 * to the same element: no atomics, no memory for sums, the same bits every time.
 */
#include "worker/compute/cuda/cuda_attention_mma.cuh"

/* Chosen by the same rules as forward_sizes. */
template <typename T, unsigned HEAD> struct queries_sizes {
    static constexpr bool HALF = sizeof(T) == 2;
    static constexpr unsigned WARPS = HALF || HEAD <= 96 ? 4 : 2;
    static constexpr unsigned BLOCK = WARPS * WARP;
    static constexpr unsigned BLOCKS = HALF && (HEAD == 64 || HEAD == 128) ? 2 : 3;
    static constexpr unsigned M_TILES = HALF && HEAD <= 64 ? 2 : 1;
    static constexpr unsigned QUERIES = WARPS * M_TILES * 16;
    static constexpr unsigned KEYS = HALF || HEAD <= 64 ? 32 : 16;
    static constexpr bool KEPT = HEAD * sizeof(T) * M_TILES <= 256;
    static constexpr unsigned ROWS = QUERIES * mma_pitch<T, HEAD>(); /* elements */
    static constexpr unsigned TILE = KEYS * mma_pitch<T, HEAD>();
    static constexpr size_t BYTES = (2 * ROWS + 2 * 2 * TILE) * sizeof(T);
    static_assert(BYTES <= ATTENTION_SHARED_MAX, "too much shared memory");
};

template <typename T, unsigned HEAD> struct keys_sizes {
    static constexpr bool HALF = sizeof(T) == 2;
    static constexpr unsigned WARPS = HALF || HEAD <= 96 ? 4 : 2;
    static constexpr unsigned BLOCK = WARPS * WARP;
    static constexpr unsigned BLOCKS = HALF && HEAD > 64 ? 2 : 3;
    static constexpr unsigned KEYS = WARPS * 16;
    static constexpr unsigned QUERIES = HALF || HEAD <= 64 ? 32 : 16;
    static constexpr bool KEPT = HEAD * sizeof(T) <= 128;
    static constexpr unsigned ROWS = KEYS * mma_pitch<T, HEAD>(); /* elements */
    static constexpr unsigned TILE = QUERIES * mma_pitch<T, HEAD>();
    static constexpr size_t BYTES =
        (2 * ROWS + 2 * 2 * TILE) * sizeof(T) + 2 * 2 * QUERIES * sizeof(float);
    static_assert(BYTES <= ATTENTION_SHARED_MAX, "too much shared memory");
    static_assert(KEYS % QUERIES == 0 && 2 * QUERIES <= BLOCK, "tiles of queries");
};

/* y . dy of a lane's row; y: in memory, dy: in shared memory. */
template <typename T>
static __device__ inline float row_delta(const T *y, const T *dy, bool is_there,
                                         const struct attention_shape &s)
{
    unsigned t = threadIdx.x % 4;
    float sum = 0.0f;

    if (is_there && s.chunks)
        for (unsigned at = t * chunk<T>(); at < s.head; at += 4 * chunk<T>()) {
            aligned_chunk<T> left = *reinterpret_cast<const aligned_chunk<T> *>(y + at);
            aligned_chunk<T> right = *reinterpret_cast<const aligned_chunk<T> *>(dy + at);

#pragma unroll
            for (unsigned i = 0; i < chunk<T>(); i++)
                sum += to_float(left.x[i]) * to_float(right.x[i]);
        }
    else if (is_there)
        for (unsigned at = t; at < s.head; at += 4)
            sum += to_float(y[at]) * to_float(dy[at]);
    return quad_sum(sum);
}

/* ---- gradient of queries ---- */

/* Per-row terms of a lane's rows, indexed as in running_softmax. */
template <unsigned M_TILES> struct row_terms {
    float log_sums[M_TILES][2]; /* of base 2 */
    float deltas[M_TILES][2];

    /* `rows`: the warp's number of valid rows; y, dy, log_sums and deltas point to the first one.
     */
    template <typename T>
    __device__ void load(const struct attention_shape &s, const T *y, const T *dy,
                         unsigned dy_pitch, const float *from, float *to, unsigned rows)
    {
#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++)
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                unsigned row = lane_row(m, 2 * h);

                log_sums[m][h] = row < rows ? from[row] * LOG2_E : INFINITY;
                deltas[m][h] =
                    row_delta(y + row * (size_t)s.width, dy + row * dy_pitch, row < rows, s);
                if (threadIdx.x % 4 == 0 && row < rows)
                    to[row] = deltas[m][h];
            }
    }

    /* Replace scores by their gradients, without the scale; slopes: from `fill`, plus the products.
     */
    template <unsigned N>
    __device__ void differentiate(float (&scores)[M_TILES][N][4],
                                  const float (&slopes)[M_TILES][N][4], float factor) const
    {
        each_sum(scores, [&](float &score, unsigned m, unsigned n, unsigned i) {
            score = exp2_fast(score * factor - log_sums[m][i / 2]) * slopes[m][n][i];
        });
    }

    template <unsigned N> __device__ void fill_slopes(float (&slopes)[M_TILES][N][4]) const
    {
        each_sum(slopes, [&](float &slope, unsigned m, unsigned, unsigned i) {
            slope = -deltas[m][i / 2];
        });
    }
};

template <typename T, unsigned HEAD>
static __global__ void __launch_bounds__(queries_sizes<T, HEAD>::BLOCK,
                                         queries_sizes<T, HEAD>::BLOCKS)
    queries_kernel(struct attention_shape s, const T *qkv, const float *log_sums, const T *y,
                   const T *dy, T *dqkv, float *deltas)
{
    typedef queries_sizes<T, HEAD> Z;
    constexpr unsigned PITCH = mma_pitch<T, HEAD>();
    DYNAMIC_SHARED(memory);
    T *stage = reinterpret_cast<T *>(memory); /* keys, values; twice */
    T *tile = stage + 2 * 2 * Z::TILE;        /* queries, dy */
    size_t stride = 3 * (size_t)s.width;
    struct attention_offsets at = attention_offsets_of(s);
    unsigned first = (gridDim.x - 1 - blockIdx.x) * Z::QUERIES; /* the longest rows start first */
    unsigned end = min(first + Z::QUERIES, s.positions);        /* of keys */
    unsigned row = threadIdx.x / WARP * Z::M_TILES * 16;        /* the warp's first of the tile */
    unsigned left = first + row < s.positions ? s.positions - first - row : 0;
    T *rows = tile + row * PITCH;
    float dq[Z::M_TILES][HEAD / 8][4];
    row_terms<Z::M_TILES> terms;
    auto start = [&](T *tiles, unsigned begin) {
        start_pair<T, Z::KEYS, HEAD, Z::BLOCK>(tiles, qkv + at.qkv + s.width, stride,
                                               qkv + at.qkv + 2 * s.width, stride, begin, s);
    };

    start_pair<T, Z::QUERIES, HEAD, Z::BLOCK>(tile, qkv + at.qkv, stride, dy + at.y, s.width, first,
                                              s);
    start(stage, 0);
    copies_wait();
    convert_pair<T, Z::QUERIES, HEAD, Z::BLOCK>(tile, s);
    convert_pair<T, Z::KEYS, HEAD, Z::BLOCK>(stage, s);
    __syncthreads();
    terms.load(s, y + at.y + (first + row) * (size_t)s.width, rows + Z::ROWS, PITCH,
               log_sums + at.rows + first + row, deltas + at.rows + first + row, left);
    fill(dq, 0.0f);
    row_operand<T, HEAD, Z::M_TILES, Z::KEPT> queries(rows), gradients(rows + Z::ROWS);
    for (unsigned begin = 0, turn = 0; begin < end; begin += Z::KEYS, turn ^= 1) {
        T *tiles = stage + turn * 2 * Z::TILE;
        T *next = stage + (turn ^ 1) * 2 * Z::TILE;
        bool more = begin + Z::KEYS < end;

        if (more)
            start(next, begin + Z::KEYS);
        if (begin < first + row + Z::M_TILES * 16) { /* otherwise after all of the warp's queries */
            float scores[Z::M_TILES][Z::KEYS / 8][4], slopes[Z::M_TILES][Z::KEYS / 8][4];

            fill(scores, 0.0f);
            add_scores(scores, queries, tiles);
            if (begin + Z::KEYS > first + row + 1)
                hide_later_keys<false>(scores, first + row, begin);
            terms.fill_slopes(slopes);
            add_scores(slopes, gradients, tiles + Z::TILE);
            terms.differentiate(scores, slopes, s.scale * LOG2_E);
            add_weighted<T, HEAD>(dq, scores, tiles);
        }
        copies_wait();
        if (more)
            convert_pair<T, Z::KEYS, HEAD, Z::BLOCK>(next, s);
        __syncthreads(); /* this stage is read, the next one is there */
    }
    scale(dq, s.scale);
    store_rows<T, HEAD>(dqkv + at.qkv + (first + row) * stride, stride, left, rows, dq, s);
}

/* ---- gradients of keys and values ---- */

/* Replace scores (keys, queries) by exponentials; terms (2, QUERIES): the logarithms of base 2 and
 * the deltas of the queries; slopes are filled with the negative deltas. */
template <unsigned N>
static __device__ inline void exponentials_of_columns(float (&scores)[1][N][4],
                                                      float (&slopes)[1][N][4], const float *terms,
                                                      float factor)
{
    each_sum(scores, [&](float &score, unsigned m, unsigned n, unsigned i) {
        score = exp2_fast(score * factor - terms[lane_column(n, i)]);
        slopes[m][n][i] = -terms[N * 8 + lane_column(n, i)];
    });
}

template <typename T, unsigned HEAD>
static __global__ void __launch_bounds__(keys_sizes<T, HEAD>::BLOCK, keys_sizes<T, HEAD>::BLOCKS)
    keys_kernel(struct attention_shape s, const T *qkv, const float *log_sums, const float *deltas,
                const T *dy, T *dqkv)
{
    typedef keys_sizes<T, HEAD> Z;
    constexpr unsigned PITCH = mma_pitch<T, HEAD>();
    DYNAMIC_SHARED(memory);
    T *stage = reinterpret_cast<T *>(memory);                     /* queries, dy; twice */
    T *tile = stage + 2 * 2 * Z::TILE;                            /* keys, values */
    float *terms = reinterpret_cast<float *>(tile + 2 * Z::ROWS); /* of a stage's queries; twice */
    size_t stride = 3 * (size_t)s.width;
    struct attention_offsets at = attention_offsets_of(s);
    unsigned begin = blockIdx.x * Z::KEYS;  /* the longest columns start first */
    unsigned row = threadIdx.x / WARP * 16; /* the warp's first of the tile */
    T *rows = tile + row * PITCH;
    float dk[1][HEAD / 8][4], dv[1][HEAD / 8][4];
    auto start = [&](T *tiles, unsigned first) {
        start_pair<T, Z::QUERIES, HEAD, Z::BLOCK>(tiles, qkv + at.qkv, stride, dy + at.y, s.width,
                                                  first, s);
    };
    auto term = [&](unsigned first) { /* this thread's term of the queries from `first` */
                                      unsigned query = first + threadIdx.x % Z::QUERIES;

                                      if (query >= s.positions)
                                          return threadIdx.x < Z::QUERIES ? INFINITY : 0.0f;
                                      return threadIdx.x < Z::QUERIES
                                                 ? log_sums[at.rows + query] * LOG2_E
                                                 : deltas[at.rows + query];
    };

    /* Not start_pair: with both addresses live, heads of 64 spill a register on sm_80. */
    start_tile<T, Z::KEYS, HEAD, Z::BLOCK>(tile, qkv + at.qkv + s.width, stride, begin, s);
    start_tile<T, Z::KEYS, HEAD, Z::BLOCK>(tile + Z::ROWS, qkv + at.qkv + 2 * s.width, stride,
                                           begin, s);
    start(stage, begin);
    if (threadIdx.x < 2 * Z::QUERIES)
        terms[threadIdx.x] = term(begin);
    copies_wait();
    convert_pair<T, Z::KEYS, HEAD, Z::BLOCK>(tile, s);
    convert_pair<T, Z::QUERIES, HEAD, Z::BLOCK>(stage, s);
    __syncthreads();
    fill(dk, 0.0f);
    fill(dv, 0.0f);
    row_operand<T, HEAD, 1, Z::KEPT> keys(rows), values(rows + Z::ROWS);
    for (unsigned first = begin, turn = 0; first < s.positions; first += Z::QUERIES, turn ^= 1) {
        T *tiles = stage + turn * 2 * Z::TILE;
        T *next = stage + (turn ^ 1) * 2 * Z::TILE;
        bool more = first + Z::QUERIES < s.positions;
        float next_term = 0.0f;

        if (more) {
            start(next, first + Z::QUERIES);
            next_term = term(first + Z::QUERIES);
        }
        if (first + Z::QUERIES > begin + row) { /* otherwise before all of the warp's keys */
            float scores[1][Z::QUERIES / 8][4], slopes[1][Z::QUERIES / 8][4];

            fill(scores, 0.0f);
            add_scores(scores, keys, tiles);
            if (first < begin + row + 15)
                hide_later_keys<true>(scores, begin + row, first);
            exponentials_of_columns(scores, slopes, terms + turn * 2 * Z::QUERIES,
                                    s.scale * LOG2_E);
            add_weighted<T, HEAD>(dv, scores, tiles + Z::TILE);
            add_scores(slopes, values, tiles + Z::TILE);
            multiply(scores, slopes);
            add_weighted<T, HEAD>(dk, scores, tiles);
        }
        if (threadIdx.x < 2 * Z::QUERIES)
            terms[(turn ^ 1) * 2 * Z::QUERIES + threadIdx.x] = next_term;
        copies_wait();
        if (more)
            convert_pair<T, Z::QUERIES, HEAD, Z::BLOCK>(next, s);
        __syncthreads(); /* this stage is read, the next one is there */
    }
    unsigned left = begin + row < s.positions ? s.positions - begin - row : 0;
    scale(dk, s.scale);
    dqkv += at.qkv + (begin + row) * stride;
    store_rows<T, HEAD>(dqkv + s.width, stride, left, rows, dk, s);
    store_rows<T, HEAD>(dqkv + 2 * s.width, stride, left, rows + Z::ROWS, dv, s);
}

template <typename T, unsigned HEAD>
static cudaError_t launch_backward(const struct attention_shape &s, size_t batch,
                                   const struct attention_backward_call &call, cudaStream_t stream)
{
    typedef queries_sizes<T, HEAD> Q;
    typedef keys_sizes<T, HEAD> K;
    const T *qkv = static_cast<const T *>(call.qkv);
    const T *dy = static_cast<const T *>(call.dy);
    cudaError_t result =
        launch_large(queries_kernel<T, HEAD>, attention_grid(s, Q::QUERIES, batch), Q::BLOCK,
                     Q::BYTES, stream, s, qkv, call.log_sums, static_cast<const T *>(call.y), dy,
                     static_cast<T *>(call.dqkv), call.deltas);

    if (result == cudaSuccess)
        result = launch_large(keys_kernel<T, HEAD>, attention_grid(s, K::KEYS, batch), K::BLOCK,
                              K::BYTES, stream, s, qkv, call.log_sums, call.deltas, dy,
                              static_cast<T *>(call.dqkv));
    return result;
}

cudaError_t attention_mma_backward(const struct cuda *cuda, const struct attention_shape &s,
                                   size_t batch, const struct attention_backward_call &call)
{
    return by_type(cuda, [&](auto type) {
        return by_head<32, 64, 96, 128>(s.head, [&](auto head) {
            return launch_backward<typename decltype(type)::type, decltype(head)::HEAD>(
                s, batch, call, cuda->work);
        });
    });
}
