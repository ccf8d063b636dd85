/*
 * Softmax and cross-entropy, forward and backward in one kernel: a block per row reads it twice,
 * once for maximum and sum together, once for the gradient, which may replace the logits.  Labels
 * go through two page-locked buffers used alternately, so that a call does not wait for the
 * previous batch.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#include <string.h>

#define NARROW    128u /* threads of a row */
#define WIDE      512u
#define WIDE_FROM 2048u /* classes; rows of the loss */
#define NO_INDEX  0xffffffffu

struct peak { /* maximum and sum of exponentials of a part of a row */
    float max;
    unsigned index; /* of its first occurrence */
    double sum;     /* of exp(value - max) */
};

/* e^x with a relative error of 2^-22 |x|: the effect of rounding x itself. */
static __device__ inline float exponential(float x)
{
    return exp2f(x * 1.4426950408889634f);
}

/* The shift of exponentials: 0 for a part that is -infinity everywhere. */
static __device__ inline float exponent_shift(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* Ignores NaN in the maximum, but propagates it in the sum. */
static __device__ struct peak peak_merge(struct peak a, struct peak b)
{
    struct peak r = b.max > a.max || (b.max == a.max && b.index < a.index) ? b : a;

    r.sum = 0.0;
    if (a.sum != 0.0)
        r.sum += a.sum * (double)exponential(a.max - exponent_shift(r.max));
    if (b.sum != 0.0)
        r.sum += b.sum * (double)exponential(b.max - exponent_shift(r.max));
    return r;
}

static __device__ struct peak block_peak(struct peak mine)
{
    __shared__ struct peak warps[WIDE / WARP];

    for (unsigned offset = WARP / 2; offset > 0; offset /= 2) {
        struct peak other;

        other.max = __shfl_xor_sync(FULL_WARP, mine.max, (int)offset);
        other.index = __shfl_xor_sync(FULL_WARP, mine.index, (int)offset);
        other.sum = __shfl_xor_sync(FULL_WARP, mine.sum, (int)offset);
        mine = threadIdx.x & offset ? peak_merge(other, mine) : peak_merge(mine, other);
    }
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    mine = warps[0];
    for (unsigned w = 1; w < blockDim.x / WARP; w++)
        mine = peak_merge(mine, warps[w]);
    return mine;
}

/* Add N values, the first with index `at` of the row, to the peak. `sum` is a float: a thread's
 * part of a row is short. */
template <unsigned N>
static __device__ inline void peak_add(struct peak *peak, float *sum, const float *values,
                                       unsigned at)
{
    float max = values[0];

#pragma unroll
    for (unsigned i = 1; i < N; i++)
        max = fmaxf(max, values[i]);
    if (max > peak->max) {
        *sum *= exponential(peak->max - max);
        peak->max = max;
#pragma unroll
        for (unsigned i = N; i-- > 0;)
            if (values[i] == max)
                peak->index = at + i;
    }
#pragma unroll
    for (unsigned i = 0; i < N; i++)
        *sum += exponential(values[i] - exponent_shift(peak->max));
}

/* A block per row, whose packs begin at multiples of N; the last `classes` % N values are added one
 * by one. */
template <typename T, unsigned N>
static __device__ struct peak row_peak(const T *row, unsigned classes)
{
    unsigned whole = classes / N * N;
    struct peak peak = {-INFINITY, NO_INDEX, 0.0};
    float sum = 0.0f;

    for (unsigned j = N * threadIdx.x; j < whole; j += N * blockDim.x) {
        float values[N];

        load<N>(values, row + j);
        peak_add<N>(&peak, &sum, values, j);
    }
    for (unsigned j = whole + threadIdx.x; j < classes; j += blockDim.x) {
        float value = to_float(row[j]);

        peak_add<1>(&peak, &sum, &value, j);
    }
    peak.sum = (double)sum;
    return block_peak(peak);
}

template <typename T, unsigned N>
static __global__ void __launch_bounds__(WIDE)
    softmax_kernel(const T *logits, const int32_t *labels, T *dlogits, struct cuda_row *rows,
                   size_t batch, unsigned classes, size_t stride, float scale)
{
    const T *row = logits + blockIdx.x * stride;
    unsigned label = (unsigned)labels[blockIdx.x];
    float at_label = to_float(row[label]); /* before it is overwritten */
    unsigned whole = classes / N * N;
    struct peak peak = row_peak<T, N>(row, classes);
    float factor = (float)((double)scale / (peak.sum * (double)batch));
    float one = (float)((double)scale / (double)batch);

    if (threadIdx.x == 0) {
        rows[blockIdx.x].loss = log(peak.sum) + ((double)peak.max - (double)at_label);
        rows[blockIdx.x].correct = peak.index == label;
    }
    if (!dlogits)
        return;
    dlogits += blockIdx.x * stride;
    for (unsigned j = N * threadIdx.x; j < whole; j += N * blockDim.x) {
        float values[N];

        load<N>(values, row + j);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            values[i] = exponential(values[i] - peak.max) * factor;
            if (j + i == label)
                values[i] -= one;
        }
        store<N>(dlogits + j, values);
    }
    for (unsigned j = whole + threadIdx.x; j < classes; j += blockDim.x) {
        float p = exponential(to_float(row[j]) - peak.max) * factor;

        store_value(&dlogits[j], j == label ? p - one : p);
    }
}

