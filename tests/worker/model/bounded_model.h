/*
 * bounded_model: loss and gradients of an MLP (linear, mlp, mlp-bn) in double precision, each with
 * a bound of the error of a correct float32 step.  A single tolerance is not enough: a batch of 4
 * has columns of small variance, and 1 / sqrt(var + eps), up to 316, increases both their gradients
 * and the errors accordingly.
 */
#ifndef SPARRING_TESTS_WORKER_MODEL_BOUNDED_MODEL_H
#define SPARRING_TESTS_WORKER_MODEL_BOUNDED_MODEL_H

#include "common/tensor/tensor.h"
#include "tests/support/bounded.h"
#include "worker/model/spec.h"

#include <stdbool.h>
#include <stdint.h>

#define BOUNDED_WIDTH_MAX  66
#define BOUNDED_BATCH_MAX  33
#define BOUNDED_LAYERS_MAX 4
#define BOUNDED_PARAMS_MAX 8192

typedef struct bounded bounded_rows[BOUNDED_BATCH_MAX][BOUNDED_WIDTH_MAX];

struct bounded_model { /* large: static */
    const struct spec *spec;
    const struct tensor_table *table;
    const float *params;
    size_t batch;
    bounded_rows values[BOUNDED_LAYERS_MAX + 1]; /* the input of each layer; the logits */
    bounded_rows normalised[BOUNDED_LAYERS_MAX];
    struct bounded inverse_std[BOUNDED_LAYERS_MAX][BOUNDED_WIDTH_MAX];
    bool undecided; /* rounding may change a ReLU's sign or the largest logit */
    struct bounded grads[BOUNDED_PARAMS_MAX]; /* the model's slab */
    double loss_error;
};

/* Compute the result of model_step for params, x (batch, inputs) and labels (batch), all borrowed.
 */
void bounded_model_step(struct bounded_model *a, const struct spec *spec,
                        const struct tensor_table *table, const float *params, const float *x,
                        const int32_t *labels, size_t batch);

#endif
