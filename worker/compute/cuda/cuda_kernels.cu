/*
 * cuda_kernels: element-wise kernels walk their array with a grid-sized stride, so that any count
 * fits in any grid; reductions use a fixed tree inside one block and no atomics, so that a step
 * gives the same bits every time.  A NaN passes through ReLU, as on the CPU.
 */
#include "worker/compute/cuda/cuda_kernels.h"

#include <math_constants.h>

#define THREADS      256u
#define BLOCKS_MAX   4096u /* beyond it threads take several elements */
#define TILE_COLUMNS 32u
#define TILE_ROWS    8u
#define ROW_THREADS  128u
#define FULL_WARP    0xffffffffu
#define WARP         32u

static unsigned blocks_for(size_t count)
{
    size_t blocks = (count + THREADS - 1) / THREADS;

    return blocks < BLOCKS_MAX ? (unsigned)blocks : BLOCKS_MAX;
}

static __device__ size_t grid_first(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ size_t grid_stride(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

/* ---- element-wise ---- */

static __global__ void add_bias_kernel(float *y, const float *bias, size_t count, size_t out,
                                       bool relu)
{
    for (size_t i = grid_first(); i < count; i += grid_stride()) {
        float value = y[i] + bias[i % out];

        y[i] = relu && value < 0.0f ? 0.0f : value;
    }
}

cudaError_t cuda_add_bias(cudaStream_t stream, float *y, const float *bias, size_t batch,
                          size_t out, bool relu)
{
    size_t count = batch * out;

    add_bias_kernel<<<blocks_for(count), THREADS, 0, stream>>>(y, bias, count, out, relu);
    return cudaGetLastError();
}

static __global__ void relu_backward_kernel(const float *y, float *dy, size_t count)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        if (y[i] <= 0.0f)
            dy[i] = 0.0f;
}

cudaError_t cuda_relu_backward(cudaStream_t stream, const float *y, float *dy, size_t count)
{
    relu_backward_kernel<<<blocks_for(count), THREADS, 0, stream>>>(y, dy, count);
    return cudaGetLastError();
}

/* ---- column sums ---- */

/* A block owns 32 columns; its 8 warps take every 8th row each, neighbouring threads neighbouring
 * columns, and the first warp adds the 8 partial sums. */
static __global__ void column_sums_kernel(const float *dy, float *sums, size_t batch, size_t out,
                                          bool accumulate)
{
    __shared__ float partial[TILE_ROWS][TILE_COLUMNS];
    size_t column = (size_t)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    float sum = 0.0f;

    if (column < out)
        for (size_t row = threadIdx.y; row < batch; row += TILE_ROWS)
            sum += dy[row * out + column];
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= out)
        return;
    for (unsigned k = 1; k < TILE_ROWS; k++)
        sum += partial[k][threadIdx.x];
    sums[column] = accumulate ? sums[column] + sum : sum;
}

cudaError_t cuda_column_sums(cudaStream_t stream, const float *dy, float *sums, size_t batch,
                             size_t out, bool accumulate)
{
    unsigned blocks = (unsigned)((out + TILE_COLUMNS - 1) / TILE_COLUMNS);

    column_sums_kernel<<<blocks, dim3(TILE_COLUMNS, TILE_ROWS), 0, stream>>>(dy, sums, batch, out,
                                                                             accumulate);
    return cudaGetLastError();
}

/* ---- softmax and cross-entropy ---- */

struct best { /* the largest value and its first index; a NaN never wins */
    float value;
    unsigned index;
};

static __device__ struct best better(struct best a, struct best b)
{
    if (b.value > a.value || (b.value == a.value && b.index < a.index))
        return b;
    return a;
}

static __device__ struct best block_best(struct best mine)
{
    __shared__ struct best warps[ROW_THREADS / WARP];

    for (unsigned offset = WARP / 2; offset > 0; offset /= 2) {
        struct best other = {__shfl_xor_sync(FULL_WARP, mine.value, (int)offset),
                             __shfl_xor_sync(FULL_WARP, mine.index, (int)offset)};

        mine = better(mine, other);
    }
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    mine = warps[0];
    for (unsigned w = 1; w < ROW_THREADS / WARP; w++)
        mine = better(mine, warps[w]);
    __syncthreads(); /* the shared array may be written again */
    return mine;
}

static __device__ double block_sum(double mine)
{
    __shared__ double warps[ROW_THREADS / WARP];

    for (unsigned offset = WARP / 2; offset > 0; offset /= 2)
        mine += __shfl_xor_sync(FULL_WARP, mine, (int)offset);
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    mine = 0.0;
    for (unsigned w = 0; w < ROW_THREADS / WARP; w++)
        mine += warps[w];
    __syncthreads();
    return mine;
}

/* One block per row. */
static __global__ void softmax_kernel(const float *logits, const int32_t *labels, float *dlogits,
                                      struct cuda_row *rows, size_t batch, size_t classes)
{
    const float *row = logits + blockIdx.x * classes;
    unsigned label = (unsigned)labels[blockIdx.x];
    struct best best = {-CUDART_INF_F, 0xffffffffu};
    double sum = 0.0;

    for (unsigned j = threadIdx.x; j < classes; j += ROW_THREADS)
        best = better(best, {row[j], j});
    best = block_best(best);
    for (unsigned j = threadIdx.x; j < classes; j += ROW_THREADS)
        sum += (double)expf(row[j] - best.value);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        rows[blockIdx.x].loss = log(sum) + ((double)best.value - (double)row[label]);
        rows[blockIdx.x].correct = best.index == label;
    }
    if (!dlogits)
        return;
    for (unsigned j = threadIdx.x; j < classes; j += ROW_THREADS) {
        float p = expf(row[j] - best.value) * (float)(1.0 / (sum * (double)batch));

        dlogits[blockIdx.x * classes + j] = j == label ? p - (float)(1.0 / (double)batch) : p;
    }
}

/* One block; the result replaces the first row. */
static __global__ void loss_kernel(struct cuda_row *rows, size_t batch)
{
    double loss = 0.0;
    double correct = 0.0; /* exact: far below 2^53 */

    for (size_t i = threadIdx.x; i < batch; i += ROW_THREADS) {
        loss += rows[i].loss;
        correct += (double)rows[i].correct;
    }
    loss = block_sum(loss);
    correct = block_sum(correct);
    if (threadIdx.x > 0)
        return;
    rows[0].loss = loss / (double)batch;
    rows[0].correct = (unsigned long long)correct;
}

cudaError_t cuda_softmax_cross_entropy(cudaStream_t stream, const float *logits,
                                       const int32_t *labels, float *dlogits, struct cuda_row *rows,
                                       size_t batch, size_t classes)
{
    cudaError_t result;

    softmax_kernel<<<(unsigned)batch, ROW_THREADS, 0, stream>>>(logits, labels, dlogits, rows,
                                                                batch, classes);
    result = cudaGetLastError();
    if (result != cudaSuccess)
        return result;
    loss_kernel<<<1, ROW_THREADS, 0, stream>>>(rows, batch);
    return cudaGetLastError();
}

cudaError_t cuda_kernels_check(void)
{
    struct cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, (const void *)softmax_kernel);
}
