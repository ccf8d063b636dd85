/*
 * builder: appends values, operations and entries of the parameter and buffer tables to a model
 * that is being opened.  Arrays grow by doubling.  The first error stays in the builder and turns
 * later calls into no-ops.  Sizes are limited to INT_MAX, the index type of BLAS and cuDNN.
 */
#include "worker/model/builder.h"

#include "common/base/memory.h"

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool failed(const struct builder *b)
{
    return b->status != STATUS_OK;
}

/* The array (entries of `size` bytes) with capacity for one more. */
static void *reserve_element(struct builder *b, void *array, size_t length, size_t *capacity,
                             size_t size)
{
    size_t new_capacity = *capacity ? 2 * *capacity : 16;
    void *grown = NULL;

    if (length < *capacity)
        return array;
    b->status = mem_calloc(new_capacity, size, "program", &grown, b->err);
    if (failed(b))
        return array;
    if (length > 0)
        memcpy(grown, array, length * size);
    free(array);
    *capacity = new_capacity;
    return grown;
}

struct module_name build_name(const char *format, ...)
{
    struct module_name name;
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(name.text, sizeof(name.text), format, arguments);
    va_end(arguments);
    return name;
}

/* ---- values ---- */

static unsigned add_value(struct builder *b, size_t channels, size_t height, size_t width)
{
    struct model *m = b->model;
    size_t count;

    if (failed(b))
        return 0;
    if (!size_multiply(channels, height, &count) || !size_multiply(count, width, &count) ||
        count > INT_MAX) {
        b->status = error_set(b->err, STATUS_CONFIG,
                              "%zu x %zu x %zu activations of one sample are too many", channels,
                              height, width);
        return 0;
    }
    m->values =
        reserve_element(b, m->values, m->values_length, &m->values_capacity, sizeof(*m->values));
    if (failed(b))
        return 0;
    m->values[m->values_length] = (struct value){.channels = channels,
                                                 .height = height,
                                                 .width = width,
                                                 .count = count,
                                                 .gradient = SIZE_MAX};
    return (unsigned)m->values_length++;
}

unsigned build_input(struct builder *b, size_t channels, size_t height, size_t width)
{
    assert(b->model->values_length == 0);
    return add_value(b, channels, height, width);
}

const struct value *build_shape(const struct builder *b, unsigned value)
{
    static const struct value nothing = {.channels = 1, .height = 1, .width = 1, .count = 1};

    return failed(b) ? &nothing : &b->model->values[value];
}

/* ---- parameters ---- */

/* Returns the view's index. */
static size_t find_or_add_kind(struct builder *b, struct tensor_table *t, const char *module,
                               const char *name, enum tensor_kind kind, unsigned dims,
                               const size_t *shape)
{
    char full[TENSOR_NAME_MAX];
    const struct tensor_view *view;

    if (failed(b))
        return 0;
    (void)snprintf(full, sizeof(full), "%s.%s", module, name);
    view = tensor_table_find(t, full);
    if (view) {
        assert(view->dims == dims && memcmp(view->shape, shape, dims * sizeof(*shape)) == 0);
        return (size_t)(view - t->views);
    }
    b->status = tensor_table_add_kind(t, full, kind, dims, shape, b->err);
    return failed(b) ? 0 : t->length - 1;
}

static size_t find_or_add_float(struct builder *b, struct tensor_table *t, const char *module,
                                const char *name, unsigned dims, const size_t *shape)
{
    return find_or_add_kind(b, t, module, name, TENSOR_FLOAT32, dims, shape);
}

/* Add the weight and, unless no_bias, the bias (shape[0]); returns the weight's index. */
static size_t add_weight(struct builder *b, const char *module, unsigned dims, const size_t *shape,
                         bool no_bias)
{
    struct tensor_table *t = &b->model->table;
    size_t weight = find_or_add_float(b, t, module, "weight", dims, shape);

    if (!no_bias) {
        size_t bias = find_or_add_float(b, t, module, "bias", 1, shape);

        assert(failed(b) || bias == weight + 1);
        (void)bias;
    }
    return weight;
}

/* ---- operations ---- */

