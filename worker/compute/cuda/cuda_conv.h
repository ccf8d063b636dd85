/*
 * cuda_conv: declarations shared by cuda_conv_plan.cu (loading cuDNN, and its plans) and
 * cuda_conv.cu (the operations).
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_CONV_H
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_CONV_H

#include "worker/compute/cuda/cuda_internal.h"

#define NO_CUDNN_DEPRECATED /* we use the descriptor API */
#include <cudnn.h>

#define CUDNN_FUNCTIONS(X)                                                                         \
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
    CUDNN_FUNCTIONS(X)
#undef X
    cudnnHandle_t handle;
    struct cuda_scratch workspace;
    struct cuda_scratch weight;  /* of the running call, if cuDNN cannot read the slab's weight */
    struct cuda_scratch dweight; /* the same for its gradient */
    struct cuda_scratch padded;  /* of the running call: images with the plan's channels */
};

/* The plan of a convolution for one batch size. */
struct conv_plan {
    size_t batch;  /* 0: none */
    uint64_t used; /* last use: a value of `uses` */
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t weight;                            /* borrowed: shared by all plans */
    cudnnConvolutionDescriptor_t forward, to_weight, to_input; /* differ in the math type */
    cudnnConvolutionFwdAlgo_t forward_algorithm;
    cudnnConvolutionBwdFilterAlgo_t weight_algorithm;
    cudnnConvolutionBwdDataAlgo_t input_algorithm;
    size_t workspace[3]; /* bytes: of forward, to_weight, to_input */
};

#define CONV_PLANS 8u /* full and last batches of training and of evaluation, and more */

struct conv_plans {  /* of a convolution */
    size_t channels; /* of x: the convolution's, or padded to 16 bytes if it has fewer */
    cudnnFilterDescriptor_t weight;
    struct conv_plan plans[CONV_PLANS];
    uint64_t uses;
};

static inline struct conv_plans *conv_plans_of(const struct convolution *conv)
{
    return static_cast<struct conv_plans *>(conv->plan);
}

static inline size_t conv_rows(const struct convolution *conv)
{
    return cuda_windows(conv->height, conv->kernel, conv->stride, conv->padding);
}

static inline size_t conv_columns(const struct convolution *conv)
{
    return cuda_windows(conv->width, conv->kernel, conv->stride, conv->padding);
}

/* Number of weights in cuDNN's layout. */
static inline size_t conv_weights(const struct convolution *conv)
{
    return conv->filters * conv_plans_of(conv)->channels * conv->kernel * conv->kernel;
}

static inline bool conv_is_padded(const struct convolution *conv)
{
    return conv_plans_of(conv)->channels > conv->channels;
}

enum status status_from_cudnn(const struct conv_library *l, cudnnStatus_t s, const char *call,
                              struct error *err);

/* Returns the plan for batches of this size, and reserves its workspace; a new plan replaces the
 * least recently used one. */
enum status conv_find_plan(struct cuda *cuda, const struct convolution *conv, size_t batch,
                           const struct conv_plan **ret, struct error *err);

#endif
