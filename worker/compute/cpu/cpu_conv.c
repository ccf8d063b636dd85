/*
 * Convolution on the CPU, an image at a time: its patches (im2col) times the filters.
 *
 * Source: Chellapilla, Puri and Simard 2006.
 */
#include "common/base/memory.h"
#include "worker/compute/cpu/cpu.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct conv_plan {
    size_t rows, columns; /* of the output */
    size_t points;        /* rows * columns */
    size_t patch;         /* channels * kernel * kernel */
    bool direct;          /* an image is its own patches: 1 x 1, stride 1, no padding */
    size_t max_batch;
    float *patches; /* (patch, points) of one image; NULL where direct */
};

enum status cpu_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                             struct error *err)
{
    struct conv_plan *plan = NULL;
    enum status status = mem_calloc(1, sizeof(*plan), "plan of a convolution", &plan, err);

    (void)c;
    if (status != STATUS_OK)
        return status;
    plan->rows = compute_windows(conv->height, conv->kernel, conv->stride, conv->padding);
    plan->columns = compute_windows(conv->width, conv->kernel, conv->stride, conv->padding);
    plan->points = plan->rows * plan->columns;
    plan->patch = conv->channels * conv->kernel * conv->kernel;
    plan->direct = conv->kernel == 1 && conv->stride == 1 && conv->padding == 0;
    plan->max_batch = max_batch;
    if (!plan->direct)
        status = mem_calloc_aligned(plan->patch * plan->points, sizeof(float),
                                    "scratch memory of a convolution", &plan->patches, err);
    if (status != STATUS_OK) {
        free(plan);
        return status;
    }
    conv->plan = plan;
    return STATUS_OK;
}

void cpu_conv_release(struct compute *c, struct convolution *conv)
{
    struct conv_plan *plan = conv->plan;

    (void)c;
    free(plan->patches);
    free(plan);
    conv->plan = NULL;
}

/* The output columns [from, to) whose input column, column * stride + k - padding, is inside. */
static void inside(const struct convolution *conv, size_t columns, size_t k, size_t *ret_from,
                   size_t *ret_to)
{
    size_t from = k < conv->padding ? (conv->padding - k + conv->stride - 1) / conv->stride : 0;
    size_t end = conv->width + conv->padding;
    size_t to = end <= k ? 0 : (end - k - 1) / conv->stride + 1;

    *ret_to = to < columns ? to : columns;
    *ret_from = from < *ret_to ? from : *ret_to;
}

/* One row of one tap's patches out of one row of x; in: where tap k would lie for column 0. */
static void gather(const struct convolution *conv, size_t columns, size_t k, const float *row,
                   float *out)
{
    size_t from;
    size_t to;

    inside(conv, columns, k, &from, &to);
    for (size_t j = 0; j < from; j++)
        out[j] = 0.0f;
    for (size_t j = from; j < to; j++)
        out[j] = row[j * conv->stride + k - conv->padding];
    for (size_t j = to; j < columns; j++)
        out[j] = 0.0f;
}

static void scatter(const struct convolution *conv, size_t columns, size_t k, const float *in,
                    float *row)
{
    size_t from;
    size_t to;

    inside(conv, columns, k, &from, &to);
    for (size_t j = from; j < to; j++)
        row[j * conv->stride + k - conv->padding] += in[j];
}

/* im2col: plan->patches (patch, points) of an image. */
static const float *patches_of(const struct convolution *conv, const float *image)
{
    const struct conv_plan *plan = conv->plan;
    float *out = plan->patches;

    if (plan->direct)
        return image;
    for (size_t tap = 0; tap < plan->patch; tap++) {
        size_t k = tap % conv->kernel;
        size_t top = tap / conv->kernel % conv->kernel;
        const float *plane = image + tap / conv->kernel / conv->kernel * conv->height * conv->width;

        for (size_t i = 0; i < plan->rows; i++, out += plan->columns) {
            size_t row = i * conv->stride + top; /* less padding */

            if (row < conv->padding || row - conv->padding >= conv->height)
                memset(out, 0, plan->columns * sizeof(*out));
            else
                gather(conv, plan->columns, k, plane + (row - conv->padding) * conv->width, out);
        }
    }
    return plan->patches;
}

