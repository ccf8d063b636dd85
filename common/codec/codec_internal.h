/*
 * codec_internal: what the sources of codec share.
 */
#ifndef SPARRING_COMMON_CODEC_CODEC_INTERNAL_H
#define SPARRING_COMMON_CODEC_CODEC_INTERNAL_H

#include "common/codec/codec.h"
#include "common/codec/codec_kernels.h"

#define TOP_K_RECORD 8 /* bytes: index, value */
#define ONE_BIT_HEAD 8 /* bytes: the two means */
#define ROWS_HEAD    8 /* bytes: width and number of rows */

const struct codec_kernels *codec_kernels(void);

/* The k elements of largest magnitude, of equal ones those that come first: their records into dst,
 * and 0 in their place.  1 <= k <= count <= UINT32_MAX. */
void codec_take_largest(float *values, size_t count, size_t k, uint8_t *dst);

#endif
