/*
 * Any bytes as names of rows, in one piece and cut into many: both are refused, or both give the
 * same set, which is the numbers themselves again; and the named rows of an array decode to it.
 *
 * Input: elements (2 bytes), length of a piece, then the bytes.
 */
#include "common/codec/codec_names.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define HEAD      3
#define COUNT_MAX 4096

static enum status read_pieces(uint64_t *set, size_t count, const uint8_t *data, size_t size,
                               size_t stride)
{
    struct codec_names names;
    enum status status = STATUS_OK;

    codec_names_start(&names, set, count);
    for (size_t at = 0; at < size && status == STATUS_OK;) {
        size_t step = stride < size - at ? stride : size - at;
        uint8_t *piece = allocate(step);

        memcpy(piece, data + at, step);
        status = codec_names_feed(&names, piece, step, NULL);
        free(piece);
        at += step;
    }
    return status == STATUS_OK ? codec_names_end(&names, NULL) : status;
}

static void check_names(const uint64_t *set, size_t count, const uint8_t *data, size_t size)
{
    uint8_t *numbers = allocate(codec_rows(count) * CODEC_NAME_BYTES);

    require(codec_encode_names(set, count, numbers) == size);
    require(memcmp(numbers, data, size) == 0);
    free(numbers);
}

static void check_rows(const uint64_t *set, size_t count)
{
    static const struct codec named = {.kind = CODEC_NAMED};
    size_t bytes = codec_named_bytes(set, count);
    float *src = allocate(count * sizeof(float)), *got = allocate(count * sizeof(float));
    uint8_t *coded = allocate(bytes);

    for (size_t i = 0; i < count; i++)
        src[i] = (float)(i + 1);
    require(codec_encode_named(src, set, count, coded) == bytes);
    if (bytes > 0)
        require(codec_decode(&named, coded, bytes, got, count, CODEC_PATCH, NULL) == STATUS_OK);
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
    words = codec_row_words(count);
    whole = allocate(words * sizeof(*whole));
    pieces = allocate(words * sizeof(*pieces));
    status = read_pieces(whole, count, data + HEAD, size - HEAD, size);
    require(read_pieces(pieces, count, data + HEAD, size - HEAD, data[2] ? data[2] : 1) == status);
    if (status == STATUS_OK) {
        require(memcmp(whole, pieces, words * sizeof(*whole)) == 0);
        check_names(whole, count, data + HEAD, size - HEAD);
        check_rows(whole, count);
    }
    free(whole);
    free(pieces);
    return 0;
}
