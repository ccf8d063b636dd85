/*
 * codec_names: rows of an array named by number, for who wants to be told only those.
 * Pure, as codec.h; a row is CODEC_ROW_WIDTH elements, the last one of an array may have fewer.
 *
 * In memory a set of rows is one bit each; on the wire it is their numbers, uint32 little endian,
 * strictly ascending, as many as there are bytes for.  None at all is a set, too.
 *
 * Named rows travel as codec.h says of `named`; the array as it is where they are no shorter.
 *
 * Source: what MXNet's row_sparse_pull and ElasticDL's pull_embedding_vectors ask for.
 */
#ifndef SPARRING_COMMON_CODEC_CODEC_NAMES_H
#define SPARRING_COMMON_CODEC_CODEC_NAMES_H

#include "common/codec/codec.h"

#define CODEC_NAME_BYTES 4u

size_t codec_rows(size_t count);      /* rows of `count` elements */
size_t codec_row_words(size_t count); /* uint64 words of a set of them */

/* Name the rows that elements [offset, offset + length) of the array lie in; they are inside. */
void codec_name_rows(uint64_t *set, size_t offset, size_t length);

/* The set's numbers into dst (CODEC_NAME_BYTES for each of codec_rows(count)); returns the bytes.
 */
size_t codec_encode_names(const uint64_t *set, size_t count, uint8_t *dst);

/* Bytes that the named rows of `count` elements take; 0: no fewer than 4 count. */
size_t codec_named_bytes(const uint64_t *set, size_t count);

/* Encode the named rows of src (count) into dst, codec_named_bytes of them, which are returned.
 * dst needs no alignment; with 0 it is not written. */
size_t codec_encode_named(const float *src, const uint64_t *set, size_t count, uint8_t *dst);

/* Numbers that came, in as many pieces as they come in; none is believed. */
struct codec_names {
    uint64_t *set;
    size_t rows;    /* of the array */
    uint64_t least; /* number that may follow */
    uint8_t carry[CODEC_NAME_BYTES];
    size_t carried;
};

/* set: codec_row_words(count), cleared here, borrowed until codec_names_end. */
void codec_names_start(struct codec_names *n, uint64_t *set, size_t count);

/* STATUS_DATA: a number outside the array or not ascending.  The set is then unspecified. */
enum status codec_names_feed(struct codec_names *n, const void *bytes, size_t size,
                             struct error *err);

/* STATUS_DATA: half a number is left. */
enum status codec_names_end(const struct codec_names *n, struct error *err);

#endif
