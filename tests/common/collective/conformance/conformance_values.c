/*
 * Inputs as a function of their place, and what must come out.
 *
 * The ascending result is reduce_arrays over all ranks' inputs, which test_reduce checks against
 * plain loops; any other order is held to a bound from a sum in double precision.
 */
#include "tests/common/collective/conformance/conformance.h"

#include "common/tensor/reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *new_bytes(size_t bytes)
{
    void *memory = calloc(bytes + 1, 1);

    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* splitmix64's last step: every bit depends on every bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static uint64_t bits_at(const struct values *v, unsigned rank, size_t i)
{
    return mix(v->seed + (uint64_t)rank * 0x9e3779b97f4a7c15 + (uint64_t)i * 0xd1b54a32d192ed03);
}

static bool is_half(enum dtype dtype)
{
    return dtype == DTYPE_FLOAT16 || dtype == DTYPE_BFLOAT16;
}

/* -8 to 8; of products -1, 1 and 2, whose products of 8 every type holds. */
static int exact_value(const struct values *v, uint64_t bits)
{
    static const int factors[] = {1, 2, -1, 1};

    return v->op == REDUCE_PROD ? factors[bits >> 62] : (int)(bits >> 40) % 17 - 8;
}

static double special_value(uint64_t bits, double other)
{
    switch (bits >> 60) {
    case 0:
        return (double)INFINITY;
    case 1:
        return -(double)INFINITY;
    case 2:
        return (double)NAN;
    case 3:
    case 4:
    case 5:
        return -0.0;
    default:
        return other;
    }
}

static double power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double random_double(const struct values *v, uint64_t bits)
{
    double fraction = (double)(bits >> 12) * 0x1p-52; /* [0, 1) */
    int range = is_half(v->dtype) ? 6 : 20;

    if (v->op == REDUCE_PROD)
        return (bits & 1 ? -1 : 1) * (0.5 + 1.5 * fraction);
    return (2 * fraction - 1) * power_of_two((int)(bits % (unsigned)range) - range / 2);
}

static double float_value(const struct values *v, uint64_t bits)
{
    if (v->kind == VALUES_EXACT)
        return exact_value(v, bits);
    if (v->kind == VALUES_RANDOM)
        return random_double(v, bits);
    return special_value(bits, exact_value(v, bits));
}

/* Sums may wrap, averages not: how often they would depends on the order. */
static int64_t integer_value(const struct values *v, uint64_t bits)
{
    if (v->kind == VALUES_EXACT)
        return exact_value(v, bits);
    return (int64_t)bits / (v->op == REDUCE_AVG ? 16 : 1);
}

static void fill_halves(const struct values *v, unsigned rank, size_t first, size_t count,
                        uint16_t *ret)
{
    float wide[256];

    for (size_t at = 0; at < count; at += 256) {
        size_t length = count - at < 256 ? count - at : 256;

        for (size_t i = 0; i < length; i++)
            wide[i] = (float)float_value(v, bits_at(v, rank, first + at + i));
        cast_from_float32(v->dtype, ret + at, wide, length);
    }
}

void values_fill(const struct values *v, unsigned rank, size_t first, size_t count, void *ret)
{
    union {
        void *any;
        float *f32;
        double *f64;
        int32_t *i32;
        int64_t *i64;
        unsigned char *byte;
    } to = {.any = ret};

    if (is_half(v->dtype)) {
        fill_halves(v, rank, first, count, ret);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = bits_at(v, rank, first + i);

        switch (v->dtype) {
        case DTYPE_FLOAT32:
            to.f32[i] = (float)float_value(v, bits);
            break;
        case DTYPE_FLOAT64:
            to.f64[i] = float_value(v, bits);
            break;
        case DTYPE_INT32:
            to.i32[i] = (int32_t)(integer_value(v, bits) >> (v->kind == VALUES_EXACT ? 0 : 32));
            break;
        case DTYPE_INT64:
            to.i64[i] = integer_value(v, bits);
            break;
        default:
            to.byte[i] = (unsigned char)(bits >> 56);
            break;
        }
    }
}

double values_factor(const struct values *v, unsigned rank)
{
    return v->kind == VALUES_RANDOM ? 0.3 + 0.17 * rank : ldexp(rank % 2 ? -1 : 1, (int)rank % 3);
}

/* ---- results ---- */

static void fill_factors(const struct values *v, unsigned ranks, double *factors)
{
    for (unsigned r = 0; r < ranks; r++) {
        factors[r] = 1;
        if (v->op == REDUCE_PREMUL_SUM)
            factors[r] = values_factor(v, r);
        else if (v->op == REDUCE_AVG && dtype_is_float(v->dtype))
            factors[r] = 1.0 / ranks;
    }
}

void values_reduce(const struct values *v, unsigned ranks, size_t first, size_t count, void *ret)
{
    bool scaled = v->op == REDUCE_PREMUL_SUM || (v->op == REDUCE_AVG && dtype_is_float(v->dtype));
    double factors[CONFORMANCE_RANKS_MAX];
    void *inputs[CONFORMANCE_RANKS_MAX];
    const void *borrowed[CONFORMANCE_RANKS_MAX];
    struct reduction r = {.dtype = v->dtype, .op = v->op, .factors = scaled ? factors : NULL};

    if (v->op == REDUCE_AVG && !dtype_is_float(v->dtype))
        r.divisor = ranks;
    fill_factors(v, ranks, factors);
    for (unsigned k = 0; k < ranks; k++) {
        borrowed[k] = inputs[k] = new_bytes(count * dtype_size(v->dtype));
        values_fill(v, k, first, count, inputs[k]);
    }
    reduce_arrays(&r, &ret, 1, borrowed, ranks, count);
    for (unsigned k = 0; k < ranks; k++)
        free(inputs[k]);
}

static void to_doubles(enum dtype dtype, const void *from, size_t count, double *ret)
{
    float *wide = NULL;

    if (dtype == DTYPE_FLOAT64) {
        memcpy(ret, from, count * sizeof(double));
        return;
    }
    if (is_half(dtype)) {
        wide = new_bytes(count * sizeof(float));
        cast_to_float32(dtype, wide, from, count);
    }
    for (size_t i = 0; i < count; i++) {
        float value;

        memcpy(&value, (const char *)(wide ? wide : from) + i * sizeof(value), sizeof(value));
        ret[i] = (double)value;
    }
    free(wide);
}

/* Of one rounding, relative to what is rounded. */
static double unit_roundoff(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_FLOAT32:
        return 0x1p-24;
    case DTYPE_BFLOAT16:
        return 0x1p-8;
    case DTYPE_FLOAT16:
        return 0x1p-11;
    default:
        return 0x1p-53;
    }
}

