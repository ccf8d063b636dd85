/*
 * spec: the text that names a model's architecture, read strictly.
 *   "mlp:784-128-10"     Linear(784, 128), ReLU, Linear(128, 10)
 *   "mlp-bn:784-128-10"  Linear(784, 128), BatchNorm1d(128), ReLU, Linear(128, 10)
 *   "linear:10-5-2"      Linear(10, 5), Linear(5, 2)
 */
#ifndef SPARRING_WORKER_MODEL_SPEC_H
#define SPARRING_WORKER_MODEL_SPEC_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define SPEC_LAYERS_MAX 64
#define SPEC_WIDTH_MAX  16777216 /* 2^24 */

struct spec {
    bool relu;                          /* between the layers */
    bool batch_norm;                    /* before each ReLU */
    size_t layers;                      /* Linear layers, 1 to SPEC_LAYERS_MAX */
    size_t widths[SPEC_LAYERS_MAX + 1]; /* layer l maps widths[l] to widths[l + 1] */
};

/* STATUS_CONFIG; the text names the spec and the position (from 1) of what is wrong. */
enum status spec_parse(const char *text, struct spec *ret, struct error *err);

#endif
