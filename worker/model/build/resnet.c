/*
 * resnet: torchvision's ResNet-18 (basic blocks) and ResNet-50 (bottlenecks with their stride on
 * the 3x3, "v1.5"), with its names and order of parameters.  The shortcut is computed before the
 * block's last batch norm, which adds it.  Sources: He et al. 2015; torchvision/models/resnet.py.
 */
#include "worker/model/builder.h"

static unsigned build_conv(struct builder *b, unsigned in, const char *name, size_t filters,
                           size_t kernel, size_t stride)
{
    return build_convolution(b, in,
                             &(struct build_convolution){.name = name,
                                                         .filters = filters,
                                                         .kernel = kernel,
                                                         .stride = stride,
                                                         .padding = kernel / 2,
                                                         .no_bias = true,
                                                         .initial = {.kind = INITIAL_KAIMING}});
}

struct convolutions { /* of a block; the batch norm after the last one adds the shortcut */
    size_t kernels[3], widths[3], strides[3];
    size_t length;
};

/* `name`: "layer1.0" */
static unsigned build_part(struct builder *b, unsigned in, const char *name, size_t index,
                           const struct convolutions *c)
{
    return build_conv(b, in, build_name("%s.conv%zu", name, index + 1).text, c->widths[index],
                      c->kernels[index], c->strides[index]);
}

static unsigned build_shortcut(struct builder *b, unsigned in, const char *name, size_t width,
                               size_t stride)
{
    unsigned out = build_conv(b, in, build_name("%s.downsample.0", name).text, width, 1, stride);

    return build_batch_norm(b, out, build_name("%s.downsample.1", name).text, ACTIVATION_NONE,
                            INPUT_VALUE);
}

static unsigned build_residual(struct builder *b, unsigned in, const char *name,
                               const struct convolutions *c, size_t stride)
{
    size_t first = b->model->length;
    size_t width = c->widths[c->length - 1];
    bool changes = stride != 1 || build_shape(b, in)->channels != width;
    struct module_name norm = {{0}};
    unsigned at = in;
    unsigned shortcut = in;

    for (size_t i = 0; i < c->length; i++) {
        at = build_part(b, at, name, i, c);
        norm = build_name("%s.bn%zu", name, i + 1);
        if (i + 1 < c->length)
            at = build_batch_norm(b, at, norm.text, ACTIVATION_RELU, INPUT_VALUE);
    }
    build_batch_norm_parameters(b, norm.text, width); /* registered before those of the shortcut */
    if (changes)
        shortcut = build_shortcut(b, in, name, width, stride);
    at = build_batch_norm(b, at, norm.text, ACTIVATION_RELU, shortcut);
    if (!changes)
        build_block(b, first);
    return at;
}

static unsigned build_layer(struct builder *b, unsigned in, const struct spec *spec, size_t layer)
{
    static const size_t depths[2][4] = {{2, 2, 2, 2}, {3, 4, 6, 3}};
    bool deep = spec->layers == 50;
    size_t planes = (size_t)64 << layer;

    for (size_t i = 0; i < depths[deep][layer]; i++) {
        size_t stride = layer > 0 && i == 0 ? 2 : 1;
        const struct convolutions basic = {{3, 3}, {planes, planes}, {stride, 1}, 2};
        const struct convolutions bottleneck = {
            {1, 3, 1}, {planes, planes, 4 * planes}, {1, stride, 1}, 3};

        in = build_residual(b, in, build_name("layer%zu.%zu", layer + 1, i).text,
                            deep ? &bottleneck : &basic, stride);
    }
    return in;
}

void build_resnet(struct builder *b, const struct spec *spec)
{
    unsigned at = build_input(b, spec->channels, spec->height, spec->width);
    bool small = spec->height < SPEC_SMALL;

    at = build_conv(b, at, "conv1", 64, small ? 3 : 7, small ? 1 : 2);
    at = build_batch_norm(b, at, "bn1", ACTIVATION_RELU, INPUT_VALUE);
    if (!small)
        at = build_max_pool(b, at, 3, 2, 1);
    for (size_t layer = 0; layer < 4; layer++)
        at = build_layer(b, at, spec, layer);
    at = build_mean(b, at);
    (void)build_linear(b, at, &(struct build_linear){.name = "fc", .out = spec->classes});
}