static unsigned add_operation(struct builder *b, struct operation op, size_t channels,
                              size_t height, size_t width)
{
    struct model *m = b->model;

    op.out = add_value(b, channels, height, width);
    if (failed(b))
        return 0;
    assert(op.out == m->length + 1);
    m->operations =
        reserve_element(b, m->operations, m->length, &m->capacity, sizeof(*m->operations));
    if (failed(b))
        return 0;
    m->operations[m->length++] = op;
    return op.out;
}

/* Dimensions of a matrix product are int in BLAS and cuBLAS. */
static void check_dimension(struct builder *b, const char *module, const char *what, size_t count,
                            size_t times)
{
    if (!failed(b) && count > INT_MAX / times)
        b->status = error_set(b->err, STATUS_CONFIG, "%s: %zu x %zu %s are too many, at most %d",
                              module, count, times, what, INT_MAX);
}

/* An image as features in the order of a linear layer's weight.  The input needs no such operation:
 * model_step.c uploads it in that order. */
static unsigned flatten_input(struct builder *b, unsigned in)
{
    const struct value image = *build_shape(b, in);

    if (failed(b) || in == INPUT_VALUE || image.channels == 1 || image.height * image.width == 1 ||
        !compute_channels_last(b->model->compute))
        return in;
    return add_operation(b, (struct operation){.kind = &operation_flatten, .in = in}, image.count,
                         1, 1);
}

unsigned build_linear(struct builder *b, unsigned in, const struct build_linear *options)
{
    size_t rows = options->rows ? options->rows : 1;
    size_t shape[2] = {options->out, build_shape(b, in)->count / rows};
    struct operation op = {
        .kind = &operation_linear,
        .in = in,
        .residual = options->residual,
        .views = options->no_bias ? 1 : 2,
        .initial = options->initial,
        .rows = rows,
        .linear = {.in = shape[1], .out = options->out, .activation = options->activation}};

    if (rows == 1)
        op.in = flatten_input(b, in);
    check_dimension(b, options->name, "rows of a batch", b->model->max_batch, rows);
    op.first_view = add_weight(b, options->name, 2, shape, options->no_bias);
    return options->rows ? add_operation(b, op, 1, rows, options->out)
                         : add_operation(b, op, options->out, 1, 1);
}

unsigned build_convolution(struct builder *b, unsigned in, const struct build_convolution *o)
{
    const struct value *image = build_shape(b, in);
    size_t shape[4] = {o->filters, image->channels, o->kernel, o->kernel};
    struct operation op = {.kind = &operation_convolution,
                           .in = in,
                           .views = o->no_bias ? 1 : 2,
                           .initial = o->initial,
                           .convolution = {.channels = image->channels,
                                           .height = image->height,
                                           .width = image->width,
                                           .filters = o->filters,
                                           .kernel = o->kernel,
                                           .stride = o->stride,
                                           .padding = o->padding,
                                           .activation = o->activation}};

    check_dimension(b, o->name, "weights of a filter", image->channels, o->kernel * o->kernel);
    if (failed(b))
        return 0;
    op.first_view = add_weight(b, o->name, 4, shape, o->no_bias);
    return add_operation(b, op, o->filters,
                         compute_windows(image->height, o->kernel, o->stride, o->padding),
                         compute_windows(image->width, o->kernel, o->stride, o->padding));
}

void build_batch_norm_parameters(struct builder *b, const char *name, size_t channels)
{
    struct tensor_table *t = &b->model->buffer_table;

    (void)add_weight(b, name, 1, &channels, false);
    (void)find_or_add_float(b, t, name, "running_mean", 1, &channels);
    (void)find_or_add_float(b, t, name, "running_var", 1, &channels);
    (void)find_or_add_kind(b, t, name, "num_batches_tracked", TENSOR_INT64, 0, &channels);
}

unsigned build_batch_norm(struct builder *b, unsigned in, const char *name,
                          enum activation activation, unsigned residual)
{
    const struct value image = *build_shape(b, in);
    size_t channels = image.channels;
    struct operation op = {.kind = &operation_batch_norm,
                           .in = in,
                           .residual = residual,
                           .views = 2,
                           .batch_norm = {.channels = channels,
                                          .inner = image.height * image.width,
                                          .activation = activation}};

