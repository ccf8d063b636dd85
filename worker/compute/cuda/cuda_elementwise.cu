/*
 * Passes over values: activations, epilogues that cuBLASLt lacks, casts, and sums of columns.
 * Kernels move 16 bytes per access where addresses and widths allow it.  Element-wise kernels use a
 * grid-sized stride, so that any count fits any grid.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

/* ---- activations ---- */

static __device__ inline float gelu_slope(float x)
{
    float inner = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
    float tanh_inner = tanhf(inner);
    float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * x * x);

    return 0.5f * (1.0f + tanh_inner) + 0.5f * x * (1.0f - tanh_inner * tanh_inner) * slope;
}

template <int ACTIVATION> static __device__ inline float masked(float saved, float dy)
{
    if (ACTIVATION == ACTIVATION_GELU)
        return dy * gelu_slope(saved);
    return saved <= 0.0f ? 0.0f : dy; /* propagates NaN */
}

/* The first threads process the remainder after the last whole pack, value by value. */
template <typename T, unsigned N, int ACTIVATION>
static __global__ void activation_kernel(const T *saved, T *dy, size_t count)
{
    size_t whole = count / N * N;

    for (size_t i = N * grid_first(); i < whole; i += N * grid_stride()) {
        float k[N], d[N];

        load<N>(k, saved + i);
        load<N>(d, dy + i);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            d[j] = masked<ACTIVATION>(k[j], d[j]);
        store<N>(dy + i, d);
    }
    for (size_t i = whole + grid_first(); i < count; i += grid_stride())
        store_value(&dy[i], masked<ACTIVATION>(to_float(saved[i]), to_float(dy[i])));
}

enum status cuda_activation_backward(struct compute *c, enum activation activation,
                                     const void *saved, void *dy, size_t count, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(
        by_pack(cuda, can_pack(cuda, 0, saved, dy),
                [&](auto tag, auto n) {
                    typedef typename decltype(tag)::type T;
                    constexpr unsigned N = decltype(n)::count;

                    return cuda_launch(activation == ACTIVATION_GELU
                                           ? activation_kernel<T, N, ACTIVATION_GELU>
                                           : activation_kernel<T, N, ACTIVATION_RELU>,
                                       blocks_for((count + N - 1) / N), THREADS, 0, cuda->work,
                                       static_cast<const T *>(saved), static_cast<T *>(dy), count);
                }),
        "activation kernel", err);
}

#define TILE_COLUMNS 32u /* threads, of N columns each */
#define TILE_ROWS    8u

/* Blocks of TILE_COLUMNS x TILE_ROWS threads over (rows, out); rows of y begin `stride` apart. */
template <typename T, unsigned N>
static __global__ void epilogue_kernel(T *y, const T *bias, const T *residual, T *pre, size_t rows,
                                       unsigned out, size_t stride, int activation)
{
    unsigned column = (blockIdx.x * TILE_COLUMNS + threadIdx.x) * N;
    float added[N] = {};

    if (column >= out)
        return;
    if (bias)
        load<N>(added, bias + column);
    for (size_t row = (size_t)blockIdx.y * TILE_ROWS + threadIdx.y; row < rows;
         row += (size_t)gridDim.y * TILE_ROWS) {
        float values[N], residuals[N] = {};

        load<N>(values, y + row * stride + column);
        if (residual)
            load<N>(residuals, residual + row * out + column);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            values[i] += added[i];
        if (pre)
            store<N>(pre + row * out + column, values);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            values[i] = activate(activation, values[i]) + residuals[i];
        store<N>(y + row * stride + column, values);
    }
}

static inline unsigned tiles(size_t count, unsigned each)
{
    return (unsigned)((count + each - 1) / each);
}

