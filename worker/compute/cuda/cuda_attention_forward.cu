/*
 * Attention on the tensor cores, forward (Dao 2023): a block has a tile of queries and passes over
 * the tiles of keys and values up to it.  The output's sums stay in registers and are rescaled when
 * a row's maximum grows; the exponentials, of base 2, are used from registers as an operand of the
 * next product.
 */
#include "worker/compute/cuda/cuda_attention_mma.cuh"

/* Chosen so that no registers spill with BLOCKS blocks on a multiprocessor of 65536 registers, and
 * to fit ATTENTION_SHARED_MAX. */
template <typename T, unsigned HEAD> struct forward_sizes {
    static constexpr bool HALF = sizeof(T) == 2;
    static constexpr unsigned WARPS = HALF || HEAD <= 96 ? 4 : 2;
    static constexpr unsigned BLOCK = WARPS * WARP;
    static constexpr unsigned BLOCKS = HALF && (HEAD == 64 || HEAD == 128) ? 2 : 3;
    static constexpr unsigned M_TILES = HALF && HEAD <= 64 ? 2 : 1;
    static constexpr unsigned QUERIES = WARPS * M_TILES * 16;
    static constexpr unsigned KEYS = HEAD <= 64 ? (HALF ? 64 : 32) : (HALF ? 32 : 16);
    static constexpr bool KEPT = HEAD * sizeof(T) * M_TILES <= 256;
    static constexpr unsigned TILE = KEYS * mma_pitch<T, HEAD>(); /* elements */
    static constexpr size_t BYTES = (QUERIES * mma_pitch<T, HEAD>() + 2 * 2 * TILE) * sizeof(T);
    static_assert(BYTES <= ATTENTION_SHARED_MAX, "too much shared memory");
};

/* State of a lane's rows: rows 16 m + lane / 4 + 8 h of the warp's. */
template <unsigned M_TILES> struct running_softmax {
    float maxima[M_TILES][2]; /* of scores */
    float sums[M_TILES][2];   /* partial sums of exponentials of the lane */

    __device__ running_softmax()
    {
#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++)
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                maxima[m][h] = -INFINITY;
                sums[m][h] = 0.0f;
            }
    }

    /* Replace scores by exponentials, and update the output so far and the sums. factor: of scores,
     * for base 2. */
    template <unsigned N, unsigned D>
    __device__ void add(float (&scores)[M_TILES][N][4], float (&o)[M_TILES][D][4], float factor)
    {
#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++)
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                float largest = maxima[m][h];
                float sum = 0.0f;
                float shift, rescale;

#pragma unroll
                for (unsigned n = 0; n < N; n++)
                    largest = fmaxf(largest, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
                largest = quad_max(largest);
                shift = largest * factor;
                rescale = exp2_fast(maxima[m][h] * factor - shift);
#pragma unroll
                for (unsigned n = 0; n < N; n++)
#pragma unroll
                    for (unsigned i = 2 * h; i < 2 * h + 2; i++)
                        sum += scores[m][n][i] = exp2_fast(scores[m][n][i] * factor - shift);
                maxima[m][h] = largest;
                sums[m][h] = sums[m][h] * rescale + sum;
#pragma unroll
                for (unsigned n = 0; n < D; n++) {
                    o[m][n][2 * h] *= rescale;
                    o[m][n][2 * h + 1] *= rescale;
                }
            }
    }

    /* Divide the output by its sums; log_sums: of the warp's first row; `rows`: the warp's number
     * of valid rows. */
    template <unsigned D>
    __device__ void finish(float (&o)[M_TILES][D][4], float *log_sums, unsigned rows, float scale)
    {
#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++)
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                float sum = quad_sum(sums[m][h]);
                unsigned row = lane_row(m, 2 * h);

                if (threadIdx.x % 4 == 0 && row < rows)
                    log_sums[row] = maxima[m][h] * scale + logf(sum);
#pragma unroll
                for (unsigned n = 0; n < D; n++) {
                    o[m][n][2 * h] *= 1.0f / sum;
                    o[m][n][2 * h + 1] *= 1.0f / sum;
                }
            }
    }
};

