/*
 * Softmax and cross-entropy, forward and backward in one kernel: a block per row reads it twice,
 * once for maximum and sum together, once for the gradient, which may take the logits' place.
 * Labels go through page-locked memory of two batches by turns, so that a call never waits for the
 * batch before it.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#include <string.h>

#define NARROW    128u /* threads of a row */
#define WIDE      512u
#define WIDE_FROM 2048u /* classes */
#define NO_INDEX  0xffffffffu

struct peak { /* of a part of a row */
    float max;
    unsigned index; /* the first where it stands */
    double sum;     /* of exp(value - max) */
};

/* A NaN is never the maximum, but makes the sum one. */
static __device__ struct peak join(struct peak a, struct peak b)
{
    struct peak r = b.max > a.max || (b.max == a.max && b.index < a.index) ? b : a;

    r.sum = 0.0;
    if (a.sum != 0.0)
        r.sum += a.sum * (double)expf(a.max - r.max);
    if (b.sum != 0.0)
        r.sum += b.sum * (double)expf(b.max - r.max);
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
        mine = threadIdx.x & offset ? join(other, mine) : join(mine, other);
    }
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    mine = warps[0];
    for (unsigned w = 1; w < blockDim.x / WARP; w++)
        mine = join(mine, warps[w]);
    return mine;
}

template <typename T>
static __global__ void softmax_kernel(const T *logits, const int32_t *labels, T *dlogits,
                                      struct cuda_row *rows, size_t batch, size_t classes,
                                      float scale)
{
    const T *row = logits + blockIdx.x * classes;
    unsigned label = (unsigned)labels[blockIdx.x];
    float at_label = to_float(row[label]); /* before its place is written */
    struct peak peak = {-INFINITY, NO_INDEX, 0.0};

    for (unsigned j = threadIdx.x; j < classes; j += blockDim.x) {
        float value = to_float(row[j]);

        if (value > peak.max) {
            peak.sum = peak.sum * (double)expf(peak.max - value) + 1.0;
            peak.max = value;
            peak.index = j;
        } else if (value != -INFINITY) {
            peak.sum += (double)expf(value - peak.max);
        }
    }
    peak = block_peak(peak);
    if (threadIdx.x == 0) {
        rows[blockIdx.x].loss = log(peak.sum) + ((double)peak.max - (double)at_label);
        rows[blockIdx.x].correct = peak.index == label;
    }
    if (!dlogits)
        return;
    for (unsigned j = threadIdx.x; j < classes; j += blockDim.x) {
        float p =
            expf(to_float(row[j]) - peak.max) * (float)((double)scale / (peak.sum * (double)batch));

        put(&dlogits[blockIdx.x * classes + j],
            j == label ? p - (float)((double)scale / (double)batch) : p);
    }
}

/* One block; the result replaces the first row. */
static __global__ void loss_kernel(struct cuda_row *rows, size_t batch)
{
    double loss = 0.0;
    double correct = 0.0; /* exact: far below 2^53 */

    for (size_t i = threadIdx.x; i < batch; i += blockDim.x) {
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

/* Room for `rows`; allocates only when a batch is larger than all before it. */
static enum status reserve_rows(struct cuda *cuda, size_t rows, struct error *err)
{
    void *pinned = NULL;
    enum status status;

    if (rows <= cuda->rows_capacity)
        return STATUS_OK;
    cuda->moves++;
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

static enum status send_labels(struct cuda *cuda, const int32_t *labels, size_t rows,
                               struct error *err)
{
    unsigned turn = cuda->capturing ? 0 : cuda->labels_turn++ % 2;
    int32_t *pinned = cuda->pinned_labels + turn * cuda->rows_capacity;
    enum status status = STATUS_OK;

    if (!cuda->capturing) /* a graph's launch fills the first place */
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
                                       size_t classes, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = reserve_rows(cuda, rows, err);

    if (status == STATUS_OK)
        status = send_labels(cuda, host_labels, rows, err);
    if (status == STATUS_OK)
        status = status_from_cuda(by_type(cuda,
                                          [&](auto tag) {
                                              typedef typename decltype(tag)::type T;

                                              return cuda_launch(
                                                  softmax_kernel<T>, (unsigned)rows,
                                                  classes < WIDE_FROM ? NARROW : WIDE, 0,
                                                  cuda->work, static_cast<const T *>(logits),
                                                  cuda->labels, static_cast<T *>(dlogits),
                                                  cuda->rows, rows, classes, cuda->gradient_scale);
                                          }),
                                  "softmax_cross_entropy kernel", err);
    if (status == STATUS_OK)
        status =
            status_from_cuda(cuda_launch(loss_kernel, 1, NARROW, 0, cuda->work, cuda->rows, rows),
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
                                 reinterpret_cast<const void *>(softmax_kernel<float>));
}
