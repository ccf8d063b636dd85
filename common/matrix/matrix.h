/*
 * matrix: products of float32 matrices by oneDNN, and the number of threads that oneDNN and
 * parallel loops use.  Needs base.  Called by the CPU device and by PowerSGD.  Threads: each caller
 * has a team of its own (libgomp's).  Bits: sums run in oneDNN's order, which depends on the
 * processor and on the number of threads, not on the run.
 */
#ifndef SPARRING_COMMON_MATRIX_MATRIX_H
#define SPARRING_COMMON_MATRIX_MATRIX_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* A row-major matrix; transposed: what is stored is its transpose. */
struct matrix {
    const float *data; /* borrowed */
    size_t stride;     /* floats from one stored row to the next */
    bool transposed;
};

/* From now on oneDNN divides the work of the calling thread among so many threads (at least 1; 1
 * before the first call), except within a parallel loop, where it uses the calling thread alone,
 * and for products of a few microseconds.  Costs two stores. */
void matrix_use_threads(unsigned threads);

/* The number of the calling thread within a parallel loop, from 0; 0 outside. */
unsigned matrix_thread(void);

/*
 * out (m, n; stride: floats from row to row) = a b, or with `add` out + a b; a (m, k) and b (k, n),
 * each dimension at least 1.  Dense operands (a stride equal to the row) are fastest.  Errors:
 * NO_MEMORY; INTERNAL: oneDNN does not start.
 */
enum status matrix_product(size_t m, size_t n, size_t k, struct matrix a, struct matrix b, bool add,
                           float *out, size_t stride, struct error *err);

#endif