/* Every term may be rounded twice before the sum, every partial sum once; a float16 subnormal's
 * rounding is absolute. */
static double bound(const struct values *v, unsigned ranks, double magnitude)
{
    double tiny = v->dtype == DTYPE_FLOAT16 ? 0x1p-25 * ranks : 0;

    return (ranks + 2) * unit_roundoff(v->dtype) * magnitude + tiny;
}

static bool is_near(double got, double wanted, double limit)
{
    if (isnan(wanted))
        return isnan(got);
    if (isinf(wanted))
        return isinf(got) && signbit(got) == signbit(wanted);
    return fabs(got - wanted) <= limit;
}

size_t values_far(const struct values *v, unsigned ranks, size_t first, size_t count,
                  const void *got)
{
    size_t size = dtype_size(v->dtype);
    double *total = new_bytes(count * sizeof(double));
    double *magnitude = new_bytes(count * sizeof(double));
    double *term = new_bytes(count * sizeof(double));
    void *input = new_bytes(count * size);
    double factors[CONFORMANCE_RANKS_MAX];
    size_t i = 0;

    fill_factors(v, ranks, factors);
    for (unsigned r = 0; r < ranks; r++) {
        values_fill(v, r, first, count, input);
        to_doubles(v->dtype, input, count, term);
        for (i = 0; i < count; i++) {
            double value = term[i] * factors[r];
            bool product = v->op == REDUCE_PROD && r > 0;

            total[i] = product ? total[i] * value : total[i] + value;
            magnitude[i] = product ? fabs(total[i]) : magnitude[i] + fabs(value);
        }
    }
    to_doubles(v->dtype, got, count, term);
    for (i = 0; i < count; i++)
        if (!is_near(term[i], total[i], bound(v, ranks, magnitude[i])))
            break;
    free(total);
    free(magnitude);
    free(term);
    free(input);
    return i;
}

bool values_have_one_result(const struct values *v, unsigned ranks)
{
    if (!dtype_is_float(v->dtype) || v->op == REDUCE_MIN || v->op == REDUCE_MAX)
        return true;
    if (v->op == REDUCE_AVG) /* a third of a whole number is rounded */
        return v->kind != VALUES_RANDOM && (ranks & (ranks - 1)) == 0;
    return v->kind != VALUES_RANDOM;
}

static bool is_nan_at(enum dtype dtype, const unsigned char *at)
{
    double value;

    if (!dtype_is_float(dtype))
        return false;
    to_doubles(dtype, at, 1, &value);
    return isnan(value);
}

size_t values_differ(enum dtype dtype, const void *got, const void *wanted, size_t count)
{
    size_t size = dtype_size(dtype);
    const unsigned char *a = got, *b = wanted;

    if (count == 0 || memcmp(a, b, count * size) == 0)
        return count;
    for (size_t i = 0; i < count; i++, a += size, b += size)
        if (memcmp(a, b, size) != 0 && !(is_nan_at(dtype, a) && is_nan_at(dtype, b)))
            return i;
    return count;
}
