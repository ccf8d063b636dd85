/*
 * Batch normalisation.  A channel's sums are taken in chunks of images, one block each, less a
 * first value of the channel, so that a large mean costs no digits; one thread per channel joins
 * them in double.  x stays as it was.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#define CHUNKS_MAX   32u
#define CHUNK_VALUES 4096u /* at least, of a channel */

struct norm_shape {
    size_t batch, channels, inner;
    size_t chunk;    /* images */
    unsigned chunks; /* per channel */
};

static struct norm_shape shape_of(const struct batch_norm *n, size_t batch)
{
    struct norm_shape s = {};
    size_t wanted = (batch * n->inner + CHUNK_VALUES - 1) / CHUNK_VALUES;

    wanted = wanted > CHUNKS_MAX ? CHUNKS_MAX : wanted;
    wanted = wanted > batch ? batch : wanted;
    s.batch = batch;
    s.channels = n->channels;
    s.inner = n->inner;
    s.chunk = (batch + wanted - 1) / wanted;
    s.chunks = (unsigned)((batch + s.chunk - 1) / s.chunk);
    return s;
}

/* f(index of each value of this block's channel and chunk) */
template <typename F> static __device__ void for_each_value(const struct norm_shape &s, F f)
{
    size_t begin = blockIdx.y * s.chunk;
    size_t end = begin + s.chunk < s.batch ? begin + s.chunk : s.batch;

    for (size_t k = threadIdx.x; k < (end - begin) * s.inner; k += blockDim.x) {
        size_t image = begin + k / s.inner;

        f((image * s.channels + blockIdx.x) * s.inner + k % s.inner);
    }
}

/* Sums of this block: first of a value, second of another; partials (2, chunks, channels). */
static __device__ void keep_sums(const struct norm_shape &s, float *partials, float a, float b)
{
    a = block_sum(a);
    b = block_sum(b);
    if (threadIdx.x > 0)
        return;
    partials[blockIdx.y * s.channels + blockIdx.x] = a;
    partials[(s.chunks + blockIdx.y) * s.channels + blockIdx.x] = b;
}

static __device__ double chunk_sum(const struct norm_shape &s, const float *partials,
                                   size_t channel)
{
    double sum = 0.0;

    for (unsigned k = 0; k < s.chunks; k++)
        sum += (double)partials[k * s.channels + channel];
    return sum;
}

/* ---- forward ---- */

template <typename T>
static __global__ void moments_kernel(struct norm_shape s, const T *x, float *partials)
{
    float shift = to_float(x[blockIdx.x * s.inner]);
    float sum = 0.0f;
    float squares = 0.0f;

    for_each_value(s, [&](size_t i) {
        float value = to_float(x[i]) - shift;

        sum += value;
        squares += value * value;
    });
    keep_sums(s, partials, sum, squares);
}

template <typename T>
static __global__ void statistics_kernel(struct norm_shape s, struct batch_norm n, const T *x,
                                         const float *partials)
{
    double count = (double)s.batch * (double)s.inner;

    for (size_t c = grid_first(); c < s.channels; c += grid_stride()) {
        double mean = chunk_sum(s, partials, c) / count;
        double var = chunk_sum(s, partials + s.chunks * s.channels, c) / count - mean * mean;

        var = var < 0.0 ? 0.0 : var;
        mean += (double)to_float(x[c * s.inner]);
        n.mean[c] = (float)mean;
        n.inverse_std[c] = (float)(1.0 / sqrt(var + (double)n.epsilon));
        n.running_mean[c] += n.momentum * ((float)mean - n.running_mean[c]);
        n.running_var[c] += n.momentum * ((float)(var * count / (count - 1.0)) - n.running_var[c]);
    }
}

/* y = activation((x - mean) inverse weight + bias + residual); y may be x.  running: by the running
 * statistics. */
template <typename T>
static __global__ void normalise_kernel(struct norm_shape s, struct batch_norm n, const T *x,
                                        const T *residual, T *y, bool running)
{
    size_t count = s.batch * s.channels * s.inner;

    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        size_t c = i / s.inner % s.channels;
        float mean = running ? n.running_mean[c] : n.mean[c];
        float inverse = running ? 1.0f / sqrtf(n.running_var[c] + n.epsilon) : n.inverse_std[c];
        float value = (to_float(x[i]) - mean) * inverse * n.weight[c] + n.bias[c];

        if (residual)
            value += to_float(residual[i]);
        put(&y[i], activate(n.activation, value));
    }
}

static enum status normalise(struct cuda *cuda, const struct batch_norm *n, const void *x,
                             const void *residual, void *y, size_t batch, bool running,
                             struct error *err)
{
    struct norm_shape s = shape_of(n, batch);

