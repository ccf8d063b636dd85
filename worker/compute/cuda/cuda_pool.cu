/*
 * Pooling: a thread per element of the result.  Backward gathers what chose an element instead of
 * scattering, so that no two threads write one place and sums have one order.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

struct pool_shape {
    unsigned height, width, kernel, stride, padding;
    unsigned rows, columns; /* of the output */
};

static struct pool_shape shape_of(const struct pool *p)
{
    struct pool_shape s = {};

    s.height = (unsigned)p->height;
    s.width = (unsigned)p->width;
    s.kernel = (unsigned)p->kernel;
    s.stride = (unsigned)p->stride;
    s.padding = (unsigned)p->padding;
    s.rows = (unsigned)cuda_windows(p->height, p->kernel, p->stride, p->padding);
    s.columns = (unsigned)cuda_windows(p->width, p->kernel, p->stride, p->padding);
    return s;
}

/* ---- maximum ---- */

template <typename T>
static __global__ void max_pool_kernel(struct pool_shape s, const T *x, int32_t *chosen, T *y,
                                       size_t count)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        unsigned column = (unsigned)(i % s.columns);
        unsigned row = (unsigned)(i / s.columns % s.rows);
        const T *image = x + i / s.columns / s.rows * s.height * s.width;
        int top = (int)(row * s.stride) - (int)s.padding;
        int left = (int)(column * s.stride) - (int)s.padding;
        int bottom = min(top + (int)s.kernel, (int)s.height);
        int right = min(left + (int)s.kernel, (int)s.width);
        float best = -INFINITY;
        int at = -1;

        for (int h = max(top, 0); h < bottom; h++) {
            for (int w = max(left, 0); w < right; w++) {
                float value = to_float(image[h * (int)s.width + w]);

                if (at < 0 || value > best || (isnan(value) && !isnan(best))) {
                    best = value;
                    at = h * (int)s.width + w;
                }
            }
        }
        put(&y[i], best);
        chosen[i] = at;
    }
}

enum status cuda_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                  int32_t *chosen, void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct pool_shape s = shape_of(p);
    size_t count = batch * p->channels * s.rows * s.columns;

    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(max_pool_kernel<T>, blocks_for(count),
                                                           THREADS, 0, cuda->work, s,
                                                           static_cast<const T *>(x), chosen,
                                                           static_cast<T *>(y), count);
                                    }),
                            "max_pool kernel", err);
}

/* Windows whose first element is at most `at`, and the first that reaches it. */
static __device__ unsigned window_end(unsigned at, const struct pool_shape &s, unsigned windows)
{
    return min((at + s.padding) / s.stride + 1, windows);
}

static __device__ unsigned window_begin(unsigned at, const struct pool_shape &s)
{
    return at + s.padding < s.kernel ? 0 : (at + s.padding - s.kernel) / s.stride + 1;
}

template <typename T>
static __global__ void max_pool_backward_kernel(struct pool_shape s, const int32_t *chosen,
                                                const T *dy, T *dx, size_t count, bool accumulate)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        int at = (int)(i % ((size_t)s.height * s.width));
        unsigned h = (unsigned)at / s.width;
        unsigned w = (unsigned)at % s.width;
        size_t image = i / ((size_t)s.height * s.width) * s.rows * s.columns;
        float sum = accumulate ? to_float(dx[i]) : 0.0f;

        for (unsigned row = window_begin(h, s); row < window_end(h, s, s.rows); row++) {
            for (unsigned column = window_begin(w, s); column < window_end(w, s, s.columns);
                 column++) {
                size_t from = image + (size_t)row * s.columns + column;

                if (chosen[from] == at)
                    sum += to_float(dy[from]);
            }
        }
        put(&dx[i], sum);
    }
}

enum status cuda_max_pool_backward(struct compute *c, const struct pool *p, const int32_t *chosen,
                                   const void *dy, void *dx, size_t batch, bool accumulate,
                                   struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    size_t count = batch * p->channels * p->height * p->width;

    return status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(max_pool_backward_kernel<T>, blocks_for(count), THREADS, 0,
                                       cuda->work, shape_of(p), chosen, static_cast<const T *>(dy),
                                       static_cast<T *>(dx), count, accumulate);
                }),
        "max_pool_backward kernel", err);
}

/* ---- means ---- */

/* A warp per image. */
template <typename T>
static __global__ void mean_kernel(const T *x, T *y, size_t images, size_t inner)
{
    size_t image = grid_first() / WARP;
    float sum = 0.0f;

    if (image >= images)
        return; /* the whole warp */
    for (size_t i = threadIdx.x % WARP; i < inner; i += WARP)
        sum += to_float(x[image * inner + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        put(&y[image], sum / (float)inner);
}

enum status cuda_mean_forward(struct compute *c, const void *x, void *y, size_t images,
                              size_t inner, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    size_t blocks = (images * WARP + THREADS - 1) / THREADS;

    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(mean_kernel<T>, (unsigned)blocks,
                                                           THREADS, 0, cuda->work,
                                                           static_cast<const T *>(x),
                                                           static_cast<T *>(y), images, inner);
                                    }),
                            "mean kernel", err);
}

template <typename T>
static __global__ void mean_backward_kernel(const T *dy, T *dx, size_t count, size_t inner,
                                            bool accumulate)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        float share = to_float(dy[i / inner]) / (float)inner;

        put(&dx[i], accumulate ? to_float(dx[i]) + share : share);
    }
}

enum status cuda_mean_backward(struct compute *c, const void *dy, void *dx, size_t images,
                               size_t inner, bool accumulate, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(mean_backward_kernel<T>, blocks_for(images * inner), THREADS,
                                       0, cuda->work, static_cast<const T *>(dy),
                                       static_cast<T *>(dx), images * inner, inner, accumulate);
                }),
        "mean_backward kernel", err);
}
