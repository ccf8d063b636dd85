/*
 * emulator_dnn: the part of cuDNN that the module uses: convolutions of float, half or bfloat16
 * images in loops, with sums in double, and one algorithm, which is always chosen.  Channels are
 * the first or the last dimension of an image; the descriptors of all three tensors must agree.
 */
#include "tests/support/cuda_emulator/cuda_emulator.h"

#define NO_CUDNN_DEPRECATED
#include <cudnn.h>

#include <cstdlib>

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct cudnnContext {
    cudaStream_t stream;
};

struct cudnnTensorStruct {
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int n, c, h, w;
};

struct cudnnFilterStruct {
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int k, c, h, w;
};

struct cudnnConvolutionStruct {
    int pad_h, pad_w, stride_h, stride_w;
    cudnnMathType_t math;
};

#undef dlopen
void *cuda_emulator::open_library(const char *, int)
{
    static const char here = 0;
    Dl_info info;

    return dladdr(&here, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
}

static float load_element(const void *values, cudnnDataType_t type, size_t i)
{
    switch (type) {
    case CUDNN_DATA_BFLOAT16:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(values)[i]);
    case CUDNN_DATA_HALF:
        return __half2float(static_cast<const __half *>(values)[i]);
    default:
        return static_cast<const float *>(values)[i];
    }
}

static void store_blended(void *values, cudnnDataType_t type, size_t i, double value, float alpha,
                          float beta)
{
    float result =
        (float)(value * (double)alpha) + (beta != 0.0f ? beta * load_element(values, type, i) : 0);

    switch (type) {
    case CUDNN_DATA_BFLOAT16:
        static_cast<__nv_bfloat16 *>(values)[i] = __float2bfloat16(result);
        break;
    case CUDNN_DATA_HALF:
        static_cast<__half *>(values)[i] = __float2half(result);
        break;
    default:
        static_cast<float *>(values)[i] = result;
        break;
    }
}

/* Index of an element in images of this format. */
static size_t element_index(cudnnTensorFormat_t format, int image, int channels, int channel,
                            int height, int row, int width, int column)
{
    if (format == CUDNN_TENSOR_NHWC)
        return (((size_t)image * height + row) * width + column) * channels + channel;
    return (((size_t)image * channels + channel) * height + row) * width + column;
}

/* f(index in x, index in weights, index in y) for every product of the convolution. */
template <typename F>
static void for_each_product(const cudnnTensorStruct &x, const cudnnFilterStruct &w,
                             const cudnnConvolutionStruct &conv, const cudnnTensorStruct &y, F f)
{
    for (int n = 0; n < y.n; n++)
        for (int k = 0; k < y.c; k++)
            for (int row = 0; row < y.h; row++)
                for (int column = 0; column < y.w; column++)
                    for (int c = 0; c < x.c; c++)
                        for (int i = 0; i < w.h; i++)
                            for (int j = 0; j < w.w; j++) {
                                int h = row * conv.stride_h + i - conv.pad_h;
                                int v = column * conv.stride_w + j - conv.pad_w;

                                if (h >= 0 && h < x.h && v >= 0 && v < x.w)
                                    f(element_index(x.format, n, x.c, c, x.h, h, x.w, v),
                                      element_index(w.format, k, w.c, c, w.h, i, w.w, j),
                                      element_index(y.format, n, y.c, k, y.h, row, y.w, column));
                            }
}

static size_t count_of(const cudnnTensorStruct &t)
{
    return (size_t)t.n * t.c * t.h * t.w;
}

/* ---- descriptors ---- */

EXPORTED cudnnStatus_t cudnnCreate(cudnnHandle_t *ret)
{
    *ret = new cudnnContext();
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED const char *cudnnGetErrorString(cudnnStatus_t)
{
    return "an error of the emulated cuDNN";
}

EXPORTED cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *ret)
{
    *ret = new cudnnTensorStruct();
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t,
                                                  cudnnTensorFormat_t format, cudnnDataType_t type,
                                                  int n, int c, int h, int w)
{
    *t = {type, format, n, c, h, w};
    return n > 0 && c > 0 && h > 0 && w > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

EXPORTED cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t)
{
    delete t;
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *ret)
{
    *ret = new cudnnFilterStruct();
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type,
                                                  cudnnTensorFormat_t format, int k, int c, int h,
                                                  int w)
{
    *f = {type, format, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f)
{
    delete f;
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *ret)
{
    *ret = new cudnnConvolutionStruct();
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h,
                                                       int pad_w, int u, int v, int dilation_h,
                                                       int dilation_w, cudnnConvolutionMode_t mode,
                                                       cudnnDataType_t type)
{
    *d = {pad_h, pad_w, u, v, CUDNN_DEFAULT_MATH};
    return dilation_h == 1 && dilation_w == 1 && mode == CUDNN_CROSS_CORRELATION &&
                   type == CUDNN_DATA_FLOAT
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_NOT_SUPPORTED;
}

EXPORTED cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d,
                                                   cudnnMathType_t math)
{
    d->math = math;
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d)
{
    delete d;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- algorithms ---- */

/* Conditions on the shapes that all three products have. */
static bool shapes_match(const cudnnTensorStruct &x, const cudnnFilterStruct &w,
                         const cudnnConvolutionStruct &conv, const cudnnTensorStruct &y)
{
    return x.n == y.n && x.c == w.c && y.c == w.k && x.type == y.type && x.type == w.type &&
           x.format == y.format && x.format == w.format &&
           y.h == (x.h + 2 * conv.pad_h - w.h) / conv.stride_h + 1 &&
           y.w == (x.w + 2 * conv.pad_w - w.w) / conv.stride_w + 1;
}

template <typename P>
static cudnnStatus_t one_algorithm(bool possible, const cudnnConvolutionStruct &conv, int *count,
                                   P *list)
{
    if (cuda_emulator::is_capturing()) /* the documentation forbids this query during a capture */
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (!possible)
        return CUDNN_STATUS_NOT_SUPPORTED;
    memset(list, 0, sizeof(*list));
    list->determinism = CUDNN_DETERMINISTIC;
    list->mathType = conv.math;
    list->memory = 1024;
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y, int, int *count,
    cudnnConvolutionFwdAlgoPerf_t *list)
{
    return one_algorithm(shapes_match(*x, *w, *conv, *y), *conv, count, list);
}

EXPORTED cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t w, int, int *count,
    cudnnConvolutionBwdFilterAlgoPerf_t *list)
{
    return one_algorithm(shapes_match(*x, *w, *conv, *y), *conv, count, list);
}

