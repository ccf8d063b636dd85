/*
 * builder: one call per operation of an architecture.  A call that fails stores its error in the
 * builder, and later calls do nothing, so that only the end has to check.  Parameters are found by
 * name or, if new, registered: an architecture whose parameters are ordered differently from its
 * operations registers them beforehand, and two operations with one name share a weight.  Needs
 * program and spec; called by model.c and the files in build/.
 */
#ifndef SPARRING_WORKER_MODEL_BUILDER_H
#define SPARRING_WORKER_MODEL_BUILDER_H

#include "worker/model/program.h"
#include "worker/model/spec.h"

struct builder {
    struct model *model;
    enum status status;
    struct error *err;
};

/* A module's name.  One that is too long is cut off; its registration then fails as a duplicate or
 * as too long. */
struct module_name {
    char text[TENSOR_NAME_MAX];
};
struct module_name build_name(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Values; shapes as in struct value.  The input must be first. */
unsigned build_input(struct builder *b, size_t channels, size_t height, size_t width);
const struct value *build_shape(const struct builder *b, unsigned value);

struct build_linear {
    const char *name; /* of the module: NAME.weight (out, in), NAME.bias (out) */
    size_t out;
    size_t rows; /* rows of one sample, each mapped separately; 0: the whole sample is one row */
    bool no_bias;
    enum activation activation;
    unsigned residual; /* INPUT_VALUE: none; with ACTIVATION_NONE only */
    struct initial initial;
};
unsigned build_linear(struct builder *b, unsigned in, const struct build_linear *options);

struct build_convolution {
    const char *name; /* NAME.weight (filters, channels, kernel, kernel), NAME.bias (filters) */
    size_t filters, kernel, stride, padding;
    bool no_bias;
    enum activation activation;
    struct initial initial;
};
unsigned build_convolution(struct builder *b, unsigned in, const struct build_convolution *options);

/* NAME.weight, NAME.bias; buffers NAME.running_mean, .running_var, .num_batches_tracked. */
void build_batch_norm_parameters(struct builder *b, const char *name, size_t channels);
unsigned build_batch_norm(struct builder *b, unsigned in, const char *name,
                          enum activation activation, unsigned residual);

unsigned build_max_pool(struct builder *b, unsigned in, size_t kernel, size_t stride,
                        size_t padding);
unsigned build_mean(struct builder *b, unsigned in); /* (channels, 1, 1) */

unsigned build_layer_norm(struct builder *b, unsigned in, const char *name);
unsigned build_embedding(struct builder *b, const char *token_module, const char *position_module,
                         size_t vocabulary, size_t width, struct initial initial);
unsigned build_attention(struct builder *b, unsigned in, size_t heads);

/* Mark the operations since `first` (a model's length) as a block that LayerDrop may skip. */
void build_block(struct builder *b, size_t first);

/* A layer of a profile, with `count` parameters and an output of `width` features. */
unsigned build_timed(struct builder *b, unsigned in, size_t width, const struct timed *times,
                     const struct tensor_view *parameters, size_t count);

/* The architectures, worker/model/build/. */
void build_mlp(struct builder *b, const struct spec *spec);
void build_cnn(struct builder *b, const struct spec *spec);
void build_resnet(struct builder *b, const struct spec *spec);
void build_vgg(struct builder *b, const struct spec *spec);
void build_gpt(struct builder *b, const struct spec *spec);
void build_profile(struct builder *b, const struct spec *spec);

#endif
