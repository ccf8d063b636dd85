/*
 * reduce: reduces many arrays into one or several, block by block.
 *
 * The data of one block stays in the first-level cache: a result is copied to further outputs, and
 * a partial result is read again, without going to memory.  float32 sums, used in training, read up
 * to REDUCE_FAN inputs in one loop; all other reductions are a chain of pairs.  No state, no locks.
 */
#include "common/tensor/reduce.h"

#include "common/tensor/reduce_kernels.h"

#include <assert.h>
#include <string.h>

#define BLOCK_BYTES 4096 /* of the computation type; 8 inputs fill a 32 KiB cache */

/* The parameters of one call. */
struct pass {
    const struct reduce_kernels *kernels;
    const struct reduction *r;
    size_t size; /* bytes per element of the arrays */
    enum reduce_type type;
    enum reduce_pair pair;
    bool half; /* float16 or bfloat16: cast on the way in and out */
    enum half_type half_type;
};

static const struct reduce_kernels *kernels(void)
{
    static const struct reduce_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(reduce_kernels);

    return tables[simd_level()];
}

static enum reduce_type type_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_FLOAT64:
        return TYPE_FLOAT64;
    case DTYPE_INT32:
        return TYPE_INT32;
    case DTYPE_INT64:
        return TYPE_INT64;
    default:
        return TYPE_FLOAT32;
    }
}

static enum reduce_pair pair_of(enum reduce_op op)
{
    switch (op) {
    case REDUCE_PROD:
        return PAIR_PROD;
    case REDUCE_MIN:
        return PAIR_MIN;
    case REDUCE_MAX:
        return PAIR_MAX;
    default:
        return PAIR_SUM;
    }
}

static struct pass pass_of(const struct reduction *r)
{
    bool half = r->dtype == DTYPE_FLOAT16 || r->dtype == DTYPE_BFLOAT16;

    assert((unsigned)r->dtype < DTYPE_BYTE && (unsigned)r->op < REDUCE_OP_COUNT);
    assert(!r->factors || (dtype_is_float(r->dtype) && pair_of(r->op) == PAIR_SUM));
    assert(r->divisor >= 0);
    assert(r->divisor <= 1 || (!dtype_is_float(r->dtype) && pair_of(r->op) == PAIR_SUM));
    return (struct pass){
        .kernels = kernels(),
        .r = r,
        .size = dtype_size(r->dtype),
        .type = type_of(r->dtype),
        .pair = pair_of(r->op),
        .half = half,
        .half_type = r->dtype == DTYPE_FLOAT16 ? HALF_FLOAT16 : HALF_BFLOAT16,
    };
}

static void *at_bytes(void *base, size_t bytes)
{
    return (unsigned char *)base + bytes;
}

static const void *at_const_bytes(const void *base, size_t bytes)
{
    return (const unsigned char *)base + bytes;
}

/* ---- float32 sums ---- */

/* One sum of at most REDUCE_FAN inputs, the first of which may be a partial sum (factor 1). */
static void sum_fan(const struct pass *p, float *dst, const float *const *in, const double *factors,
                    bool partial, size_t inputs, size_t count)
{
    float narrow[REDUCE_FAN];

    if (!factors) {
        p->kernels->sum(dst, in, inputs, count);
        return;
    }
    for (size_t k = 0; k < inputs; k++)
        narrow[k] = partial ? (k == 0 ? 1.0f : (float)factors[k - 1]) : (float)factors[k];
    p->kernels->scaled_sum(dst, in, narrow, inputs, count);
}

/* Elements [at, at + count) of the sum into dst, which may be one of the inputs; with more than
 * REDUCE_FAN inputs count is at most a block. */
static void sum_block(const struct pass *p, float *dst, const void *const *inputs,
                      size_t input_count, size_t at, size_t count)
{
    _Alignas(64) float partial[BLOCK_BYTES / sizeof(float)];
    const float *in[REDUCE_FAN];
    size_t taken = 0;

    while (taken < input_count) {
        size_t begin = taken;
        size_t used = 0;

        if (begin > 0)
            in[used++] = partial;
        while (used < REDUCE_FAN && taken < input_count)
            in[used++] = (const float *)inputs[taken++] + at;
        sum_fan(p, taken == input_count ? dst : partial, in,
                p->r->factors ? p->r->factors + begin : NULL, begin > 0, used, count);
    }
}

