/*
 * cuda_conv: what the two halves of convolutions share, cuDNN with the plans made of it
 * (cuda_conv_plan.cu) and the operations (cuda_conv.cu).
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_CONV_H
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_CONV_H

#include "worker/compute/cuda/cuda_internal.h"

#define NO_CUDNN_DEPRECATED /* the interface of descriptors and algorithms is the one we use */
#include <cudnn.h>

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
    struct cuda_scratch weight;  /* of the running call, where cuDNN cannot read the slab's */
    struct cuda_scratch dweight; /* likewise its gradient */
    struct cuda_scratch padded;  /* of the running call: images with the plan's channels */
};

/* Of one size of batch. */
struct conv_plan {
    size_t batch;  /* 0: none */
    uint64_t used; /* when last: a count */
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t weight;                            /* borrowed: of all plans */
    cudnnConvolutionDescriptor_t forward, to_weight, to_input; /* differ in the kind of products */
    cudnnConvolutionFwdAlgo_t forward_algorithm;
    cudnnConvolutionBwdFilterAlgo_t weight_algorithm;
    cudnnConvolutionBwdDataAlgo_t input_algorithm;
    size_t workspace[3]; /* bytes: of forward, to_weight, to_input */
};

#define CONV_PLANS 8u /* whole and last batches, of training and of evaluation, and more */

struct conv_plans {  /* of a convolution */
    size_t channels; /* of x: the convolution's, or what 16 bytes hold where it has fewer */
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

/* As cuDNN has them. */
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

/* The plan for batches of this size, and its workspace: made now if it is not among those that are
 * kept, of which the least recently used one makes room. */
enum status conv_find_plan(struct cuda *cuda, const struct convolution *conv, size_t batch,
                           const struct conv_plan **ret, struct error *err);

#endif
