/*
 * cuda_conv: convolution by cuDNN. cuDNN reads weights with the channels last, which in the slab
 * only a 1 x 1 kernel has (cuda_layout.cu); other weights are transposed for each call, which costs
 * little beside the images.  Bias and activation are a separate pass over the result; a bias's
 * gradient is our own sum, in float32 in every precision.  In 16 bits cuDNN writes a weight's
 * gradient in 16 bits, and the pass that transposes it adds it to the float32 one.
 */
#include "worker/compute/cuda/cuda_conv.h"
#include "worker/compute/cuda/cuda_rows.cuh"

#define TENSOR_ALIGNMENT 16 /* bytes */
#define BIAS_BLOCKS      4096u
#define BIAS_ROWS        4u

/* cuDNN chooses an algorithm without seeing pointers and assumes vector loads; a parameter in the
 * slab only has a float's alignment. */
static bool is_aligned(const void *tensor)
{
    return reinterpret_cast<uintptr_t>(tensor) % TENSOR_ALIGNMENT == 0;
}

/* The weight has the same layout in the slab and in cuDNN. */
static bool layouts_are_equal(const struct convolution *conv)
{
    return (conv->kernel == 1 || conv->channels == 1) && !conv_is_padded(conv);
}

/* Replace x by a padded copy if cuDNN needs more channels. */
static enum status readable_images(struct cuda *cuda, const struct convolution *conv, size_t batch,
                                   const void **x, struct error *err)
{
    void *padded = cuda->conv->padded.memory;
    const void *images = *x;

    if (!conv_is_padded(conv))
        return STATUS_OK;
    *x = padded;
    return cuda_pad_channels(cuda, images, padded, batch * conv->height * conv->width,
                             conv->channels, err);
}

/* The weight as values, in cuDNN's layout and alignment. */
static enum status readable_weight(struct cuda *cuda, const struct convolution *conv,
                                   const void **ret, struct error *err)
{
    struct cuda_scratch *s = &cuda->conv->weight;
    enum status status;

    if (layouts_are_equal(conv)) {
        status = cuda_parameter(cuda, conv->weight, conv_weights(conv), 0, ret, err);
        if (status != STATUS_OK || is_aligned(*ret))
            return status;
    }
    status =
        cuda_reserve(cuda, s, conv_weights(conv) * cuda->value_size, "a weight for cuDNN", err);
    *ret = s->memory;
    return status == STATUS_OK
               ? cuda_filters_to_values(cuda, conv, conv_plans_of(conv)->channels, s->memory, err)
               : status;
}

/* ---- forward ---- */

template <typename T, unsigned N>
static __global__ void channel_bias_kernel(struct rows r, T *y, const float *bias, int activation)
{
    float added[N] = {};

    if (rows_pack() >= r.packs)
        return;
#pragma unroll
    for (unsigned i = 0; i < N && bias; i++)
        added[i] = bias[rows_pack() * N + i];
    for_rows<N>(r, [&](size_t at) {
        float values[N];

        load<N>(values, y + at);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            values[i] = activate(activation, values[i] + added[i]);
        store<N>(y + at, values);
    });
}

static enum status conv_epilogue(struct cuda *cuda, const struct convolution *conv, void *y,
                                 size_t points, struct error *err)
{
    return status_from_cuda(
        by_pack(cuda, can_pack(cuda, conv->filters, y),
                [&](auto tag, auto size) {
                    typedef typename decltype(tag)::type T;
                    constexpr unsigned N = decltype(size)::count;
                    struct rows r = rows_plan(points, conv->filters, N, BIAS_BLOCKS, BIAS_ROWS);

                    return cuda_launch(channel_bias_kernel<T, N>, rows_grid(r), rows_block(r.packs),
                                       0, cuda->work, r, static_cast<T *>(y), conv->bias,
                                       (int)conv->activation);
                }),
        "bias kernel", err);
}

