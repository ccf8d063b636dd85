/*
 * Fuzzes the codecs.  Random bytes as a compressed array, in one piece and in many pieces: both
 * must be refused, or give the same elements, without an access outside the array.  Random bytes as
 * an array: the encoded array must decode, and with error feedback the residual must be the
 * difference.
 *
 * Input: kind, share of topk (2 bytes), length of a piece, elements (2 bytes), then the bytes.
 */
#include "common/codec/codec.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD      6
#define COUNT_MAX 4096

static enum status decode_pieces(const struct codec *c, const uint8_t *data, size_t size,
                                 size_t stride, float *dst, size_t count)
{
    struct codec_decoder d;
    enum status status = STATUS_OK;

    codec_decode_start(&d, c, dst, count, CODEC_ADD);
    for (size_t at = 0; at < size && status == STATUS_OK;) {
        size_t step = stride < size - at ? stride : size - at;
        uint8_t *piece = allocate(step);

        memcpy(piece, data + at, step);
        status = codec_decode_feed(&d, piece, step, NULL);
        free(piece);
        at += step;
    }
    return status == STATUS_OK ? codec_decode_end(&d, NULL) : status;
}

static void fuzz_decode(const struct codec *c, const uint8_t *data, size_t size, size_t stride,
                        size_t count)
{
    float *whole = allocate(count * sizeof(float));
    float *pieces = allocate(count * sizeof(float));
    enum status status = codec_decode(c, data, size, whole, count, CODEC_ADD, NULL);

    require(decode_pieces(c, data, size, stride, pieces, count) == status);
    require(status != STATUS_OK || codec_has_variable_size(c) || size == codec_bytes(c, count));
    require(status != STATUS_OK || memcmp(whole, pieces, count * sizeof(float)) == 0);
    free(whole);
    free(pieces);
}

static void check_feedback(const float *src, const float *decoded, const float *residual,
                           size_t count)
{
    for (size_t i = 0; i < count; i++) {
        /* topk sends or keeps an element; onebit keeps the difference, rounded once. */
        if (isnan(src[i]))
            require(isnan(decoded[i]) != isnan(residual[i]));
        else
            require(src[i] - decoded[i] == residual[i] ||
                    (residual[i] == 0.0f && src[i] == decoded[i]));
    }
}

/* First half of the elements: the receiver's values; second half: the new values. */
static void fuzz_rows(const struct codec *c, const uint8_t *data, size_t size)
{
    size_t count = size / (2 * sizeof(float)) < COUNT_MAX ? size / (2 * sizeof(float)) : COUNT_MAX;
    float *base = allocate(count * sizeof(float));
    float *src = allocate(count * sizeof(float));
    uint8_t *bytes = allocate(count * sizeof(float));
    size_t coded;

    memcpy(base, data, count * sizeof(float));
    memcpy(src, data + count * sizeof(float), count * sizeof(float));
    coded = codec_encode_rows(src, base, count, bytes);
    require(coded == 0 || coded < count * sizeof(float));
    if (coded > 0) {
        require(codec_decode(c, bytes, coded, base, count, CODEC_PATCH, NULL) == STATUS_OK);
        require(memcmp(base, src, count * sizeof(float)) == 0);
    }
    free(base);
    free(src);
    free(bytes);
}

static void fuzz_encode(const struct codec *c, const uint8_t *data, size_t size)
{
    size_t count = size / sizeof(float) < COUNT_MAX ? size / sizeof(float) : COUNT_MAX;
    float *src = allocate(count * sizeof(float));
    float *residual = allocate(count * sizeof(float));
    float *decoded = allocate(count * sizeof(float));
    uint8_t *bytes = allocate(codec_bytes(c, count));
    bool feedback = codec_has_residual(c);

    memcpy(src, data, count * sizeof(float));
    if (codec_encode(c, src, feedback ? residual : NULL, count, bytes, NULL) == STATUS_OK) {
        require(codec_decode(c, bytes, codec_bytes(c, count), decoded, count, false, NULL) ==
                STATUS_OK);
        if (feedback)
            check_feedback(src, decoded, residual, count);
    } else {
        require(c->kind == CODEC_ONE_BIT);
    }
    free(src);
    free(residual);
    free(decoded);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct codec c;
    size_t count;

    if (size < HEAD)
        return 0;
    c.kind = (enum codec_kind)data[0];
    c.top_k_ppm = (uint32_t)(data[1] | data[2] << 8) * 16;
    count = (size_t)(data[4] | data[5] << 8) % (COUNT_MAX + 1);
    if (codec_check(&c, NULL) != STATUS_OK)
        return 0;
    fuzz_decode(&c, data + HEAD, size - HEAD, data[3] ? data[3] : 1, count);
    if (codec_has_variable_size(&c))
        fuzz_rows(&c, data + HEAD, size - HEAD);
    else
        fuzz_encode(&c, data + HEAD, size - HEAD);
    return 0;
}
