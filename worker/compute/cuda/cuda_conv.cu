/*
 * Convolution by cuDNN, loaded when the first one is prepared: a host without it has everything
 * else.  Algorithms are cuDNN's own choice for the shape (with --deterministic among those that
 * give the same bits every time) and are chosen again when the batch changes.  Bias and activation
 * are a pass over the result, a bias's gradient a sum of ours, in float32 whatever the precision;
 * in 16 bits cuDNN gives a weight's gradient in 16 bits, which a pass adds to the float32 one; so
 * does one where the slab's place is not aligned as cuDNN needs it.
 */
#include "worker/compute/cuda/cuda_kernel.cuh"

#define NO_CUDNN_DEPRECATED /* the interface of descriptors and algorithms is the one we use */
#include <cudnn.h>

#include <dlfcn.h>
#include <stdlib.h>

#define LIBRARY          "libcudnn.so.9"
#define WORKSPACE_MAX    ((size_t)1 << 30)
#define ALGORITHMS_MAX   16
#define TENSOR_ALIGNMENT 16 /* bytes */
#define CHUNKS_MAX       32u
#define CHUNK_VALUES     4096u

#define FUNCTIONS(X)                                                                               \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnCreateTensorDescriptor)                                                                 \
    X(cudnnSetTensor4dDescriptor)                                                                  \
    X(cudnnDestroyTensorDescriptor)                                                                \
    X(cudnnCreateFilterDescriptor)                                                                 \
    X(cudnnSetFilter4dDescriptor)                                                                  \
    X(cudnnDestroyFilterDescriptor)                                                                \
    X(cudnnCreateConvolutionDescriptor)                                                            \
    X(cudnnSetConvolution2dDescriptor)                                                             \
    X(cudnnSetConvolutionMathType)                                                                 \
    X(cudnnDestroyConvolutionDescriptor)                                                           \
    X(cudnnGetConvolutionForwardAlgorithm_v7)                                                      \
    X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)                                               \
    X(cudnnGetConvolutionBackwardDataAlgorithm_v7)                                                 \
    X(cudnnConvolutionForward)                                                                     \
    X(cudnnConvolutionBackwardFilter)                                                              \
    X(cudnnConvolutionBackwardData)

struct conv_library {
#define X(name) decltype(&::name) name;
    FUNCTIONS(X)
#undef X
    cudnnHandle_t handle;
    struct cuda_scratch workspace;
    struct cuda_scratch dweight; /* gradient of a weight, where cuDNN cannot write the slab's */
};

struct conv_plan {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t forward, to_weight, to_input; /* differ in the kind of products */
    size_t batch;                                              /* that x and y describe */
    cudnnConvolutionFwdAlgo_t forward_algorithm;
    cudnnConvolutionBwdFilterAlgo_t weight_algorithm;
    cudnnConvolutionBwdDataAlgo_t input_algorithm;
    size_t workspace[3]; /* bytes: of forward, to_weight, to_input */
};

static enum status status_from_cudnn(const struct conv_library *l, cudnnStatus_t s,
                                     const char *call, struct error *err)
{
    if (s == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    return error_set(err, STATUS_INTERNAL, "%s: %s", call, l->cudnnGetErrorString(s));
}

/* ---- the library ---- */

static enum status find_functions(struct conv_library *l, struct error *err)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL); /* stays until the process ends */
    const char *missing = NULL;

    if (!library)
        return error_set(err, STATUS_UNAVAILABLE, "device cuda has no convolution: cuDNN: %s",
                         dlerror());
#define X(name)                                                                                    \
    l->name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));                          \
    if (!l->name)                                                                                  \
        missing = #name;
    FUNCTIONS(X)
#undef X
    if (missing)
        return error_set(err, STATUS_UNAVAILABLE, "device cuda has no convolution: %s lacks %s",
                         LIBRARY, missing);
    return STATUS_OK;
}

static enum status open_library(struct cuda *cuda, struct error *err)
{
    struct conv_library *l;
    enum status status;

    if (cuda->conv)
        return STATUS_OK;
    l = static_cast<struct conv_library *>(calloc(1, sizeof(*l)));
    if (!l)
        return error_set(err, STATUS_NO_MEMORY, "cuDNN: cannot allocate %zu bytes", sizeof(*l));
    status = find_functions(l, err);
    if (status == STATUS_OK)
        status = status_from_cudnn(l, l->cudnnCreate(&l->handle), "cudnnCreate", err);
    if (status == STATUS_OK)
        status =
            status_from_cudnn(l, l->cudnnSetStream(l->handle, cuda->work), "cudnnSetStream", err);
    cuda->conv = l;
    if (status != STATUS_OK)
        cuda_conv_close(cuda);
    return status;
}

