/*
 * mlp, linear: fc1, fc2, ...; mlp-bn: Linear, BatchNorm1d and ReLU numbered as in an nn.Sequential.
 */
#include "worker/model/builder.h"

#include <stdio.h>

static unsigned build_layer(struct builder *b, unsigned in, const struct spec *spec, size_t l)
{
    bool hidden = l + 1 < spec->layers;
    bool norm = spec->batch_norm && hidden;
    char name[TENSOR_NAME_MAX];
    unsigned out;

    (void)snprintf(name, sizeof(name), "%s%zu", spec->batch_norm ? "" : "fc",
                   spec->batch_norm ? 3 * l : l + 1);
    out = build_linear(b, in,
                       &(struct build_linear){.name = name,
                                              .out = spec->widths[l + 1],
                                              .activation = spec->relu && hidden && !norm
                                                                ? ACTIVATION_RELU
                                                                : ACTIVATION_NONE});
    if (!norm)
        return out;
    (void)snprintf(name, sizeof(name), "%zu", 3 * l + 1);
    return build_batch_norm(b, out, name, ACTIVATION_RELU, INPUT_VALUE);
}

void build_mlp(struct builder *b, const struct spec *spec)
{
    unsigned at = build_input(b, spec->widths[0], 1, 1);

    for (size_t l = 0; l < spec->layers; l++) {
        size_t first = b->model->length;

        at = build_layer(b, at, spec, l);
        if (l > 0 && l + 1 < spec->layers && spec->widths[l] == spec->widths[l + 1])
            build_block(b, first);
    }
}
