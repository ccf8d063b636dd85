/*
 * Embedding.  Backward sums each token's rows in the order of the batch, without atomics on floats:
 * one block makes an index of where each token stands (counts, then places by rank), and a block
 * per token adds its rows.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#define INDEX_THREADS 1024u

/* ---- forward ---- */

template <typename T>
static __global__ void embedding_kernel(struct embedding e, const float *ids, T *y, size_t count)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        size_t column = i % e.width;
        size_t place = i / e.width;
        size_t token = (size_t)ids[place];

        put(&y[i],
            e.tokens[token * e.width + column] + e.places[place % e.positions * e.width + column]);
    }
}

enum status cuda_embedding_forward(struct compute *c, const struct embedding *e, const float *ids,
                                   void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    size_t count = batch * e->positions * e->width;

    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(embedding_kernel<T>, blocks_for(count),
                                                           THREADS, 0, cuda->work, *e, ids,
                                                           static_cast<T *>(y), count);
                                    }),
                            "embedding kernel", err);
}

/* ---- backward ---- */

struct token_index {  /* all device */
    unsigned *begins; /* (vocabulary + 1): where each token's places begin */
    unsigned *places; /* (count): rows of the batch, by token, each token's in order */
    unsigned *ranks;  /* (count): how many of the same token stand before */
};

/* Places of `count` ids; one block, in rounds of one id per thread. */
static __global__ void index_kernel(struct token_index index, const float *ids, size_t count,
                                    size_t vocabulary)
{
    __shared__ unsigned tokens[INDEX_THREADS];
    __shared__ unsigned sums[INDEX_THREADS];
    unsigned *counts = index.begins; /* turned into begins below */
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
        __syncthreads(); /* counts were read by all */
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
        index.places[index.begins[(unsigned)ids[i]] + index.ranks[i]] = (unsigned)i;
}

/* A block per token. */
template <typename T>
static __global__ void token_sums_kernel(struct token_index index, const T *dy, float *dtokens,
                                         size_t width, float factor, bool accumulate)
{
    unsigned begin = index.begins[blockIdx.x];
    unsigned end = index.begins[blockIdx.x + 1];

    if (begin == end && accumulate)
        return;
    dtokens += blockIdx.x * width;
    for (size_t column = threadIdx.x; column < width; column += blockDim.x) {
        float sum = 0.0f;

        for (unsigned i = begin; i < end; i++)
            sum += to_float(dy[index.places[i] * width + column]);
        dtokens[column] = accumulate ? dtokens[column] + sum * factor : sum * factor;
    }
}

template <typename T>
static __global__ void place_sums_kernel(const T *dy, float *dplaces, size_t row, size_t batch,
                                         float factor, bool accumulate)
{
    for (size_t i = grid_first(); i < row; i += grid_stride()) {
        float sum = 0.0f;

        for (size_t b = 0; b < batch; b++)
            sum += to_float(dy[b * row + i]);
        dplaces[i] = accumulate ? dplaces[i] + sum * factor : sum * factor;
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
    ret->places = ret->begins + e->vocabulary + 1;
    ret->ranks = ret->places + count;
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
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;
                    cudaError_t result =
                        cuda_launch(token_sums_kernel<T>, (unsigned)e->vocabulary, THREADS, 0,
                                    cuda->work, index, static_cast<const T *>(dy), e->dtokens,
                                    e->width, cuda_unscale(cuda), accumulate_tokens);

                    if (result != cudaSuccess)
                        return result;
                    return cuda_launch(place_sums_kernel<T>, blocks_for(row), THREADS, 0,
                                       cuda->work, static_cast<const T *>(dy), e->dplaces, row,
                                       batch, cuda_unscale(cuda), accumulate);
                }),
        "embedding's gradients", err);
}
