/*
 * codec: compresses float32 arrays that workers and parameter servers send each other.
 * Pure: no I/O, no locks, no memory of its own.
 *
 * Library.  Promises exact formats and decoders that are safe on untrusted bytes.  Needs base,
 * tensor and consistency.  Called by wire, the parameter server's shards and service, and the
 * worker.
 *
 *   kind      bytes of n elements     decoded values
 *   none      4 n                     the same bits
 *   fp16      2 n                     rounded to float16 (ties to even; above 65504: infinity)
 *   bf16      2 n                     rounded to bfloat16
 *   topk      8 k                     the k elements of largest magnitude, the same bits; else 0
 *             4 n, if not larger       all elements, in the format of none
 *   onebit    8 + ceil(n / 8)         one of two values per element, by its sign
 *   rows      8 + 68 per row of 16    the same bits; rows that the receiver already has are omitted
 *             elements, if that is      (zeros of a gradient, parameters that no step has changed).
 *             less than 4 n; else 4 n   For embeddings, of which a batch touches few rows
 *   named     as rows                   the same bits of the rows that the receiver has selected by
 *                                       number (common/codec/codec_row_selection.h); replies only
 *
 * Formats, little endian.  topk: k records of a uint32 index and a float32 value, indices strictly
 * ascending.  onebit: float32 mean of the elements without a sign, float32 mean magnitude of those
 * with one (both finite and not negative), then the signs, element 0 in the lowest bit of the first
 * byte; unused bits are 0.  rows: uint32 width of a row, uint32 number of rows that follow; for
 * each a uint32 row number, strictly ascending from 0, and its float32 elements (the last row of
 * the array may be shorter); named: likewise.  Except for these two, the size follows from the
 * count alone; when rows would not be smaller, the array is sent with `none`, and the message's
 * dtype states it.
 *
 * Error feedback: topk and onebit keep the part that was not sent in a residual, and add it to the
 * next array.  So the sum of all decoded arrays is the sum of all encoded arrays minus the last
 * residual, up to float32 rounding (topk: exactly the result of two float32 additions).
 *
 * NaN and infinity: none, fp16, bf16 and topk preserve them (topk ranks them above any number, so a
 * diverged run is visible at once); onebit cannot represent them and fails.
 *
 * Sources: Seide, Fu, Droppo, Li and Yu 2014 (onebit: two values per group, error feedback); Aji
 * and Heafield 2017, Stich, Cordonnier and Jaggi 2018 (topk with memory); Karimireddy, Rebjock,
 * Stich and Jaggi 2019 (why error feedback makes sign compression converge).
 */
#ifndef SPARRING_COMMON_CODEC_CODEC_H
#define SPARRING_COMMON_CODEC_CODEC_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values are Chunk.dtype on the wire: never renumber. */
enum codec_kind {
    CODEC_NONE = 0,
    CODEC_FP16 = 1,
    CODEC_BF16 = 2,
    CODEC_TOP_K = 3,
    CODEC_ONE_BIT = 4,
    CODEC_ROWS = 5,
    CODEC_SELECTED_ROWS = 6,
    CODEC_KINDS
};

#define CODEC_PPM 1000000u /* top_k_ppm of all elements */

struct codec {
    enum codec_kind kind;
    uint32_t top_k_ppm; /* topk: elements sent, in parts per million of the array; 1 to CODEC_PPM */
};

const char *codec_name(enum codec_kind kind); /* "none", "fp16", ...; "?" outside the list */
bool codec_parse(const char *text, enum codec_kind *ret);

/* STATUS_DATA when the kind or topk's share is invalid: for values from a wire. */
enum status codec_check(const struct codec *c, struct error *err);

/* Does encoding need a residual of `count` elements? */
bool codec_has_residual(const struct codec *c);

/* Elements that topk sends of `count`: the share rounded up, so at least one if there are any; all
 * when that takes no more bytes. */
size_t codec_top_k(const struct codec *c, size_t count);

/* Does the size depend on the values?  codec_bytes is then the maximum; arrays that are smaller are
 * sent with rows, others with none. */
bool codec_has_variable_size(const struct codec *c);

/* Bytes of `count` elements, count <= UINT32_MAX. */
size_t codec_bytes(const struct codec *c, size_t count);

#define CODEC_ROW_WIDTH 16u /* elements of a row: a cache line */

/*
 * Encode the rows of src (count) that differ from base (count; NULL: zeros) into dst, which has
 * room for 4 count bytes and needs no alignment.  Returns the bytes; 0: not less than 4 count.
 */
size_t codec_encode_rows(const float *src, const float *base, size_t count, uint8_t *dst);

/*
 * Encode src + residual (only src when the codec has no residual).
 *   src       (count), or NULL: zeros, so the residual is encoded
 *   residual  (count) or NULL, see codec_has_residual; afterwards the part that was not encoded
 *   count     elements, at most UINT32_MAX
 *   dst       codec_bytes(count) bytes, aligned to 2 bytes; all are written
 * STATUS_DATA: onebit found NaN, infinity, or a sum outside float32; dst is then unspecified and
 * the residual has the sum.  The same input gives the same bytes on every machine.
 */
enum status codec_encode(const struct codec *c, const float *src, float *residual, size_t count,
                         uint8_t *dst, struct error *err);

/*
 * Decoding accepts the bytes in any number of pieces, of any size and alignment, and trusts none of
 * them.  One array: start, feed for every piece in order, end.
 */
enum codec_mode {
    CODEC_REPLACE, /* dst[i] = decoded value; 0 for elements that topk and rows omit */
    CODEC_ADD,     /* dst[i] += decoded value; omitted elements are unchanged */
    CODEC_PATCH,   /* dst[i] = decoded value; omitted elements are unchanged */
};

struct codec_decoder {
    struct codec codec;
    float *dst;
    size_t count;
    enum codec_mode mode;
    size_t done;               /* elements written; topk: records read */
    uint64_t least;            /* topk, rows: the smallest index allowed next */
    uint32_t width, rows_left; /* rows, once has_header */
    size_t row_left;           /* rows: elements missing in the current row, from `done` on */
    float means[2];            /* onebit, once has_header: of elements without, with a sign */
    bool has_header;           /* onebit, rows: the header was decoded */
    uint8_t carry[8];          /* the first bytes of a unit that the last piece cut */
    size_t carried;
};

/* codec: checked; dst: (count), borrowed until codec_decode_end. */
void codec_decode_start(struct codec_decoder *d, const struct codec *c, float *dst, size_t count,
                        enum codec_mode mode);

/* STATUS_DATA: too many bytes, an index outside the array or not ascending, an invalid mean, a bit
 * without an element.  dst is then unspecified; nothing outside it was written. */
enum status codec_decode_feed(struct codec_decoder *d, const void *bytes, size_t size,
                              struct error *err);

/* STATUS_DATA: bytes are missing. */
enum status codec_decode_end(const struct codec_decoder *d, struct error *err);

/* Start, feed and end for a whole array. */
enum status codec_decode(const struct codec *c, const void *bytes, size_t size, float *dst,
                         size_t count, enum codec_mode mode, struct error *err);

#endif
