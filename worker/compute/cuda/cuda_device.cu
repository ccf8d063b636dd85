/*
 * cuda_device: one GPU behind struct compute_ops.
 *
 * Work goes to one stream in the order of the calls.  Downloads go to a second stream, each behind
 * an event of the first, so that a layer's gradient travels while the layers before it compute; a
 * ring of event pairs keeps their order.  Products are cuBLAS in float32 (TF32 stays off, so that
 * GPU and CPU compare), everything else is cuda_kernels.cu.  Failures of kernels surface in the
 * next call that waits.  Threads: one caller, the thread that opened the device.
 */
#include "worker/compute/compute.h"
#include "worker/compute/cuda/cuda_device.h"
#include "worker/compute/cuda/cuda_error.h"
#include "worker/compute/cuda/cuda_kernels.h"
#include "worker/compute/cuda_module.h"

#include <atomic>
#include <stdio.h>
#include <stdlib.h>

/* For collectives, which must use the same device on whatever thread they run. */
static std::atomic<int> device_in_use{-1};

extern "C" int cuda_device_in_use(void)
{
    return device_in_use.load();
}

struct download {
    cudaEvent_t made;    /* on the work stream: the source is complete */
    cudaEvent_t arrived; /* on the copy stream */
};

struct cuda {
    struct compute base;
    cudaStream_t work, copies;
    cublasHandle_t blas;
    struct download downloads[COMPUTE_DOWNLOADS_MAX];
    size_t started, waited; /* downloads so far; their difference is under way */
    size_t rows_capacity;   /* samples that labels and rows hold; grows to the largest batch */
    int32_t *labels;        /* owned, device */
    struct cuda_row *rows;  /* owned, device */
    struct cuda_row *loss;  /* owned, page-locked host: of the last batch */
    char text[320];
};

static struct cuda *cuda_of(struct compute *c)
{
    return reinterpret_cast<struct cuda *>(c);
}

/* ---- memory and transfers ---- */

static enum status cuda_alloc_bytes(struct cuda *cuda, size_t count, size_t size, const char *what,
                                    void **ret, struct error *err)
{
    void *memory = NULL;
    size_t available = 0;
    size_t total = 0;
    enum status status;

    if (count > SIZE_MAX / 2 / size)
        return error_set(err, STATUS_NO_MEMORY, "%s: %zu elements of GPU memory overflow", what,
                         count);
    status = status_from_cuda(cudaMalloc(&memory, count * size + size), "cudaMalloc", err);
    if (status != STATUS_OK) {
        (void)cudaGetLastError(); /* a failed allocation is no reason to fail what follows */
        (void)cudaMemGetInfo(&available, &total);
        return err ? error_prefix(err, "%s: %zu bytes of GPU memory, %zu of %zu are free: ", what,
                                  count * size, available, total)
                   : status;
    }
    status = status_from_cuda(cudaMemsetAsync(memory, 0, count * size, cuda->work),
                              "cudaMemsetAsync", err);
    if (status != STATUS_OK) {
        (void)cudaFree(memory);
        return status;
    }
    *ret = memory;
    return STATUS_OK;
}

static enum status cuda_alloc(struct compute *c, size_t count, const char *what, float **ret,
                              struct error *err)
{
    void *memory = NULL;
    enum status status = cuda_alloc_bytes(cuda_of(c), count, sizeof(float), what, &memory, err);

    if (status == STATUS_OK)
        *ret = static_cast<float *>(memory);
    return status;
}

static enum status cuda_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                                     struct error *err)
{
    return cuda_alloc_bytes(cuda_of(c), count, sizeof(float), what, ret, err);
}

static void cuda_free(struct compute *c, void *memory)
{
    (void)c;
    (void)cudaFree(memory); /* an earlier kernel's failure would show here again; it is known */
}

static enum status cuda_alloc_host(struct compute *c, size_t count, float **ret, struct error *err)
{
    void *memory = NULL;
    enum status status;

    (void)c;
    if (count > SIZE_MAX / sizeof(float))
        return error_set(err, STATUS_NO_MEMORY, "%zu elements of host memory overflow", count);
    status = status_from_cuda(cudaMallocHost(&memory, count * sizeof(float) + sizeof(float)),
                              "cudaMallocHost", err);
    if (status != STATUS_OK) {
        (void)cudaGetLastError();
        return err ? error_prefix(err, "%zu bytes of page-locked memory: ", count * sizeof(float))
                   : status;
    }
    *ret = static_cast<float *>(memory);
    for (size_t i = 0; i < count; i++)
        (*ret)[i] = 0.0f;
    return STATUS_OK;
}

static void cuda_free_host(struct compute *c, float *memory)
{
    (void)c;
    (void)cudaFreeHost(memory);
}

