/*
 * gradient_plan: which gradients of values may share memory.  A pure function.
 *
 * A value's gradient lives from the backward of its last reader, which sets it, over those of its
 * other readers, which add to it, to the end of its producer's.  The gradient of a residual is that
 * of the output, behind the activation's mask: they are one, and live in one buffer from the
 * output's first contribution to the end of the residual's producer.  So are those of `in` and
 * `out` of an operation that works in place.
 */
#ifndef SPARRING_WORKER_MODEL_GRADIENT_PLAN_H
#define SPARRING_WORKER_MODEL_GRADIENT_PLAN_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct plan_operation {
    unsigned in, residual,
        out;       /* values; 0 is the input, which has no gradient; residual 0: none */
    bool in_place; /* if nothing else forbids it */
};

struct gradient_plan {
    size_t *buffer; /* owned; per value: its buffer, SIZE_MAX for none */
    size_t *counts; /* owned; per buffer: the largest of its values */
    size_t length;  /* buffers */
};

/*
 * Operation i writes value i + 1, which somebody reads unless it is the last; a residual is no
 * longer read by operations after the one that adds it, nor by that one as `in`.
 *   counts  elements of each value, (length + 1)
 *   The last value's gradient is the caller's and has no buffer.
 */
enum status gradient_plan_make(const struct plan_operation *operations, size_t length,
                               const size_t *counts, struct gradient_plan *ret, struct error *err);
void gradient_plan_release(struct gradient_plan *p);

#endif