enum status cuda_linear_epilogue(struct cuda *cuda, const struct linear *l, const void *residual,
                                 void *pre, void *y, size_t rows, struct error *err)
{
    const void *bias = NULL;
    size_t tall = (rows + TILE_ROWS - 1) / TILE_ROWS;
    enum status status = STATUS_OK;

    if (l->bias)
        status = cuda_parameter(cuda, l->bias, l->out, 1, &bias, err);
    if (status != STATUS_OK)
        return status;
    return status_from_cuda(
        by_pack(
            cuda,
            can_pack(cuda, l->out, bias, residual, pre, y) && can_pack(cuda, linear_stride(l), y),
            [&](auto tag, auto n) {
                typedef typename decltype(tag)::type T;
                constexpr unsigned N = decltype(n)::count;

                return cuda_launch(epilogue_kernel<T, N>,
                                   dim3(tiles(l->out, TILE_COLUMNS * N),
                                        (unsigned)(tall < BLOCKS_MAX ? tall : BLOCKS_MAX)),
                                   dim3(TILE_COLUMNS, TILE_ROWS), 0, cuda->work,
                                   static_cast<T *>(y), static_cast<const T *>(bias),
                                   static_cast<const T *>(residual), static_cast<T *>(pre), rows,
                                   (unsigned)l->out, linear_stride(l), (int)l->activation);
            }),
        "bias and activation kernel", err);
}

/* ---- sums of columns ---- */

#define CHUNKS_MAX 64u  /* of rows, each summed by separate blocks */
#define CHUNK_ROWS 128u /* at least */

/* A block sums 32 N columns of one chunk of rows: each of its 8 warps every 8th row, adjacent
 * threads adjacent columns; the first warp adds the 8 partial sums. */
template <typename T, unsigned N>
static __global__ void column_sums_kernel(const T *dy, float *sums, size_t rows, unsigned out,
                                          size_t stride, size_t chunk_rows, float factor,
                                          bool accumulate)
{
    __shared__ float partial[TILE_ROWS][N][TILE_COLUMNS];
    unsigned column = (blockIdx.x * TILE_COLUMNS + threadIdx.x) * N;
    size_t begin = blockIdx.y * chunk_rows;
    size_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
    float sum[N] = {};

    if (column < out) {
#pragma unroll 4
        for (size_t row = begin + threadIdx.y; row < end; row += TILE_ROWS) {
            float d[N];

            load<N>(d, dy + row * stride + column);
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                sum[i] += d[i];
        }
    }
#pragma unroll
    for (unsigned i = 0; i < N; i++)
        partial[threadIdx.y][i][threadIdx.x] = sum[i];
    __syncthreads();
    if (threadIdx.y > 0 || column >= out)
        return;
    sums += (size_t)blockIdx.y * out + column;
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        for (unsigned k = 1; k < TILE_ROWS; k++)
            sum[i] += partial[k][i][threadIdx.x];
        sums[i] = accumulate ? sums[i] + sum[i] * factor : sum[i] * factor;
    }
}

#define CHUNK_WARPS 32u

/* A block sums 32 columns; each of its warps every CHUNK_WARPS-th chunk. */
static __global__ void __launch_bounds__(CHUNK_WARPS *TILE_COLUMNS)
    add_chunks_kernel(const float *partials, float *sums, unsigned chunks, unsigned out,
                      float factor, bool accumulate)
{
    __shared__ float partial[CHUNK_WARPS][TILE_COLUMNS];
    unsigned column = blockIdx.x * TILE_COLUMNS + threadIdx.x;
    float sum = 0.0f;

    if (column < out) {
#pragma unroll 4
        for (unsigned k = threadIdx.y; k < chunks; k += CHUNK_WARPS)
            sum += partials[(size_t)k * out + column];
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= out)
        return;
    for (unsigned k = 1; k < CHUNK_WARPS; k++)
        sum += partial[k][threadIdx.x];
    sums[column] = accumulate ? sums[column] + sum * factor : sum * factor;
}

enum status cuda_add_chunks(struct cuda *cuda, const float *partials, float *sums, size_t chunks,
                            size_t out, bool accumulate, struct error *err)
{
    return status_from_cuda(cuda_launch(add_chunks_kernel, tiles(out, TILE_COLUMNS),
                                        dim3(TILE_COLUMNS, CHUNK_WARPS), 0, cuda->work, partials,
                                        sums, (unsigned)chunks, (unsigned)out, cuda_unscale(cuda),
                                        accumulate),
                            "add_chunks kernel", err);
}

