/*
 * Layer normalisation: a warp per row.  A row of at most ROW_MAX values that begins at a multiple
 * of 16 bytes is held in registers, so each value is read once; backward then computes all
 * gradients in one pass, those of weight and bias first as sums over each block's rows.  Other rows
 * are read again for every use, and the sums run over chunks of rows, as for a linear layer's bias.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#define TILE_COLUMNS 32u
#define TILE_ROWS    8u
#define LANE_VALUES  32u                  /* of a row in a thread's registers */
#define ROW_MAX      (WARP * LANE_VALUES) /* values */
#define BACK_WARPS   4u                   /* of a block: limited by registers */
#define BACK_BLOCKS  384u                 /* at most */

/* ---- rows in registers: lane l has the packs l, l + 32, ... of N values ---- */

template <unsigned N> static __device__ inline unsigned column_of(unsigned k)
{
    return (k * WARP + threadIdx.x % WARP) * N;
}

/* Zeros after the row's end. */
template <unsigned N, typename T>
static __device__ inline void load_row(float (&to)[LANE_VALUES], const T *row, unsigned width)
{
#pragma unroll
    for (unsigned k = 0; k < LANE_VALUES / N; k++) {
        if (column_of<N>(k) < width) {
            load<N>(to + k * N, row + column_of<N>(k));
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                to[k * N + i] = 0.0f;
        }
    }
}

template <typename T, unsigned N>
static __global__ void __launch_bounds__(THREADS)
    row_forward_kernel(struct layer_norm n, const T *x, T *y, size_t rows)
{
    size_t row = grid_first() / WARP;
    unsigned width = (unsigned)n.width;
    float values[LANE_VALUES];
    float mean = 0.0f;
    float var = 0.0f;
    float inverse;

    if (row >= rows)
        return; /* the whole warp */
    load_row<N>(values, x + row * width, width);
#pragma unroll
    for (unsigned i = 0; i < LANE_VALUES; i++)
        mean += values[i];
    mean = warp_sum(mean) / (float)width;
#pragma unroll
    for (unsigned i = 0; i < LANE_VALUES; i++) {
        float d = values[i] - mean;

        var += column_of<N>(i / N) < width ? d * d : 0.0f;
    }
    var = warp_sum(var) / (float)width;
    inverse = 1.0f / sqrtf(var + n.epsilon);
#pragma unroll
    for (unsigned k = 0; k < LANE_VALUES / N; k++) {
        unsigned column = column_of<N>(k);
        float weight[N], bias[N];

        if (column >= width)
            break;
        load<N>(weight, n.weight + column);
        load<N>(bias, n.bias + column);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            values[k * N + i] = (values[k * N + i] - mean) * inverse * weight[i] + bias[i];
        store<N>(y + row * width + column, values + k * N);
    }
    if (threadIdx.x % WARP == 0) {
        n.mean[row] = mean;
        n.inverse_std[row] = inverse;
    }
}

/* A thread's columns of the gradients of weight and bias, over its warp's rows. */
struct column_sums {
    float weight[LANE_VALUES], bias[LANE_VALUES];
};

/* One row; dx may be dy. */
template <typename T, unsigned N>
static __device__ inline void row_backward(const struct layer_norm &n, const T *x, const T *dy,
                                           T *dx, size_t row, bool accumulate,
                                           struct column_sums *sums)
{
    unsigned width = (unsigned)n.width;
    float normalised[LANE_VALUES], d[LANE_VALUES];
    float mean = n.mean[row];
    float inverse = n.inverse_std[row];
    float sum = 0.0f;
    float products = 0.0f;

    load_row<N>(normalised, x + row * width, width);
    load_row<N>(d, dy + row * width, width);
#pragma unroll
    for (unsigned k = 0; k < LANE_VALUES / N; k++) {
        float weight[N] = {};

        if (column_of<N>(k) < width)
            load<N>(weight, n.weight + column_of<N>(k));
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            unsigned v = k * N + i;

            normalised[v] = (normalised[v] - mean) * inverse;
            sums->bias[v] += d[v];
            sums->weight[v] += d[v] * normalised[v];
            d[v] *= weight[i];
            sum += d[v];
            products += d[v] * normalised[v];
        }
    }
    sum = warp_sum(sum) / (float)width;
    products = warp_sum(products) / (float)width;
#pragma unroll
    for (unsigned k = 0; k < LANE_VALUES / N; k++) {
        T *to = dx + row * width + column_of<N>(k);
        float before[N] = {};

        if (column_of<N>(k) >= width)
            break;
        if (accumulate)
            load<N>(before, to);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            before[i] += (d[k * N + i] - sum - normalised[k * N + i] * products) * inverse;
        store<N>(to, before);
    }
}

