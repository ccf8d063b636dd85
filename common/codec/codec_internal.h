/*
 * codec_internal: declarations shared by the sources of codec.
 */
#ifndef SPARRING_COMMON_CODEC_CODEC_INTERNAL_H
#define SPARRING_COMMON_CODEC_CODEC_INTERNAL_H

#include "common/codec/codec.h"
#include "common/codec/codec_kernels.h"

#define TOP_K_RECORD 8 /* bytes: index, value */
#define ONE_BIT_HEAD 8 /* bytes: the two means */
#define ROWS_HEAD    8 /* bytes: width and number of rows */

const struct codec_kernels *codec_kernels(void);

/* Write records of the k elements of largest magnitude (of equal ones the first) to dst, and set
 * the elements to 0.  1 <= k <= count <= UINT32_MAX. */
void codec_extract_largest(float *values, size_t count, size_t k, uint8_t *dst);

#endif
