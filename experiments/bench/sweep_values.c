/*
 * sweep_values: tables of one period per rank, so that filling is memcpy and checking is memcmp,
 * both at memory speed.
 */
#include "experiments/bench/sweep_values.h"

#include "common/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The largest integer up to which all integers are exact. */
static double exact_limit(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BFLOAT16:
        return 256;
    case DTYPE_FLOAT16:
        return 2048;
    case DTYPE_BYTE:
        return 255;
    default:
        return 16777216;
    }
}

double sweep_factor(unsigned rank)
{
    return rank % 2 == 0 ? 1 : 2;
}

/* True for averages where 1/n is not exact: then only one rank has a value other than 0. */
static bool one_rank_at_a_time(const struct sweep_values *v)
{
    return v->op == REDUCE_AVG && dtype_is_float(v->dtype) &&
           (v->world_size & (v->world_size - 1)) != 0;
}

double sweep_value(const struct sweep_values *v, unsigned rank, size_t i)
{
    static const double factors[] = {1, 2, 1, -1, 1, 1, -2, 1, 1, 1, 1};
    size_t j = i % VALUES_PERIOD;
    double most = exact_limit(v->dtype) / v->world_size / (v->op == REDUCE_PREMUL_SUM ? 2 : 1);
    size_t modulus = most >= 1021 ? 1021 : most < 2 ? 2 : (size_t)most;
    double value = (double)((j * 31 + rank * 17) % modulus);
    double half = floor((double)modulus / 2);

    if (v->op == REDUCE_PROD && v->dtype != DTYPE_BYTE)
        return factors[(j * 7 + rank * 3) % (sizeof(factors) / sizeof(factors[0]))];
    if (one_rank_at_a_time(v) && j % v->world_size != rank)
        return 0;
    if ((v->op == REDUCE_MIN || v->op == REDUCE_MAX) && v->dtype != DTYPE_BYTE)
        return value - half;
    return value;
}

static double combine_values(enum reduce_op op, double a, double b)
{
    switch (op) {
    case REDUCE_PROD:
        return a * b;
    case REDUCE_MIN:
        return a < b ? a : b;
    case REDUCE_MAX:
        return a > b ? a : b;
    default:
        return a + b;
    }
}

/* The reduction as collective.h and reduce.h define it, computed one element at a time. */
static double reduced_value(const struct sweep_values *v, size_t i)
{
    double all = 0;
    double n = v->world_size > 0 ? v->world_size : 1;

    for (unsigned r = 0; r < v->world_size; r++) {
        double one = sweep_value(v, r, i) * (v->op == REDUCE_PREMUL_SUM ? sweep_factor(r) : 1);

        all = r == 0 ? one : combine_values(v->op, all, one);
    }
    if (v->op != REDUCE_AVG)
        return all;
    if (!dtype_is_float(v->dtype))
        return trunc(all / n);
    return v->dtype == DTYPE_FLOAT64 ? all * (1 / n) : (double)((float)all * (float)(1 / n));
}

static void store_value(enum dtype dtype, void *table, size_t i, double value)
{
    unsigned char *target = (unsigned char *)table + i * dtype_size(dtype);
    float single = (float)value;
    int32_t word = (int32_t)value;
    int64_t quad = (int64_t)value;

    switch (dtype) {
    case DTYPE_FLOAT64:
        memcpy(target, &value, sizeof(value));
        break;
    case DTYPE_FLOAT32:
        memcpy(target, &single, sizeof(single));
        break;
    case DTYPE_INT32:
        memcpy(target, &word, sizeof(word));
        break;
    case DTYPE_INT64:
        memcpy(target, &quad, sizeof(quad));
        break;
    case DTYPE_BYTE:
        *target = (unsigned char)word;
        break;
    default:
        cast_from_float32(dtype, target, &single, 1);
    }
}

enum status sweep_values_open(struct sweep_values *v, enum dtype dtype, enum reduce_op op,
                              unsigned world_size, struct error *err)
{
    size_t table_bytes = VALUES_PERIOD * dtype_size(dtype);
    enum status status;

    *v = (struct sweep_values){.dtype = dtype, .op = op, .world_size = world_size};
    status = mem_calloc_aligned(world_size + 1, table_bytes, "values", &v->tables, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < VALUES_PERIOD; i++) {
        for (unsigned r = 0; r < world_size; r++)
            store_value(dtype, v->tables + r * table_bytes, i, sweep_value(v, r, i));
        store_value(dtype, v->tables + world_size * table_bytes, i, reduced_value(v, i));
    }
    return STATUS_OK;
}

void sweep_values_release(struct sweep_values *v)
{
    free(v->tables);
    v->tables = NULL;
}

void sweep_values_fill(const struct sweep_values *v, void *data, unsigned whose, size_t first,
                       size_t count)
{
    size_t size = dtype_size(v->dtype);
    const unsigned char *table = v->tables + whose * VALUES_PERIOD * size;
    unsigned char *at = data;

    for (size_t phase = first % VALUES_PERIOD; count > 0; phase = 0) {
        size_t piece = VALUES_PERIOD - phase < count ? VALUES_PERIOD - phase : count;

        memcpy(at, table + phase * size, piece * size);
        at += piece * size;
        count -= piece;
    }
}

static uint64_t count_different(const unsigned char *a, const unsigned char *b, size_t count,
                                size_t size)
{
    uint64_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        wrong += memcmp(a + i * size, b + i * size, size) != 0;
    return wrong;
}

uint64_t sweep_values_wrong(const struct sweep_values *v, const void *data, unsigned whose,
                            size_t first, size_t count)
{
    size_t size = dtype_size(v->dtype);
    const unsigned char *table = v->tables + whose * VALUES_PERIOD * size;
    const unsigned char *at = data;
    uint64_t wrong = 0;

    for (size_t phase = first % VALUES_PERIOD; count > 0; phase = 0) {
        size_t piece = VALUES_PERIOD - phase < count ? VALUES_PERIOD - phase : count;

        if (memcmp(at, table + phase * size, piece * size) != 0)
            wrong += count_different(at, table + phase * size, piece, size);
        at += piece * size;
        count -= piece;
    }
    return wrong;
}
