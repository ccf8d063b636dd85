/*
 * Batch normalisation over rows of channels.  A channel's sums are computed in chunks of rows,
 * relative to the first value of the channel, so that a large mean costs no precision; a second
 * kernel combines them in double. x is not changed.  Where y depends only on x, backward recomputes
 * ReLU's mask from x, which saves a pass over memory.
 */
#include "worker/compute/cuda/cuda_rows.cuh"

#define SUM_BLOCKS   512u /* of a pass that sums: the number of partials of the second kernel */
#define SUM_ROWS     8u   /* of a thread, at least */
#define MAP_BLOCKS   4096u
#define MAP_ROWS     4u
#define JOIN_THREADS 8u /* threads that combine the sums of a channel */

/* Plan of a pass that sums, and of the kernels that read its partials. */
static struct rows sums_plan(const struct batch_norm *n, size_t batch, unsigned pack)
{
    return rows_plan(batch * n->inner, n->channels, pack, SUM_BLOCKS, SUM_ROWS);
}

static struct rows map_plan(const struct batch_norm *n, size_t batch, unsigned pack)
{
    return rows_plan(batch * n->inner, n->channels, pack, MAP_BLOCKS, MAP_ROWS);
}

/* Store this block's sums: N values and N others; partials (2, chunks, channels). */
template <unsigned N>
static __device__ void store_sums(const struct rows &r, float *partials, float (&sums)[2 * N])
{
    size_t at = (size_t)blockIdx.y * r.channels + (size_t)rows_pack() * N;

    column_sums<2 * N>(sums);
    if (threadIdx.y > 0 || rows_pack() >= r.packs)
        return;
    for (unsigned i = 0; i < N; i++) {
        partials[at + i] = sums[i];
        partials[(size_t)r.chunks * r.channels + at + i] = sums[N + i];
    }
}

/* Blocks of (WARP, JOIN_THREADS): total sums of the channel of threadIdx.x, returned to its first
 * thread; false for the others. */
static __device__ bool join_sums(const struct rows &r, const float *partials, double *a, double *b)
{
    __shared__ double joined[2][JOIN_THREADS][WARP];
    unsigned channel = blockIdx.x * WARP + threadIdx.x;
    double sums[2] = {0.0, 0.0};

    for (unsigned k = threadIdx.y; k < r.chunks && channel < r.channels; k += JOIN_THREADS) {
        sums[0] += (double)partials[(size_t)k * r.channels + channel];
        sums[1] += (double)partials[(size_t)(r.chunks + k) * r.channels + channel];
    }
    joined[0][threadIdx.y][threadIdx.x] = sums[0];
    joined[1][threadIdx.y][threadIdx.x] = sums[1];
    __syncthreads();
    if (threadIdx.y > 0 || channel >= r.channels)
        return false;
    for (unsigned k = 1; k < JOIN_THREADS; k++) {
        sums[0] += joined[0][k][threadIdx.x];
        sums[1] += joined[1][k][threadIdx.x];
    }
    *a = sums[0];
    *b = sums[1];
    return true;
}

static dim3 join_grid(const struct rows &r)
{
    return dim3((r.channels + WARP - 1) / WARP);
}

/* ---- forward ---- */

template <typename T, unsigned N>
static __global__ void moments_kernel(struct rows r, const T *x, float *partials)
{
    float sums[2 * N] = {};

    if (rows_pack() < r.packs) {
        float shift[N];

        load<N>(shift, x + (size_t)rows_pack() * N);
        for_rows<N>(r, [&](size_t at) {
            float values[N];

            load<N>(values, x + at);
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                float value = values[i] - shift[i];

                sums[i] += value;
                sums[N + i] += value * value;
            }
        });
    }
    store_sums<N>(r, partials, sums);
}

template <typename T>
static __global__ void statistics_kernel(struct rows r, struct batch_norm n, const T *x,
                                         const float *partials)
{
    unsigned c = blockIdx.x * WARP + threadIdx.x;
    double count = (double)r.count;
    double mean, var;

    if (!join_sums(r, partials, &mean, &var))
        return;
    mean /= count;
    var = var / count - mean * mean;
    var = var < 0.0 ? 0.0 : var;
    mean += (double)to_float(x[c]);
    n.mean[c] = (float)mean;
    n.inverse_std[c] = (float)(1.0 / sqrt(var + (double)n.epsilon));
    n.running_mean[c] += n.momentum * ((float)mean - n.running_mean[c]);
    n.running_var[c] += n.momentum * ((float)(var * count / (count - 1.0)) - n.running_var[c]);
}

/* y = activation((x - mean) inverse weight + bias + residual); y may be x. running: use the running
 * statistics. */