template <typename T, unsigned HEAD>
static __global__ void __launch_bounds__(forward_sizes<T, HEAD>::BLOCK,
                                         forward_sizes<T, HEAD>::BLOCKS)
    forward_kernel(struct attention_shape s, const T *qkv, float *log_sums, T *y)
{
    typedef forward_sizes<T, HEAD> Z;
    DYNAMIC_SHARED(memory);
    T *stage = reinterpret_cast<T *>(memory); /* keys, values; twice */
    T *q = stage + 2 * 2 * Z::TILE;
    size_t stride = 3 * (size_t)s.width;
    struct attention_offsets at = attention_offsets_of(s);
    unsigned first = (gridDim.x - 1 - blockIdx.x) * Z::QUERIES; /* the longest rows start first */
    unsigned end = min(first + Z::QUERIES, s.positions);        /* of keys */
    unsigned row = threadIdx.x / WARP * Z::M_TILES * 16;        /* the warp's first of the tile */
    T *rows = q + row * mma_pitch<T, HEAD>();
    float o[Z::M_TILES][HEAD / 8][4];
    running_softmax<Z::M_TILES> softmax;
    auto start = [&](T *tiles, unsigned begin) {
        start_pair<T, Z::KEYS, HEAD, Z::BLOCK>(tiles, qkv + at.qkv + s.width, stride,
                                               qkv + at.qkv + 2 * s.width, stride, begin, s);
    };

    start_tile<T, Z::QUERIES, HEAD, Z::BLOCK>(q, qkv + at.qkv, stride, first, s);
    start(stage, 0);
    copies_wait();
    convert_tile<T, Z::QUERIES, HEAD, Z::BLOCK>(q, s);
    convert_pair<T, Z::KEYS, HEAD, Z::BLOCK>(stage, s);
    __syncthreads();
    fill(o, 0.0f);
    row_operand<T, HEAD, Z::M_TILES, Z::KEPT> queries(rows);
    for (unsigned begin = 0, turn = 0; begin < end; begin += Z::KEYS, turn ^= 1) {
        T *tiles = stage + turn * 2 * Z::TILE;
        T *next = stage + (turn ^ 1) * 2 * Z::TILE;
        bool more = begin + Z::KEYS < end;

        if (more)
            start(next, begin + Z::KEYS);
        if (begin < first + row + Z::M_TILES * 16) { /* otherwise after all of the warp's queries */
            float scores[Z::M_TILES][Z::KEYS / 8][4];

            fill(scores, 0.0f);
            add_scores(scores, queries, tiles);
            if (begin + Z::KEYS > first + row + 1)
                hide_later_keys<false>(scores, first + row, begin);
            softmax.add(scores, o, s.scale * LOG2_E);
            add_weighted<T, HEAD>(o, scores, tiles + Z::TILE);
        }
        copies_wait();
        if (more)
            convert_pair<T, Z::KEYS, HEAD, Z::BLOCK>(next, s);
        __syncthreads(); /* this stage is read, the next one is there */
    }
    if (first + row >= s.positions)
        return; /* the whole warp */
    unsigned left = s.positions - first - row;
    softmax.finish(o, log_sums + at.rows + first + row, left, s.scale);
    store_rows<T, HEAD>(y + at.y + (first + row) * (size_t)s.width, s.width, left, rows, o, s);
}

template <typename T>
static cudaError_t launch_forward(const struct attention_shape &s, size_t batch,
                                  const struct attention_forward_call &call, cudaStream_t stream)
{
    return by_head<32, 64, 96, 128>(s.head, [&](auto head) {
        constexpr unsigned HEAD = decltype(head)::HEAD;
        typedef forward_sizes<T, HEAD> Z;

        return launch_large(forward_kernel<T, HEAD>, attention_grid(s, Z::QUERIES, batch), Z::BLOCK,
                            Z::BYTES, stream, s, static_cast<const T *>(call.qkv), call.log_sums,
                            static_cast<T *>(call.y));
    });
}

cudaError_t attention_mma_forward(const struct cuda *cuda, const struct attention_shape &s,
                                  size_t batch, const struct attention_forward_call &call)
{
    return by_type(cuda, [&](auto type) {
        return launch_forward<typename decltype(type)::type>(s, batch, call, cuda->work);
    });
}