static enum status cuda_upload(struct compute *c, float *device, const float *host, size_t count,
                               struct error *err)
{
    return status_from_cuda(cudaMemcpyAsync(device, host, count * sizeof(float),
                                            cudaMemcpyHostToDevice, cuda_of(c)->work),
                            "cudaMemcpyAsync to the GPU", err);
}

static enum status cuda_download_start(struct compute *c, float *host, const float *device,
                                       size_t count, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct download *d = &cuda->downloads[cuda->started % COMPUTE_DOWNLOADS_MAX];
    enum status status;

    if (cuda->started - cuda->waited == COMPUTE_DOWNLOADS_MAX)
        return error_set(err, STATUS_INTERNAL, "more than %d downloads under way",
                         COMPUTE_DOWNLOADS_MAX);
    status = status_from_cuda(cudaEventRecord(d->made, cuda->work), "cudaEventRecord", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamWaitEvent(cuda->copies, d->made, 0),
                                  "cudaStreamWaitEvent", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(host, device, count * sizeof(float),
                                                  cudaMemcpyDeviceToHost, cuda->copies),
                                  "cudaMemcpyAsync to the host", err);
    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaEventRecord(d->arrived, cuda->copies), "cudaEventRecord", err);
    if (status == STATUS_OK)
        cuda->started++;
    return status;
}

static enum status cuda_download_wait(struct compute *c, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct download *d = &cuda->downloads[cuda->waited % COMPUTE_DOWNLOADS_MAX];

    if (cuda->waited == cuda->started)
        return error_set(err, STATUS_INTERNAL, "no download is under way");
    cuda->waited++;
    return status_from_cuda(cudaEventSynchronize(d->arrived), "waiting for a download", err);
}

static enum status cuda_upload_values(struct compute *c, void *device, const float *host,
                                      size_t count, struct error *err)
{
    return cuda_upload(c, static_cast<float *>(device), host, count, err);
}

static enum status cuda_download_values(struct compute *c, float *host, const void *device,
                                        size_t count, struct error *err)
{
    enum status status =
        cuda_download_start(c, host, static_cast<const float *>(device), count, err);

    return status == STATUS_OK ? cuda_download_wait(c, err) : status;
}

static enum status cuda_synchronize(struct compute *c, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status =
        status_from_cuda(cudaStreamSynchronize(cuda->work), "cudaStreamSynchronize", err);

    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaStreamSynchronize(cuda->copies), "cudaStreamSynchronize", err);
    return status;
}

/* ---- layers ---- */

/* C (m, n) = op(A) op(B) + beta C, row-major and dense: cuBLAS, which is column-major, sees the
 * transposed problem with the factors exchanged. */
static enum status product(struct cuda *cuda, bool transpose_a, bool transpose_b, size_t m,
                           size_t n, size_t k, const float *a, const float *b, float beta, float *c,
                           struct error *err)
{
    const float one = 1.0f;

    return status_from_cublas(cublasSgemm(cuda->blas, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                          transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, (int)n, (int)m,
                                          (int)k, &one, b, (int)(transpose_b ? k : n), a,
                                          (int)(transpose_a ? m : k), &beta, c, (int)n),
                              "cublasSgemm", err);
}

static enum status cuda_linear_forward(struct compute *c, const struct linear *l, const void *x,
                                       const void *residual, void *pre, void *y, size_t rows,
                                       struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status;

    (void)pre;
    if (residual || !l->bias || l->activation == ACTIVATION_GELU)
        return error_set(err, STATUS_UNSUPPORTED, "linear: residual, no bias, GELU");
    status = product(cuda, false, true, rows, l->out, l->in, static_cast<const float *>(x),
                     l->weight, 0.0f, static_cast<float *>(y), err);
    if (status != STATUS_OK)
        return status;
    return status_from_cuda(cuda_add_bias(cuda->work, static_cast<float *>(y), l->bias, rows,
                                          l->out, l->activation == ACTIVATION_RELU),
                            "add_bias kernel", err);
}

static enum status cuda_activation_backward(struct compute *c, enum activation activation,
                                            const void *kept, void *dy, size_t count,
                                            struct error *err)
{
    if (activation == ACTIVATION_GELU)
        return error_set(err, STATUS_UNSUPPORTED, "GELU");
    return status_from_cuda(cuda_relu_backward(cuda_of(c)->work, static_cast<const float *>(kept),
                                               static_cast<float *>(dy), count),
                            "relu_backward kernel", err);
}

static enum status cuda_linear_backward_weight(struct compute *c, const struct linear *l,
                                               const void *x, const void *dy, size_t rows,
                                               bool accumulate, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status =
        product(cuda, true, false, l->out, l->in, rows, static_cast<const float *>(dy),
                static_cast<const float *>(x), accumulate ? 1.0f : 0.0f, l->dweight, err);

    if (status != STATUS_OK || !l->dbias)
        return status;
    return status_from_cuda(cuda_column_sums(cuda->work, static_cast<const float *>(dy), l->dbias,
                                             rows, l->out, accumulate),
                            "column_sums kernel", err);
}