void cuda_conv_close(struct cuda *cuda)
{
    struct conv_library *l = cuda->conv;

    if (!l)
        return;
    if (l->handle)
        (void)l->cudnnDestroy(l->handle);
    (void)cudaFree(l->workspace.memory);
    (void)cudaFree(l->dweight.memory);
    free(l);
    cuda->conv = NULL;
}

/* ---- plans ---- */

static cudnnDataType_t type_of_values(const struct cuda *cuda)
{
    return cuda->type == CUDA_R_16BF  ? CUDNN_DATA_BFLOAT16
           : cuda->type == CUDA_R_16F ? CUDNN_DATA_HALF
                                      : CUDNN_DATA_FLOAT;
}

static cudnnMathType_t math_of(const struct cuda *cuda)
{
    if (cuda->type != CUDA_R_32F)
        return CUDNN_TENSOR_OP_MATH;
    return cuda->product_type == CUBLAS_COMPUTE_32F ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
}

/* The first of cuDNN's list, which begins with the fastest, that may be used; NULL: none. */
template <typename P> static const P *first_allowed(const struct cuda *cuda, const P *p, int count)
{
    for (int i = 0; i < count; i++) {
        bool strict = math_of(cuda) != CUDNN_FMA_MATH || p[i].mathType == CUDNN_FMA_MATH ||
                      p[i].mathType == CUDNN_DEFAULT_MATH;

        if (p[i].status == CUDNN_STATUS_SUCCESS && p[i].memory <= WORKSPACE_MAX && strict &&
            (!cuda->deterministic || p[i].determinism == CUDNN_DETERMINISTIC))
            return &p[i];
    }
    return NULL;
}

/* Shared by the three: the chosen algorithm and its kind of products. */
template <typename P, typename A>
static enum status take(const struct cuda *cuda, cudnnStatus_t listed, const P *list, int count,
                        cudnnConvolutionDescriptor_t descriptor, A *algorithm, size_t *workspace,
                        struct error *err)
{
    const struct conv_library *l = cuda->conv;
    const P *chosen = listed == CUDNN_STATUS_SUCCESS ? first_allowed(cuda, list, count) : NULL;

    if (listed != CUDNN_STATUS_SUCCESS)
        return status_from_cudnn(l, listed, "choosing an algorithm of cuDNN", err);
    if (!chosen)
        return error_set(err, STATUS_UNSUPPORTED, "cuDNN has no%s algorithm for this convolution",
                         cuda->deterministic ? " deterministic" : "");
    *algorithm = chosen->algo;
    *workspace = chosen->memory;
    /* Of strict float32 the descriptor says so already; a default there would allow TF32. */
    if (math_of(cuda) == CUDNN_FMA_MATH)
        return STATUS_OK;
    return status_from_cudnn(l, l->cudnnSetConvolutionMathType(descriptor, chosen->mathType),
                             "cudnnSetConvolutionMathType", err);
}

/* What the last choice left there would narrow the next one. */
static cudnnStatus_t reset_math(const struct cuda *cuda, const struct conv_plan *p)
{
    const struct conv_library *l = cuda->conv;
    cudnnStatus_t s = l->cudnnSetConvolutionMathType(p->forward, math_of(cuda));

    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetConvolutionMathType(p->to_weight, math_of(cuda));
    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetConvolutionMathType(p->to_input, math_of(cuda));
    return s;
}

static enum status choose_algorithms(struct cuda *cuda, struct conv_plan *p, struct error *err)
{
    const struct conv_library *l = cuda->conv;
    cudnnConvolutionFwdAlgoPerf_t forward[ALGORITHMS_MAX];
    cudnnConvolutionBwdFilterAlgoPerf_t to_weight[ALGORITHMS_MAX];
    cudnnConvolutionBwdDataAlgoPerf_t to_input[ALGORITHMS_MAX];
    int count = 0;
    cudnnStatus_t s = l->cudnnGetConvolutionForwardAlgorithm_v7(
        l->handle, p->x, p->weight, p->forward, p->y, ALGORITHMS_MAX, &count, forward);
    enum status status =
        take(cuda, s, forward, count, p->forward, &p->forward_algorithm, &p->workspace[0], err);