template <typename T, unsigned N>
static __global__ void normalise_kernel(struct rows r, struct batch_norm n, const T *x,
                                        const T *residual, T *y, bool running)
{
    float mean[N], scale[N], bias[N];

    if (rows_pack() >= r.packs)
        return;
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        unsigned c = rows_pack() * N + i;
        float inverse = running ? 1.0f / sqrtf(n.running_var[c] + n.epsilon) : n.inverse_std[c];

        mean[i] = running ? n.running_mean[c] : n.mean[c];
        scale[i] = inverse * n.weight[c];
        bias[i] = n.bias[c];
    }
    for_rows<N>(r, [&](size_t at) {
        float values[N];
        float added[N] = {};

        load<N>(values, x + at);
        if (residual)
            load<N>(added, residual + at);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            values[i] =
                activate(n.activation, (values[i] - mean[i]) * scale[i] + bias[i] + added[i]);
        store<N>(y + at, values);
    });
}

static enum status normalise(struct cuda *cuda, const struct batch_norm *n, const void *x,
                             const void *residual, void *y, size_t batch, bool running,
                             struct error *err)
{
    return status_from_cuda(by_pack(cuda, can_pack(cuda, n->channels, x, residual, y),
                                    [&](auto tag, auto size) {
                                        typedef typename decltype(tag)::type T;
                                        constexpr unsigned N = decltype(size)::count;
                                        struct rows r = map_plan(n, batch, N);

                                        return cuda_launch(normalise_kernel<T, N>, rows_grid(r),
                                                           rows_block(r.packs), 0, cuda->work, r,
                                                           *n, static_cast<const T *>(x),
                                                           static_cast<const T *>(residual),
                                                           static_cast<T *>(y), running);
                                    }),
                            "normalise kernel", err);
}

/* Enough for a plan with packs of one. */
static enum status reserve_partials(struct cuda *cuda, const struct batch_norm *n,
                                    struct error *err)
{
    return cuda_reserve(cuda, &cuda->partials, 2 * SUM_BLOCKS * n->channels * sizeof(float),
                        "partial sums", err);
}

enum status cuda_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                    const void *residual, void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = reserve_partials(cuda, n, err);

    if (status != STATUS_OK)
        return status;
    status = status_from_cuda(
        by_pack(cuda, can_pack(cuda, n->channels, x),
                [&](auto tag, auto size) {
                    typedef typename decltype(tag)::type T;
                    constexpr unsigned N = decltype(size)::count;
                    struct rows r = sums_plan(n, batch, N);
                    float *partials = static_cast<float *>(cuda->partials.memory);
                    const T *values = static_cast<const T *>(x);
                    cudaError_t result =
                        cuda_launch(moments_kernel<T, N>, rows_grid(r), rows_block(r.packs), 0,
                                    cuda->work, r, values, partials);

                    if (result != cudaSuccess)
                        return result;
                    return cuda_launch(statistics_kernel<T>, join_grid(r), dim3(WARP, JOIN_THREADS),
                                       0, cuda->work, r, *n, values, partials);
                }),
        "batch norm's statistics", err);
    return status == STATUS_OK ? normalise(cuda, n, x, residual, y, batch, false, err) : status;
}

enum status cuda_batch_norm_evaluate(struct compute *c, const struct batch_norm *n, const void *x,
                                     const void *residual, void *y, size_t batch, struct error *err)
{
    return normalise(cuda_of(c), n, x, residual, y, batch, true, err);
}

/* ---- backward ---- */

enum mask {
    MASK_NONE,
    MASK_RECOMPUTED, /* recomputed from x, as normalise_kernel computes y without a residual */
    MASK_READ,       /* from y; dy is replaced by the masked dy */
};

/* Sums of the masked dy, and of its products with x - mean. */
template <enum mask MASK, typename T, unsigned N>
static __global__ void gradient_sums_kernel(struct rows r, struct batch_norm n, const T *x,
                                            const T *y, T *dy, float *partials)
{
    float sums[2 * N] = {};

    if (rows_pack() < r.packs) {
        float mean[N], scale[N], bias[N];

#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            unsigned c = rows_pack() * N + i;

            mean[i] = n.mean[c];
            scale[i] = MASK == MASK_RECOMPUTED ? n.inverse_std[c] * n.weight[c] : 0.0f;
            bias[i] = MASK == MASK_RECOMPUTED ? n.bias[c] : 0.0f;
        }
        for_rows<N>(r, [&](size_t at) {
            float values[N], d[N];
            float made[N] = {};

            load<N>(values, x + at);
            load<N>(d, dy + at);
            if (MASK == MASK_READ)
                load<N>(made, y + at);
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                float centred = values[i] - mean[i];

                if (MASK == MASK_RECOMPUTED)
                    made[i] = centred * scale[i] + bias[i];
                if (MASK != MASK_NONE && made[i] <= 0.0f)
                    d[i] = 0.0f;
                sums[i] += d[i];
                sums[N + i] += d[i] * centred;
            }
            if (MASK == MASK_READ)
                store<N>(dy + at, d);
        });
    }
    store_sums<N>(r, partials, sums);
}