/* One block; the result replaces the first row. */
static __global__ void __launch_bounds__(WIDE) loss_kernel(struct cuda_row *rows, unsigned batch)
{
    double loss = 0.0;
    double correct = 0.0; /* exact: far below 2^53 */

#pragma unroll 4
    for (unsigned i = threadIdx.x; i < batch; i += blockDim.x) {
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

/* Reserve memory for `rows`; allocates only if a batch is larger than all before it. */
static enum status reserve_rows(struct cuda *cuda, size_t rows, struct error *err)
{
    void *pinned = NULL;
    enum status status;

    if (rows <= cuda->rows_capacity)
        return STATUS_OK;
    if (cuda->capturing)
        return error_set(err, STATUS_UNAVAILABLE,
                         "labels would need room while a step is captured");
    cuda->memory_generation++;
    (void)cudaFree(cuda->labels);
    (void)cudaFree(cuda->rows);
    (void)cudaFreeHost(cuda->pinned_labels);
    cuda->labels = NULL;
    cuda->rows = NULL;
    cuda->pinned_labels = NULL;
    cuda->rows_capacity = 0;
    status = status_from_cuda(
        cudaMalloc(reinterpret_cast<void **>(&cuda->labels), rows * sizeof(*cuda->labels)),
        "cudaMalloc of labels", err);
    if (status == STATUS_OK)
        status = status_from_cuda(
            cudaMalloc(reinterpret_cast<void **>(&cuda->rows), rows * sizeof(*cuda->rows)),
            "cudaMalloc of losses", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMallocHost(&pinned, 2 * rows * sizeof(*cuda->labels)),
                                  "cudaMallocHost of labels", err);
    if (status == STATUS_OK) {
        cuda->pinned_labels = static_cast<int32_t *>(pinned);
        cuda->rows_capacity = rows;
    }
    return status;
}

static enum status upload_labels(struct cuda *cuda, const int32_t *labels, size_t rows,
                                 struct error *err)
{
    unsigned turn = cuda->capturing ? 0 : cuda->labels_turn++ % 2;
    int32_t *pinned = cuda->pinned_labels + turn * cuda->rows_capacity;
    enum status status = STATUS_OK;

    if (!cuda->capturing) /* a graph's launch fills the first buffer */
        status = status_from_cuda(cudaEventSynchronize(cuda->labels_read[turn]),
                                  "waiting for the batch before the last", err);
    if (status != STATUS_OK)
        return status;
    if (!cuda->capturing)
        memcpy(pinned, labels, rows * sizeof(*labels));
    status = status_from_cuda(cudaMemcpyAsync(cuda->labels, pinned, rows * sizeof(*labels),
                                              cudaMemcpyHostToDevice, cuda->work),
                              "cudaMemcpyAsync of labels", err);
    if (status == STATUS_OK && !cuda->capturing)
        status = status_from_cuda(cudaEventRecord(cuda->labels_read[turn], cuda->work),
                                  "cudaEventRecord", err);
    return status;
}

enum status cuda_softmax_cross_entropy(struct compute *c, const void *logits,
                                       const int32_t *host_labels, void *dlogits, size_t rows,
                                       size_t classes, size_t stride, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = reserve_rows(cuda, rows, err);

    /* The issued forward keeps the GPU busy while the host waits. */
    if (status == STATUS_OK && dlogits && !cuda->capturing)
        status = cuda_gradient_scale_wait(cuda, err);
    if (status == STATUS_OK)
        status = upload_labels(cuda, host_labels, rows, err);
    if (status == STATUS_OK)
        status = status_from_cuda(
            by_pack(cuda, can_pack(cuda, stride, logits, dlogits),
                    [&](auto tag, auto n) {
                        typedef typename decltype(tag)::type T;

                        return cuda_launch(softmax_kernel<T, decltype(n)::count>, (unsigned)rows,
                                           classes < WIDE_FROM ? NARROW : WIDE, 0, cuda->work,
                                           static_cast<const T *>(logits), cuda->labels,
                                           static_cast<T *>(dlogits), cuda->rows, rows,
                                           (unsigned)classes, stride, cuda->gradient_scale);
                    }),
            "softmax_cross_entropy kernel", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cuda_launch(loss_kernel, 1, rows < WIDE_FROM ? NARROW : WIDE, 0,
                                              cuda->work, cuda->rows, (unsigned)rows),
                                  "loss kernel", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(cuda->loss, cuda->rows, sizeof(*cuda->loss),
                                                  cudaMemcpyDeviceToHost, cuda->work),
                                  "cudaMemcpyAsync of the loss", err);
    return status;
}

enum status cuda_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                           struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status =
        status_from_cuda(cudaStreamSynchronize(cuda->work), "waiting for the loss", err);

    if (status != STATUS_OK)
        return status;
    *ret_loss = cuda->loss->loss;
    *ret_correct = (size_t)cuda->loss->correct;
    return STATUS_OK;
}

enum status cuda_softmax_open(struct cuda *cuda, struct error *err)
{
    void *loss = NULL;
    enum status status =
        status_from_cuda(cudaMallocHost(&loss, sizeof(*cuda->loss)), "cudaMallocHost", err);

    cuda->loss = static_cast<struct cuda_row *>(loss);
    for (unsigned i = 0; i < 2 && status == STATUS_OK; i++)
        status = status_from_cuda(
            cudaEventCreateWithFlags(&cuda->labels_read[i], cudaEventDisableTiming),
            "cudaEventCreate", err);
    return status;
}

void cuda_softmax_close(struct cuda *cuda)
{
    (void)cudaFree(cuda->labels);
    (void)cudaFree(cuda->rows);
    (void)cudaFreeHost(cuda->pinned_labels);
    (void)cudaFreeHost(cuda->loss);
    for (unsigned i = 0; i < 2; i++)
        if (cuda->labels_read[i])
            (void)cudaEventDestroy(cuda->labels_read[i]);
}

cudaError_t cuda_kernels_check(void)
{
    struct cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes,
                                 reinterpret_cast<const void *>(softmax_kernel<float, 1>));
}