    if (status != STATUS_OK)
        return status;
    s = l->cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        l->handle, p->x, p->y, p->to_weight, p->weight, ALGORITHMS_MAX, &count, to_weight);
    status =
        take(cuda, s, to_weight, count, p->to_weight, &p->weight_algorithm, &p->workspace[1], err);
    if (status != STATUS_OK)
        return status;
    s = l->cudnnGetConvolutionBackwardDataAlgorithm_v7(l->handle, p->weight, p->y, p->to_input,
                                                       p->x, ALGORITHMS_MAX, &count, to_input);
    return take(cuda, s, to_input, count, p->to_input, &p->input_algorithm, &p->workspace[2], err);
}

static cudnnStatus_t describe_convolution(const struct cuda *cuda, const struct convolution *conv,
                                          cudnnConvolutionDescriptor_t *ret)
{
    const struct conv_library *l = cuda->conv;
    int padding = (int)conv->padding;
    int stride = (int)conv->stride;
    cudnnStatus_t s = l->cudnnCreateConvolutionDescriptor(ret);

    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetConvolution2dDescriptor(*ret, padding, padding, stride, stride, 1, 1,
                                               CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetConvolutionMathType(*ret, math_of(cuda));
    return s;
}

static cudnnStatus_t describe(const struct cuda *cuda, const struct convolution *conv,
                              struct conv_plan *p)
{
    const struct conv_library *l = cuda->conv;
    cudnnStatus_t s = l->cudnnCreateTensorDescriptor(&p->x);

    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnCreateTensorDescriptor(&p->y);
    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnCreateFilterDescriptor(&p->weight);
    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetFilter4dDescriptor(p->weight, type_of_values(cuda), CUDNN_TENSOR_NCHW,
                                          (int)conv->filters, (int)conv->channels,
                                          (int)conv->kernel, (int)conv->kernel);
    if (s == CUDNN_STATUS_SUCCESS)
        s = describe_convolution(cuda, conv, &p->forward);
    if (s == CUDNN_STATUS_SUCCESS)
        s = describe_convolution(cuda, conv, &p->to_weight);
    if (s == CUDNN_STATUS_SUCCESS)
        s = describe_convolution(cuda, conv, &p->to_input);
    return s;
}

static size_t rows_of(const struct convolution *conv)
{
    return cuda_windows(conv->height, conv->kernel, conv->stride, conv->padding);
}

static size_t columns_of(const struct convolution *conv)
{
    return cuda_windows(conv->width, conv->kernel, conv->stride, conv->padding);
}

static enum status set_batch(struct cuda *cuda, const struct convolution *conv, size_t batch,
                             struct error *err)
{
    struct conv_plan *p = static_cast<struct conv_plan *>(conv->plan);
    struct conv_library *l = cuda->conv;
    size_t largest = 0;
    cudnnStatus_t s;
    enum status status;

    if (p->batch == batch)
        return STATUS_OK;
    p->batch = 0;
    s = l->cudnnSetTensor4dDescriptor(p->x, CUDNN_TENSOR_NCHW, type_of_values(cuda), (int)batch,
                                      (int)conv->channels, (int)conv->height, (int)conv->width);
    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetTensor4dDescriptor(p->y, CUDNN_TENSOR_NCHW, type_of_values(cuda), (int)batch,
                                          (int)conv->filters, (int)rows_of(conv),
                                          (int)columns_of(conv));
    status = status_from_cudnn(l, s, "cudnnSetTensor4dDescriptor", err);
    if (status == STATUS_OK)
        status = status_from_cudnn(l, reset_math(cuda, p), "cudnnSetConvolutionMathType", err);
    if (status == STATUS_OK)
        status = choose_algorithms(cuda, p, err);
    for (unsigned i = 0; i < 3; i++)
        largest = p->workspace[i] > largest ? p->workspace[i] : largest;
    if (status == STATUS_OK)
        status = cuda_reserve(cuda, &l->workspace, largest, "cuDNN's workspace", err);
    if (status == STATUS_OK)
        p->batch = batch;
    return status;
}

enum status cuda_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                              struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = open_library(cuda, err);

    if (status != STATUS_OK)
        return status;
    conv->plan = calloc(1, sizeof(struct conv_plan));
    if (!conv->plan)
        return error_set(err, STATUS_NO_MEMORY, "a convolution: cannot allocate %zu bytes",
                         sizeof(struct conv_plan));
    status = status_from_cudnn(cuda->conv,
                               describe(cuda, conv, static_cast<struct conv_plan *>(conv->plan)),
                               "describing a convolution to cuDNN", err);
    if (status == STATUS_OK)
        status = set_batch(cuda, conv, max_batch, err);
    if (status != STATUS_OK)
        cuda_conv_release(c, conv);
    return status;
}