enum status cuda_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                              void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct conv_library *l = cuda->conv;
    const struct conv_plan *p = NULL;
    const float one = 1.0f;
    const float zero = 0.0f;
    const void *weight = NULL;
    enum status status = conv_find_plan(cuda, conv, batch, &p, err);

    if (status == STATUS_OK)
        status = readable_weight(cuda, conv, &weight, err);
    if (status == STATUS_OK)
        status = readable_images(cuda, conv, batch, &x, err);
    if (status == STATUS_OK)
        status = status_from_cudnn(
            l,
            l->cudnnConvolutionForward(l->handle, &one, p->x, x, p->weight, weight, p->forward,
                                       p->forward_algorithm, l->workspace.memory,
                                       l->workspace.bytes, &zero, p->y, y),
            "cudnnConvolutionForward", err);
    if (status != STATUS_OK || (!conv->bias && conv->activation == ACTIVATION_NONE))
        return status;
    return conv_epilogue(cuda, conv, y, batch * conv_rows(conv) * conv_columns(conv), err);
}

/* ---- backward ---- */

enum status cuda_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                      const void *x, const void *dy, size_t batch, bool accumulate,
                                      struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct conv_library *l = cuda->conv;
    const struct conv_plan *p = NULL;
    bool direct = cuda->type == CUDA_R_32F && layouts_are_equal(conv) && is_aligned(conv->dweight);
    const float alpha = direct ? cuda_unscale(cuda) : 1.0f;
    const float beta = direct && accumulate ? 1.0f : 0.0f;
    void *dweight = conv->dweight;
    enum status status = conv_find_plan(cuda, conv, batch, &p, err);

    if (status == STATUS_OK && !direct) {
        status = cuda_reserve(cuda, &l->dweight, conv_weights(conv) * cuda->value_size,
                              "a convolution's gradient", err);
        dweight = l->dweight.memory;
    }
    if (status == STATUS_OK)
        status = readable_images(cuda, conv, batch, &x, err);
    if (status == STATUS_OK)
        status = status_from_cudnn(
            l,
            l->cudnnConvolutionBackwardFilter(l->handle, &alpha, p->x, x, p->y, dy, p->to_weight,
                                              p->weight_algorithm, l->workspace.memory,
                                              l->workspace.bytes, &beta, p->weight, dweight),
            "cudnnConvolutionBackwardFilter", err);
    if (status == STATUS_OK && !direct)
        status = cuda_filters_from_values(cuda, conv, conv_plans_of(conv)->channels, dweight,
                                          accumulate, err);
    if (status == STATUS_OK && conv->dbias)
        status =
            cuda_column_sums(cuda, dy, conv->dbias, batch * conv_rows(conv) * conv_columns(conv),
                             conv->filters, conv->filters, accumulate, err);
    return status;
}

enum status cuda_conv_backward_input(struct compute *c, const struct convolution *conv,
                                     const void *dy, void *dx, size_t batch, bool accumulate,
                                     struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct conv_library *l = cuda->conv;
    const struct conv_plan *p = NULL;
    const float one = 1.0f;
    bool padded = conv_is_padded(conv);
    const float beta = accumulate && !padded ? 1.0f : 0.0f;
    const void *weight = NULL;
    void *to = dx;
    enum status status = conv_find_plan(cuda, conv, batch, &p, err);

    if (status == STATUS_OK)
        status = readable_weight(cuda, conv, &weight, err);
    if (padded) /* reserved by conv_find_plan */
        to = l->padded.memory;
    if (status == STATUS_OK)
        status = status_from_cudnn(
            l,
            l->cudnnConvolutionBackwardData(l->handle, &one, p->weight, weight, p->y, dy,
                                            p->to_input, p->input_algorithm, l->workspace.memory,
                                            l->workspace.bytes, &beta, p->x, to),
            "cudnnConvolutionBackwardData", err);
    if (status == STATUS_OK && padded)
        status = cuda_unpad_channels(cuda, to, dx, batch * conv->height * conv->width,
                                     conv->channels, accumulate, err);
    return status;
}
