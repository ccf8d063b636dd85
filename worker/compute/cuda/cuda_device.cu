/*
 * cuda_device: one GPU behind struct compute_ops.
 *
 * Opening, closing and the table; each family of operations has its own file.  Matrix products use
 * cuBLASLt (TF32 is off unless requested, so that GPU and CPU results compare), convolutions cuDNN,
 * everything else our own kernels.  Failures of kernels are reported by the next call that waits.
 * Threads: one caller at a time, on any thread.
 */
#include "worker/compute/cuda/cuda_device.h"
#include "worker/compute/cuda/cuda_internal.h"
#include "worker/compute/cuda_module.h"

#include <atomic>
#include <stdio.h>
#include <stdlib.h>

/* For collectives, which must use the same device on any thread. */
static std::atomic<int> device_in_use{-1};

extern "C" int cuda_device_in_use(void)
{
    return device_in_use.load();
}

void cuda_bind(const struct cuda *cuda)
{
    int current = -1;

    if (cudaGetDevice(&current) != cudaSuccess || current != cuda->device)
        (void)cudaSetDevice(cuda->device);
}

/* ---- opening and closing ---- */

static void cuda_close(struct compute *c)
{
    struct cuda *cuda = cuda_of(c);

    for (unsigned i = 0; i < COMPUTE_DOWNLOADS_MAX; i++) {
        if (cuda->downloads[i].source_ready)
            (void)cudaEventDestroy(cuda->downloads[i].source_ready);
        if (cuda->downloads[i].arrived)
            (void)cudaEventDestroy(cuda->downloads[i].arrived);
    }
#ifdef SPARRING_HAVE_CUDNN
    cuda_conv_close(cuda);
#endif
    cuda_upload_ahead_close(cuda);
    cuda_softmax_close(cuda);
    cuda_optimizer_close(cuda);
    cuda_param_copies_close(cuda);
    cuda_products_close(cuda);
    (void)cudaFree(cuda->partials.memory);
    (void)cudaFree(cuda->staged.memory);
    (void)cudaFree(cuda->cast[0].memory);
    (void)cudaFree(cuda->cast[1].memory);
    cuda_blocks_release(cuda);
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
    .channels_last = true,
    .close = cuda_close,
    .describe = cuda_describe,
    .alloc = cuda_alloc,
    .alloc_values = cuda_alloc_values,
    .free = cuda_free,
    .peak_bytes = cuda_peak_bytes,
    .traffic = cuda_traffic,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .upload = cuda_upload,
    .copy = cuda_copy,
    .upload_ahead = cuda_upload_ahead,
    .upload_ahead_cancel = cuda_upload_ahead_cancel,
    .upload_ahead_wait_ns = cuda_upload_ahead_wait_ns,
    .download_start = cuda_download_start,
    .download_wait = cuda_download_wait,
    .synchronize = cuda_synchronize,
    .upload_values = cuda_upload_values,
    .download_values = cuda_download_values,
    .upload_images = cuda_upload_images,
    .row_stride = cuda_row_stride,
    .activation_backward = cuda_activation_backward,
    .linear_forward = cuda_linear_forward,
    .linear_backward_weight = cuda_linear_backward_weight,
    .linear_backward_input = cuda_linear_backward_input,
#ifdef SPARRING_HAVE_CUDNN
    .conv_prepare = cuda_conv_prepare,
    .conv_release = cuda_conv_release,
    .conv_forward = cuda_conv_forward,
    .conv_backward_weight = cuda_conv_backward_weight,
    .conv_backward_input = cuda_conv_backward_input,
#else
    .conv_prepare = nullptr,
    .conv_release = nullptr,
    .conv_forward = nullptr,
    .conv_backward_weight = nullptr,
    .conv_backward_input = nullptr,
#endif
    .max_pool_forward = cuda_max_pool_forward,
    .max_pool_backward = cuda_max_pool_backward,
    .mean_forward = cuda_mean_forward,
    .mean_backward = cuda_mean_backward,
    .flatten_forward = cuda_flatten_forward,
    .flatten_backward = cuda_flatten_backward,
    .batch_norm_forward = cuda_batch_norm_forward,
    .batch_norm_evaluate = cuda_batch_norm_evaluate,
    .batch_norm_backward = cuda_batch_norm_backward,
    .layer_norm_forward = cuda_layer_norm_forward,
    .layer_norm_backward = cuda_layer_norm_backward,
    .embedding_forward = cuda_embedding_forward,
    .embedding_backward = cuda_embedding_backward,
    .attention_prepare = cuda_attention_prepare,
    .attention_release = cuda_attention_release,
    .attention_forward = cuda_attention_forward,
    .attention_backward = cuda_attention_backward,
    .softmax_cross_entropy = cuda_softmax_cross_entropy,
    .loss_wait = cuda_loss_wait,
    .register_params = cuda_register_params,
    .optimizer_update = cuda_optimizer_update,
    .gradient_scale = cuda_gradient_scale,
    .set_gradient_scale = cuda_set_gradient_scale,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
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

        status =
            status_from_cuda(cudaEventCreateWithFlags(&d->source_ready, cudaEventDisableTiming),
                             "cudaEventCreate", err);
        if (status == STATUS_OK)
            status = status_from_cuda(cudaEventCreateWithFlags(&d->arrived, cudaEventDisableTiming),
                                      "cudaEventCreate", err);
    }
    return status;
}