static enum status cuda_linear_backward_input(struct compute *c, const struct linear *l,
                                              const void *dy, void *dx, size_t rows,
                                              bool accumulate, struct error *err)
{
    return product(cuda_of(c), false, false, rows, l->in, l->out, static_cast<const float *>(dy),
                   l->weight, accumulate ? 1.0f : 0.0f, static_cast<float *>(dx), err);
}

/* Room for `batch` samples; allocates only when a batch is larger than all before it. */
static enum status reserve_rows(struct cuda *cuda, size_t batch, struct error *err)
{
    enum status status;

    if (batch <= cuda->rows_capacity)
        return STATUS_OK;
    (void)cudaFree(cuda->labels);
    (void)cudaFree(cuda->rows);
    cuda->labels = NULL;
    cuda->rows = NULL;
    cuda->rows_capacity = 0;
    status = status_from_cuda(cudaMalloc(&cuda->labels, batch * sizeof(*cuda->labels)),
                              "cudaMalloc of labels", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMalloc(&cuda->rows, batch * sizeof(*cuda->rows)),
                                  "cudaMalloc of losses", err);
    if (status == STATUS_OK)
        cuda->rows_capacity = batch;
    return status;
}

static enum status cuda_softmax(struct compute *c, const void *logits, const int32_t *host_labels,
                                void *dlogits, size_t batch, size_t classes, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = reserve_rows(cuda, batch, err);

    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(cuda->labels, host_labels,
                                                  batch * sizeof(*host_labels),
                                                  cudaMemcpyHostToDevice, cuda->work),
                                  "cudaMemcpyAsync of labels", err);
    if (status == STATUS_OK)
        status = status_from_cuda(
            cuda_softmax_cross_entropy(cuda->work, static_cast<const float *>(logits), cuda->labels,
                                       static_cast<float *>(dlogits), cuda->rows, batch, classes),
            "softmax_cross_entropy kernel", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(cuda->loss, cuda->rows, sizeof(*cuda->loss),
                                                  cudaMemcpyDeviceToHost, cuda->work),
                                  "cudaMemcpyAsync of the loss", err);
    return status;
}

static enum status cuda_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
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

/* ---- opening and closing ---- */

static void cuda_close(struct compute *c)
{
    struct cuda *cuda = cuda_of(c);

    for (unsigned i = 0; i < COMPUTE_DOWNLOADS_MAX; i++) {
        if (cuda->downloads[i].made)
            (void)cudaEventDestroy(cuda->downloads[i].made);
        if (cuda->downloads[i].arrived)
            (void)cudaEventDestroy(cuda->downloads[i].arrived);
    }
    (void)cudaFree(cuda->labels);
    (void)cudaFree(cuda->rows);
    (void)cudaFreeHost(cuda->loss);
    if (cuda->blas)
        (void)cublasDestroy(cuda->blas);
    if (cuda->copies)
        (void)cudaStreamDestroy(cuda->copies);
    if (cuda->work)
        (void)cudaStreamDestroy(cuda->work);
    free(cuda);
}

static const char *cuda_describe(const struct compute *c)
{
    return reinterpret_cast<const struct cuda *>(c)->text;
}

static const struct compute_ops cuda_ops = {
    .name = "cuda",
    .is_host = false,
    .close = cuda_close,
    .describe = cuda_describe,
    .alloc = cuda_alloc,
    .alloc_values = cuda_alloc_values,
    .free = cuda_free,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .upload = cuda_upload,
    .download_start = cuda_download_start,
    .download_wait = cuda_download_wait,
    .synchronize = cuda_synchronize,
    .upload_values = cuda_upload_values,
    .download_values = cuda_download_values,
    .activation_backward = cuda_activation_backward,
    .linear_forward = cuda_linear_forward,
    .linear_backward_weight = cuda_linear_backward_weight,
    .linear_backward_input = cuda_linear_backward_input,
    .conv_prepare = nullptr,
    .conv_release = nullptr,
    .conv_forward = nullptr,
    .conv_backward_weight = nullptr,
    .conv_backward_input = nullptr,
    .max_pool_forward = nullptr,
    .max_pool_backward = nullptr,
    .mean_forward = nullptr,
    .mean_backward = nullptr,
    .batch_norm_forward = nullptr,
    .batch_norm_evaluate = nullptr,
    .batch_norm_backward = nullptr,
    .layer_norm_forward = nullptr,
    .layer_norm_backward = nullptr,
    .embedding_forward = nullptr,
    .embedding_backward = nullptr,
    .attention_prepare = nullptr,
    .attention_release = nullptr,
    .attention_forward = nullptr,
    .attention_backward = nullptr,
    .softmax_cross_entropy = cuda_softmax,
    .loss_wait = cuda_loss_wait,
};