EXPORTED cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t x, int, int *count,
    cudnnConvolutionBwdDataAlgoPerf_t *list)
{
    return one_algorithm(shapes_match(*x, *w, *conv, *y), *conv, count, list);
}

/* ---- the three products ---- */

/* The library's vector loads. */
static bool aligned(const void *a, const void *b, const void *c)
{
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

static cudnnStatus_t enqueue(cudnnHandle_t handle, bool possible, std::function<void()> work)
{
    if (!possible)
        return CUDNN_STATUS_BAD_PARAM;
    return cuda_emulator::enqueue(handle->stream, std::move(work)) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

EXPORTED cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                               const cudnnTensorDescriptor_t xd, const void *x,
                                               const cudnnFilterDescriptor_t wd, const void *w,
                                               const cudnnConvolutionDescriptor_t cd,
                                               cudnnConvolutionFwdAlgo_t, void *, size_t space,
                                               const void *beta, const cudnnTensorDescriptor_t yd,
                                               void *y)
{
    const cudnnTensorStruct xs = *xd, ys = *yd;
    const cudnnFilterStruct ws = *wd;
    const cudnnConvolutionStruct conv = *cd;
    float a = *static_cast<const float *>(alpha), b = *static_cast<const float *>(beta);

    if (!aligned(x, w, y))
        return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    return enqueue(handle, shapes_match(xs, ws, conv, ys) && space >= 1024, [=] {
        double *sums = static_cast<double *>(calloc(count_of(ys), sizeof(double)));

        for_each_product(xs, ws, conv, ys, [&](size_t i, size_t j, size_t k) {
            sums[k] += (double)load_element(x, xs.type, i) * (double)load_element(w, ws.type, j);
        });
        for (size_t k = 0; k < count_of(ys); k++)
            store_blended(y, ys.type, k, sums[k], a, b);
        free(sums);
    });
}

EXPORTED cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnTensorDescriptor_t yd, const void *dy, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionBwdFilterAlgo_t, void *, size_t space, const void *beta,
    const cudnnFilterDescriptor_t wd, void *dw)
{
    const cudnnTensorStruct xs = *xd, ys = *yd;
    const cudnnFilterStruct ws = *wd;
    const cudnnConvolutionStruct conv = *cd;
    float a = *static_cast<const float *>(alpha), b = *static_cast<const float *>(beta);

    if (!aligned(x, dy, dw))
        return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    return enqueue(handle, shapes_match(xs, ws, conv, ys) && space >= 1024, [=] {
        size_t count = (size_t)ws.k * ws.c * ws.h * ws.w;
        double *sums = static_cast<double *>(calloc(count, sizeof(double)));

        for_each_product(xs, ws, conv, ys, [&](size_t i, size_t j, size_t k) {
            sums[j] += (double)load_element(x, xs.type, i) * (double)load_element(dy, ys.type, k);
        });
        for (size_t j = 0; j < count; j++)
            store_blended(dw, ws.type, j, sums[j], a, b);
        free(sums);
    });
}

EXPORTED cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t wd, const void *w,
    const cudnnTensorDescriptor_t yd, const void *dy, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionBwdDataAlgo_t, void *, size_t space, const void *beta,
    const cudnnTensorDescriptor_t xd, void *dx)
{
    const cudnnTensorStruct xs = *xd, ys = *yd;
    const cudnnFilterStruct ws = *wd;
    const cudnnConvolutionStruct conv = *cd;
    float a = *static_cast<const float *>(alpha), b = *static_cast<const float *>(beta);

    if (!aligned(w, dy, dx))
        return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    return enqueue(handle, shapes_match(xs, ws, conv, ys) && space >= 1024, [=] {
        double *sums = static_cast<double *>(calloc(count_of(xs), sizeof(double)));

        for_each_product(xs, ws, conv, ys, [&](size_t i, size_t j, size_t k) {
            sums[i] += (double)load_element(w, ws.type, j) * (double)load_element(dy, ys.type, k);
        });
        for (size_t i = 0; i < count_of(xs); i++)
            store_blended(dx, xs.type, i, sums[i], a, b);
        free(sums);
    });
}
