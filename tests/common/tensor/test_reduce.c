/*
 * Reductions and casts against plain loops without blocks, vectors or bit operations: every type,
 * operation, number of inputs and outputs, at lengths around the vector and block sizes, at any
 * alignment, in place or not; every 16-bit value, and every border between two of them, through the
 * casts of every vector width.
 */
#include "common/tensor/reduce.h"
#include "common/tensor/reduce_kernels.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT    5000 /* several blocks */
#define MAX_INPUTS   19   /* three loops' worth */
#define BUFFER_COUNT (MAX_COUNT + 8)
#define GUARD        0xa5

static const struct reduce_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(reduce_kernels);
static const enum dtype halves[HALF_COUNT] = {DTYPE_BFLOAT16, DTYPE_FLOAT16};

/* ---- the 16-bit formats by their definition ---- */

/* Value of the non-negative bits, infinity's as the power of two that it stands for. */
static double half_value(enum half_type type, unsigned bits)
{
    int mantissa_bits = type == HALF_FLOAT16 ? 10 : 7;
    int bias = type == HALF_FLOAT16 ? 15 : 127;
    int exponent = (int)(bits >> mantissa_bits);
    int mantissa = (int)(bits & ((1u << mantissa_bits) - 1));

    if (exponent == 0)
        return ldexp(mantissa, 1 - bias - mantissa_bits);
    return ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

static unsigned infinity_bits(enum half_type type)
{
    return type == HALF_FLOAT16 ? 0x7c00 : 0x7f80;
}

static float widen_model(enum half_type type, uint16_t half)
{
    unsigned rest = half & 0x7fffu;
    double value = half_value(type, rest);

    if (rest > infinity_bits(type))
        return NAN;
    if (rest == infinity_bits(type))
        value = (double)INFINITY;
    return (float)(half & 0x8000u ? -value : value);
}

/* The nearest by search; the even one of two that are equally near. */
static uint16_t narrow_model(enum half_type type, float value)
{
    double wanted = fabs((double)value);
    unsigned low = 0, high = infinity_bits(type);
    unsigned sign = signbit(value) ? 0x8000 : 0;

    if (isnan(value))
        return (uint16_t)(infinity_bits(type) + 1); /* any NaN */
    if (wanted >= half_value(type, high))
        return (uint16_t)(sign | high);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;

        if (half_value(type, middle) <= wanted)
            low = middle;
        else
            high = middle;
    }
    double below = wanted - half_value(type, low), above = half_value(type, high) - wanted;

    if (below == above)
        return (uint16_t)(sign | (low % 2 == 0 ? low : high));
    return (uint16_t)(sign | (below < above ? low : high));
}

static bool half_is_nan(enum half_type type, uint16_t half)
{
    return (half & 0x7fffu) > infinity_bits(type);
}

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

/* ---- casts ---- */

START_TEST(every_half_widens)
{
    static uint16_t all[65536];
    static float wide[65536];
    static uint16_t back[65536];

    for (unsigned i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int type = 0; type < HALF_COUNT; type++) {
        tables[_i]->widen[type](wide, all, 65536);
        for (unsigned i = 0; i < 65536; i++) {
            float wanted = widen_model((enum half_type)type, (uint16_t)i);

            if (!same_float(wide[i], wanted))
                ck_abort_msg("%s 0x%04x widens to %a, wanted %a", dtype_name(halves[type]), i,
                             (double)wide[i], (double)wanted);
        }
        tables[_i]->narrow[type](back, wide, 65536);
        for (unsigned i = 0; i < 65536; i++) {
            unsigned quiet = type == HALF_FLOAT16 ? 0x0200 : 0x0040;
            bool nan = half_is_nan((enum half_type)type, (uint16_t)i);

            if (back[i] != (nan ? i | quiet : i))
                ck_abort_msg("%s 0x%04x comes back as 0x%04x", dtype_name(halves[type]), i,
                             back[i]);
        }
    }
}
END_TEST

static void check_narrow(int level, int type, float value, unsigned wanted)
{
    /* The last element of a long array and a short one: vector body and tail. */
    float values[33];
    uint16_t got[33];

    for (size_t i = 0; i < 33; i++)
        values[i] = value;
    tables[level]->narrow[type](got, values, 33);
    if (got[0] != wanted || got[32] != wanted)
        ck_abort_msg("%a narrows to %s 0x%04x, at the end 0x%04x, wanted 0x%04x", (double)value,
                     dtype_name(halves[type]), got[0], got[32], wanted);
}

