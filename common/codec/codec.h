/*
 * codec: float32 arrays as fewer bytes, for what workers and parameter servers send each other.
 * Pure: no I/O, no locks, no memory of its own.
 *
 *   kind      bytes of n elements     what comes back
 *   none      4 n                     the same bits
 *   fp16      2 n                     rounded to float16 (ties to even; above 65504: infinity)
 *   bf16      2 n                     rounded to bfloat16
 *   topk      8 k                     the k elements of largest magnitude, the same bits; else 0
 *             4 n, if that is no more all of them, as none says them
 *   onebit    8 + ceil(n / 8)         one of two values per element, by its sign
 *   rows      8 + 68 per row of 16    the same bits; rows that are as the other side has them are
 *             elements, if that is      left out (zeros of a gradient, parameters that no step has
 *             less than 4 n; else 4 n   changed).  For embeddings, of which a batch touches few
 *                                       rows
 *   named     as rows                   the same bits of the rows that the other side has asked for
 *                                       by number (common/codec/codec_names.h); answers only
 *
 * Formats, little endian.  topk: k records of a uint32 index and a float32 value, indices strictly
 * ascending.  onebit: float32 mean of the elements without a sign, float32 mean magnitude of those
 * with one (both finite and not negative), then the signs, element 0 in the lowest bit of the first
 * byte; unused bits are 0.  rows: uint32 width of a row, uint32 number of rows that follow; of each
 * a uint32 row, strictly ascending from 0, and its float32 elements, of the last row of the array
 * as many as there are; named: likewise.  But for these two, how many bytes there are follows from
 * the count alone; and who has rows to say that are no shorter says the array with `none`, and says
 * so beside the bytes.
 *
 * Error feedback: topk and onebit keep what they have not said in a residual, and add it to the
 * next array.  So the sum of what was decoded is the sum of what was encoded, less the last
 * residual and up to the rounding of float32 (topk: exactly what two float32 additions give).
 *
 * NaN and infinity: none, fp16, bf16 and topk carry them (to topk they are larger than any number,
 * so a run that diverged shows itself at once); onebit has no word for them and refuses.
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
    CODEC_NAMED = 6,
    CODEC_KINDS
};

#define CODEC_PPM 1000000u /* top_k_ppm of all elements */

struct codec {
    enum codec_kind kind;
    uint32_t top_k_ppm; /* topk: elements sent, in parts per million of the array; 1 to CODEC_PPM */
};

const char *codec_name(enum codec_kind kind); /* "none", "fp16", ...; "?" outside the list */
bool codec_parse(const char *text, enum codec_kind *ret);

/* STATUS_DATA when the kind or topk's share is none: for what came from a wire. */
enum status codec_check(const struct codec *c, struct error *err);

/* Encoding needs a residual of `count` elements. */
bool codec_has_residual(const struct codec *c);

/* Elements that topk sends of `count`: the share rounded up, so at least one of any; all where that
 * takes no more bytes. */
size_t codec_top_k(const struct codec *c, size_t count);

/* The bytes of arrays of the same count differ: codec_bytes is the most of them, and one that is
 * smaller is said with rows, the others with none. */
bool codec_varies(const struct codec *c);

/* Bytes of `count` elements, count <= UINT32_MAX. */
size_t codec_bytes(const struct codec *c, size_t count);

#define CODEC_ROW_WIDTH 16u /* elements of a row: a cache line */

/*
 * Encode with rows: those of src (count) that differ from base (count; NULL: zeros) into dst, which
 * has room for 4 count bytes and needs no alignment.  Returns the bytes; 0: no fewer than 4 count.
 */
size_t codec_encode_rows(const float *src, const float *base, size_t count, uint8_t *dst);

/*
 * Encode src + residual (src alone where the codec has no residual).
 *   src       (count), or NULL: zeros, so what is encoded is the residual
 *   residual  (count) or NULL, see codec_has_residual; holds afterwards what was not said
 *   count     elements, at most UINT32_MAX
 *   dst       codec_bytes of them, aligned to 2 bytes; all are written
 * STATUS_DATA: onebit met NaN, infinity, or a sum outside float32; dst is then unspecified and the
 * residual holds the sum.  The same input gives the same bytes on every machine.
 */
enum status codec_encode(const struct codec *c, const float *src, float *residual, size_t count,
                         uint8_t *dst, struct error *err);

/*
 * Decoding takes the bytes in as many pieces as they come in, of any size and alignment, and
 * believes none of them.  One array: start, feed for every piece in order, end.
 */
enum codec_mode {
    CODEC_REPLACE, /* dst[i] = what is decoded; 0 where topk and rows say nothing */
    CODEC_ADD,     /* dst[i] += what is decoded, nothing where they say nothing */
    CODEC_PATCH,   /* dst[i] = what is decoded, nothing where they say nothing */
};

struct codec_decoder {
    struct codec codec;
    float *dst;
    size_t count;
    enum codec_mode mode;
    size_t done;               /* elements written; topk: records read */
    uint64_t least;            /* topk, rows: the least index that may follow */
    uint32_t width, rows_left; /* rows, once `headed` */
    size_t row_left;           /* rows: elements missing in the one that ends at `done` + them */
    float means[2];            /* onebit, once `headed`: of elements without, with a sign */
    bool headed;               /* onebit */
    uint8_t carry[8];          /* the beginning of a unit that the last piece cut */
    size_t carried;
};

/* codec: checked; dst: (count), borrowed until codec_decode_end. */
void codec_decode_start(struct codec_decoder *d, const struct codec *c, float *dst, size_t count,
                        enum codec_mode mode);

/* STATUS_DATA: more bytes than belong, an index outside the array or not ascending, a mean that is
 * none, a bit without an element.  dst is then unspecified, and nothing outside it was touched. */
enum status codec_decode_feed(struct codec_decoder *d, const void *bytes, size_t size,
                              struct error *err);

/* STATUS_DATA: bytes are missing. */
enum status codec_decode_end(const struct codec_decoder *d, struct error *err);

/* The three in one. */
enum status codec_decode(const struct codec *c, const void *bytes, size_t size, float *dst,
                         size_t count, enum codec_mode mode, struct error *err);

#endif
