/*
 * cuda_layout: conversion between layouts of images and filters. cuDNN's kernels for the tensor
 * cores read images with the channels last, and so do our kernels, in whole packs.  Layouts:
 *
 *   values of images, their gradients, indices of max pooling   (batch, height, width, channels)
 *   images on the host                                          (batch, channels, height, width)
 *   features after a flatten, read by linear layers             (batch, channels * height * width)
 *   weights and their gradients in the slab, 16-bit copies      (filters, channels, k, k)
 *   a weight as cuDNN reads it, a gradient as it writes it      (filters, k, k, channels)
 *
 * The layout changes after the upload, in a flatten, and around cuDNN's calls in scratch memory of
 * one call; for a 1 x 1 kernel both layouts are the same.  Parameters and statistics per channel
 * are not affected.  Images whose channels take fewer than 16 bytes, as in the first convolution,
 * are padded with channels of zeros for cuDNN, also in scratch memory of one call: its kernels for
 * the tensor cores read 16 bytes at a time.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

/* Transpose each matrix (rows, columns) of an array: one thread per index `across`, which processes
 * `along` elements in sequence. */
struct transpose {
    size_t from_count, to_count; /* elements from one matrix to the next */
    unsigned blocks;             /* of a matrix */
    unsigned across, along;
    unsigned from_across, from_along, to_across, to_along; /* elements from one index to the next */
    float factor;
    bool accumulate;
};

/* pitch: elements from row to row, of the source (rows of `columns`) and of the target (rows of
 * `rows`). */
static struct transpose transpose_pitched(size_t rows, size_t columns, size_t from_pitch,
                                          size_t to_pitch)
{
    struct transpose t = {};
    bool tall = rows >= columns;

    t.from_count = rows * from_pitch;
    t.to_count = columns * to_pitch;
    t.across = (unsigned)(tall ? rows : columns);
    t.along = (unsigned)(tall ? columns : rows);
    t.from_across = tall ? (unsigned)from_pitch : 1;
    t.from_along = tall ? 1 : (unsigned)from_pitch;
    t.to_across = tall ? 1 : (unsigned)to_pitch;
    t.to_along = tall ? (unsigned)to_pitch : 1;
    t.factor = 1.0f;
    return t;
}

static struct transpose transpose_dense(size_t rows, size_t columns)
{
    return transpose_pitched(rows, columns, columns, rows);
}

template <typename From, typename To>
static __global__ void transpose_kernel(struct transpose t, const From *from, To *to)
{
    unsigned matrix = blockIdx.x / t.blocks;
    unsigned i = (blockIdx.x - matrix * t.blocks) * blockDim.x + threadIdx.x;

    if (i >= t.across)
        return;
    from += matrix * t.from_count + (size_t)i * t.from_across;
    to += matrix * t.to_count + (size_t)i * t.to_across;
#pragma unroll 4
    for (unsigned j = 0; j < t.along; j++, from += t.from_along, to += t.to_along) {
        float value = to_float(*from) * t.factor;

        store_value(to, t.accumulate ? to_float(*to) + value : value);
    }
}

template <typename From, typename To>
static cudaError_t transpose(struct cuda *cuda, struct transpose t, size_t matrices,
                             const From *from, To *to)
{
    unsigned threads = t.across < THREADS ? (t.across + WARP - 1) / WARP * WARP : THREADS;

    t.blocks = (t.across + threads - 1) / threads;
    return cuda_launch(transpose_kernel<From, To>, (unsigned)(matrices * t.blocks), threads, 0,
                       cuda->work, t, from, to);
}

/* ---- images ---- */

enum status cuda_upload_images(struct compute *c, void *device, const float *host, size_t images,
                               size_t channels, size_t points, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    size_t count = images * channels * points;
    const float *floats = NULL;
    enum status status;

    if (channels == 1 || points == 1)
        return cuda_upload_values(c, device, host, count, err);
    status = cuda_stage_upload(cuda, host, count, &floats, err);
    if (status == STATUS_OK)
        status =
            status_from_cuda(by_type(cuda,
                                     [&](auto tag) {
                                         typedef typename decltype(tag)::type T;

                                         return transpose(cuda, transpose_dense(channels, points),
                                                          images, floats, static_cast<T *>(device));
                                     }),
                             "images kernel", err);
    return status == STATUS_OK ? cuda_upload_ahead_consumed(cuda, err) : status;
}