/* The device to use: `index`, or local_rank modulo the devices. */
static enum status choose_device(int index, unsigned local_rank, int *ret_device, struct error *err)
{
    int count = 0;
    int driver = 0;
    cudaError_t result = cudaGetDeviceCount(&count);

    if (result == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess)
        return error_set(err, STATUS_UNAVAILABLE,
                         "the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d",
                         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                         CUDART_VERSION % 1000 / 10);
    if (result == cudaErrorNoDevice || (result == cudaSuccess && count == 0))
        return error_set(err, STATUS_UNAVAILABLE,
                         "the NVIDIA driver is here, but no GPU (CUDA_VISIBLE_DEVICES is %s)",
                         getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES")
                                                        : "not set");
    if (result != cudaSuccess)
        return status_from_cuda(result, "cudaGetDeviceCount", err);
    if (index >= count)
        return error_set(err, STATUS_UNAVAILABLE, "no GPU %d: this host has %d, numbered from 0",
                         index, count);
    *ret_device = index >= 0 ? index : (int)(local_rank % (unsigned)count);
    return STATUS_OK;
}

static enum status describe_device(struct cuda *cuda, int device, struct error *err)
{
    struct cudaDeviceProp properties;
    cudaError_t result;
    enum status status = status_from_cuda(cudaGetDeviceProperties(&properties, device),
                                          "cudaGetDeviceProperties", err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(cuda->text, sizeof(cuda->text), "cuda:%d (%s)", device, properties.name);
    result = cuda_kernels_check();
    if (result == cudaErrorNoKernelImageForDevice)
        return error_set(err, STATUS_UNAVAILABLE,
                         "%s has compute capability %d.%d, and the module was not built for it "
                         "(CMAKE_CUDA_ARCHITECTURES)",
                         cuda->text, properties.major, properties.minor);
    return status_from_cuda(result, "looking up a kernel", err);
}

static enum status make_streams(struct cuda *cuda, struct error *err)
{
    enum status status = status_from_cuda(
        cudaStreamCreateWithFlags(&cuda->work, cudaStreamNonBlocking), "cudaStreamCreate", err);

    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking),
                                  "cudaStreamCreate", err);
    for (unsigned i = 0; i < COMPUTE_DOWNLOADS_MAX && status == STATUS_OK; i++) {
        struct download *d = &cuda->downloads[i];

        status = status_from_cuda(cudaEventCreateWithFlags(&d->made, cudaEventDisableTiming),
                                  "cudaEventCreate", err);
        if (status == STATUS_OK)
            status = status_from_cuda(cudaEventCreateWithFlags(&d->arrived, cudaEventDisableTiming),
                                      "cudaEventCreate", err);
    }
    return status;
}

static enum status make_blas(struct cuda *cuda, struct error *err)
{
    enum status status = status_from_cublas(cublasCreate(&cuda->blas), "cublasCreate", err);

    if (status == STATUS_OK)
        status =
            status_from_cublas(cublasSetStream(cuda->blas, cuda->work), "cublasSetStream", err);
    if (status == STATUS_OK)
        status = status_from_cublas(cublasSetMathMode(cuda->blas, CUBLAS_DEFAULT_MATH),
                                    "cublasSetMathMode", err);
    return status;
}

extern "C" __attribute__((visibility("default"))) enum status
sparring_cuda_open(unsigned version, int index, unsigned local_rank, struct compute **ret_compute,
                   struct error *err)
{
    struct cuda *cuda;
    int device = 0;
    enum status status;

    if (version != CUDA_MODULE_VERSION)
        return error_set(
            err, STATUS_CONFIG,
            "the CUDA module is of another build: its interface is %u, the worker's %u",
            CUDA_MODULE_VERSION, version);
    status = choose_device(index, local_rank, &device, err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaSetDevice(device), "cudaSetDevice", err);
    if (status != STATUS_OK)
        return status;
    cuda = static_cast<struct cuda *>(calloc(1, sizeof(*cuda)));
    if (!cuda)
        return error_set(err, STATUS_NO_MEMORY, "cuda device: cannot allocate %zu bytes",
                         sizeof(*cuda));
    cuda->base.ops = &cuda_ops;
    status = describe_device(cuda, device, err);
    if (status == STATUS_OK)
        status = make_streams(cuda, err);
    if (status == STATUS_OK)
        status = make_blas(cuda, err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMallocHost(&cuda->loss, sizeof(*cuda->loss)),
                                  "cudaMallocHost", err);
    if (status != STATUS_OK) {
        cuda_close(&cuda->base);
        return status;
    }
    device_in_use.store(device);
    *ret_compute = &cuda->base;
    return STATUS_OK;
}