/* col2im: add plan->patches to an image. */
static void add_patches(const struct convolution *conv, float *image)
{
    const struct conv_plan *plan = conv->plan;
    const float *in = plan->patches;

    for (size_t tap = 0; tap < plan->patch; tap++) {
        size_t k = tap % conv->kernel;
        size_t top = tap / conv->kernel % conv->kernel;
        float *plane = image + tap / conv->kernel / conv->kernel * conv->height * conv->width;

        for (size_t i = 0; i < plan->rows; i++, in += plan->columns) {
            size_t row = i * conv->stride + top;

            if (row >= conv->padding && row - conv->padding < conv->height)
                scatter(conv, plan->columns, k, in, plane + (row - conv->padding) * conv->width);
        }
    }
}

enum status cpu_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                             void *y, size_t batch, struct error *err)
{
    const struct image_kernels *kernels = ((const struct cpu *)c)->images;
    const struct conv_plan *plan = conv->plan;
    bool relu = conv->activation == ACTIVATION_RELU;
    const float *in = x;
    float *out = y;

    (void)err;
    assert(batch <= plan->max_batch);
    for (size_t i = 0; i < batch; i++) {
        cpu_product(false, false, conv->filters, plan->points, plan->patch, conv->weight,
                    patches_of(conv, in), 0.0f, out);
        for (size_t f = 0; f < conv->filters && (conv->bias || relu); f++)
            kernels->add_scalar(out + f * plan->points, plan->points,
                                conv->bias ? conv->bias[f] : 0.0f, relu);
        in += conv->channels * conv->height * conv->width;
        out += conv->filters * plan->points;
    }
    return STATUS_OK;
}

enum status cpu_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                     const void *x, const void *dy, size_t batch, bool accumulate,
                                     struct error *err)
{
    const struct image_kernels *kernels = ((const struct cpu *)c)->images;
    const struct conv_plan *plan = conv->plan;
    const float *gradient = dy;
    const float *in = x;

    (void)err;
    assert(batch <= plan->max_batch);
    for (size_t i = 0; i < batch; i++) {
        cpu_product(false, true, conv->filters, plan->patch, plan->points,
                    gradient + i * conv->filters * plan->points, patches_of(conv, in),
                    accumulate || i > 0 ? 1.0f : 0.0f, conv->dweight);
        in += conv->channels * conv->height * conv->width;
    }
    for (size_t f = 0; f < conv->filters && conv->dbias; f++) {
        double sum = 0.0;

        for (size_t i = 0; i < batch; i++)
            sum += kernels->sum(gradient + (i * conv->filters + f) * plan->points, plan->points);
        conv->dbias[f] = (accumulate ? conv->dbias[f] : 0.0f) + (float)sum;
    }
    return STATUS_OK;
}

enum status cpu_conv_backward_input(struct compute *c, const struct convolution *conv,
                                    const void *dy, void *dx, size_t batch, bool accumulate,
                                    struct error *err)
{
    const struct conv_plan *plan = conv->plan;
    size_t image = conv->channels * conv->height * conv->width;
    const float *gradient = dy;
    float *out = dx;

    (void)c;
    (void)err;
    assert(batch <= plan->max_batch);
    for (size_t i = 0; i < batch; i++, out += image, gradient += conv->filters * plan->points) {
        if (!plan->direct && !accumulate)
            memset(out, 0, image * sizeof(*out));
        cpu_product(true, false, plan->patch, plan->points, conv->filters, conv->weight, gradient,
                    plan->direct && accumulate ? 1.0f : 0.0f, plan->direct ? out : plan->patches);
        if (!plan->direct)
            add_patches(conv, out);
    }
    return STATUS_OK;
}
