/*
 * Passes over values: activations, what cuBLASLt's epilogues do where it has none, casts, and sums
 * of columns.  Element-wise kernels walk their array with a grid-sized stride, so that any count
 * fits in any grid.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

/* ---- activations ---- */

template <typename T> static __global__ void relu_backward_kernel(const T *y, T *dy, size_t count)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        if (to_float(y[i]) <= 0.0f)
            put(&dy[i], 0.0f);
}

template <typename T> static __global__ void gelu_backward_kernel(const T *pre, T *dy, size_t count)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        float x = to_float(pre[i]);
        float inner = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
        float tanh_inner = tanhf(inner);
        float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * x * x);
        float derivative =
            0.5f * (1.0f + tanh_inner) + 0.5f * x * (1.0f - tanh_inner * tanh_inner) * slope;

        put(&dy[i], to_float(dy[i]) * derivative);
    }
}

enum status cuda_activation_backward(struct compute *c, enum activation activation,
                                     const void *kept, void *dy, size_t count, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(activation == ACTIVATION_GELU ? gelu_backward_kernel<T>
                                                                     : relu_backward_kernel<T>,
                                       blocks_for(count), THREADS, 0, cuda->work,
                                       static_cast<const T *>(kept), static_cast<T *>(dy), count);
                }),
        "activation kernel", err);
}

template <typename T>
static __global__ void finish_kernel(T *y, const T *bias, const T *residual, T *pre, size_t count,
                                     size_t out, int activation)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        float value = to_float(y[i]);

        if (bias)
            value += to_float(bias[i % out]);
        if (pre)
            put(&pre[i], value);
        value = activate(activation, value);
        if (residual)
            value += to_float(residual[i]);
        put(&y[i], value);
    }
}

enum status cuda_finish_linear(struct cuda *cuda, const struct linear *l, const void *residual,
                               void *pre, void *y, size_t rows, struct error *err)
{
    const void *bias = NULL;
    enum status status = STATUS_OK;

    if (l->bias)
        status = cuda_parameter(cuda, l->bias, l->out, 1, &bias, err);
    if (status != STATUS_OK)
        return status;
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(
                                            finish_kernel<T>, blocks_for(rows * l->out), THREADS, 0,
                                            cuda->work, static_cast<T *>(y),
                                            static_cast<const T *>(bias),
                                            static_cast<const T *>(residual), static_cast<T *>(pre),
                                            rows * l->out, l->out, (int)l->activation);
                                    }),
                            "bias and activation kernel", err);
}

/* ---- sums of columns ---- */

#define TILE_COLUMNS 32u
#define TILE_ROWS    8u
#define CHUNKS_MAX   64u  /* of rows, each summed by blocks of its own */
#define CHUNK_ROWS   128u /* at least */

/* A block owns 32 columns of one chunk of rows; its 8 warps take every 8th row each, neighbouring
 * threads neighbouring columns, and the first warp adds the 8 partial sums. */
template <typename T>
static __global__ void column_sums_kernel(const T *dy, float *sums, size_t rows, size_t out,
                                          size_t chunk_rows, float factor, bool accumulate)
{
    __shared__ float partial[TILE_ROWS][TILE_COLUMNS];
    size_t column = (size_t)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    size_t begin = blockIdx.y * chunk_rows;
    size_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
    float sum = 0.0f;

    if (column < out)
        for (size_t row = begin + threadIdx.y; row < end; row += TILE_ROWS)
            sum += to_float(dy[row * out + column]);
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= out)
        return;
    for (unsigned k = 1; k < TILE_ROWS; k++)
        sum += partial[k][threadIdx.x];
    sums += blockIdx.y * out;
    sums[column] = accumulate ? sums[column] + sum * factor : sum * factor;
}

static __global__ void add_chunks_kernel(const float *partials, float *sums, size_t chunks,
                                         size_t out, float factor, bool accumulate)
{
    for (size_t column = grid_first(); column < out; column += grid_stride()) {
        float sum = 0.0f;

        for (size_t k = 0; k < chunks; k++)
            sum += partials[k * out + column];
        sums[column] = accumulate ? sums[column] + sum * factor : sum * factor;
    }
}

enum status cuda_add_chunks(struct cuda *cuda, const float *partials, float *sums, size_t chunks,
                            size_t out, bool accumulate, struct error *err)
{
    return status_from_cuda(cuda_launch(add_chunks_kernel, blocks_for(out), THREADS, 0, cuda->work,
                                        partials, sums, chunks, out, cuda_unscale(cuda),
                                        accumulate),
                            "add_chunks kernel", err);
}

size_t cuda_chunk_rows(size_t rows)
{
    size_t chunk = (rows + CHUNKS_MAX - 1) / CHUNKS_MAX;

    return chunk < CHUNK_ROWS ? CHUNK_ROWS : chunk;
}

enum status cuda_column_sums(struct cuda *cuda, const void *dy, float *sums, size_t rows,
                             size_t out, bool accumulate, struct error *err)
{
    size_t chunk_rows = cuda_chunk_rows(rows);
    size_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    bool direct = chunks == 1;
    float *partials = sums;
    enum status status = STATUS_OK;

    if (!direct) {
        status =
            cuda_reserve(cuda, &cuda->partials, chunks * out * sizeof(float), "partial sums", err);
        partials = static_cast<float *>(cuda->partials.memory);
    }
    if (status != STATUS_OK)
        return status;
    status = status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(
                        column_sums_kernel<T>,
                        dim3((unsigned)((out + TILE_COLUMNS - 1) / TILE_COLUMNS), (unsigned)chunks),
                        dim3(TILE_COLUMNS, TILE_ROWS), 0, cuda->work, static_cast<const T *>(dy),
                        partials, rows, out, chunk_rows, direct ? cuda_unscale(cuda) : 1.0f,
                        direct && accumulate);
                }),
        "column_sums kernel", err);
    if (status == STATUS_OK && !direct)
        status = cuda_add_chunks(cuda, partials, sums, chunks, out, accumulate, err);
    return status;
}

/* ---- casts ---- */

template <typename T>
static __global__ void to_float_kernel(const T *values, float *to, size_t count)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        to[i] = to_float(values[i]);
}

template <typename T>
static __global__ void from_float_kernel(const float *from, T *values, size_t count)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        put(&values[i], from[i]);
}

enum status cuda_to_float(struct cuda *cuda, const void *values, float *to, size_t count,
                          struct error *err)
{
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(
                                            to_float_kernel<T>, blocks_for(count), THREADS, 0,
                                            cuda->work, static_cast<const T *>(values), to, count);
                                    }),
                            "to_float kernel", err);
}

enum status cuda_from_float(struct cuda *cuda, const float *from, void *values, size_t count,
                            struct error *err)
{
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(from_float_kernel<T>, blocks_for(count),
                                                           THREADS, 0, cuda->work, from,
                                                           static_cast<T *>(values), count);
                                    }),
                            "from_float kernel", err);
}

enum status cuda_parameter(struct cuda *cuda, const float *parameter, size_t count, unsigned slot,
                           const void **ret, struct error *err)
{
    struct cuda_scratch *s = &cuda->cast[slot];
    enum status status;

    *ret = parameter;
    if (cuda->type == CUDA_R_32F)
        return STATUS_OK;
    *ret = cuda_shadow(cuda, parameter);
    if (*ret)
        return STATUS_OK;
    status = cuda_reserve(cuda, s, count * cuda->value_size, "a 16-bit parameter", err);
    *ret = s->memory;
    return status == STATUS_OK ? cuda_from_float(cuda, parameter, s->memory, count, err) : status;
}
