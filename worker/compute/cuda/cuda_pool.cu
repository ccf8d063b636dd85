/*
 * Pooling of images with the channels last: a thread per pack of channels of a point.  A block
 * processes one row of an image, so that no thread divides to find its position.  Backward gathers
 * the outputs whose maximum is an element instead of scattering, so that no two threads write the
 * same element and the order of sums is fixed.
 */
#include "worker/compute/cuda/cuda_rows.cuh"

struct pool_shape {
    unsigned channels, packs;
    unsigned height, width, kernel, stride, padding;
    unsigned rows, columns; /* of the output */
};

static struct pool_shape shape_of(const struct pool *p, unsigned pack)
{
    struct pool_shape s = {};

    s.channels = (unsigned)p->channels;
    s.packs = s.channels / pack;
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

/* The maximum over rows [top, bottom) and columns [left, right) of the image, and its index. */
template <typename T, unsigned N>
static __device__ inline void window_maximum(const struct pool_shape &s, const T *image, int top,
                                             int bottom, int left, int right, float (&best)[N],
                                             pack<int32_t, N> *argmax)
{
    for (int h = top; h < bottom; h++) {
        for (int w = left; w < right; w++) {
            int point = h * (int)s.width + w;
            bool first = h == top && w == left;
            float values[N];

            load<N>(values, image + (size_t)point * s.channels);
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                if (first || values[i] > best[i] || (isnan(values[i]) && !isnan(best[i]))) {
                    best[i] = values[i];
                    argmax->at[i] = point;
                }
            }
        }
    }
}

/* A block per row of the output. */
template <typename T, unsigned N>
static __global__ void max_pool_kernel(struct pool_shape s, const T *x, int32_t *argmax, T *y)
{
    unsigned image = blockIdx.x / s.rows;
    unsigned row = blockIdx.x - image * s.rows;
    int top = (int)(row * s.stride) - (int)s.padding;
    int bottom = min(top + (int)s.kernel, (int)s.height);
    size_t out = (size_t)blockIdx.x * s.columns * s.channels;

    x += (size_t)image * s.height * s.width * s.channels;
    for (unsigned column = threadIdx.y; column < s.columns; column += blockDim.y) {
        int left = (int)(column * s.stride) - (int)s.padding;
        int right = min(left + (int)s.kernel, (int)s.width);

        for (unsigned p = threadIdx.x; p < s.packs; p += blockDim.x) {
            size_t to = out + (size_t)column * s.channels + p * N;
            float best[N] = {};
            pack<int32_t, N> from = {};

            window_maximum<T, N>(s, x + p * N, max(top, 0), bottom, max(left, 0), right, best,
                                 &from);
            store<N>(y + to, best);
            *reinterpret_cast<pack<int32_t, N> *>(argmax + to) = from;
        }
    }
}

enum status cuda_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                  int32_t *argmax, void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(by_pack(cuda, can_pack(cuda, p->channels, x, argmax, y),
                                    [&](auto tag, auto size) {
                                        typedef typename decltype(tag)::type T;
                                        constexpr unsigned N = decltype(size)::count;
                                        struct pool_shape s = shape_of(p, N);

                                        return cuda_launch(
                                            max_pool_kernel<T, N>, (unsigned)(batch * s.rows),
                                            rows_block(s.packs), 0, cuda->work, s,
                                            static_cast<const T *>(x), argmax, static_cast<T *>(y));
                                    }),
                            "max_pool kernel", err);
}

/* The end of the windows that begin at or before `at`, and the first window that reaches it. */
static __device__ unsigned window_end(unsigned at, const struct pool_shape &s, unsigned windows)
{
    return min((at + s.padding) / s.stride + 1, windows);
}

static __device__ unsigned window_begin(unsigned at, const struct pool_shape &s)
{
    return at + s.padding < s.kernel ? 0 : (at + s.padding - s.kernel) / s.stride + 1;
}

/* A block per row of the input. */
template <typename T, unsigned N>
static __global__ void max_pool_backward_kernel(struct pool_shape s, const int32_t *argmax,
                                                const T *dy, T *dx, bool accumulate)
{
    unsigned image = blockIdx.x / s.height;
    unsigned h = blockIdx.x - image * s.height;
    unsigned top = window_begin(h, s);
    unsigned bottom = window_end(h, s, s.rows);

    for (unsigned w = threadIdx.y; w < s.width; w += blockDim.y) {
        int point = (int)(h * s.width + w);
        unsigned left = window_begin(w, s);
        unsigned right = window_end(w, s, s.columns);

        for (unsigned p = threadIdx.x; p < s.packs; p += blockDim.x) {
            size_t to = ((size_t)blockIdx.x * s.width + w) * s.channels + p * N;
            float sums[N] = {};

            if (accumulate)
                load<N>(sums, dx + to);
            for (unsigned row = top; row < bottom; row++) {
                for (unsigned column = left; column < right; column++) {
                    size_t at =
                        (((size_t)image * s.rows + row) * s.columns + column) * s.channels + p * N;
                    const pack<int32_t, N> from =
                        *reinterpret_cast<const pack<int32_t, N> *>(argmax + at);
                    float d[N];

                    load<N>(d, dy + at);
#pragma unroll
                    for (unsigned i = 0; i < N; i++)
                        sums[i] += from.at[i] == point ? d[i] : 0.0f;
                }
            }
            store<N>(dx + to, sums);
        }
    }
}

