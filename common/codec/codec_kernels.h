/*
 * codec_kernels: the inner loops of codec.h, one table per vector width.  Internal to codec and its
 * tests.
 */
#ifndef SPARRING_COMMON_CODEC_CODEC_KERNELS_H
#define SPARRING_COMMON_CODEC_CODEC_KERNELS_H

#include "common/tensor/simd.h"

#include <stddef.h>
#include <stdint.h>

/* Elements that one call of `signs` sums: a multiple of 8, for whole bytes of signs, and large
 * enough that the final reduction is negligible. */
#define CODEC_BLOCK 4096

/* Bytes need no alignment; arrays are equal or disjoint. */
struct codec_kernels {
    /* dst = or += the 16-bit floats at src */
    void (*copy_float16)(float *dst, const uint8_t *src, size_t count);
    void (*add_float16)(float *dst, const uint8_t *src, size_t count);
    void (*copy_bfloat16)(float *dst, const uint8_t *src, size_t count);
    void (*add_bfloat16)(float *dst, const uint8_t *src, size_t count);
    /* Signs of count <= CODEC_BLOCK elements into ceil(count / 8) bytes, unused bits 0;
     * sums[0] += elements without a sign, sums[1] += magnitudes of those with one.  The order of
     * the additions does not depend on the width. */
    void (*signs)(const float *src, size_t count, uint8_t *bits, double sums[2]);
    /* dst = or += values[bit] */
    void (*copy_signs)(float *dst, const uint8_t *bits, const float values[2], size_t count);
    void (*add_signs)(float *dst, const uint8_t *bits, const float values[2], size_t count);
};

extern const struct codec_kernels codec_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct codec_kernels codec_kernels_avx2;
extern const struct codec_kernels codec_kernels_avx512;
#endif

#endif