/* partials (2: weight, bias; blocks, width): the warps' sums, added in the order of the warps. */
template <typename T, unsigned N>
static __global__ void __launch_bounds__(BACK_WARPS *WARP)
    row_backward_kernel(struct layer_norm n, const T *x, const T *dy, T *dx, size_t rows,
                        bool accumulate, float *partials)
{
    __shared__ float shared[2][ROW_MAX];
    unsigned width = (unsigned)n.width;
    unsigned warp = threadIdx.x / WARP;
    struct column_sums sums = {};

    for (size_t row = blockIdx.x * BACK_WARPS + warp; row < rows; row += gridDim.x * BACK_WARPS)
        row_backward<T, N>(n, x, dy, dx, row, accumulate, &sums);
    for (unsigned turn = 0; turn < BACK_WARPS; turn++) {
#pragma unroll
        for (unsigned v = 0; v < LANE_VALUES; v++) {
            unsigned column = column_of<N>(v / N) + v % N;

            if (turn != warp || column >= width)
                continue;
            shared[0][column] = sums.weight[v] + (turn > 0 ? shared[0][column] : 0.0f);
            shared[1][column] = sums.bias[v] + (turn > 0 ? shared[1][column] : 0.0f);
        }
        __syncthreads();
    }
    for (unsigned column = threadIdx.x; column < width; column += BACK_WARPS * WARP) {
        partials[(size_t)blockIdx.x * width + column] = shared[0][column];
        partials[(size_t)(gridDim.x + blockIdx.x) * width + column] = shared[1][column];
    }
}

/* ---- any rows ---- */

static unsigned row_blocks(size_t rows)
{
    return (unsigned)((rows * WARP + THREADS - 1) / THREADS);
}

/* Two passes over the row, which stays in the cache: the variance uses deviations from the mean. */
template <typename T>
static __global__ void layer_norm_kernel(struct layer_norm n, const T *x, T *y, size_t rows)
{
    size_t row = grid_first() / WARP;
    unsigned lane = threadIdx.x % WARP;
    float mean = 0.0f;
    float var = 0.0f;
    float inverse;

    if (row >= rows)
        return; /* the whole warp */
    x += row * n.width;
    y += row * n.width;
    for (size_t i = lane; i < n.width; i += WARP)
        mean += to_float(x[i]);
    mean = warp_sum(mean) / (float)n.width;
    for (size_t i = lane; i < n.width; i += WARP) {
        float d = to_float(x[i]) - mean;

        var += d * d;
    }
    var = warp_sum(var) / (float)n.width;
    inverse = 1.0f / sqrtf(var + n.epsilon);
    for (size_t i = lane; i < n.width; i += WARP)
        store_value(&y[i], (to_float(x[i]) - mean) * inverse * n.weight[i] + n.bias[i]);
    if (lane == 0) {
        n.mean[row] = mean;
        n.inverse_std[row] = inverse;
    }
}

enum status cuda_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                    void *y, size_t rows, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    bool held = n->width <= ROW_MAX && can_pack(cuda, n->width, x, y, n->weight, n->bias);

    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(
                                            held ? row_forward_kernel<T, 16 / sizeof(T)>
                                                 : layer_norm_kernel<T>,
                                            row_blocks(rows), THREADS, 0, cuda->work, *n,
                                            static_cast<const T *>(x), static_cast<T *>(y), rows);
                                    }),
                            "layer_norm kernel", err);
}

/* dx may be dy: a row is read before it is written. */
template <typename T>
static __global__ void input_gradient_kernel(struct layer_norm n, const T *x, const T *dy, T *dx,
                                             size_t rows, bool accumulate)
{
    size_t row = grid_first() / WARP;
    unsigned lane = threadIdx.x % WARP;
    float sum = 0.0f;
    float products = 0.0f;
    float mean, inverse;

    if (row >= rows)
        return; /* the whole warp */
    mean = n.mean[row];
    inverse = n.inverse_std[row];
    x += row * n.width;
    dy += row * n.width;
    dx += row * n.width;
    for (size_t i = lane; i < n.width; i += WARP) {
        float d = to_float(dy[i]) * n.weight[i];

        sum += d;
        products += d * ((to_float(x[i]) - mean) * inverse);
    }
    sum = warp_sum(sum) / (float)n.width;
    products = warp_sum(products) / (float)n.width;
    for (size_t i = lane; i < n.width; i += WARP) {
        float normalised = (to_float(x[i]) - mean) * inverse;
        float d = (to_float(dy[i]) * n.weight[i] - sum - normalised * products) * inverse;

        store_value(&dx[i], accumulate ? to_float(dx[i]) + d : d);
    }
}

