/*
 * Convolution on the CPU: patches of the images (im2col) times the filters, one block at a time.
 *
 * A block is the part of the output that makes a matrix product of a good size: several images if
 * one has few points, some rows of one image if its patches would not stay in the cache.  An image
 * is first copied to planes with a border of zeros and, with a stride, its columns sorted by their
 * remainder.  One tap of the kernel then reads a contiguous part of a row for any padding and
 * stride, and im2col copies rows in whole vectors (a copy may overrun its row; the next copy
 * overwrites the excess).  Backward input does the reverse.  A 1 x 1 kernel without stride and
 * padding needs no patches if a block is one image.
 *
 * Bits: sums run in the order of the products (cpu_multiply.c), which depends on the processor
 * (and, with OpenBLAS, on the number of threads), not on the run.  Scratch memory belongs to the
 * device and is shared by all operations; the padded images belong to the plan, since their borders
 * stay zero between calls.
 *
 * Source: Chellapilla, Puri and Simard 2006.
 */
#include "common/base/memory.h"
#include "worker/compute/cpu/cpu_multiply.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SLACK       IMAGE_CHUNK /* floats after an array that whole vectors may overrun */
#define POINTS_MIN  192         /* of a block: with fewer the product is inefficient */
#define PATCHES_MAX (1u << 17)  /* floats of a block: half a MiB, in the second-level cache */

struct conv_plan {
    size_t rows, columns;      /* of the output */
    size_t points;             /* rows * columns */
    size_t patch;              /* channels * kernel * kernel */
    size_t images, block_rows; /* of a block: images > 1 only with all rows */
    size_t max_batch;
    bool direct;                     /* the image itself is the patch matrix */
    size_t phase_pitch, row_pitch;   /* columns of one remainder; all of them */
    size_t plane_pitch, image_pitch; /* a padded channel; a padded image */
    float *padded;                   /* images * image_pitch; NULL where direct */
    /* Layout of the scratch memory: a block's patches (patch, points), unless direct; its values
     * (filters, points), if it has several images; the scratch memory of cpu_multiply. */
    size_t values_offset, multiply_offset;
};

/* Part of the output: `rows` rows of `images` images. */
struct block {
    size_t image, images, row, rows;
    size_t points; /* of all */
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void choose_block(struct conv_plan *plan, size_t max_batch)
{
    size_t rows = PATCHES_MAX / (plan->patch * plan->columns);
    size_t rows_min = (POINTS_MIN + plan->columns - 1) / plan->columns;

    rows = rows < rows_min ? rows_min : rows;
    plan->block_rows = smaller(rows, plan->rows);
    plan->images = smaller((POINTS_MIN + plan->points - 1) / plan->points, max_batch);
    if (plan->images > 1)
        plan->block_rows = plan->rows;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* `count` floats plus slack, rounded up so that the next array is aligned. */
static size_t aligned(size_t count)
{
    return (count + SLACK + IMAGE_CHUNK - 1) / IMAGE_CHUNK * IMAGE_CHUNK;
}

static enum status reserve_scratch(struct cpu *cpu, struct conv_plan *plan, size_t filters,
                                   struct error *err)
{
    static const char what[] = "scratch memory of a convolution";
    size_t points = plan->images * plan->block_rows * plan->columns;
    size_t forward = cpu_multiply_scratch(cpu, filters, points, plan->patch, false);
    size_t weight = cpu_multiply_scratch(cpu, filters, plan->patch, points, false);
    size_t input = cpu_multiply_scratch(cpu, plan->patch, points, filters, true);
    enum status status = STATUS_OK;

    plan->values_offset = plan->direct ? 0 : aligned(plan->patch * points);
    plan->multiply_offset =
        plan->values_offset + (plan->images > 1 ? aligned(filters * points) : 0);
    if (!plan->direct)
        status = mem_calloc_aligned(plan->images * plan->image_pitch + SLACK, sizeof(float), what,
                                    &plan->padded, err);
    if (status == STATUS_OK)
        status = cpu_reserve(cpu, plan->multiply_offset + larger(forward, larger(weight, input)),
                             what, err);
    return status;
}

enum status cpu_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                             struct error *err)
{
    struct conv_plan *plan = NULL;
    enum status status = mem_calloc(1, sizeof(*plan), "plan of a convolution", &plan, err);
    size_t width = conv->width + 2 * conv->padding;

