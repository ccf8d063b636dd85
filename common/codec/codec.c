/*
 * codec: names, sizes and encoding.  The residual is the work space: the gradient is added to it,
 * and the decoded value is subtracted.  Pure, no locks.
 */
#include "common/codec/codec_internal.h"

#include "common/tensor/reduce.h"
#include "common/tensor/tensor.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *const names[CODEC_KINDS] = {
    [CODEC_NONE] = "none",          [CODEC_FP16] = "fp16",      [CODEC_BF16] = "bf16",
    [CODEC_TOP_K] = "topk",         [CODEC_ONE_BIT] = "onebit", [CODEC_ROWS] = "rows",
    [CODEC_SELECTED_ROWS] = "named"};

const struct codec_kernels *codec_kernels(void)
{
    static const struct codec_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(codec_kernels);

    return tables[simd_level()];
}

const char *codec_name(enum codec_kind kind)
{
    return (unsigned)kind < CODEC_KINDS ? names[kind] : "?";
}

bool codec_parse(const char *text, enum codec_kind *ret)
{
    for (unsigned i = 0; i < CODEC_KINDS; i++) {
        if (strcmp(names[i], text) == 0) {
            *ret = (enum codec_kind)i;
            return true;
        }
    }
    return false;
}

enum status codec_check(const struct codec *c, struct error *err)
{
    if ((unsigned)c->kind >= CODEC_KINDS)
        return error_set(err, STATUS_DATA, "compression %u, known are 0 to %u", (unsigned)c->kind,
                         CODEC_KINDS - 1);
    if (c->kind == CODEC_TOP_K && (c->top_k_ppm == 0 || c->top_k_ppm > CODEC_PPM))
        return error_set(err, STATUS_DATA, "topk of %u parts per million, 1 to %u are allowed",
                         (unsigned)c->top_k_ppm, CODEC_PPM);
    return STATUS_OK;
}

bool codec_has_residual(const struct codec *c)
{
    return c->kind == CODEC_TOP_K || c->kind == CODEC_ONE_BIT;
}

bool codec_has_variable_size(const struct codec *c)
{
    return c->kind == CODEC_ROWS || c->kind == CODEC_SELECTED_ROWS;
}

size_t codec_top_k(const struct codec *c, size_t count)
{
    size_t share = (size_t)(((uint64_t)count * c->top_k_ppm + CODEC_PPM - 1) / CODEC_PPM);

    assert(count <= UINT32_MAX);
    return share >= count - share ? count : share; /* records are twice as long as elements */
}

size_t codec_bytes(const struct codec *c, size_t count)
{
    switch (c->kind) {
    case CODEC_FP16:
    case CODEC_BF16:
        return 2 * count;
    case CODEC_TOP_K:
        if (codec_top_k(c, count) == count)
            return sizeof(float) * count;
        return TOP_K_RECORD * codec_top_k(c, count);
    case CODEC_ONE_BIT:
        return ONE_BIT_HEAD + (count + 7) / 8;
    default:
        return sizeof(float) * count;
    }
}

static size_t count_bits(const uint8_t *bits, size_t size)
{
    size_t sum = 0;

    for (size_t i = 0; i < size; i++)
        sum += (size_t)__builtin_popcount(bits[i]);
    return sum;
}

/* The mean as float32; 0 for no elements. */
static float mean_or_zero(double sum, size_t count)
{
    return count > 0 ? (float)(sum / (double)count) : 0.0f;
}

static enum status encode_signs(float *values, size_t count, uint8_t *dst, struct error *err)
{
    uint8_t *bits = dst + ONE_BIT_HEAD;
    double sums[2] = {0, 0};
    float means[2];
    size_t negative;

    for (size_t at = 0; at < count; at += CODEC_BLOCK) {
        size_t length = count - at < CODEC_BLOCK ? count - at : CODEC_BLOCK;

        codec_kernels()->signs(values + at, length, bits + at / 8, sums);
    }
    if (!isfinite(sums[0]) || !isfinite(sums[1]))
        return error_set(err, STATUS_DATA,
                         "onebit cannot encode NaN or infinity, found among %zu elements", count);
    negative = count_bits(bits, (count + 7) / 8);
    means[0] = mean_or_zero(sums[0], count - negative);
    means[1] = mean_or_zero(sums[1], negative);
    memcpy(dst, means, sizeof(means));
    /* Subtract the decoded values; v - q equals v + (-q), bit for bit. */
    codec_kernels()->add_signs(values, bits, (const float[]){-means[0], means[1]}, count);
    return STATUS_OK;
}

static void encode_top_k(float *values, size_t count, size_t k, uint8_t *dst)
{
    if (k < count) {
        codec_extract_largest(values, count, k, dst);
        return;
    }
    memcpy(dst, values, count * sizeof(float));
    memset(values, 0, count * sizeof(float));
}

enum status codec_encode(const struct codec *c, const float *src, float *residual, size_t count,
                         uint8_t *dst, struct error *err)
{
    assert(count <= UINT32_MAX && (src || codec_has_residual(c)) && !codec_has_variable_size(c));
    if (codec_has_residual(c) && src)
        vector_add(residual, src, count);
    switch (c->kind) {
    case CODEC_FP16:
        cast_from_float32(DTYPE_FLOAT16, dst, src, count);
        return STATUS_OK;
    case CODEC_BF16:
        cast_from_float32(DTYPE_BFLOAT16, dst, src, count);
        return STATUS_OK;
    case CODEC_TOP_K:
        encode_top_k(residual, count, codec_top_k(c, count), dst);
        return STATUS_OK;
    case CODEC_ONE_BIT:
        return encode_signs(residual, count, dst, err);
    default:
        memcpy(dst, src, count * sizeof(float));
        return STATUS_OK;
    }
}