enum status cuda_max_pool_backward(struct compute *c, const struct pool *p, const int32_t *argmax,
                                   const void *dy, void *dx, size_t batch, bool accumulate,
                                   struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(by_pack(cuda, can_pack(cuda, p->channels, argmax, dy, dx),
                                    [&](auto tag, auto size) {
                                        typedef typename decltype(tag)::type T;
                                        constexpr unsigned N = decltype(size)::count;
                                        struct pool_shape s = shape_of(p, N);

                                        return cuda_launch(max_pool_backward_kernel<T, N>,
                                                           (unsigned)(batch * s.height),
                                                           rows_block(s.packs), 0, cuda->work, s,
                                                           argmax, static_cast<const T *>(dy),
                                                           static_cast<T *>(dx), accumulate);
                                    }),
                            "max_pool_backward kernel", err);
}

/* ---- means ---- */

static dim3 means_grid(size_t batch, size_t packs)
{
    unsigned x = rows_block(packs).x;

    return dim3((unsigned)batch, (unsigned)((packs + x - 1) / x));
}

/* The pack of channels of a thread in a block of means_grid; may be past the last. */
static __device__ inline unsigned means_pack()
{
    return blockIdx.y * blockDim.x + threadIdx.x;
}

template <typename T, unsigned N>
static __global__ void mean_kernel(const T *x, T *y, unsigned channels, unsigned inner)
{
    bool mine = means_pack() < channels / N;
    float sums[N] = {};

    if (mine) {
        x += (size_t)blockIdx.x * inner * channels + means_pack() * N;
#pragma unroll 4
        for (unsigned i = threadIdx.y; i < inner; i += blockDim.y) {
            float values[N];

            load<N>(values, x + (size_t)i * channels);
#pragma unroll
            for (unsigned k = 0; k < N; k++)
                sums[k] += values[k];
        }
    }
    column_sums<N>(sums);
    if (!mine || threadIdx.y > 0)
        return;
#pragma unroll
    for (unsigned k = 0; k < N; k++)
        sums[k] /= (float)inner;
    store<N>(y + (size_t)blockIdx.x * channels + means_pack() * N, sums);
}

enum status cuda_mean_forward(struct compute *c, const void *x, void *y, size_t batch,
                              size_t channels, size_t inner, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(by_pack(cuda, can_pack(cuda, channels, x, y),
                                    [&](auto tag, auto size) {
                                        typedef typename decltype(tag)::type T;
                                        constexpr unsigned N = decltype(size)::count;

                                        return cuda_launch(
                                            mean_kernel<T, N>, means_grid(batch, channels / N),
                                            rows_block(channels / N), 0, cuda->work,
                                            static_cast<const T *>(x), static_cast<T *>(y),
                                            (unsigned)channels, (unsigned)inner);
                                    }),
                            "mean kernel", err);
}

template <typename T, unsigned N>
static __global__ void mean_backward_kernel(const T *dy, T *dx, unsigned channels, unsigned inner,
                                            bool accumulate)
{
    float share[N];

    if (means_pack() >= channels / N)
        return;
    load<N>(share, dy + (size_t)blockIdx.x * channels + means_pack() * N);
#pragma unroll
    for (unsigned k = 0; k < N; k++)
        share[k] /= (float)inner;
    dx += (size_t)blockIdx.x * inner * channels + means_pack() * N;
    for (unsigned i = threadIdx.y; i < inner; i += blockDim.y) {
        float sums[N] = {};

        if (accumulate)
            load<N>(sums, dx + (size_t)i * channels);
#pragma unroll
        for (unsigned k = 0; k < N; k++)
            sums[k] += share[k];
        store<N>(dx + (size_t)i * channels, sums);
    }
}

enum status cuda_mean_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                               size_t channels, size_t inner, bool accumulate, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(
        by_pack(cuda, can_pack(cuda, channels, dy, dx),
                [&](auto tag, auto size) {
                    typedef typename decltype(tag)::type T;
                    constexpr unsigned N = decltype(size)::count;

                    return cuda_launch(mean_backward_kernel<T, N>, means_grid(batch, channels / N),
                                       rows_block(channels / N), 0, cuda->work,
                                       static_cast<const T *>(dy), static_cast<T *>(dx),
                                       (unsigned)channels, (unsigned)inner, accumulate);
                }),
        "mean_backward kernel", err);
}