/* Write the total sums to the first chunk of partials, for the next kernel: of dy, and of its
 * products with the normalised x. */
static __global__ void parameters_kernel(struct rows r, struct batch_norm n, float *partials,
                                         float factor, bool accumulate)
{
    unsigned c = blockIdx.x * WARP + threadIdx.x;
    double whole[2];
    float sum, product;

    if (!join_sums(r, partials, &whole[0], &whole[1]))
        return;
    sum = (float)whole[0];
    product = (float)(whole[1] * (double)n.inverse_std[c]);
    partials[c] = sum;
    partials[(size_t)r.chunks * r.channels + c] = product;
    n.dbias[c] = accumulate ? n.dbias[c] + sum * factor : sum * factor;
    n.dweight[c] = accumulate ? n.dweight[c] + product * factor : product * factor;
}

/* dx may be dy; sums, products: (channels).  MASK_READ: dy is already masked. */
template <enum mask MASK, typename T, unsigned N>
static __global__ void input_gradient_kernel(struct rows r, struct batch_norm n, const T *x,
                                             const T *dy, T *dx, const float *sums,
                                             const float *products)
{
    float share = 1.0f / (float)r.count;
    float mean[N], scale[N], bias[N], drop[N], slope[N];

    if (rows_pack() >= r.packs)
        return;
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        unsigned c = rows_pack() * N + i;

        mean[i] = n.mean[c];
        scale[i] = n.inverse_std[c] * n.weight[c];
        bias[i] = MASK == MASK_RECOMPUTED ? n.bias[c] : 0.0f;
        drop[i] = sums[c] * share;
        slope[i] = n.inverse_std[c] * (products[c] * share);
    }
    for_rows<N>(r, [&](size_t at) {
        float values[N], d[N];

        load<N>(values, x + at);
        load<N>(d, dy + at);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float centred = values[i] - mean[i];

            if (MASK == MASK_RECOMPUTED && centred * scale[i] + bias[i] <= 0.0f)
                d[i] = 0.0f;
            d[i] = scale[i] * (d[i] - drop[i] - centred * slope[i]);
        }
        store<N>(dx + at, d);
    });
}

struct backward {
    const struct batch_norm *n;
    const void *x, *y;
    void *dy, *dx;
    size_t batch;
    bool accumulate;
};

template <enum mask MASK, typename T, unsigned N>
static cudaError_t launch_backward(struct cuda *cuda, const struct backward &b)
{
    struct rows r = sums_plan(b.n, b.batch, N);
    struct rows map = map_plan(b.n, b.batch, N);
    const T *x = static_cast<const T *>(b.x);
    T *dy = static_cast<T *>(b.dy);
    float *sums = static_cast<float *>(cuda->partials.memory);
    float *products = sums + (size_t)r.chunks * r.channels;
    cudaError_t result =
        cuda_launch(gradient_sums_kernel<MASK, T, N>, rows_grid(r), rows_block(r.packs), 0,
                    cuda->work, r, *b.n, x, static_cast<const T *>(b.y), dy, sums);

    if (result == cudaSuccess)
        result = cuda_launch(parameters_kernel, join_grid(r), dim3(WARP, JOIN_THREADS), 0,
                             cuda->work, r, *b.n, sums, cuda_unscale(cuda), b.accumulate);
    if (result != cudaSuccess)
        return result;
    return cuda_launch(input_gradient_kernel < MASK == MASK_RECOMPUTED ? MASK_RECOMPUTED
                                                                       : MASK_NONE,
                       T, N >, rows_grid(map), rows_block(map.packs), 0, cuda->work, map, *b.n, x,
                       dy, static_cast<T *>(b.dx), sums, products);
}

enum status cuda_batch_norm_backward(struct compute *c, const struct batch_norm *n, const void *x,
                                     const void *y, void *dy, void *dx, size_t batch, bool residual,
                                     bool accumulate_parameters, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    const struct backward b = {n, x, y, dy, dx, batch, accumulate_parameters};
    enum mask mask = n->activation == ACTIVATION_NONE ? MASK_NONE
                     : residual                       ? MASK_READ
                                                      : MASK_RECOMPUTED;
    enum status status = reserve_partials(cuda, n, err);

    if (status != STATUS_OK)
        return status;
    return status_from_cuda(
        by_pack(cuda, can_pack(cuda, n->channels, x, y, dy, dx),
                [&](auto tag, auto size) {
                    typedef typename decltype(tag)::type T;
                    constexpr unsigned N = decltype(size)::count;

                    return mask == MASK_NONE   ? launch_backward<MASK_NONE, T, N>(cuda, b)
                           : mask == MASK_READ ? launch_backward<MASK_READ, T, N>(cuda, b)
                                               : launch_backward<MASK_RECOMPUTED, T, N>(cuda, b);
                }),
        "batch norm's gradients", err);
}