/* Rounding is monotone, so checks at and next to the midpoint of any two neighbours suffice. */
START_TEST(every_border_rounds_to_even)
{
    for (int type = 0; type < HALF_COUNT; type++) {
        for (unsigned low = 0; low < infinity_bits((enum half_type)type); low++) {
            unsigned high = low + 1;
            float middle = (float)((half_value((enum half_type)type, low) +
                                    half_value((enum half_type)type, high)) /
                                   2);
            unsigned even = low % 2 == 0 ? low : high;

            check_narrow(_i, type, nextafterf(middle, 0.0f), low);
            check_narrow(_i, type, middle, even);
            check_narrow(_i, type, nextafterf(middle, INFINITY), high);
            check_narrow(_i, type, -nextafterf(middle, 0.0f), 0x8000 | low);
            check_narrow(_i, type, -middle, 0x8000 | even);
            check_narrow(_i, type, -nextafterf(middle, INFINITY), 0x8000 | high);
        }
        check_narrow(_i, type, 0.0f, 0);
        check_narrow(_i, type, -0.0f, 0x8000);
        check_narrow(_i, type, INFINITY, infinity_bits((enum half_type)type));
        check_narrow(_i, type, -INFINITY, 0x8000 | infinity_bits((enum half_type)type));
    }
}
END_TEST

START_TEST(any_bits_narrow_as_the_model)
{
    static float values[MAX_COUNT];
    static uint16_t got[MAX_COUNT + 1];

    for (int round = 0; round < 40; round++) {
        int type = round % HALF_COUNT;
        size_t count = (size_t)(support_random() * MAX_COUNT);

        for (size_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)(support_random() * 4294967296.0);

            memcpy(&values[i], &bits, sizeof(bits));
        }
        got[count] = 0x1234;
        tables[_i]->narrow[type](got, values, count);
        ck_assert_uint_eq(got[count], 0x1234);
        for (size_t i = 0; i < count; i++) {
            uint16_t wanted = narrow_model((enum half_type)type, values[i]);

            if (got[i] != wanted && !(half_is_nan((enum half_type)type, got[i]) &&
                                      half_is_nan((enum half_type)type, wanted)))
                ck_abort_msg("%a narrows to %s 0x%04x, wanted 0x%04x", (double)values[i],
                             dtype_name(halves[type]), got[i], wanted);
        }
    }
}
END_TEST

START_TEST(public_casts_are_the_widest_kernels)
{
    float values[] = {1.0f, 1.00390625f, 65520.0f, 1e-7f, -3.0f};
    uint16_t got[5];
    float back[5];

    for (int type = 0; type < HALF_COUNT; type++) {
        cast_from_float32(halves[type], got, values, 5);
        cast_to_float32(halves[type], back, got, 5);
        for (size_t i = 0; i < 5; i++) {
            ck_assert_uint_eq(got[i], narrow_model((enum half_type)type, values[i]));
            ck_assert(same_float(back[i], widen_model((enum half_type)type, got[i])));
        }
    }
}
END_TEST

/* ---- reference reductions, one element at a time ---- */

union element {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint16_t half;
};

static union element load_element(enum dtype dtype, const unsigned char *array, size_t i)
{
    union element e = {.i64 = 0};

    memcpy(&e, array + i * dtype_size(dtype), dtype_size(dtype));
    return e;
}

static float model_float(enum reduce_op op, float a, float b)
{
    switch (op) {
    case REDUCE_PROD:
        return a * b;
    case REDUCE_MIN:
        return isnan(a) || isnan(b) ? NAN : (a < b ? a : b);
    case REDUCE_MAX:
        return isnan(a) || isnan(b) ? NAN : (a > b ? a : b);
    default:
        return a + b;
    }
}

static double model_double(enum reduce_op op, double a, double b)
{
    switch (op) {
    case REDUCE_PROD:
        return a * b;
    case REDUCE_MIN:
        return isnan(a) || isnan(b) ? (double)NAN : (a < b ? a : b);
    case REDUCE_MAX:
        return isnan(a) || isnan(b) ? (double)NAN : (a > b ? a : b);
    default:
        return a + b;
    }
}

