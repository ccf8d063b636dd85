/*
 * Embedding.  Backward sums each token's rows in the order of the batch, without atomics on floats:
 * one block builds an index of the rows of each token (a counting sort), then one block per token
 * adds its rows.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#define INDEX_THREADS 1024u

/* ---- forward ---- */

/* A warp per row of y, of `rows`. */
template <typename T, unsigned N>
static __global__ void embedding_kernel(struct embedding e, const float *ids, T *y, unsigned rows)
{
    unsigned width = (unsigned)e.width;

    for (size_t row = grid_first() / WARP; row < rows; row += grid_stride() / WARP) {
        const float *token = e.token_weight + (size_t)ids[row] * width;
        const float *position =
            e.position_weight + (size_t)((unsigned)row % (unsigned)e.positions) * width;

        for (unsigned i = threadIdx.x % WARP * N; i < width; i += WARP * N) {
            float sum[N], added[N];

            load<N>(sum, token + i);
            load<N>(added, position + i);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                sum[j] += added[j];
            store<N>(y + row * width + i, sum);
        }
    }
}

enum status cuda_embedding_forward(struct compute *c, const struct embedding *e, const float *ids,
                                   void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    size_t rows = batch * e->positions;

    return status_from_cuda(
        by_pack(cuda, can_pack(cuda, e->width, e->token_weight, e->position_weight, y),
                [&](auto tag, auto n) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(embedding_kernel<T, decltype(n)::count>,
                                       blocks_for(rows * WARP), THREADS, 0, cuda->work, *e, ids,
                                       static_cast<T *>(y), (unsigned)rows);
                }),
        "embedding kernel", err);
}

/* ---- backward ---- */

struct token_index {  /* all device */
    unsigned *begins; /* (vocabulary + 1): start of each token's range in `rows` */
    unsigned *rows;   /* (count): rows of the batch, sorted by token, in order within a token */
    unsigned *ranks;  /* (count): number of earlier rows with the same token */
};

/* Build the index of `count` ids; one block, in iterations of one id per thread. */
static __global__ void __launch_bounds__(INDEX_THREADS)
    index_kernel(struct token_index index, const float *ids, size_t count, size_t vocabulary)
{
    __shared__ unsigned tokens[INDEX_THREADS];
    __shared__ unsigned sums[INDEX_THREADS];
    unsigned *counts = index.begins; /* converted to begins below */
    size_t share = (vocabulary + INDEX_THREADS - 1) / INDEX_THREADS;
    size_t first = threadIdx.x * share;
    unsigned sum = 0;

    for (size_t v = threadIdx.x; v <= vocabulary; v += INDEX_THREADS)
        counts[v] = 0;
    __syncthreads();
    for (size_t begin = 0; begin < count; begin += INDEX_THREADS) {
        unsigned here = count - begin < INDEX_THREADS ? (unsigned)(count - begin) : INDEX_THREADS;
        unsigned mine = threadIdx.x < here ? (unsigned)ids[begin + threadIdx.x] : 0;
        unsigned before = 0;
        unsigned after = 0;
        unsigned known = 0;

        tokens[threadIdx.x] = mine;
        __syncthreads();
        if (threadIdx.x < here) {
            for (unsigned i = 0; i < here; i++) {
                before += tokens[i] == mine && i < threadIdx.x;
                after += tokens[i] == mine && i > threadIdx.x;
            }
            known = counts[mine];
            index.ranks[begin + threadIdx.x] = known + before;
        }
        __syncthreads(); /* all threads have read counts */
        if (threadIdx.x < here && after == 0)
            counts[mine] = known + before + 1;
        __syncthreads();
    }
    for (size_t v = first; v < first + share && v < vocabulary; v++)
        sum += counts[v];
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (unsigned i = 0; i < threadIdx.x; i++)
        sum += sums[i];
    for (size_t v = first; v < first + share && v < vocabulary; v++) {
        unsigned own = counts[v];

        index.begins[v] = sum;
        sum += own;
    }
    if (threadIdx.x == 0)
        index.begins[vocabulary] = (unsigned)count;
    __syncthreads();
    for (size_t i = threadIdx.x; i < count; i += INDEX_THREADS)
        index.rows[index.begins[(unsigned)ids[i]] + index.ranks[i]] = (unsigned)i;
}

#define TOKEN_WARPS 8u

/* A block per token: each of its warps sums every TOKEN_WARPS-th row of the token, 32 N columns at
 * a time; the partial sums are added in the order of the warps. */