/* A block sums 32 columns of one chunk of rows; partials (2: weight, bias; chunks, width). */
template <typename T>
static __global__ void parameter_sums_kernel(struct layer_norm n, const T *x, const T *dy,
                                             float *partials, size_t rows, size_t chunk_rows)
{
    __shared__ float weights[TILE_ROWS][TILE_COLUMNS];
    __shared__ float biases[TILE_ROWS][TILE_COLUMNS];
    size_t column = (size_t)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    size_t begin = blockIdx.y * chunk_rows;
    size_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
    float weight = 0.0f;
    float bias = 0.0f;

    for (size_t row = begin + threadIdx.y; row < end && column < n.width; row += TILE_ROWS) {
        float d = to_float(dy[row * n.width + column]);

        bias += d;
        weight += d * ((to_float(x[row * n.width + column]) - n.mean[row]) * n.inverse_std[row]);
    }
    weights[threadIdx.y][threadIdx.x] = weight;
    biases[threadIdx.y][threadIdx.x] = bias;
    __syncthreads();
    if (threadIdx.y > 0 || column >= n.width)
        return;
    for (unsigned k = 1; k < TILE_ROWS; k++) {
        weight += weights[k][threadIdx.x];
        bias += biases[k][threadIdx.x];
    }
    partials[blockIdx.y * n.width + column] = weight;
    partials[(gridDim.y + blockIdx.y) * n.width + column] = bias;
}

/* partials (2: weight, bias; chunks, width). */
static enum status add_partials(struct cuda *cuda, const struct layer_norm *n,
                                const float *partials, size_t chunks, bool accumulate,
                                struct error *err)
{
    enum status status =
        cuda_add_chunks(cuda, partials, n->dweight, chunks, n->width, accumulate, err);

    if (status == STATUS_OK)
        status = cuda_add_chunks(cuda, partials + chunks * n->width, n->dbias, chunks, n->width,
                                 accumulate, err);
    return status;
}

static enum status parameter_gradients(struct cuda *cuda, const struct layer_norm *n, const void *x,
                                       const void *dy, size_t rows, bool accumulate,
                                       struct error *err)
{
    size_t chunk_rows = cuda_chunk_rows(rows);
    size_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    enum status status = cuda_reserve(cuda, &cuda->partials, 2 * chunks * n->width * sizeof(float),
                                      "partial sums", err);
    float *partials = static_cast<float *>(cuda->partials.memory);

    if (status != STATUS_OK)
        return status;
    status = status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(
                        parameter_sums_kernel<T>,
                        dim3((unsigned)((n->width + TILE_COLUMNS - 1) / TILE_COLUMNS),
                             (unsigned)chunks),
                        dim3(TILE_COLUMNS, TILE_ROWS), 0, cuda->work, *n, static_cast<const T *>(x),
                        static_cast<const T *>(dy), partials, rows, chunk_rows);
                }),
        "layer norm's parameter sums", err);
    return status == STATUS_OK ? add_partials(cuda, n, partials, chunks, accumulate, err) : status;
}

/* All gradients in one pass, for rows held in registers. */
static enum status backward_in_registers(struct cuda *cuda, const struct layer_norm *n,
                                         const void *x, const void *dy, void *dx, size_t rows,
                                         bool accumulate_input, bool accumulate_parameters,
                                         struct error *err)
{
    size_t blocks = (rows + BACK_WARPS - 1) / BACK_WARPS;
    float *partials;
    enum status status;

    if (blocks > BACK_BLOCKS)
        blocks = BACK_BLOCKS;
    status = cuda_reserve(cuda, &cuda->partials, 2 * blocks * n->width * sizeof(float),
                          "partial sums", err);
    partials = static_cast<float *>(cuda->partials.memory);
    if (status != STATUS_OK)
        return status;
    status = status_from_cuda(
        by_type(cuda,
                [&](auto tag) {
                    typedef typename decltype(tag)::type T;

                    return cuda_launch(row_backward_kernel<T, 16 / sizeof(T)>, (unsigned)blocks,
                                       BACK_WARPS * WARP, 0, cuda->work, *n,
                                       static_cast<const T *>(x), static_cast<const T *>(dy),
                                       static_cast<T *>(dx), rows, accumulate_input, partials);
                }),
        "layer_norm_backward kernel", err);
    return status == STATUS_OK ? add_partials(cuda, n, partials, blocks, accumulate_parameters, err)
                               : status;
}

enum status cuda_layer_norm_backward(struct compute *c, const struct layer_norm *n, const void *x,
                                     const void *dy, void *dx, size_t rows, bool accumulate_input,
                                     bool accumulate_parameters, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status;

    if (n->width <= ROW_MAX && can_pack(cuda, n->width, x, dy, dx, n->weight))
        return backward_in_registers(cuda, n, x, dy, dx, rows, accumulate_input,
                                     accumulate_parameters, err);
    status = parameter_gradients(cuda, n, x, dy, rows, accumulate_parameters, err);
    if (status != STATUS_OK)
        return status;
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(
                                            input_gradient_kernel<T>, row_blocks(rows), THREADS, 0,
                                            cuda->work, *n, static_cast<const T *>(x),
                                            static_cast<const T *>(dy), static_cast<T *>(dx), rows,
                                            accumulate_input);
                                    }),
                            "layer_norm_backward kernel", err);
}
