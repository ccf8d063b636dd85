/*
 * cnn: layers as the spec lists them; modules are numbered by kind: conv1, bn1, fc1, ... ReLU
 * follows each conv and fc, after its bn if it has one, except the last fc.
 */
#include "worker/model/builder.h"

struct counts {
    unsigned conv, norm, fc;
};

static unsigned build_layer(struct builder *b, unsigned in, const struct spec_layer *layer,
                            bool last, struct counts *counts)
{
    enum activation activation = last || layer->batch_norm ? ACTIVATION_NONE : ACTIVATION_RELU;
    unsigned out;

    if (layer->kind == SPEC_POOL)
        return build_max_pool(b, in, layer->kernel, layer->stride, 0);
    if (layer->kind == SPEC_CONV)
        out = build_convolution(
            b, in,
            &(struct build_convolution){.name = build_name("conv%u", ++counts->conv).text,
                                        .filters = layer->width,
                                        .kernel = layer->kernel,
                                        .stride = layer->stride,
                                        .padding = layer->padding,
                                        .activation = activation});
    else
        out = build_linear(b, in,
                           &(struct build_linear){.name = build_name("fc%u", ++counts->fc).text,
                                                  .out = layer->width,
                                                  .activation = activation});
    if (!layer->batch_norm)
        return out;
    return build_batch_norm(b, out, build_name("bn%u", ++counts->norm).text, ACTIVATION_RELU,
                            INPUT_VALUE);
}

void build_cnn(struct builder *b, const struct spec *spec)
{
    unsigned at = build_input(b, spec->channels, spec->height, spec->width);
    struct counts counts = {0};

    for (size_t l = 0; l < spec->layers; l++)
        at = build_layer(b, at, &spec->cnn[l], l + 1 == spec->layers, &counts);
}