/* ---- other reductions ---- */

/* Elements [at, at + count) of input k in the computation type, times its factor: in place when
 * nothing changes, else in `room`. */
static const void *load_input(const struct pass *p, const void *input, size_t k, size_t at,
                              size_t count, void *room)
{
    const void *src = at_const_bytes(input, at * p->size);

    if (p->half) {
        p->kernels->widen[p->half_type](room, src, count);
        src = room;
    }
    if (!p->r->factors)
        return src;
    if (p->type == TYPE_FLOAT64)
        p->kernels->scale_float64(room, src, p->r->factors[k], count);
    else
        p->kernels->scale_float32(room, src, (float)p->r->factors[k], count);
    return room;
}

static void divide_integers(const struct pass *p, void *data, size_t count)
{
    if (p->type == TYPE_INT32) {
        int32_t *values = data;

        for (size_t i = 0; i < count; i++)
            values[i] = (int32_t)(values[i] / p->r->divisor);
    } else {
        int64_t *values = data;

        for (size_t i = 0; i < count; i++)
            values[i] /= p->r->divisor;
    }
}

static void pair_block(const struct pass *p, void *dst, const void *const *inputs,
                       size_t input_count, size_t at, size_t count)
{
    _Alignas(64) unsigned char partial[BLOCK_BYTES], term[BLOCK_BYTES];
    const void *total = load_input(p, inputs[0], 0, at, count, partial);

    for (size_t k = 1; k < input_count; k++) {
        const void *next = load_input(p, inputs[k], k, at, count, term);
        void *to = k + 1 == input_count && !p->half ? dst : partial;

        p->kernels->pair[p->type][p->pair](to, total, next, count);
        total = to;
    }
    if (p->half)
        p->kernels->narrow[p->half_type](dst, total, count);
    else if (total != dst)
        memcpy(dst, total, count * p->size);
    if (p->r->divisor > 1)
        divide_integers(p, dst, count);
}

/* ---- public ---- */

void reduce_arrays(const struct reduction *r, void *const *outputs, size_t output_count,
                   const void *const *inputs, size_t input_count, size_t count)
{
    struct pass p = pass_of(r);
    bool sum = r->dtype == DTYPE_FLOAT32 && p.pair == PAIR_SUM;
    size_t block = BLOCK_BYTES / (p.half ? sizeof(float) : p.size);

    assert(output_count > 0 && input_count > 0);
    if (sum && output_count == 1 && input_count <= REDUCE_FAN)
        block = count; /* one pass reads everything once */
    for (size_t at = 0; at < count; at += block) {
        size_t length = count - at < block ? count - at : block;
        void *first = at_bytes(outputs[0], at * p.size);

        if (sum)
            sum_block(&p, first, inputs, input_count, at, length);
        else
            pair_block(&p, first, inputs, input_count, at, length);
        for (size_t k = 1; k < output_count; k++)
            memcpy(at_bytes(outputs[k], at * p.size), first, length * p.size);
    }
}

void reduce_into(const struct reduction *r, void *dst, const void *src, size_t count)
{
    const void *inputs[] = {dst, src};

    reduce_arrays(r, &dst, 1, inputs, 2, count);
}

void reduce_scale(enum dtype dtype, void *data, double factor, size_t count)
{
    struct reduction r = {.dtype = dtype, .op = REDUCE_SUM, .factors = &factor};
    const void *input = data;

    assert(dtype_is_float(dtype));
    reduce_arrays(&r, &data, 1, &input, 1, count);
}

void cast_from_float32(enum dtype to, void *dst, const float *src, size_t count)
{
    assert(to == DTYPE_FLOAT16 || to == DTYPE_BFLOAT16);
    kernels()->narrow[to == DTYPE_FLOAT16 ? HALF_FLOAT16 : HALF_BFLOAT16](dst, src, count);
}

void cast_to_float32(enum dtype from, float *dst, const void *src, size_t count)
{
    assert(from == DTYPE_FLOAT16 || from == DTYPE_BFLOAT16);
    kernels()->widen[from == DTYPE_FLOAT16 ? HALF_FLOAT16 : HALF_BFLOAT16](dst, src, count);
}
