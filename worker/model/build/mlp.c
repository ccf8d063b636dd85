/*
 * mlp, linear: fc1, fc2, ...; mlp-bn: Linear, BatchNorm1d and ReLU numbered as in an nn.Sequential.
 * Hidden layers of equal width are blocks that LayerDrop may skip.
 */
#include "worker/model/builder.h"

static unsigned build_layer(struct builder *b, unsigned in, const struct spec *spec, size_t l)
{
    bool hidden = l + 1 < spec->layers;
    bool norm = spec->batch_norm && hidden;
    struct module_name name =
        spec->batch_norm ? build_name("%zu", 3 * l) : build_name("fc%zu", l + 1);
    unsigned out;

    out = build_linear(b, in,
                       &(struct build_linear){.name = name.text,
                                              .out = spec->widths[l + 1],
                                              .activation = spec->relu && hidden && !norm
                                                                ? ACTIVATION_RELU
                                                                : ACTIVATION_NONE});
    if (!norm)
        return out;
    return build_batch_norm(b, out, build_name("%zu", 3 * l + 1).text, ACTIVATION_RELU,
                            INPUT_VALUE);
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