static enum status transpose_values(struct cuda *cuda, const struct transpose &t, size_t matrices,
                                    const void *from, void *to, struct error *err)
{
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return transpose(cuda, t, matrices,
                                                         static_cast<const T *>(from),
                                                         static_cast<T *>(to));
                                    }),
                            "flatten kernel", err);
}

enum status cuda_flatten_forward(struct compute *c, const void *x, void *y, size_t batch,
                                 size_t channels, size_t inner, struct error *err)
{
    return transpose_values(cuda_of(c), transpose_dense(inner, channels), batch, x, y, err);
}

enum status cuda_flatten_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                                  size_t channels, size_t inner, bool accumulate, struct error *err)
{
    struct transpose t = transpose_dense(channels, inner);

    t.accumulate = accumulate;
    return transpose_values(cuda_of(c), t, batch, dy, dx, err);
}

/* ---- images of few channels ---- */

/* to: 16 bytes per point, zeros after the channels. */
template <typename T>
static __global__ void pad_kernel(const T *x, T *to, size_t points, unsigned channels)
{
    constexpr unsigned N = 16 / sizeof(T);

    for (size_t i = grid_first(); i < points; i += grid_stride()) {
        float values[N] = {};

#pragma unroll
        for (unsigned c = 0; c < N; c++)
            if (c < channels)
                values[c] = to_float(x[i * channels + c]);
        store<N>(to + i * N, values);
    }
}

template <typename T>
static __global__ void unpad_kernel(const T *from, T *x, size_t points, unsigned channels,
                                    bool accumulate)
{
    constexpr unsigned N = 16 / sizeof(T);

    for (size_t i = grid_first(); i < points; i += grid_stride()) {
        float values[N];

        load<N>(values, from + i * N);
#pragma unroll
        for (unsigned c = 0; c < N; c++)
            if (c < channels)
                store_value(&x[i * channels + c],
                            accumulate ? to_float(x[i * channels + c]) + values[c] : values[c]);
    }
}

enum status cuda_pad_channels(struct cuda *cuda, const void *x, void *to, size_t points,
                              size_t channels, struct error *err)
{
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(
                                            pad_kernel<T>, blocks_for(points), THREADS, 0,
                                            cuda->work, static_cast<const T *>(x),
                                            static_cast<T *>(to), points, (unsigned)channels);
                                    }),
                            "pad kernel", err);
}

enum status cuda_unpad_channels(struct cuda *cuda, const void *from, void *x, size_t points,
                                size_t channels, bool accumulate, struct error *err)
{
    return status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(unpad_kernel<T>, blocks_for(points), THREADS, 0, cuda->work,
                                       static_cast<const T *>(from), static_cast<T *>(x), points,
                                       (unsigned)channels, accumulate);
                }),
        "unpad kernel", err);
}

/* ---- weights of convolutions ---- */

enum status cuda_filters_to_values(struct cuda *cuda, const struct convolution *conv,
                                   size_t channels, void *to, struct error *err)
{
    size_t window = conv->kernel * conv->kernel;
    struct transpose t = transpose_pitched(conv->channels, window, window, channels);
    enum status status = STATUS_OK;

    if (channels > conv->channels)
        status = status_from_cuda(
            cudaMemsetAsync(to, 0, conv->filters * window * channels * cuda->value_size,
                            cuda->work),
            "cudaMemsetAsync of a weight", err);
    if (status != STATUS_OK)
        return status;
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return transpose(cuda, t, conv->filters, conv->weight,
                                                         static_cast<T *>(to));
                                    }),
                            "filters kernel", err);
}

enum status cuda_filters_from_values(struct cuda *cuda, const struct convolution *conv,
                                     size_t channels, const void *from, bool accumulate,
                                     struct error *err)
{
    size_t window = conv->kernel * conv->kernel;
    struct transpose t = transpose_pitched(window, conv->channels, channels, window);

    t.factor = cuda_unscale(cuda);
    t.accumulate = accumulate;
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return transpose(cuda, t, conv->filters,
                                                         static_cast<const T *>(from),
                                                         conv->dweight);
                                    }),
                            "filters' gradient kernel", err);
}