    if (status != STATUS_OK)
        return status;
    plan->rows = compute_windows(conv->height, conv->kernel, conv->stride, conv->padding);
    plan->columns = compute_windows(conv->width, conv->kernel, conv->stride, conv->padding);
    plan->points = plan->rows * plan->columns;
    plan->patch = conv->channels * conv->kernel * conv->kernel;
    plan->max_batch = max_batch;
    choose_block(plan, max_batch);
    plan->direct =
        plan->images == 1 && conv->kernel == 1 && conv->stride == 1 && conv->padding == 0;
    if (plan->direct)
        plan->block_rows = plan->rows;
    plan->phase_pitch = (width + conv->stride - 1) / conv->stride;
    plan->row_pitch = conv->stride * plan->phase_pitch;
    plan->plane_pitch = (conv->height + 2 * conv->padding) * plan->row_pitch;
    plan->image_pitch = conv->channels * plan->plane_pitch;
    conv->plan = plan;
    status = reserve_scratch((struct cpu *)c, plan, conv->filters, err);
    if (status != STATUS_OK)
        cpu_conv_release(c, conv);
    return status;
}

void cpu_conv_release(struct compute *c, struct convolution *conv)
{
    struct conv_plan *plan = conv->plan;

    (void)c;
    free(plan->padded);
    free(plan);
    conv->plan = NULL;
}

/* ---- blocks ---- */

static struct block first_block(const struct conv_plan *plan, size_t batch)
{
    struct block b = {.images = smaller(plan->images, batch), .rows = plan->block_rows};