static int64_t model_integer(enum reduce_op op, int64_t a, int64_t b)
{
    switch (op) {
    case REDUCE_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case REDUCE_MIN:
        return a < b ? a : b;
    case REDUCE_MAX:
        return a > b ? a : b;
    default:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

static float float_term(enum dtype dtype, union element e)
{
    if (dtype == DTYPE_FLOAT32)
        return e.f32;
    return widen_model(dtype == DTYPE_FLOAT16 ? HALF_FLOAT16 : HALF_BFLOAT16, e.half);
}

static union element reduce_element(const struct reduction *r, const unsigned char *const *inputs,
                                    size_t input_count, size_t i)
{
    union element result = {.i64 = 0};
    float f32 = 0;
    double f64 = 0;
    int64_t integer = 0;

    for (size_t k = 0; k < input_count; k++) {
        union element e = load_element(r->dtype, inputs[k], i);
        int64_t value = r->dtype == DTYPE_INT32 ? e.i32 : e.i64;
        float f = float_term(r->dtype, e) * (r->factors ? (float)r->factors[k] : 1.0f);
        double d = e.f64 * (r->factors ? r->factors[k] : 1.0);

        f32 = k == 0 ? f : model_float(r->op, f32, f);
        f64 = k == 0 ? d : model_double(r->op, f64, d);
        integer = k == 0 ? value : model_integer(r->op, integer, value);
        if (r->dtype == DTYPE_INT32)
            integer = (int32_t)(uint32_t)(uint64_t)integer;
    }
    if (r->divisor > 1)
        integer /= r->divisor;
    if (r->dtype == DTYPE_FLOAT32)
        result.f32 = f32;
    else if (r->dtype == DTYPE_FLOAT64)
        result.f64 = f64;
    else if (r->dtype == DTYPE_INT32)
        result.i32 = (int32_t)integer;
    else if (r->dtype == DTYPE_INT64)
        result.i64 = integer;
    else
        result.half = narrow_model(r->dtype == DTYPE_FLOAT16 ? HALF_FLOAT16 : HALF_BFLOAT16, f32);
    return result;
}

static bool same_element(enum dtype dtype, union element a, union element b)
{
    if (dtype == DTYPE_FLOAT32)
        return same_float(a.f32, b.f32);
    if (dtype == DTYPE_FLOAT64)
        return memcmp(&a.f64, &b.f64, sizeof(double)) == 0 || (isnan(a.f64) && isnan(b.f64));
    if (dtype == DTYPE_FLOAT16 || dtype == DTYPE_BFLOAT16) {
        enum half_type type = dtype == DTYPE_FLOAT16 ? HALF_FLOAT16 : HALF_BFLOAT16;

        return a.half == b.half || (half_is_nan(type, a.half) && half_is_nan(type, b.half));
    }
    return dtype == DTYPE_INT32 ? a.i32 == b.i32 : a.i64 == b.i64;
}

/* ---- fresh inputs ---- */

static unsigned char arrays[MAX_INPUTS + 4][BUFFER_COUNT * sizeof(double)];
static unsigned char before[MAX_INPUTS + 4][BUFFER_COUNT * sizeof(double)];

/* Values of mixed magnitude, whose sums show order and rounding, some special ones, and for
 * integers any bits. */
static void put_random(enum dtype dtype, unsigned char *at)
{
    static const double special[] = {0.0,   -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN,
                                     1e-42, 6e4,  0x1p-24};
    double value = ldexp(support_random() - 0.5, (int)(support_random() * 20) - 8);
    union element e = {.i64 = (int64_t)(support_random() * 0x1p62) - (int64_t)0x1p61};

    if (support_random() < 0.03)
        value = special[(size_t)(support_random() * 8)];
    if (dtype == DTYPE_INT64)
        e.i64 *= 4;
    else if (dtype == DTYPE_INT32)
        e.i32 = (int32_t)(e.i64 >> 29);
    else if (dtype == DTYPE_FLOAT64)
        e.f64 = value;
    else if (dtype == DTYPE_FLOAT32)
        e.f32 = (float)value;
    else
        e.half = narrow_model(dtype == DTYPE_FLOAT16 ? HALF_FLOAT16 : HALF_BFLOAT16, (float)value);
    memcpy(at, &e, dtype_size(dtype));
}

/* One reduction of `inputs` arrays into `outputs` ones, the first `shared` of which are inputs, the
 * last ones first. */
struct shape {
    size_t inputs, outputs, shared, count;
};

static void check_shape(const struct reduction *r, struct shape s)
{
    size_t size = dtype_size(r->dtype);
    const unsigned char *model_in[MAX_INPUTS];
    void *out[4];
    const void *in[MAX_INPUTS];

    for (size_t k = 0; k < MAX_INPUTS + 4; k++) {
        memset(arrays[k], GUARD, sizeof(arrays[k]));
        for (size_t i = 0; k < s.inputs && i < s.count; i++)
            put_random(r->dtype, arrays[k] + (i + k % 3) * size);
    }
    memcpy(before, arrays, sizeof(arrays));
    for (size_t k = 0; k < s.inputs; k++) {
        in[k] = arrays[k] + k % 3 * size;
        model_in[k] = before[k] + k % 3 * size;
    }
    for (size_t k = 0; k < s.outputs; k++) {
        size_t array = k < s.shared ? s.inputs - 1 - k : MAX_INPUTS + k;

        out[k] = arrays[array] + array % 3 * size;
    }
    reduce_arrays(r, out, s.outputs, in, s.inputs, s.count);
    for (size_t k = 0; k < s.outputs; k++) {
        for (size_t i = 0; i < s.count; i++) {
            union element wanted = reduce_element(r, model_in, s.inputs, i);

            if (!same_element(r->dtype, load_element(r->dtype, out[k], i), wanted))
                ck_abort_msg("%s %s, %zu inputs, output %zu of %zu, count %zu: element %zu",
                             dtype_name(r->dtype), reduce_op_name(r->op), s.inputs, k, s.outputs,
                             s.count, i);
        }
    }
    for (size_t k = 0; k < s.outputs; k++) {
        size_t array = k < s.shared ? s.inputs - 1 - k : MAX_INPUTS + k;

        memcpy(before[array] + array % 3 * size, out[k], s.count * size);
    }
    /* Nothing else was written. */
    ck_assert_mem_eq(arrays, before, sizeof(arrays));
}

static const size_t counts[] = {0,  1,  2,  3,   7,   8,   15,   16,   17,   31,
                                33, 63, 65, 127, 511, 513, 1023, 1025, 2049, MAX_COUNT};

START_TEST(every_type_operation_and_shape)
{
    enum dtype dtype = (enum dtype)(_i / REDUCE_OP_COUNT);
    enum reduce_op op = (enum reduce_op)(_i % REDUCE_OP_COUNT);
    bool sum = op == REDUCE_SUM || op == REDUCE_AVG || op == REDUCE_PREMUL_SUM;

    for (size_t inputs = 1; inputs <= MAX_INPUTS; inputs++) {
        double factors[MAX_INPUTS];
        struct reduction r = {.dtype = dtype, .op = op};
        size_t outputs = 1 + inputs % 4;
        struct shape s = {
            .inputs = inputs,
            .outputs = outputs,
            .shared = (size_t)(support_random() * (double)(outputs + 1)),
            .count = counts[(size_t)(support_random() * 20)],
        };

        if (s.shared > inputs)
            s.shared = inputs;
        for (size_t k = 0; k < inputs; k++)
            factors[k] = op == REDUCE_AVG ? 1.0 / (double)inputs : support_random() * 3 - 1;
        if (sum && op != REDUCE_SUM && dtype_is_float(dtype))
            r.factors = factors;
        if (op == REDUCE_AVG && !dtype_is_float(dtype))
            r.divisor = (int64_t)inputs;
        check_shape(&r, s);
        s.count = (size_t)(support_random() * MAX_COUNT);
        check_shape(&r, s);
    }
}
END_TEST

START_TEST(every_count_near_vectors_and_blocks)
{
    struct reduction r = {.dtype = (enum dtype)_i, .op = REDUCE_SUM};

    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++)
        for (size_t outputs = 1; outputs <= 2; outputs++)
            check_shape(&r, (struct shape){2, outputs, 0, counts[k]});
}
END_TEST

/* ---- the vector widths agree ---- */

/* Overwrite `got`, run, and compare with the baseline's bytes. */
START_TEST(widths_agree)
{
    static float in[REDUCE_FAN][BUFFER_COUNT], wanted[BUFFER_COUNT], got[BUFFER_COUNT];
    const float *pointers[REDUCE_FAN];
    float factors[REDUCE_FAN];

    for (int round = 0; round < 60; round++) {
        size_t count = round < 40 ? (size_t)round : (size_t)(support_random() * MAX_COUNT);
        size_t inputs = 1 + (size_t)round % REDUCE_FAN;

        for (size_t k = 0; k < REDUCE_FAN; k++) {
            factors[k] = (float)support_random();
            pointers[k] = in[k] + k % 3;
            for (size_t i = 0; i < BUFFER_COUNT; i++)
                in[k][i] = (float)ldexp(support_random() - 0.5, (int)(support_random() * 20));
        }
        memset(wanted, GUARD, sizeof(wanted));
        memset(got, GUARD, sizeof(got));
        tables[SIMD_BASELINE]->sum(wanted, pointers, inputs, count);
        tables[_i]->sum(got, pointers, inputs, count);
        ck_assert_mem_eq(got, wanted, sizeof(got));
        tables[SIMD_BASELINE]->scaled_sum(wanted, pointers, factors, inputs, count);
        tables[_i]->scaled_sum(got, pointers, factors, inputs, count);
        ck_assert_mem_eq(got, wanted, sizeof(got));
        for (int type = 0; type < TYPE_COUNT; type++) {
            for (int pair = 0; pair < PAIR_COUNT; pair++) {
                size_t wide = type == TYPE_FLOAT64 || type == TYPE_INT64 ? count / 2 : count;

                tables[SIMD_BASELINE]->pair[type][pair](wanted + 2, in[0] + 2, in[1], wide);
                tables[_i]->pair[type][pair](got + 2, in[0] + 2, in[1], wide);
                ck_assert_mem_eq(got, wanted, sizeof(got));
            }
        }
    }
}
END_TEST

START_TEST(scale_and_into)
{
    for (int dtype = 0; dtype < DTYPE_BYTE; dtype++) {
        size_t size = dtype_size((enum dtype)dtype);
        size_t count = (size_t)(support_random() * MAX_COUNT);
        struct reduction r = {.dtype = (enum dtype)dtype, .op = REDUCE_MAX};
        const unsigned char *inputs[] = {before[0], before[1]};
        double factor = support_random() * 4 - 2;

        for (size_t i = 0; i < count; i++) {
            put_random((enum dtype)dtype, arrays[0] + i * size);
            put_random((enum dtype)dtype, arrays[1] + i * size);
        }
        memcpy(before, arrays, sizeof(arrays));
        reduce_into(&r, arrays[0], arrays[1], count);
        for (size_t i = 0; i < count; i++)
            ck_assert(same_element(r.dtype, load_element(r.dtype, arrays[0], i),
                                   reduce_element(&r, inputs, 2, i)));
        ck_assert_mem_eq(arrays[1], before[1], sizeof(arrays[1]));
        if (!dtype_is_float(r.dtype))
            continue;
        r.op = REDUCE_SUM;
        r.factors = &factor;
        reduce_scale(r.dtype, arrays[1], factor, count);
        for (size_t i = 0; i < count; i++)
            ck_assert(same_element(r.dtype, load_element(r.dtype, arrays[1], i),
                                   reduce_element(&r, &inputs[1], 1, i)));
    }
}
END_TEST

START_TEST(names)
{
    enum reduce_op op;

    for (int i = 0; i < REDUCE_OP_COUNT; i++) {
        ck_assert(reduce_op_parse(reduce_op_name((enum reduce_op)i), &op));
        ck_assert_int_eq(op, i);
    }
    ck_assert(!reduce_op_parse("mean", &op));
    ck_assert_str_eq(reduce_op_name(REDUCE_OP_COUNT), "?");
}
END_TEST

int main(void)
{
    int widths = (int)simd_level() + 1;
    printf("widest vectors of this processor: %s\n", simd_level_name(simd_level()));
    return SUPPORT_RUN("reduce", 0, LOOP_TEST(every_half_widens, 0, widths),
                       LOOP_TEST(every_border_rounds_to_even, 0, widths),
                       LOOP_TEST(any_bits_narrow_as_the_model, 0, widths),
                       LOOP_TEST(widths_agree, 0, widths),
                       TEST(public_casts_are_the_widest_kernels),
                       LOOP_TEST(every_type_operation_and_shape, 0, DTYPE_BYTE * REDUCE_OP_COUNT),
                       LOOP_TEST(every_count_near_vectors_and_blocks, 0, DTYPE_BYTE),
                       TEST(scale_and_into), TEST(names));
}