template <typename T, unsigned N>
static __global__ void token_sums_kernel(struct token_index index, const T *dy,
                                         float *dtoken_weight, unsigned width, float factor,
                                         bool accumulate)
{
    __shared__ float partial[TOKEN_WARPS][N][WARP];
    unsigned begin = index.begins[blockIdx.x];
    unsigned end = index.begins[blockIdx.x + 1];
    unsigned lane = threadIdx.x % WARP;
    unsigned warp = threadIdx.x / WARP;

    if (begin == end && accumulate)
        return;
    dtoken_weight += (size_t)blockIdx.x * width;
    for (unsigned tile = 0; tile < width; tile += WARP * N) {
        unsigned column = tile + lane * N;
        float sum[N] = {};

        if (column < width) {
#pragma unroll 4
            for (unsigned i = begin + warp; i < end; i += TOKEN_WARPS) {
                float d[N];

                load<N>(d, dy + (size_t)index.rows[i] * width + column);
#pragma unroll
                for (unsigned j = 0; j < N; j++)
                    sum[j] += d[j];
            }
        }
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            partial[warp][j][lane] = sum[j];
        __syncthreads();
        if (warp == 0 && column < width) {
#pragma unroll
            for (unsigned j = 0; j < N; j++) {
                for (unsigned w = 1; w < TOKEN_WARPS; w++)
                    sum[j] += partial[w][j][lane];
                dtoken_weight[column + j] =
                    accumulate ? dtoken_weight[column + j] + sum[j] * factor : sum[j] * factor;
            }
        }
        __syncthreads();
    }
}

/* Elements of a sample, N per thread. */
template <typename T, unsigned N>
static __global__ void position_sums_kernel(const T *dy, float *dposition_weight, size_t row,
                                            unsigned batch, float factor, bool accumulate)
{
    for (size_t i = N * grid_first(); i < row; i += N * grid_stride()) {
        float sum[N] = {};
        float before[N] = {};

#pragma unroll 4
        for (unsigned b = 0; b < batch; b++) {
            float d[N];

            load<N>(d, dy + b * row + i);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                sum[j] += d[j];
        }
        if (accumulate)
            load<N>(before, dposition_weight + i);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            before[j] += sum[j] * factor;
        store<N>(dposition_weight + i, before);
    }
}

static enum status make_index(struct cuda *cuda, const struct embedding *e, const float *ids,
                              size_t count, struct token_index *ret, struct error *err)
{
    enum status status =
        cuda_reserve(cuda, &cuda->partials, (e->vocabulary + 1 + 2 * count) * sizeof(unsigned),
                     "the tokens' index", err);

    if (status != STATUS_OK)
        return status;
    ret->begins = static_cast<unsigned *>(cuda->partials.memory);
    ret->rows = ret->begins + e->vocabulary + 1;
    ret->ranks = ret->rows + count;
    return status_from_cuda(
        cuda_launch(index_kernel, 1, INDEX_THREADS, 0, cuda->work, *ret, ids, count, e->vocabulary),
        "index kernel", err);
}

enum status cuda_embedding_backward(struct compute *c, const struct embedding *e, const float *ids,
                                    const void *dy, size_t batch, bool accumulate_tokens,
                                    bool accumulate, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    size_t row = e->positions * e->width;
    struct token_index index;
    enum status status = make_index(cuda, e, ids, batch * e->positions, &index, err);

    if (status != STATUS_OK)
        return status;
    return status_from_cuda(
        by_pack(cuda, can_pack(cuda, e->width, dy, e->dposition_weight),
                [&](auto tag, auto n) {
                    typedef typename decltype(tag)::type T;
                    constexpr unsigned N = decltype(n)::count;
                    cudaError_t result = cuda_launch(
                        token_sums_kernel<T, N>, (unsigned)e->vocabulary, TOKEN_WARPS * WARP, 0,
                        cuda->work, index, static_cast<const T *>(dy), e->dtoken_weight,
                        (unsigned)e->width, cuda_unscale(cuda), accumulate_tokens);

                    if (result != cudaSuccess)
                        return result;
                    return cuda_launch(position_sums_kernel<T, N>, blocks_for((row + N - 1) / N),
                                       THREADS, 0, cuda->work, static_cast<const T *>(dy),
                                       e->dposition_weight, row, (unsigned)batch,
                                       cuda_unscale(cuda), accumulate);
                }),
        "embedding's gradients", err);
}