    b.points = b.images * b.rows * plan->columns;
    return b;
}

/* False: `b` was the last block. */
static bool next_block(const struct conv_plan *plan, struct block *b, size_t batch)
{
    b->row += b->rows;
    if (b->row == plan->rows) {
        b->row = 0;
        b->image += b->images;
    }
    if (b->image == batch)
        return false;
    b->images = smaller(plan->images, batch - b->image);
    b->rows = smaller(plan->block_rows, plan->rows - b->row);
    b->points = b->images * b->rows * plan->columns;
    return true;
}

/* ---- patches ---- */

/* Offset of column w, counting the border, within a padded row. */
static size_t padded_column(const struct convolution *conv, size_t w)
{
    const struct conv_plan *plan = conv->plan;

    return w % conv->stride * plan->phase_pitch + w / conv->stride;
}

/* Offset in a padded image of the first element that `tap` reads for output row `row`. */
static size_t tap_offset(const struct convolution *conv, size_t tap, size_t row)
{
    const struct conv_plan *plan = conv->plan;
    size_t k = conv->kernel;

    return tap / (k * k) * plan->plane_pitch +
           (row * conv->stride + tap / k % k) * plan->row_pitch + padded_column(conv, tap % k);
}

/* Copy a row of an image into its padded row, where columns of equal remainder are contiguous. */
static void pad_row(const struct convolution *conv, const float *row, float *padded)
{
    size_t stride = conv->stride;

    if (stride == 1) {
        memcpy(padded + conv->padding, row, conv->width * sizeof(*row));
        return;
    }
    for (size_t phase = 0; phase < smaller(stride, conv->width); phase++) {
        float *out = padded + padded_column(conv, conv->padding + phase);

        for (size_t w = phase; w < conv->width; w += stride)
            *out++ = row[w];
    }
}

static void unpad_row(const struct convolution *conv, const float *padded, float *row,
                      bool accumulate)
{
    size_t stride = conv->stride;

    for (size_t phase = 0; phase < smaller(stride, conv->width); phase++) {
        const float *in = padded + padded_column(conv, conv->padding + phase);

        for (size_t w = phase; w < conv->width; w += stride, in++)
            row[w] = accumulate ? row[w] + *in : *in;
    }
}

/* Offset of the padded row for row `line`, counted over all channels. */
static size_t padded_row(const struct convolution *conv, size_t line)
{
    const struct conv_plan *plan = conv->plan;

    return line / conv->height * plan->plane_pitch +
           (line % conv->height + conv->padding) * plan->row_pitch;
}

static void pad(const struct convolution *conv, const float *image, float *padded)
{
    for (size_t line = 0; line < conv->channels * conv->height; line++)
        pad_row(conv, image + line * conv->width, padded + padded_row(conv, line));
}

static void unpad(const struct convolution *conv, const float *padded, float *image,
                  bool accumulate)
{
    for (size_t line = 0; line < conv->channels * conv->height; line++)
        unpad_row(conv, padded + padded_row(conv, line), image + line * conv->width, accumulate);
}

/* im2col: the block's patches (patch, points) of x, a batch; x itself if the plan is direct. */
static const float *im2col(const struct cpu *cpu, const struct convolution *conv,
                           const struct block *b, const float *x)
{
    const struct conv_plan *plan = conv->plan;
    size_t image = conv->channels * conv->height * conv->width;
    size_t length = b->rows * plan->columns;
    float *out = cpu->scratch;

    if (plan->direct)
        return x + b->image * image;
    for (size_t i = 0; i < b->images && b->row == 0; i++)
        pad(conv, x + (b->image + i) * image, plan->padded + i * plan->image_pitch);
    for (size_t tap = 0; tap < plan->patch; tap++) {
        const float *in = plan->padded + tap_offset(conv, tap, b->row);

        for (size_t i = 0; i < b->images; i++, out += length)
            cpu->images->copy_rows(in + i * plan->image_pitch, conv->stride * plan->row_pitch, out,
                                   b->rows, plan->columns);
    }
    return cpu->scratch;
}

/* col2im: add a block's patches to plan->padded. */
static void col2im(const struct cpu *cpu, const struct convolution *conv, const struct block *b)
{
    const struct conv_plan *plan = conv->plan;
    const float *in = cpu->scratch;

    for (size_t tap = 0; tap < plan->patch; tap++) {
        float *out = plan->padded + tap_offset(conv, tap, b->row);

        for (size_t i = 0; i < b->images; i++, in += b->rows * plan->columns)
            cpu->images->add_rows(in, out + i * plan->image_pitch, conv->stride * plan->row_pitch,
                                  b->rows, plan->columns);
    }
}

/* ---- outputs ---- */

/* Offset in y and dy of the block's first image. */
static size_t block_offset(const struct convolution *conv, const struct block *b)
{
    const struct conv_plan *plan = conv->plan;

    return b->image * conv->filters * plan->points + b->row * plan->columns;
}

/* The block of dy as a matrix (filters, points): in place, or gathered from several images. */
static struct operand output_gradients(const struct cpu *cpu, const struct convolution *conv,
                                       const struct block *b, const float *dy)
{
    const struct conv_plan *plan = conv->plan;
    float *values = cpu->scratch + plan->values_offset;

    if (plan->images == 1)
        return (struct operand){.data = dy + block_offset(conv, b), .row = plan->points};
    for (size_t f = 0; f < conv->filters; f++)
        for (size_t i = 0; i < b->images; i++)
            memcpy(values + f * b->points + i * plan->points,
                   dy + ((b->image + i) * conv->filters + f) * plan->points,
                   plan->points * sizeof(*dy));
    return (struct operand){.data = values, .row = b->points};
}

/* Store the product's result in y, with bias and activation. */
static void store_output(const struct cpu *cpu, const struct convolution *conv,
                         const struct block *b, float *y)
{
    const struct conv_plan *plan = conv->plan;
    const float *values = plan->images > 1 ? cpu->scratch + plan->values_offset : NULL;
    bool relu = conv->activation == ACTIVATION_RELU;

    if (!values && !conv->bias && !relu)
        return;
    for (size_t i = 0; i < b->images; i++) {
        for (size_t f = 0; f < conv->filters; f++) {
            float *out = y + block_offset(conv, b) + (i * conv->filters + f) * plan->points;

            cpu->images->add_scalar(values ? values + f * b->points + i * plan->points : out, out,
                                    b->rows * plan->columns, conv->bias ? conv->bias[f] : 0.0f,
                                    relu);
        }
    }
}

/* ---- the operations ---- */

enum status cpu_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                             void *y, size_t batch, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    const struct conv_plan *plan = conv->plan;
    struct block b = first_block(plan, batch);
    struct multiplication product = {
        .m = conv->filters, .k = plan->patch, .a = {.data = conv->weight, .row = plan->patch}};

