/*
 * reduce: n-ary element-wise reductions in one pass over memory, and casts between element types.
 * The widest vector unit is chosen at run time; no result bit depends on it (the payload of a NaN
 * apart).  Any alignment of the element type.
 */
#ifndef SPARRING_COMMON_TENSOR_REDUCE_H
#define SPARRING_COMMON_TENSOR_REDUCE_H

#include "common/tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values are part of wire headers and of the flight recorder's file: never renumber. */
enum reduce_op {
    REDUCE_SUM,
    REDUCE_AVG, /* floats: every term times 1 / n first (float64: in double, others in float32),
                   then the sum, as DDP; integers: the sum divided by n, truncated toward zero, as
                   NCCL
                 */
    REDUCE_PROD,
    REDUCE_MIN, /* the result is NaN if any input is, as in PyTorch */
    REDUCE_MAX,
    REDUCE_PREMUL_SUM, /* each rank's terms are first multiplied by its factor (NCCL's name) */
    REDUCE_OP_COUNT
};

const char *reduce_op_name(enum reduce_op op); /* "sum"; "?" outside the list */
bool reduce_op_parse(const char *text, enum reduce_op *ret);

/* The operation of one pass. */
struct reduction {
    enum dtype dtype;      /* not DTYPE_BYTE */
    enum reduce_op op;     /* AVG and PREMUL_SUM are a sum with `factors` or `divisor` */
    const double *factors; /* per input, or NULL: all 1.  Floats, sums only; float64 multiplies in
                              double, all others in float32 */
    int64_t divisor;       /* integers, sums only: 0 or 1: none */
};

/*
 * outputs[j][i] = (inputs[0][i] * factors[0]) op (inputs[1][i] * factors[1]) op ..., in ascending
 * order of the inputs, for every j; float16 and bfloat16 are converted to float32, reduced, and
 * rounded once at the end (ties to even).
 *   outputs  output_count >= 1 arrays of count elements; every one is an input, or disjoint from
 *            all inputs; all outputs distinct
 *   inputs   input_count >= 1 arrays of count elements
 * Integer sums and products wrap.  Blocks are small enough that all outputs are written while the
 * inputs' lines are still in the first-level cache, so memory traffic is one read and one write per
 * array.
 */
void reduce_arrays(const struct reduction *r, void *const *outputs, size_t output_count,
                   const void *const *inputs, size_t input_count, size_t count);

/* dst[i] = dst[i] op src[i]: reduce_arrays of {dst, src}, whose factors are in that order. */
void reduce_into(const struct reduction *r, void *dst, const void *src, size_t count);

/* data[i] *= factor; floats only, multiplied as `factors` are. */
void reduce_scale(enum dtype dtype, void *data, double factor, size_t count);

/* float32 to and from float16 or bfloat16; no other type.  Arrays are disjoint.  Ties to even,
 * subnormals kept, overflow becomes infinity, NaN stays NaN (quiet, upper payload kept). */
void cast_from_float32(enum dtype to, void *dst, const float *src, size_t count);
void cast_to_float32(enum dtype from, float *dst, const void *src, size_t count);

#endif