size_t cuda_chunk_rows(size_t rows)
{
    size_t chunk = (rows + CHUNKS_MAX - 1) / CHUNKS_MAX;

    return chunk < CHUNK_ROWS ? CHUNK_ROWS : chunk;
}

enum status cuda_column_sums(struct cuda *cuda, const void *dy, float *sums, size_t rows,
                             size_t out, size_t stride, bool accumulate, struct error *err)
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
        by_pack(cuda, can_pack(cuda, out, dy) && can_pack(cuda, stride, dy),
                [&](auto tag, auto n) {
                    typedef typename decltype(tag)::type T;
                    constexpr unsigned N = decltype(n)::count;

                    return cuda_launch(column_sums_kernel<T, N>,
                                       dim3(tiles(out, TILE_COLUMNS * N), (unsigned)chunks),
                                       dim3(TILE_COLUMNS, TILE_ROWS), 0, cuda->work,
                                       static_cast<const T *>(dy), partials, rows, (unsigned)out,
                                       stride, chunk_rows, direct ? cuda_unscale(cuda) : 1.0f,
                                       direct && accumulate);
                }),
        "column_sums kernel", err);
    if (status == STATUS_OK && !direct)
        status = cuda_add_chunks(cuda, partials, sums, chunks, out, accumulate, err);
    return status;
}

/* ---- casts ---- */

template <unsigned N, typename FROM, typename TO>
static __global__ void cast_kernel(const FROM *from, TO *to, size_t count)
{
    size_t whole = count / N * N;

    for (size_t i = N * grid_first(); i < whole; i += N * grid_stride()) {
        float values[N];

        load<N>(values, from + i);
        store<N>(to + i, values);
    }
    for (size_t i = whole + grid_first(); i < count; i += grid_stride())
        store_value(&to[i], to_float(from[i]));
}

enum status cuda_to_float(struct cuda *cuda, const void *values, float *to, size_t count,
                          struct error *err)
{
    return status_from_cuda(by_pack(cuda, can_pack(cuda, 0, values, to),
                                    [&](auto tag, auto n) {
                                        typedef typename decltype(tag)::type T;
                                        constexpr unsigned N = decltype(n)::count;

                                        return cuda_launch(
                                            cast_kernel<N, T, float>,
                                            blocks_for((count + N - 1) / N), THREADS, 0, cuda->work,
                                            static_cast<const T *>(values), to, count);
                                    }),
                            "to_float kernel", err);
}

enum status cuda_from_float(struct cuda *cuda, const float *from, void *values, size_t count,
                            struct error *err)
{
    return status_from_cuda(by_pack(cuda, can_pack(cuda, 0, from, values),
                                    [&](auto tag, auto n) {
                                        typedef typename decltype(tag)::type T;
                                        constexpr unsigned N = decltype(n)::count;

                                        return cuda_launch(cast_kernel<N, float, T>,
                                                           blocks_for((count + N - 1) / N), THREADS,
                                                           0, cuda->work, from,
                                                           static_cast<T *>(values), count);
                                    }),
                            "from_float kernel", err);
}

enum status cuda_parameter(struct cuda *cuda, const float *parameter, size_t count,
                           unsigned cast_index, const void **ret, struct error *err)
{
    struct cuda_scratch *s = &cuda->cast[cast_index];
    enum status status;

    *ret = parameter;
    if (cuda->type == CUDA_R_32F)
        return STATUS_OK;
    *ret = cuda_param_copy(cuda, parameter);
    if (*ret)
        return STATUS_OK;
    status = cuda_reserve(cuda, s, count * cuda->value_size, "a 16-bit parameter", err);
    *ret = s->memory;
    return status == STATUS_OK ? cuda_from_float(cuda, parameter, s->memory, count, err) : status;
}
