/*
 * Row selections: bits in 64-bit words, iterated from set bit to set bit.  Pure, no locks.
 */
#include "common/codec/codec_row_selection.h"

#include "common/codec/codec_internal.h"

#include <assert.h>
#include <string.h>

#define WORD 64u

size_t codec_row_count(size_t count)
{
    return (count + CODEC_ROW_WIDTH - 1) / CODEC_ROW_WIDTH;
}

size_t codec_selection_words(size_t count)
{
    return (codec_row_count(count) + WORD - 1) / WORD;
}

void codec_select_rows(uint64_t *set, size_t offset, size_t length)
{
    if (length == 0)
        return;
    for (size_t row = offset / CODEC_ROW_WIDTH; row <= (offset + length - 1) / CODEC_ROW_WIDTH;
         row++)
        set[row / WORD] |= UINT64_C(1) << row % WORD;
}

/* The first selected row from `row` on; `rows`: none. */
static size_t next_selected(const uint64_t *set, size_t row, size_t rows)
{
    while (row < rows) {
        uint64_t left = set[row / WORD] >> row % WORD;

        if (left != 0)
            return row + (size_t)__builtin_ctzll(left);
        row = (row / WORD + 1) * WORD;
    }
    return rows;
}

size_t codec_encode_selection(const uint64_t *set, size_t count, uint8_t *dst)
{
    size_t rows = codec_row_count(count), size = 0;

    for (size_t row = next_selected(set, 0, rows); row < rows;
         row = next_selected(set, row + 1, rows)) {
        uint32_t number = (uint32_t)row;

        memcpy(dst + size, &number, sizeof(number));
        size += sizeof(number);
    }
    return size;
}

static size_t row_width(size_t row, size_t count)
{
    size_t left = count - row * CODEC_ROW_WIDTH;

    return left < CODEC_ROW_WIDTH ? left : CODEC_ROW_WIDTH;
}

static size_t count_selected(const uint64_t *set, size_t count)
{
    size_t sum = 0;

    for (size_t i = 0; i < codec_selection_words(count); i++)
        sum += (size_t)__builtin_popcountll(set[i]);
    return sum;
}

size_t codec_selected_rows_bytes(const uint64_t *set, size_t count)
{
    size_t rows = codec_row_count(count);
    size_t size = ROWS_HEAD + count_selected(set, count) *
                                  (CODEC_ROW_NUMBER_BYTES + CODEC_ROW_WIDTH * sizeof(float));

    if (rows > 0 && next_selected(set, rows - 1, rows) < rows) /* the last row may be shorter */
        size -= (CODEC_ROW_WIDTH - row_width(rows - 1, count)) * sizeof(float);
    return size < count * sizeof(float) ? size : 0;
}

size_t codec_encode_selected_rows(const float *src, const uint64_t *set, size_t count, uint8_t *dst)
{
    uint32_t head[2] = {CODEC_ROW_WIDTH, (uint32_t)count_selected(set, count)};
    size_t rows = codec_row_count(count), size = codec_selected_rows_bytes(set, count);

    assert(count <= UINT32_MAX);
    if (size == 0)
        return 0;
    memcpy(dst, head, sizeof(head));
    dst += sizeof(head);
    for (size_t row = next_selected(set, 0, rows); row < rows;
         row = next_selected(set, row + 1, rows)) {
        uint32_t number = (uint32_t)row;
        size_t bytes = row_width(row, count) * sizeof(float);

        memcpy(dst, &number, sizeof(number));
        memcpy(dst + sizeof(number), src + row * CODEC_ROW_WIDTH, bytes);
        dst += sizeof(number) + bytes;
    }
    return size;
}

void codec_selection_decode_start(struct codec_selection_decoder *n, uint64_t *set, size_t count)
{
    *n = (struct codec_selection_decoder){.set = set, .rows = codec_row_count(count)};
    memset(set, 0, codec_selection_words(count) * sizeof(*set));
}

static enum status add_row_number(struct codec_selection_decoder *n, const uint8_t *bytes,
                                  struct error *err)
{
    uint32_t row;

    memcpy(&row, bytes, sizeof(row));
    if (row >= n->rows)
        return error_set(err, STATUS_DATA, "row %u of %zu is named", (unsigned)row, n->rows);
    if (row < n->least)
        return error_set(err, STATUS_DATA, "row %u is named after row %u", (unsigned)row,
                         (unsigned)n->least - 1);
    n->least = (uint64_t)row + 1;
    n->set[row / WORD] |= UINT64_C(1) << row % WORD;
    return STATUS_OK;
}

enum status codec_selection_decode_feed(struct codec_selection_decoder *n, const void *piece,
                                        size_t size, struct error *err)
{
    const uint8_t *bytes = piece;
    enum status status = STATUS_OK;

    while (size > 0 && status == STATUS_OK) {
        if (n->carried == 0 && size >= CODEC_ROW_NUMBER_BYTES) {
            status = add_row_number(n, bytes, err);
            bytes += CODEC_ROW_NUMBER_BYTES;
            size -= CODEC_ROW_NUMBER_BYTES;
            continue;
        }
        n->carry[n->carried++] = *bytes++;
        size--;
        if (n->carried < CODEC_ROW_NUMBER_BYTES)
            continue;
        n->carried = 0;
        status = add_row_number(n, n->carry, err);
    }
    return status;
}

enum status codec_selection_decode_end(const struct codec_selection_decoder *n, struct error *err)
{
    if (n->carried > 0)
        return error_set(err, STATUS_DATA, "names of rows that end with %zu bytes of %u",
                         n->carried, CODEC_ROW_NUMBER_BYTES);
    return STATUS_OK;
}
