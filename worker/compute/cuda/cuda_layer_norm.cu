/*
 * Layer normalisation: a warp per row; gradients of weight and bias are sums of columns over chunks
 * of rows, like a linear layer's bias.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#define TILE_COLUMNS 32u
#define TILE_ROWS    8u

static unsigned row_blocks(size_t rows)
{
    return (unsigned)((rows * WARP + THREADS - 1) / THREADS);
}

/* Two passes over the row, which stays in the cache: the variance is of the differences. */
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
        put(&y[i], (to_float(x[i]) - mean) * inverse * n.weight[i] + n.bias[i]);
    if (lane == 0) {
        n.mean[row] = mean;
        n.inverse_std[row] = inverse;
    }
}

enum status cuda_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                    void *y, size_t rows, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(layer_norm_kernel<T>, row_blocks(rows),
                                                           THREADS, 0, cuda->work, *n,
                                                           static_cast<const T *>(x),
                                                           static_cast<T *>(y), rows);
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

        put(&dx[i], accumulate ? to_float(dx[i]) + d : d);
    }
}

/* A block owns 32 columns of one chunk of rows; partials (2: weight, bias; chunks, width). */
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
    if (status == STATUS_OK)
        status = cuda_add_chunks(cuda, partials, n->dweight, chunks, n->width, accumulate, err);
    if (status == STATUS_OK)
        status = cuda_add_chunks(cuda, partials + chunks * n->width, n->dbias, chunks, n->width,
                                 accumulate, err);
    return status;
}

enum status cuda_layer_norm_backward(struct compute *c, const struct layer_norm *n, const void *x,
                                     const void *dy, void *dx, size_t rows, bool accumulate_input,
                                     bool accumulate_parameters, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = parameter_gradients(cuda, n, x, dy, rows, accumulate_parameters, err);

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