void cuda_conv_release(struct compute *c, struct convolution *conv)
{
    struct conv_plan *p = static_cast<struct conv_plan *>(conv->plan);
    const struct conv_library *l = cuda_of(c)->conv;

    if (p->x)
        (void)l->cudnnDestroyTensorDescriptor(p->x);
    if (p->y)
        (void)l->cudnnDestroyTensorDescriptor(p->y);
    if (p->weight)
        (void)l->cudnnDestroyFilterDescriptor(p->weight);
    if (p->forward)
        (void)l->cudnnDestroyConvolutionDescriptor(p->forward);
    if (p->to_weight)
        (void)l->cudnnDestroyConvolutionDescriptor(p->to_weight);
    if (p->to_input)
        (void)l->cudnnDestroyConvolutionDescriptor(p->to_input);
    free(p);
    conv->plan = NULL;
}

/* ---- forward ---- */

template <typename T>
static __global__ void channel_bias_kernel(T *y, const float *bias, size_t count, size_t points,
                                           size_t filters, int activation)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        put(&y[i],
            activate(activation, to_float(y[i]) + (bias ? bias[i / points % filters] : 0.0f)));
}

static size_t weights_of(const struct convolution *conv)
{
    return conv->filters * conv->channels * conv->kernel * conv->kernel;
}

/* cuDNN knows no pointer when it chooses an algorithm and counts on vector loads; a parameter in
 * the slab has a float's alignment. */
static bool is_aligned(const void *tensor)
{
    return reinterpret_cast<uintptr_t>(tensor) % TENSOR_ALIGNMENT == 0;
}

/* The weight as values where cuDNN can read it. */
static enum status aligned_weight(struct cuda *cuda, const struct convolution *conv,
                                  const void **ret, struct error *err)
{
    struct cuda_scratch *s = &cuda->cast[0];
    size_t bytes = weights_of(conv) * cuda->value_size;
    enum status status = cuda_parameter(cuda, conv->weight, weights_of(conv), 0, ret, err);

    if (status != STATUS_OK || is_aligned(*ret))
        return status;
    status = cuda_reserve(cuda, s, bytes, "an aligned weight", err);
    if (status == STATUS_OK)
        status = status_from_cuda(
            cudaMemcpyAsync(s->memory, *ret, bytes, cudaMemcpyDeviceToDevice, cuda->work),
            "cudaMemcpyAsync of a weight", err);
    *ret = s->memory;
    return status;
}

enum status cuda_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                              void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct conv_library *l = cuda->conv;
    const struct conv_plan *p = static_cast<const struct conv_plan *>(conv->plan);
    const float one = 1.0f;
    const float zero = 0.0f;
    const void *weight = NULL;
    size_t points = rows_of(conv) * columns_of(conv);
    size_t count = batch * conv->filters * points;
    enum status status = set_batch(cuda, conv, batch, err);

    if (status == STATUS_OK)
        status = aligned_weight(cuda, conv, &weight, err);
    if (status == STATUS_OK)
        status = status_from_cudnn(
            l,
            l->cudnnConvolutionForward(l->handle, &one, p->x, x, p->weight, weight, p->forward,
                                       p->forward_algorithm, l->workspace.memory,
                                       l->workspace.bytes, &zero, p->y, y),
            "cudnnConvolutionForward", err);
    if (status != STATUS_OK || (!conv->bias && conv->activation == ACTIVATION_NONE))
        return status;
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(
                                            channel_bias_kernel<T>, blocks_for(count), THREADS, 0,
                                            cuda->work, static_cast<T *>(y), conv->bias, count,
                                            points, conv->filters, (int)conv->activation);
                                    }),
                            "bias kernel", err);
}

/* ---- backward ---- */

