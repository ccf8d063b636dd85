/*
 * cuda_conv_plan: loading cuDNN, and plans of convolutions.  The library is loaded when the first
 * convolution is prepared, so that a host without it can do everything else. cuDNN chooses the
 * algorithm for each shape (with --deterministic among the deterministic ones), once per batch
 * size, because sizes alternate and because cuDNN does not promise that it may be queried during
 * the capture of a graph.  All tensors have their channels last (cuda_layout.cu).
 */
#include "worker/compute/cuda/cuda_conv.h"

#include <dlfcn.h>
#include <stdlib.h>

#define LIBRARY        "libcudnn.so.9"
#define WORKSPACE_MAX  ((size_t)1 << 30)
#define ALGORITHMS_MAX 16

enum status status_from_cudnn(const struct conv_library *l, cudnnStatus_t s, const char *call,
                              struct error *err)
{
    if (s == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    return error_set(err, STATUS_INTERNAL, "%s: %s", call, l->cudnnGetErrorString(s));
}

/* ---- the library ---- */

static enum status find_functions(struct conv_library *l, struct error *err)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL); /* never unloaded */
    const char *missing = NULL;

    if (!library)
        return error_set(err, STATUS_UNAVAILABLE, "device cuda has no convolution: cuDNN: %s",
                         dlerror());
#define X(name)                                                                                    \
    l->name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));                          \
    if (!l->name)                                                                                  \
        missing = #name;
    CUDNN_FUNCTIONS(X)
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
    (void)cudaFree(l->weight.memory);
    (void)cudaFree(l->dweight.memory);
    (void)cudaFree(l->padded.memory);
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

/* The first allowed entry of cuDNN's list, which begins with the fastest; NULL: none. */
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

/* Select an algorithm of the list for one of the three directions, and set its math type. */
template <typename P, typename A>
static enum status use_algorithm(const struct cuda *cuda, cudnnStatus_t listed, const P *list,
                                 int count, cudnnConvolutionDescriptor_t descriptor, A *algorithm,
                                 size_t *workspace, struct error *err)
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
    /* In strict float32 the descriptor is already set; the entry's default would allow TF32. */
    if (math_of(cuda) == CUDNN_FMA_MATH)
        return STATUS_OK;
    return status_from_cudnn(l, l->cudnnSetConvolutionMathType(descriptor, chosen->mathType),
                             "cudnnSetConvolutionMathType", err);
}

/* The math type of the previous choice would restrict the next one. */
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
    enum status status = use_algorithm(cuda, s, forward, count, p->forward, &p->forward_algorithm,
                                       &p->workspace[0], err);

    if (status != STATUS_OK)
        return status;
    s = l->cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        l->handle, p->x, p->y, p->to_weight, p->weight, ALGORITHMS_MAX, &count, to_weight);
    status = use_algorithm(cuda, s, to_weight, count, p->to_weight, &p->weight_algorithm,
                           &p->workspace[1], err);
    if (status != STATUS_OK)
        return status;
    s = l->cudnnGetConvolutionBackwardDataAlgorithm_v7(l->handle, p->weight, p->y, p->to_input,
                                                       p->x, ALGORITHMS_MAX, &count, to_input);
    return use_algorithm(cuda, s, to_input, count, p->to_input, &p->input_algorithm,
                         &p->workspace[2], err);
}

