/*
 * codec_row_selection: rows of an array selected by number, for a receiver that needs only those.
 * Pure, as codec.h; a row is CODEC_ROW_WIDTH elements, the last one of an array may have fewer.
 *
 * In memory a selection is one bit per row; on the wire it is the row numbers, uint32 little
 * endian, strictly ascending, as many as there are bytes for.  An empty selection is valid.
 *
 * Selected rows are sent in the format `named` of codec.h, or as the whole array when they would
 * not be smaller.
 *
 * Source: the requests of MXNet's row_sparse_pull and ElasticDL's pull_embedding_vectors.
 */
#ifndef SPARRING_COMMON_CODEC_CODEC_ROW_SELECTION_H
#define SPARRING_COMMON_CODEC_CODEC_ROW_SELECTION_H

#include "common/codec/codec.h"

#define CODEC_ROW_NUMBER_BYTES 4u

size_t codec_row_count(size_t count);       /* rows of `count` elements */
size_t codec_selection_words(size_t count); /* uint64 words of a selection of them */

/* Select the rows of elements [offset, offset + length), which must be inside the array. */
void codec_select_rows(uint64_t *set, size_t offset, size_t length);

/* Write the selected numbers to dst, which has room for CODEC_ROW_NUMBER_BYTES *
 * codec_row_count(count); returns the bytes. */
size_t codec_encode_selection(const uint64_t *set, size_t count, uint8_t *dst);

/* Encoded bytes of the selected rows of `count` elements; 0: not less than 4 count. */
size_t codec_selected_rows_bytes(const uint64_t *set, size_t count);

/* Encode the selected rows of src (count) into dst; returns codec_selected_rows_bytes.  dst needs
 * no alignment; with 0 it is not written. */
size_t codec_encode_selected_rows(const float *src, const uint64_t *set, size_t count,
                                  uint8_t *dst);

/* Decodes row numbers that arrive in any number of pieces; trusts none of them. */
struct codec_selection_decoder {
    uint64_t *set;
    size_t rows;    /* of the array */
    uint64_t least; /* smallest number allowed next */
    uint8_t carry[CODEC_ROW_NUMBER_BYTES];
    size_t carried;
};

/* set: codec_selection_words(count) words, cleared here, borrowed until codec_selection_decode_end.
 */
void codec_selection_decode_start(struct codec_selection_decoder *n, uint64_t *set, size_t count);

/* STATUS_DATA: a number outside the array or not ascending.  The selection is then unspecified. */
enum status codec_selection_decode_feed(struct codec_selection_decoder *n, const void *bytes,
                                        size_t size, struct error *err);

/* STATUS_DATA: the last number is incomplete. */
enum status codec_selection_decode_end(const struct codec_selection_decoder *n, struct error *err);

#endif
