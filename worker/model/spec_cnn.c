/*
 * spec_cnn: parser of the layers of a cnn.  Each layer is checked against the output shape of the
 * layers before it: windows must fit, activations must stay below INT_MAX, and conv, pool and bn
 * need an image or a preceding layer that allows them.
 */
#include "worker/model/spec_reader.h"

#include <limits.h>
#include <string.h>

#define FILTERS_MAX 65536
#define KERNEL_MAX  1024

/* Output shape of the layers so far, per sample. */
struct shape {
    size_t channels, height, width;
    bool flat; /* after an fc */
};

static enum status check_size(const struct spec_reader *r, const char *start,
                              const struct shape *shape)
{
    if (shape->height * shape->width > INT_MAX / shape->channels)
        return spec_fail(r, start, "%zu x %zu x %zu activations of one sample are too many",
                         shape->channels, shape->height, shape->width);
    return STATUS_OK;
}

/* Shape of the output of a sliding window; an error if the window does not fit. */
static enum status slide_window(const struct spec_reader *r, const char *start, struct shape *shape,
                                const struct spec_layer *layer)
{
    size_t *sizes[2] = {&shape->height, &shape->width};

    for (int i = 0; i < 2; i++)
        if (*sizes[i] + 2 * layer->padding < layer->kernel)
            return spec_fail(
                r, start, "a window of %zux%zu does not fit on %zux%zu with padding %zu",
                layer->kernel, layer->kernel, shape->height, shape->width, layer->padding);
    for (int i = 0; i < 2; i++)
        *sizes[i] = (*sizes[i] + 2 * layer->padding - layer->kernel) / layer->stride + 1;
    return STATUS_OK;
}

/* "F[kK][sS][pP]" */
static enum status read_conv(struct spec_reader *r, struct shape *shape, struct spec_layer *layer)
{
    const char *start = r->at - strlen("conv");
    bool padded = false;
    enum status status = spec_number(r, "a number of filters", 1, FILTERS_MAX, &layer->width);

    layer->kernel = 3;
    layer->stride = 1;
    if (status == STATUS_OK && spec_accept(r, "k"))
        status = spec_number(r, "a kernel", 1, KERNEL_MAX, &layer->kernel);
    if (status == STATUS_OK && spec_accept(r, "s"))
        status = spec_number(r, "a stride", 1, KERNEL_MAX, &layer->stride);
    if (status == STATUS_OK && spec_accept(r, "p")) {
        padded = true;
        status = spec_number(r, "a padding", 0, KERNEL_MAX, &layer->padding);
    }
    if (!padded)
        layer->padding = layer->kernel / 2;
    if (status == STATUS_OK)
        status = slide_window(r, start, shape, layer);
    shape->channels = layer->width;
    return status == STATUS_OK ? check_size(r, start, shape) : status;
}

static enum status read_pool(struct spec_reader *r, struct shape *shape, struct spec_layer *layer)
{
    const char *start = r->at - strlen("pool");
    enum status status = STATUS_OK;

    layer->kernel = 2;
    if (spec_accept(r, "k"))
        status = spec_number(r, "a pool", 1, KERNEL_MAX, &layer->kernel);
    layer->stride = layer->kernel;
    return status == STATUS_OK ? slide_window(r, start, shape, layer) : status;
}

static enum status read_layer(struct spec_reader *r, struct spec *spec, struct shape *shape)
{
    struct spec_layer *layer = &spec->cnn[spec->layers];
    struct spec_layer *before = spec->layers > 0 ? layer - 1 : NULL;
    const char *start = r->at;

    if (spec_accept(r, "bn")) {
        if (!before || before->kind == SPEC_POOL || before->batch_norm)
            return spec_fail(r, start, "bn stands behind a conv or an fc");
        before->batch_norm = true;
        return STATUS_OK;
    }
    if (spec->layers == SPEC_LAYERS_MAX)
        return spec_fail(r, start, "too many layers, at most %d", SPEC_LAYERS_MAX);
    *layer = (struct spec_layer){.kind = SPEC_FC};
    spec->layers++;
    if (spec_accept(r, "fc")) {
        shape->flat = true;
        return spec_number(r, "a width", 1, SPEC_WIDTH_MAX, &layer->width);
    }
    layer->kind = *start == 'c' ? SPEC_CONV : SPEC_POOL;
    if (!spec_accept(r, "conv") && !spec_accept(r, "pool"))
        return spec_fail(r, start, "unknown layer: conv, pool, bn and fc are known");
    if (shape->flat)
        return spec_fail(r, start, "behind an fc there is no image left");
    return layer->kind == SPEC_CONV ? read_conv(r, shape, layer) : read_pool(r, shape, layer);
}

enum status spec_read_cnn(struct spec_reader *r, struct spec *spec)
{
    enum status status = spec_image(r, spec);
    struct shape shape = {.channels = spec->channels, .height = spec->height, .width = spec->width};
    const struct spec_layer *last;

    while (status == STATUS_OK && (*r->at != '\0' || spec->layers == 0)) {
        status = spec_expect(r, "-", spec->layers > 0 ? "'-' or the end" : "'-' and a layer");
        if (status == STATUS_OK)
            status = read_layer(r, spec, &shape);
    }
    if (status != STATUS_OK)
        return status;
    last = &spec->cnn[spec->layers - 1];
    if (last->kind != SPEC_FC || last->batch_norm)
        return spec_fail(r, r->at, "expected '-' and an fc as the last layer: the classes");
    return STATUS_OK;
}