    build_batch_norm_parameters(b, name, channels);
    op.first_view = add_weight(b, name, 1, &channels, false);
    op.first_buffer =
        find_or_add_float(b, &b->model->buffer_table, name, "running_mean", 1, &channels);
    return add_operation(b, op, image.channels, image.height, image.width);
}

unsigned build_max_pool(struct builder *b, unsigned in, size_t kernel, size_t stride,
                        size_t padding)
{
    const struct value *image = build_shape(b, in);
    struct pool pool = {.channels = image->channels,
                        .height = image->height,
                        .width = image->width,
                        .kernel = kernel,
                        .stride = stride,
                        .padding = padding};

    if (failed(b))
        return 0;
    return add_operation(b, (struct operation){.kind = &operation_max_pool, .in = in, .pool = pool},
                         image->channels, compute_windows(image->height, kernel, stride, padding),
                         compute_windows(image->width, kernel, stride, padding));
}

unsigned build_mean(struct builder *b, unsigned in)
{
    return add_operation(b, (struct operation){.kind = &operation_mean, .in = in},
                         build_shape(b, in)->channels, 1, 1);
}

unsigned build_layer_norm(struct builder *b, unsigned in, const char *name)
{
    const struct value rows = *build_shape(b, in);
    struct operation op = {.kind = &operation_layer_norm,
                           .in = in,
                           .views = 2,
                           .rows = rows.height,
                           .layer_norm = {.width = rows.width}};

    op.first_view = add_weight(b, name, 1, &rows.width, false);
    return add_operation(b, op, 1, rows.height, rows.width);
}

unsigned build_embedding(struct builder *b, const char *token_module, const char *position_module,
                         size_t vocabulary, size_t width, struct initial initial)
{
    size_t positions = build_shape(b, INPUT_VALUE)->count;
    size_t shapes[2][2] = {{vocabulary, width}, {positions, width}};
    struct operation op = {
        .kind = &operation_embedding,
        .in = INPUT_VALUE,
        .views = 2,
        .initial = initial,
        .embedding = {.vocabulary = vocabulary, .positions = positions, .width = width}};
    size_t second;

    op.first_view = add_weight(b, token_module, 2, shapes[0], true);
    second = add_weight(b, position_module, 2, shapes[1], true);
    assert(failed(b) || second == op.first_view + 1);
    (void)second;
    b->model->vocabulary = vocabulary;
    return add_operation(b, op, 1, positions, width);
}

unsigned build_attention(struct builder *b, unsigned in, size_t heads)
{
    const struct value qkv = *build_shape(b, in);
    struct operation op = {
        .kind = &operation_attention,
        .in = in,
        .attention = {.heads = heads, .positions = qkv.height, .width = qkv.width / 3}};

    return add_operation(b, op, 1, qkv.height, qkv.width / 3);
}

unsigned build_timed(struct builder *b, unsigned in, size_t width, const struct timed *times,
                     const struct tensor_view *parameters, size_t count)
{
    struct tensor_table *t = &b->model->table;
    struct operation op = {.kind = &operation_timed,
                           .in = in,
                           .first_view = t->length,
                           .views = count,
                           .rows = 1,
                           .timed = *times};

    for (size_t i = 0; i < count && !failed(b); i++)
        b->status = tensor_table_add(t, parameters[i].name, parameters[i].dims, parameters[i].shape,
                                     b->err);
    return add_operation(b, op, width, 1, 1);
}

void build_block(struct builder *b, size_t first)
{
    struct model *m = b->model;

    if (failed(b))
        return;
    m->blocks =
        reserve_element(b, m->blocks, m->blocks_length, &m->blocks_capacity, sizeof(*m->blocks));
    if (failed(b))
        return;
    assert(first < m->length);
    m->blocks[m->blocks_length++] = (struct block){.first = first,
                                                   .end = m->length,
                                                   .in = m->operations[first].in,
                                                   .out = m->operations[m->length - 1].out};
}