/* A block per filter and chunk of images; partials (chunks, filters). */
template <typename T>
static __global__ void filter_sums_kernel(const T *dy, float *partials, size_t batch, size_t points,
                                          size_t filters, size_t chunk)
{
    size_t begin = blockIdx.y * chunk;
    size_t end = begin + chunk < batch ? begin + chunk : batch;
    float sum = 0.0f;

    for (size_t k = threadIdx.x; k < (end - begin) * points; k += blockDim.x)
        sum += to_float(dy[((begin + k / points) * filters + blockIdx.x) * points + k % points]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        partials[blockIdx.y * filters + blockIdx.x] = sum;
}

static enum status filter_sums(struct cuda *cuda, const struct convolution *conv, const void *dy,
                               size_t batch, bool accumulate, struct error *err)
{
    size_t points = rows_of(conv) * columns_of(conv);
    size_t wanted = (batch * points + CHUNK_VALUES - 1) / CHUNK_VALUES;
    size_t chunk, chunks;
    enum status status;

    wanted = wanted > CHUNKS_MAX ? CHUNKS_MAX : wanted;
    wanted = wanted > batch ? batch : wanted;
    chunk = (batch + wanted - 1) / wanted;
    chunks = (batch + chunk - 1) / chunk;
    status = cuda_reserve(cuda, &cuda->partials, chunks * conv->filters * sizeof(float),
                          "partial sums", err);
    if (status != STATUS_OK)
        return status;
    status = status_from_cuda(by_type(cuda,
                                      [&](auto tag) {
                                          typedef typename decltype(tag)::type T;

                                          return cuda_launch(
                                              filter_sums_kernel<T>,
                                              dim3((unsigned)conv->filters, (unsigned)chunks),
                                              THREADS, 0, cuda->work, static_cast<const T *>(dy),
                                              static_cast<float *>(cuda->partials.memory), batch,
                                              points, conv->filters, chunk);
                                      }),
                              "filter_sums kernel", err);
    if (status == STATUS_OK)
        status = cuda_add_chunks(cuda, static_cast<float *>(cuda->partials.memory), conv->dbias,
                                 chunks, conv->filters, accumulate, err);
    return status;
}

enum status cuda_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                      const void *x, const void *dy, size_t batch, bool accumulate,
                                      struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct conv_library *l = cuda->conv;
    const struct conv_plan *p = static_cast<const struct conv_plan *>(conv->plan);
    bool direct = cuda->type == CUDA_R_32F && is_aligned(conv->dweight);
    const float alpha = direct ? cuda_unscale(cuda) : 1.0f;
    const float beta = direct && accumulate ? 1.0f : 0.0f;
    void *dweight = conv->dweight;
    enum status status = set_batch(cuda, conv, batch, err);

    if (status == STATUS_OK && !direct) {
        status = cuda_reserve(cuda, &l->dweight, weights_of(conv) * cuda->value_size,
                              "a convolution's gradient", err);
        dweight = l->dweight.memory;
    }
    if (status == STATUS_OK)
        status = status_from_cudnn(
            l,
            l->cudnnConvolutionBackwardFilter(l->handle, &alpha, p->x, x, p->y, dy, p->to_weight,
                                              p->weight_algorithm, l->workspace.memory,
                                              l->workspace.bytes, &beta, p->weight, dweight),
            "cudnnConvolutionBackwardFilter", err);
    if (status == STATUS_OK && !direct) /* one row: its column sums are itself */
        status =
            cuda_column_sums(cuda, dweight, conv->dweight, 1, weights_of(conv), accumulate, err);
    if (status == STATUS_OK && conv->dbias)
        status = filter_sums(cuda, conv, dy, batch, accumulate, err);
    return status;
}

enum status cuda_conv_backward_input(struct compute *c, const struct convolution *conv,
                                     const void *dy, void *dx, size_t batch, bool accumulate,
                                     struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct conv_library *l = cuda->conv;
    const struct conv_plan *p = static_cast<const struct conv_plan *>(conv->plan);
    const float one = 1.0f;
    const float beta = accumulate ? 1.0f : 0.0f;
    const void *weight = NULL;
    enum status status = set_batch(cuda, conv, batch, err);

    if (status == STATUS_OK)
        status = aligned_weight(cuda, conv, &weight, err);
    if (status == STATUS_OK)
        status = status_from_cudnn(
            l,
            l->cudnnConvolutionBackwardData(l->handle, &one, p->weight, weight, p->y, dy,
                                            p->to_input, p->input_algorithm, l->workspace.memory,
                                            l->workspace.bytes, &beta, p->x, dx),
            "cudnnConvolutionBackwardData", err);
    return status;
}