static cudnnStatus_t make_convolution_descriptor(const struct cuda *cuda,
                                                 const struct convolution *conv,
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

/* Create the descriptors of a new plan, or set those of a reused one to another batch size. */
static cudnnStatus_t set_descriptors(const struct cuda *cuda, const struct convolution *conv,
                                     size_t batch, struct conv_plan *p)
{
    const struct conv_library *l = cuda->conv;
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;

    p->weight = conv_plans_of(conv)->weight;
    if (!p->x)
        s = l->cudnnCreateTensorDescriptor(&p->x);
    if (s == CUDNN_STATUS_SUCCESS && !p->y)
        s = l->cudnnCreateTensorDescriptor(&p->y);
    if (s == CUDNN_STATUS_SUCCESS && !p->forward)
        s = make_convolution_descriptor(cuda, conv, &p->forward);
    if (s == CUDNN_STATUS_SUCCESS && !p->to_weight)
        s = make_convolution_descriptor(cuda, conv, &p->to_weight);
    if (s == CUDNN_STATUS_SUCCESS && !p->to_input)
        s = make_convolution_descriptor(cuda, conv, &p->to_input);
    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetTensor4dDescriptor(p->x, CUDNN_TENSOR_NHWC, type_of_values(cuda), (int)batch,
                                          (int)conv_plans_of(conv)->channels, (int)conv->height,
                                          (int)conv->width);
    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetTensor4dDescriptor(p->y, CUDNN_TENSOR_NHWC, type_of_values(cuda), (int)batch,
                                          (int)conv->filters, (int)conv_rows(conv),
                                          (int)conv_columns(conv));
    return s == CUDNN_STATUS_SUCCESS ? reset_math(cuda, p) : s;
}

static enum status make_plan(struct cuda *cuda, const struct convolution *conv, size_t batch,
                             struct conv_plan *p, struct error *err)
{
    struct conv_library *l = cuda->conv;
    size_t largest = 0;
    enum status status;

    p->batch = 0;
    status = status_from_cudnn(l, set_descriptors(cuda, conv, batch, p),
                               "describing a convolution to cuDNN", err);
    if (status == STATUS_OK)
        status = choose_algorithms(cuda, p, err);
    for (unsigned i = 0; i < 3; i++)
        largest = p->workspace[i] > largest ? p->workspace[i] : largest;
    if (status == STATUS_OK)
        status = cuda_reserve(cuda, &l->workspace, largest, "cuDNN's workspace", err);
    if (status == STATUS_OK && conv_is_padded(conv))
        status = cuda_reserve(cuda, &l->padded,
                              batch * conv->height * conv->width * conv_plans_of(conv)->channels *
                                  cuda->value_size,
                              "padded images", err);
    if (status == STATUS_OK)
        p->batch = batch;
    return status;
}

enum status conv_find_plan(struct cuda *cuda, const struct convolution *conv, size_t batch,
                           const struct conv_plan **ret, struct error *err)
{
    struct conv_plans *plans = conv_plans_of(conv);
    struct conv_plan *found = &plans->plans[0];
    enum status status = STATUS_OK;

    for (unsigned i = 0; i < CONV_PLANS && found->batch != batch; i++)
        if (plans->plans[i].batch == batch || plans->plans[i].used < found->used)
            found = &plans->plans[i];
    if (found->batch != batch)
        status = make_plan(cuda, conv, batch, found, err);
    found->used = ++plans->uses;
    *ret = found;
    return status;
}

/* Padding is only useful for the tensor cores, which strict float32 does not use. */
static size_t channels_for_cudnn(const struct cuda *cuda, size_t channels)
{
    size_t least = 16 / cuda->value_size;

    return channels < least && math_of(cuda) != CUDNN_FMA_MATH ? least : channels;
}

static cudnnStatus_t make_weight_descriptor(const struct cuda *cuda, const struct convolution *conv,
                                            struct conv_plans *plans)
{
    const struct conv_library *l = cuda->conv;
    cudnnStatus_t s = l->cudnnCreateFilterDescriptor(&plans->weight);

    if (s == CUDNN_STATUS_SUCCESS)
        s = l->cudnnSetFilter4dDescriptor(plans->weight, type_of_values(cuda), CUDNN_TENSOR_NHWC,
                                          (int)conv->filters, (int)plans->channels,
                                          (int)conv->kernel, (int)conv->kernel);
    return s;
}

enum status cuda_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                              struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    const struct conv_plan *largest = NULL;
    struct conv_plans *plans;
    enum status status = open_library(cuda, err);

    if (status != STATUS_OK)
        return status;
    conv->plan = calloc(1, sizeof(struct conv_plans));
    if (!conv->plan)
        return error_set(err, STATUS_NO_MEMORY, "a convolution: cannot allocate %zu bytes",
                         sizeof(struct conv_plans));
    plans = conv_plans_of(conv);
    plans->channels = channels_for_cudnn(cuda, conv->channels);
    status = status_from_cudnn(cuda->conv, make_weight_descriptor(cuda, conv, plans),
                               "describing a convolution to cuDNN", err);
    if (status == STATUS_OK)
        status = conv_find_plan(cuda, conv, max_batch, &largest, err);
    if (status != STATUS_OK)
        cuda_conv_release(c, conv);
    return status;
}

static void release_plan(const struct conv_library *l, struct conv_plan *p)
{
    if (p->x)
        (void)l->cudnnDestroyTensorDescriptor(p->x);
    if (p->y)
        (void)l->cudnnDestroyTensorDescriptor(p->y);
    if (p->forward)
        (void)l->cudnnDestroyConvolutionDescriptor(p->forward);
    if (p->to_weight)
        (void)l->cudnnDestroyConvolutionDescriptor(p->to_weight);
    if (p->to_input)
        (void)l->cudnnDestroyConvolutionDescriptor(p->to_input);
}

void cuda_conv_release(struct compute *c, struct convolution *conv)
{
    struct conv_plans *plans = conv_plans_of(conv);
    const struct conv_library *l = cuda_of(c)->conv;

    for (unsigned i = 0; i < CONV_PLANS; i++)
        release_plan(l, &plans->plans[i]);
    if (plans->weight)
        (void)l->cudnnDestroyFilterDescriptor(plans->weight);
    free(plans);
    conv->plan = NULL;
}