    return status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(
                        normalise_kernel<T>, blocks_for(batch * n->channels * n->inner), THREADS, 0,
                        cuda->work, s, *n, static_cast<const T *>(x),
                        static_cast<const T *>(residual), static_cast<T *>(y), running);
                }),
        "normalise kernel", err);
}

static enum status reserve_partials(struct cuda *cuda, const struct norm_shape *s,
                                    struct error *err)
{
    return cuda_reserve(cuda, &cuda->partials, 2 * s->chunks * s->channels * sizeof(float),
                        "partial sums", err);
}

enum status cuda_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                    const void *residual, void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct norm_shape s = shape_of(n, batch);
    enum status status = reserve_partials(cuda, &s, err);

    if (status != STATUS_OK)
        return status;
    status = status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;
                    float *partials = static_cast<float *>(cuda->partials.memory);
                    cudaError_t result =
                        cuda_launch(moments_kernel<T>, dim3((unsigned)s.channels, s.chunks),
                                    THREADS, 0, cuda->work, s, static_cast<const T *>(x), partials);

                    if (result != cudaSuccess)
                        return result;
                    return cuda_launch(statistics_kernel<T>, blocks_for(s.channels), THREADS, 0,
                                       cuda->work, s, *n, static_cast<const T *>(x), partials);
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

template <typename T>
static __global__ void gradient_sums_kernel(struct norm_shape s, struct batch_norm n, const T *x,
                                            const T *dy, float *partials)
{
    float mean = n.mean[blockIdx.x];
    float inverse = n.inverse_std[blockIdx.x];
    float sum = 0.0f;
    float products = 0.0f;

    for_each_value(s, [&](size_t i) {
        float d = to_float(dy[i]);

        sum += d;
        products += d * ((to_float(x[i]) - mean) * inverse);
    });
    keep_sums(s, partials, sum, products);
}

/* The whole sums go to partials' first chunk, for the kernel that follows. */
static __global__ void parameters_kernel(struct norm_shape s, struct batch_norm n, float *partials,
                                         float factor, bool accumulate)
{
    for (size_t c = grid_first(); c < s.channels; c += grid_stride()) {
        float sum = (float)chunk_sum(s, partials, c);
        float products = (float)chunk_sum(s, partials + s.chunks * s.channels, c);

        partials[c] = sum;
        partials[s.chunks * s.channels + c] = products;
        n.dbias[c] = accumulate ? n.dbias[c] + sum * factor : sum * factor;
        n.dweight[c] = accumulate ? n.dweight[c] + products * factor : products * factor;
    }
}

template <typename T>
static __global__ void input_gradient_kernel(struct norm_shape s, struct batch_norm n, const T *x,
                                             const T *dy, T *dx, const float *sums)
{
    size_t count = s.batch * s.channels * s.inner;
    float share = 1.0f / ((float)s.batch * (float)s.inner);

    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        size_t c = i / s.inner % s.channels;
        float normalised = (to_float(x[i]) - n.mean[c]) * n.inverse_std[c];
        float mean = sums[c] * share;
        float product = sums[s.chunks * s.channels + c] * share;

        put(&dx[i],
            n.weight[c] * n.inverse_std[c] * (to_float(dy[i]) - mean - normalised * product));
    }
}

enum status cuda_batch_norm_backward(struct compute *c, const struct batch_norm *n, const void *x,
                                     const void *dy, void *dx, size_t batch,
                                     bool accumulate_parameters, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct norm_shape s = shape_of(n, batch);
    enum status status = reserve_partials(cuda, &s, err);

    if (status != STATUS_OK)
        return status;
    return status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;
                    float *partials = static_cast<float *>(cuda->partials.memory);
                    const T *values = static_cast<const T *>(x);
                    const T *gradient = static_cast<const T *>(dy);
                    cudaError_t result =
                        cuda_launch(gradient_sums_kernel<T>, dim3((unsigned)s.channels, s.chunks),
                                    THREADS, 0, cuda->work, s, *n, values, gradient, partials);

                    if (result == cudaSuccess)
                        result = cuda_launch(parameters_kernel, blocks_for(s.channels), THREADS, 0,
                                             cuda->work, s, *n, partials, cuda_unscale(cuda),
                                             accumulate_parameters);
                    if (result != cudaSuccess)
                        return result;
                    return cuda_launch(
                        input_gradient_kernel<T>, blocks_for(batch * s.channels * s.inner), THREADS,
                        0, cuda->work, s, *n, values, gradient, static_cast<T *>(dx), partials);
                }),
        "batch norm's gradients", err);
}
