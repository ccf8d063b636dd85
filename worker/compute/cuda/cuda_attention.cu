/*
 * Attention, forward: per tile of queries a running softmax over the tiles of keys up to it.  The
 * result's sums stay in shared memory between tiles, because their rows are rescaled when a
 * larger score is met.
 */
#include "worker/compute/cuda/cuda_attention.cuh"

#define HEAD_MAX 128u

enum status cuda_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                   struct error *err)
{
    size_t head = a->width / a->heads;

    (void)c;
    (void)max_batch;
    if (head > HEAD_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "attention on a GPU: heads of %zu, the largest are %u wide", head,
                         HEAD_MAX);
    return STATUS_OK;
}

void cuda_attention_release(struct compute *c, struct attention *a)
{
    (void)c;
    (void)a; /* its plan stays NULL: nothing is kept */
}

/* Max and sum over the lanes that share a row: groups of LANES neighbours. */
template <unsigned LANES> static __device__ float row_max(float mine)
{
    for (unsigned offset = LANES / 2; offset > 0; offset /= 2)
        mine = fmaxf(mine, __shfl_xor_sync(FULL_WARP, mine, (int)offset));
    return mine;
}

template <unsigned LANES> static __device__ float row_sum(float mine)
{
    for (unsigned offset = LANES / 2; offset > 0; offset /= 2)
        mine += __shfl_xor_sync(FULL_WARP, mine, (int)offset);
    return mine;
}

template <typename T, unsigned HEAD, unsigned TILE> static constexpr size_t forward_bytes()
{
    return 3 * shared_size(TILE * tile_pitch<T>(HEAD) * sizeof(T)) +
           shared_size(TILE * SUMS_PITCH(TILE) * sizeof(float)) +
           shared_size(TILE * tile_pitch<T>(TILE) * sizeof(T)) +
           shared_size(TILE * SUMS_PITCH(HEAD) * sizeof(float)) +
           2 * shared_size(TILE * sizeof(float));
}

template <typename T, unsigned HEAD, unsigned TILE>
static __global__ void __launch_bounds__(TILE_THREADS)
    forward_kernel(struct attention_shape s, const T *qkv, float *log_sums, T *y)
{
    constexpr unsigned LANES = TILE_THREADS / TILE; /* of a row */
    DYNAMIC_SHARED(memory);
    size_t used = 0;
    T *q = shared_part<T>(memory, &used, TILE * tile_pitch<T>(HEAD));
    T *k = shared_part<T>(memory, &used, TILE * tile_pitch<T>(HEAD));
    T *v = shared_part<T>(memory, &used, TILE * tile_pitch<T>(HEAD));
    float *scores = shared_part<float>(memory, &used, TILE * SUMS_PITCH(TILE));
    T *p = shared_part<T>(memory, &used, TILE * tile_pitch<T>(TILE));
    float *o = shared_part<float>(memory, &used, TILE * SUMS_PITCH(HEAD));
    float *maxima = shared_part<float>(memory, &used, TILE);
    float *sums = shared_part<float>(memory, &used, TILE);
    unsigned first = (gridDim.x - 1 - blockIdx.x) * TILE; /* the longest rows start first */
    size_t stride = 3 * (size_t)s.width;
    const T *base = qkv + blockIdx.z * s.positions * stride + blockIdx.y * s.head;
    unsigned row = threadIdx.x / LANES;
    unsigned part = threadIdx.x % LANES;

    load_tile<T, TILE, HEAD>(q, base, stride, first, s);
    for (unsigned i = threadIdx.x; i < TILE * SUMS_PITCH(HEAD); i += TILE_THREADS)
        o[i] = 0.0f;
    if (part == 0) {
        maxima[row] = -INFINITY;
        sums[row] = 0.0f;
    }
    for (unsigned begin = 0; begin <= first; begin += TILE) {
        tile_sums<T, TILE, TILE> products;
        tile_sums<T, TILE, HEAD> outputs;
        float before, largest, rescale;
        float sum = 0.0f;

        __syncthreads(); /* the tiles before are read */
        load_tile<T, TILE, HEAD>(k, base + s.width, stride, begin, s);
        load_tile<T, TILE, HEAD>(v, base + 2 * s.width, stride, begin, s);
        __syncthreads();
        products.zero();
        products.template add<false, true>(q, tile_pitch<T>(HEAD), k, tile_pitch<T>(HEAD), HEAD);
        products.store(scores);
        __syncthreads();
        before = maxima[row];
        largest = before;
        for (unsigned j = part; j < TILE && begin + j <= first + row; j += LANES)
            largest = fmaxf(largest, scores[row * SUMS_PITCH(TILE) + j] * s.scale);
        largest = row_max<LANES>(largest);
        rescale = expf(before - largest);
        for (unsigned j = part; j < TILE; j += LANES) {
            float e = begin + j <= first + row
                          ? expf(scores[row * SUMS_PITCH(TILE) + j] * s.scale - largest)
                          : 0.0f;

            sum += e;
            put(&p[row * tile_pitch<T>(TILE) + j], e);
        }
        sum = row_sum<LANES>(sum);
        for (unsigned j = part; j < HEAD; j += LANES)
            o[row * SUMS_PITCH(HEAD) + j] *= rescale;
        if (part == 0) {
            maxima[row] = largest;
            sums[row] = sums[row] * rescale + sum;
        }
        __syncthreads();
        outputs.load(o);
        outputs.template add<false, false>(p, tile_pitch<T>(TILE), v, tile_pitch<T>(HEAD), TILE);
        outputs.store(o);
    }
    __syncthreads();
    store_tile<T, TILE, HEAD>(y + blockIdx.z * s.positions * (size_t)s.width + blockIdx.y * s.head,
                              s.width, o, first, s, [&](unsigned r) { return 1.0f / sums[r]; });
    if (part == 0 && first + row < s.positions)
        log_sums[(blockIdx.z * (size_t)gridDim.y + blockIdx.y) * s.positions + first + row] =
            maxima[row] + logf(sums[row]);
}

enum status cuda_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                   float *log_sums, void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct attention_shape s = attention_shape_of(a);

    return status_from_cuda(by_type(cuda,
                                    [&](auto type) {
                                        return by_head(s.head, [&](auto head) {
                                            typedef typename decltype(type)::type T;
                                            constexpr unsigned HEAD = decltype(head)::HEAD;
                                            constexpr unsigned TILE = attention_tile<T, HEAD>();

                                            return launch_large(
                                                forward_kernel<T, HEAD, TILE>,
                                                dim3((s.positions + TILE - 1) / TILE,
                                                     (unsigned)a->heads, (unsigned)batch),
                                                forward_bytes<T, HEAD, TILE>(), cuda->work, s,
                                                static_cast<const T *>(qkv), log_sums,
                                                static_cast<T *>(y));
                                        });
                                    }),
                            "attention kernel", err);
}