static void set_precision(struct cuda *cuda, const struct compute_config *config)
{
    bool half = config->precision == PRECISION_BF16 || config->precision == PRECISION_FP16;

    cuda->type = config->precision == PRECISION_BF16   ? CUDA_R_16BF
                 : config->precision == PRECISION_FP16 ? CUDA_R_16F
                                                       : CUDA_R_32F;
    cuda->value_size = half ? 2 : sizeof(float);
    cuda->product_type =
        config->precision == PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cuda->deterministic = config->deterministic;
    cuda->gradient_scale = 1.0f;
}

extern "C" __attribute__((visibility("default"))) enum status
sparring_cuda_open(unsigned version, int index, const struct compute_config *config,
                   struct compute **ret_compute, struct error *err)
{
    struct cuda *cuda;
    int device = 0;
    enum status status;

    if (version != CUDA_MODULE_VERSION)
        return error_set(
            err, STATUS_CONFIG,
            "the CUDA module is of another build: its interface is %u, the worker's %u",
            CUDA_MODULE_VERSION, version);
    status = choose_device(index, config->local_rank, &device, err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaSetDevice(device), "cudaSetDevice", err);
    if (status != STATUS_OK)
        return status;
    cuda = static_cast<struct cuda *>(calloc(1, sizeof(*cuda)));
    if (!cuda)
        return error_set(err, STATUS_NO_MEMORY, "cuda device: cannot allocate %zu bytes",
                         sizeof(*cuda));
    cuda->base.ops = &cuda_ops;
    cuda->device = device;
    set_precision(cuda, config);
    status = describe_device(cuda, device, err);
    if (status == STATUS_OK)
        status = make_streams(cuda, err);
    if (status == STATUS_OK)
        status = cuda_upload_ahead_open(cuda, err);
    if (status == STATUS_OK)
        status = cuda_products_open(cuda, err);
    if (status == STATUS_OK)
        status = cuda_softmax_open(cuda, err);
    if (status == STATUS_OK)
        status = cuda_param_copies_open(cuda, err);
    if (status == STATUS_OK)
        status = cuda_optimizer_open(cuda, err);
    if (status != STATUS_OK) {
        cuda_close(&cuda->base);
        return status;
    }
    device_in_use.store(device);
    *ret_compute = &cuda->base;
    return STATUS_OK;
}
