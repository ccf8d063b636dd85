/*
 * gpt: GPT-2's pre-norm transformer with nanoGPT's names, without dropout.  The output layer shares
 * the token embedding's weight, so that its gradient is final only at the end of backward.
 * Sources: Radford et al. 2019; github.com/karpathy/nanoGPT, model.py.
 */
#include "worker/model/builder.h"

#include <math.h>

#define DEVIATION 0.02

/* Name of a module of a transformer layer. */
static struct module_name layer_module_name(size_t layer, const char *module)
{
    return build_name("transformer.h.%zu.%s", layer, module);
}

static unsigned build_rows(struct builder *b, unsigned in, const char *name, size_t out,
                           enum activation activation)
{
    return build_linear(
        b, in,
        &(struct build_linear){.name = name,
                               .out = out,
                               .rows = build_shape(b, in)->height,
                               .activation = activation,
                               .initial = {.kind = INITIAL_NORMAL, .deviation = DEVIATION}});
}

/* A projection that adds to the residual stream. */
static unsigned build_projection(struct builder *b, unsigned in, const char *name,
                                 const struct spec *spec, unsigned residual)
{
    double deviation = DEVIATION / sqrt(2.0 * (double)spec->layers);

    return build_linear(
        b, in,
        &(struct build_linear){.name = name,
                               .out = spec->width,
                               .rows = spec->positions,
                               .residual = residual,
                               .initial = {.kind = INITIAL_NORMAL, .deviation = deviation}});
}

static unsigned build_transformer_layer(struct builder *b, unsigned in, const struct spec *spec,
                                        size_t layer)
{
    size_t first = b->model->length;
    unsigned at, middle;

    at = build_layer_norm(b, in, layer_module_name(layer, "ln_1").text);
    at = build_rows(b, at, layer_module_name(layer, "attn.c_attn").text, 3 * spec->width,
                    ACTIVATION_NONE);
    at = build_attention(b, at, spec->heads);
    middle = build_projection(b, at, layer_module_name(layer, "attn.c_proj").text, spec, in);
    at = build_layer_norm(b, middle, layer_module_name(layer, "ln_2").text);
    at = build_rows(b, at, layer_module_name(layer, "mlp.c_fc").text, 4 * spec->width,
                    ACTIVATION_GELU);
    at = build_projection(b, at, layer_module_name(layer, "mlp.c_proj").text, spec, middle);
    build_block(b, first);
    return at;
}

void build_gpt(struct builder *b, const struct spec *spec)
{
    static const char tokens[] = "transformer.wte";
    struct initial initial = {.kind = INITIAL_NORMAL, .deviation = DEVIATION};
    unsigned at;

    (void)build_input(b, 1, 1, spec->positions);
    at = build_embedding(b, tokens, "transformer.wpe", spec->vocabulary, spec->width, initial);
    for (size_t layer = 0; layer < spec->layers; layer++)
        at = build_transformer_layer(b, at, spec, layer);
    at = build_layer_norm(b, at, "transformer.ln_f");
    (void)build_linear(b, at,
                       &(struct build_linear){.name = tokens,
                                              .out = spec->vocabulary,
                                              .rows = spec->positions,
                                              .no_bias = true,
                                              .initial = initial});
}
