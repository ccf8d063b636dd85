/*
 * tensor: one flat float32 slab and a table of named views into it.  Parameters, gradients and
 * optimizer state of a model are slabs of the same layout.
 *
 * Library.  Views, buckets, element types, reductions and casts with vector kernels whose results
 * do not depend on the processor.  Needs only base.  Called by most code that handles tensors: the
 * models, optimizer, codec, collectives, checkpoint, rpc, server and worker.
 *
 * Layout.  Views are listed in model order (fc1.weight, fc1.bias, fc2.weight, ...).  In the slab
 * they are packed in reverse order: backward yields gradients last layer first, so the slab fills
 * from its start, and every bucket or partition is one contiguous range that is ready once the slab
 * is filled up to its end.
 */
#ifndef SPARRING_COMMON_TENSOR_TENSOR_H
#define SPARRING_COMMON_TENSOR_TENSOR_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TENSOR_NAME_MAX 64
#define TENSOR_DIMS_MAX 6

/* The element type of a view.  An int64 is stored as its eight bytes in the place of two floats:
 * slabs are copied and broadcast as bytes, and only float32 views take part in arithmetic. */
enum tensor_kind { TENSOR_FLOAT32, TENSOR_INT64 };

struct tensor_view {
    char name[TENSOR_NAME_MAX]; /* "fc1.weight" */
    unsigned dims;
    size_t shape[TENSOR_DIMS_MAX];
    enum tensor_kind kind;
    size_t count;  /* floats of the slab: its elements; twice as many for int64 */
    size_t offset; /* of the first element in the slab, in elements */
};

struct tensor_table {
    struct tensor_view *views; /* owned, model order */
    size_t length;
    size_t capacity;
    size_t count; /* elements of a slab */
};

void tensor_table_release(struct tensor_table *t);

/* Append a view in model order; offsets are assigned by tensor_table_layout. */
enum status tensor_table_add_kind(struct tensor_table *t, const char *name, enum tensor_kind kind,
                                  unsigned dims, const size_t *shape, struct error *err);

/* The same for float32. */
enum status tensor_table_add(struct tensor_table *t, const char *name, unsigned dims,
                             const size_t *shape, struct error *err);

/* An element of an int64 view; `at` need not be aligned to 8 bytes. */
static inline int64_t tensor_get_int64(const float *at)
{
    int64_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

static inline void tensor_set_int64(float *at, int64_t value)
{
    memcpy(at, &value, sizeof(value));
}

/* Assign offsets: the last view is first in the slab. */
void tensor_table_layout(struct tensor_table *t);

/* The view of that name, or NULL. */
const struct tensor_view *tensor_table_find(const struct tensor_table *t, const char *name);

/* ---- gradient buckets (DistributedDataParallel) ---- */

struct bucket {
    size_t offset; /* elements from the start of the slab */
    size_t count;
};

struct bucket_plan {
    struct bucket *buckets; /* owned; contiguous, in slab order, cover the slab */
    size_t length;
};

/* What DistributedDataParallel takes where nobody has chosen: a small first bucket, so that
 * communication starts early.  Source: PyTorch, kDefaultFirstBucketBytes and bucket_cap_mb. */
#define BUCKET_FIRST_BYTES ((size_t)1 << 20)
#define BUCKET_CAP_BYTES   ((size_t)25 << 20)

/* Greedy in slab order: a view is added to the open bucket, which closes once it has at least its
 * limit (so it may exceed it): first_bytes for the first bucket, cap_bytes for the others.
 * Source: PyTorch, compute_bucket_assignment_by_size. */
enum status bucket_plan_make(const struct tensor_table *t, size_t first_bytes, size_t cap_bytes,
                             struct bucket_plan *ret, struct error *err);
void bucket_plan_release(struct bucket_plan *p);

/* ---- element-wise kernels ----
 * The widest vector unit is chosen at run time; no result bit depends on it (the payload of a NaN
 * apart).  Arrays are equal or disjoint, never partly overlapping; any alignment of float. */

void vector_add(float *dst, const float *src, size_t count);                  /* dst += src */
void vector_add_to(float *dst, const float *a, const float *b, size_t count); /* dst = a + b */
void vector_scale(float *dst, float factor, size_t count);                    /* dst *= factor */
void vector_scale_to(float *dst, const float *src, float factor, size_t count);

/* dst = ((src[0] + src[1]) + src[2]) + ...; src[k] has count elements, sources >= 1; dst
 * may be any of them. */
void vector_sum(float *dst, const float *const *src, size_t sources, size_t count);

/* dst[i] += float32 at bytes + 4 i; bytes need not be aligned. */
void vector_add_bytes(float *dst, const unsigned char *bytes, size_t count);

/* Likewise dst[i] = factor * float32, and dst[i] += factor * float32: the product is rounded, then
 * the sum, as if it had been scaled before it was sent. */
void vector_scale_bytes(float *dst, const unsigned char *bytes, float factor, size_t count);
void vector_add_scaled_bytes(float *dst, const unsigned char *bytes, float factor, size_t count);

/* dst[i] = src[i] / divisor. */
void vector_divide_uint8(float *dst, const uint8_t *src, float divisor, size_t count);

#endif
