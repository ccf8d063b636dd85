/*
 * Fuzzes the decoder of row selections.  Random bytes in one piece and in many pieces: both must be
 * refused, or give the same set, which must encode to the same bytes.  The selected rows of an
 * array must decode to the array.
 *
 * Input: elements (2 bytes), length of a piece, then the bytes.
 */
#include "common/codec/codec_row_selection.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define HEAD      3
#define COUNT_MAX 4096

static enum status read_pieces(uint64_t *set, size_t count, const uint8_t *data, size_t size,
                               size_t stride)
{
    struct codec_selection_decoder decoder;
    enum status status = STATUS_OK;

    codec_selection_decode_start(&decoder, set, count);
    for (size_t at = 0; at < size && status == STATUS_OK;) {
        size_t step = stride < size - at ? stride : size - at;
        uint8_t *piece = allocate(step);

        memcpy(piece, data + at, step);
        status = codec_selection_decode_feed(&decoder, piece, step, NULL);
        free(piece);
        at += step;
    }
    return status == STATUS_OK ? codec_selection_decode_end(&decoder, NULL) : status;
}

static void check_encoding(const uint64_t *set, size_t count, const uint8_t *data, size_t size)
{
    uint8_t *encoded = allocate(codec_row_count(count) * CODEC_ROW_NUMBER_BYTES);

    require(codec_encode_selection(set, count, encoded) == size);
    require(memcmp(encoded, data, size) == 0);
    free(encoded);
}

static void check_selected_rows(const uint64_t *set, size_t count)
{
    static const struct codec codec = {.kind = CODEC_SELECTED_ROWS};
    size_t bytes = codec_selected_rows_bytes(set, count);
    float *src = allocate(count * sizeof(float)), *got = allocate(count * sizeof(float));
    uint8_t *coded = allocate(bytes);

    for (size_t i = 0; i < count; i++)
        src[i] = (float)(i + 1);
    require(codec_encode_selected_rows(src, set, count, coded) == bytes);
    if (bytes > 0)
        require(codec_decode(&codec, coded, bytes, got, count, CODEC_PATCH, NULL) == STATUS_OK);
    for (size_t i = 0; bytes > 0 && i < count; i++) {
        size_t row = i / CODEC_ROW_WIDTH;

        require(got[i] == (set[row / 64] >> row % 64 & 1 ? src[i] : 0.0f));
    }
    free(src);
    free(got);
    free(coded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t count, words;
    uint64_t *whole, *pieces;
    enum status status;

    if (size < HEAD)
        return 0;
    count = (size_t)(data[0] | data[1] << 8) % (COUNT_MAX + 1);
    words = codec_selection_words(count);
    whole = allocate(words * sizeof(*whole));
    pieces = allocate(words * sizeof(*pieces));
    status = read_pieces(whole, count, data + HEAD, size - HEAD, size);
    require(read_pieces(pieces, count, data + HEAD, size - HEAD, data[2] ? data[2] : 1) == status);
    if (status == STATUS_OK) {
        require(memcmp(whole, pieces, words * sizeof(*whole)) == 0);
        check_encoding(whole, count, data + HEAD, size - HEAD);
        check_selected_rows(whole, count);
    }
    free(whole);
    free(pieces);
    return 0;
}