    (void)err;
    assert(batch > 0 && batch <= plan->max_batch);
    do {
        product.n = b.points;
        product.b = (struct operand){.data = im2col(cpu, conv, &b, x), .row = b.points};
        product.c = plan->images > 1 ? cpu->scratch + plan->values_offset
                                     : (float *)y + block_offset(conv, &b);
        product.c_row = plan->images > 1 ? b.points : plan->points;
        cpu_multiply(cpu, &product, b.image > 0 || b.row > 0, cpu->scratch + plan->multiply_offset);
        store_output(cpu, conv, &b, y);
    } while (next_block(plan, &b, batch));
    return STATUS_OK;
}

static void backward_bias(const struct cpu *cpu, const struct convolution *conv, const float *dy,
                          size_t batch, bool accumulate)
{
    const struct conv_plan *plan = conv->plan;

    for (size_t f = 0; f < conv->filters; f++) {
        double sum = 0.0;

        for (size_t i = 0; i < batch; i++)
            sum += cpu->images->sum(dy + (i * conv->filters + f) * plan->points, plan->points);
        conv->dbias[f] = (accumulate ? conv->dbias[f] : 0.0f) + (float)sum;
    }
}

enum status cpu_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                     const void *x, const void *dy, size_t batch, bool accumulate,
                                     struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    const struct conv_plan *plan = conv->plan;
    struct block b = first_block(plan, batch);
    struct multiplication product = {.m = conv->filters,
                                     .n = plan->patch,
                                     .c = conv->dweight,
                                     .c_row = plan->patch,
                                     .accumulate = accumulate};

    (void)err;
    assert(batch > 0 && batch <= plan->max_batch);
    do {
        product.k = b.points;
        product.a = output_gradients(cpu, conv, &b, dy);
        product.b =
            (struct operand){.data = im2col(cpu, conv, &b, x), .row = b.points, .transposed = true};
        cpu_multiply(cpu, &product, false, cpu->scratch + plan->multiply_offset);
        product.accumulate = true;
    } while (next_block(plan, &b, batch));
    if (conv->dbias)
        backward_bias(cpu, conv, dy, batch, accumulate);
    return STATUS_OK;
}

/* Add a block's patches to dx: clear the padded images at an image's first rows, and copy them to
 * dx after its last rows. */
static void scatter(const struct cpu *cpu, const struct convolution *conv, const struct block *b,
                    float *dx, bool accumulate)
{
    const struct conv_plan *plan = conv->plan;
    size_t image = conv->channels * conv->height * conv->width;

    if (b->row == 0)
        memset(plan->padded, 0, b->images * plan->image_pitch * sizeof(float));
    col2im(cpu, conv, b);
    if (b->row + b->rows < plan->rows)
        return;
    for (size_t i = 0; i < b->images; i++)
        unpad(conv, plan->padded + i * plan->image_pitch, dx + (b->image + i) * image, accumulate);
}

enum status cpu_conv_backward_input(struct compute *c, const struct convolution *conv,
                                    const void *dy, void *dx, size_t batch, bool accumulate,
                                    struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    const struct conv_plan *plan = conv->plan;
    struct block b = first_block(plan, batch);
    struct multiplication product = {
        .m = plan->patch,
        .k = conv->filters,
        .a = {.data = conv->weight, .row = plan->patch, .transposed = true},
        .accumulate = plan->direct && accumulate};

    (void)err;
    assert(batch > 0 && batch <= plan->max_batch);
    do {
        product.n = b.points;
        product.b = output_gradients(cpu, conv, &b, dy);
        product.c =
            plan->direct ? (float *)dx + b.image * plan->patch * plan->points : cpu->scratch;
        product.c_row = b.points;
        cpu_multiply(cpu, &product, b.image > 0 || b.row > 0, cpu->scratch + plan->multiply_offset);
        if (!plan->direct)
            scatter(cpu, conv, &b, dx, accumulate);
    } while (next_block(plan, &b, batch));
    if (plan->padded) /* the border must be zero between calls */
        memset(plan->padded, 0, plan->images * plan->image_pitch * sizeof(float));
    return STATUS_OK;
}
