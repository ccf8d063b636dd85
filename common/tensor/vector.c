/*
 * vector: the public element-wise functions; each calls the widest copy of its loop that the
 * processor supports.  No state, no locks.
 */
#include "common/tensor/tensor.h"
#include "common/tensor/vector_kernels.h"

#include <assert.h>

static const struct vector_kernels *kernels(void)
{
    static const struct vector_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(vector_kernels);

    return tables[simd_level()];
}

void vector_add(float *dst, const float *src, size_t count)
{
    kernels()->add_to(dst, dst, src, count);
}

void vector_add_to(float *dst, const float *a, const float *b, size_t count)
{
    kernels()->add_to(dst, a, b, count);
}

void vector_scale(float *dst, float factor, size_t count)
{
    kernels()->scale_to(dst, dst, factor, count);
}

void vector_scale_to(float *dst, const float *src, float factor, size_t count)
{
    kernels()->scale_to(dst, src, factor, count);
}

void vector_sum(float *dst, const float *const *src, size_t sources, size_t count)
{
    assert(sources > 0);
    kernels()->sum(dst, src, sources, count);
}

void vector_add_bytes(float *dst, const unsigned char *bytes, size_t count)
{
    kernels()->add_bytes(dst, bytes, count);
}

void vector_scale_bytes(float *dst, const unsigned char *bytes, float factor, size_t count)
{
    kernels()->scale_bytes(dst, bytes, factor, count);
}

void vector_add_scaled_bytes(float *dst, const unsigned char *bytes, float factor, size_t count)
{
    kernels()->add_scaled_bytes(dst, bytes, factor, count);
}

void vector_divide_uint8(float *dst, const uint8_t *src, float divisor, size_t count)
{
    kernels()->divide_uint8(dst, src, divisor, count);
}
