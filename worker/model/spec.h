/*
 * spec: the text that names a model's architecture, parsed strictly: decimal digits only, no
 * leading zero.  One model may have several texts: a default may be spelled out.
 *   linear:10-5-2        Linear(10, 5), Linear(5, 2)
 *   mlp:784-128-10       Linear(784, 128), ReLU, Linear(128, 10)
 *   mlp-bn:784-128-10    Linear(784, 128), BatchNorm1d(128), ReLU, Linear(128, 10)
 *   cnn:1x28x28-conv32-pool-conv64-bn-pool-fc128-fc10
 *                        channels x height x width, then layers: convF[kK][sS][pP] (F filters,
 *                        kernel K = 3, stride S = 1, padding P = K / 2), pool[kK] (max pooling of
 *                        K x K, K = 2), bn (after conv or fc), fcN; ReLU after each conv and fc
 *                        (after its bn) except the last
 *   lenet                LeNet-5, cnn:1x28x28-conv6k5p2-pool-conv16k5p0-pool-fc120-fc84-fc10
 *   resnet18, resnet50, vgg11, vgg16 [:CxHxW,CLASSES]
 *                        default 3x32x32,10; torchvision's, without dropout; images lower than 64
 *                        have a smaller stem (resnet) or classifier (vgg)
 *   gpt:L,H,D,T[,V]      GPT-2's shape: layers, heads, width, positions, vocabulary (256: bytes)
 *   profile:FILE         the parameters and times of a measured model (profile.h)
 */
#ifndef SPARRING_WORKER_MODEL_SPEC_H
#define SPARRING_WORKER_MODEL_SPEC_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define SPEC_LAYERS_MAX 64
#define SPEC_WIDTH_MAX  16777216 /* 2^24 */
/* resnet and vgg use their small variant for images lower than this */
#define SPEC_SMALL 64

enum spec_kind {
    SPEC_MLP, /* and linear, mlp-bn */
    SPEC_CNN,
    SPEC_RESNET,
    SPEC_VGG,
    SPEC_GPT,
    SPEC_PROFILE,
};

struct spec_layer { /* of a cnn */
    enum { SPEC_CONV, SPEC_POOL, SPEC_FC } kind;
    size_t width; /* filters or features */
    size_t kernel, stride, padding;
    bool batch_norm;
};

struct spec {
    enum spec_kind kind;
    bool relu;                          /* mlp: between the layers */
    bool batch_norm;                    /* mlp: before each ReLU */
    size_t layers;                      /* mlp: Linear layers; cnn; gpt; resnet, vgg: 18, 11, ... */
    size_t widths[SPEC_LAYERS_MAX + 1]; /* mlp: layer l maps widths[l] to widths[l + 1] */
    size_t channels, height, width;     /* of images; gpt: width */
    size_t classes;                     /* resnet, vgg */
    struct spec_layer cnn[SPEC_LAYERS_MAX];
    size_t heads, positions, vocabulary; /* gpt */
    const char *path;                    /* profile; part of the parsed text */
};

/* STATUS_CONFIG: the text names the spec and the position (from 1) of the error. */
enum status spec_parse(const char *text, struct spec *ret, struct error *err);

#endif
