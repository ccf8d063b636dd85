/*
 * gradient_plan: which gradients of values may share memory.  A pure function.
 *
 * A value's gradient is live from the backward of its last reader, which sets it, over its other
 * readers, which add to it, to the end of its producer's backward.  The gradient of a residual
 * equals that of the output after the activation's mask: both use one buffer, from the output's
 * first contribution to the end of the residual's producer.  The same holds for the gradients of
 * `in` and `out` of an operation that works in place.
 */
#ifndef SPARRING_WORKER_MODEL_GRADIENT_PLAN_H
#define SPARRING_WORKER_MODEL_GRADIENT_PLAN_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct plan_operation {
    unsigned in, residual,
        out;       /* values; 0 is the input, which has no gradient; residual 0: none */
    bool in_place; /* a permission: other readers of `in` prevent it */
};

struct gradient_plan {
    size_t *buffer; /* owned; per value: its buffer, SIZE_MAX for none */
    size_t *counts; /* owned; per buffer: the largest of its values */
    size_t length;  /* buffers */
};

/*
 * Operation i writes value i + 1, which has a reader unless it is the last; a residual has no
 * reader after the operation that adds it, and that operation does not read it as `in`.
 *   counts  elements of each value, (length + 1)
 * The gradient of the last value belongs to the caller and has no buffer.
 */
enum status gradient_plan_make(const struct plan_operation *operations, size_t length,
                               const size_t *counts, struct gradient_plan *ret, struct error *err);
void gradient_plan_release(struct gradient_plan *p);

#endif
