/*
 * reference_model: a model's loss in double precision, in the simplest possible code.
 */
#ifndef SPARRING_TESTS_WORKER_MODEL_REFERENCE_MODEL_H
#define SPARRING_TESTS_WORKER_MODEL_REFERENCE_MODEL_H

#include "common/tensor/tensor.h"
#include "worker/model/spec.h"

#include <stdint.h>

#define REFERENCE_WIDTH_MAX 256

/*
 * Mean cross-entropy of a batch.
 *   params      slab in double, laid out as the table says
 *   x, labels   (batch, inputs), (batch)
 *   ret_signs   a hash of the active ReLUs: a finite difference across two patterns is not valid
 *   ret_correct samples whose label has the first largest logit
 */
double reference_loss(const struct spec *spec, const struct tensor_table *table,
                      const double *params, const float *x, const int32_t *labels, size_t batch,
                      uint64_t *ret_signs, size_t *ret_correct);

#endif
