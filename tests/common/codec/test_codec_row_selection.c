/*
 * Row selections against a model, a list of rows: selections, their numbers on the wire in pieces
 * of any size, the encoded rows, and malformed numbers.
 */
#include "common/codec/codec_row_selection.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_MAX 2200 /* 138 rows: three words */
#define ROWS_MAX  ((COUNT_MAX + CODEC_ROW_WIDTH - 1) / CODEC_ROW_WIDTH)
#define WORDS_MAX 4

static struct error err;

/* The model: a sorted list of the selected rows. */
static bool listed[ROWS_MAX];

static size_t width_of(size_t row, size_t count)
{
    size_t left = count - row * CODEC_ROW_WIDTH;

    return left < CODEC_ROW_WIDTH ? left : CODEC_ROW_WIDTH;
}

/* Each piece in memory of its own, so that a sanitizer sees a read outside it. */
static enum status read_names(const uint8_t *numbers, size_t size, size_t stride, uint64_t *set,
                              size_t count)
{
    struct codec_selection_decoder names;
    enum status status = STATUS_OK;

    codec_selection_decode_start(&names, set, count);
    for (size_t at = 0; at < size && status == STATUS_OK; at += stride) {
        size_t step = stride < size - at ? stride : size - at;
        uint8_t *piece = malloc(step);

        ck_assert_ptr_nonnull(piece);
        memcpy(piece, numbers + at, step);
        status = codec_selection_decode_feed(&names, piece, step, &err);
        free(piece);
    }
    return status == STATUS_OK ? codec_selection_decode_end(&names, &err) : status;
}

/* The selected rows of src, encoded from the list. */
static size_t expected_rows(const float *src, size_t count, uint8_t *dst)
{
    uint32_t head[2] = {CODEC_ROW_WIDTH, 0};
    size_t size = sizeof(head);

    for (size_t row = 0; row < codec_row_count(count); row++) {
        uint32_t number = (uint32_t)row;
        size_t bytes = width_of(row, count) * sizeof(float);

        if (!listed[row])
            continue;
        memcpy(dst + size, &number, sizeof(number));
        memcpy(dst + size + sizeof(number), src + row * CODEC_ROW_WIDTH, bytes);
        size += sizeof(number) + bytes;
        head[1]++;
    }
    memcpy(dst, head, sizeof(head));
    return size < count * sizeof(float) ? size : 0;
}

static void check_selection(const float *src, const uint64_t *set, size_t count)
{
    static uint8_t numbers[ROWS_MAX * CODEC_ROW_NUMBER_BYTES], coded[2 * 4 * COUNT_MAX];
    static uint8_t wanted[2 * 4 * COUNT_MAX];
    static float got[COUNT_MAX], old[COUNT_MAX];
    static const struct codec named = {.kind = CODEC_SELECTED_ROWS};
    uint64_t read[WORDS_MAX];
    size_t size = codec_encode_selection(set, count, numbers), bytes;

    for (size_t stride = 1; stride <= 9; stride++) {
        assert_ok(read_names(numbers, size, stride, read, count));
        ck_assert_mem_eq(read, set, codec_selection_words(count) * sizeof(*set));
    }
    bytes = expected_rows(src, count, wanted);
    ck_assert_uint_eq(codec_selected_rows_bytes(set, count), bytes);
    ck_assert_uint_eq(codec_encode_selected_rows(src, set, count, coded), bytes);
    if (bytes == 0)
        return;
    ck_assert_mem_eq(coded, wanted, bytes);
    for (size_t i = 0; i < count; i++)
        got[i] = old[i] = (float)support_random();
    assert_ok(codec_decode(&named, coded, bytes, got, count, CODEC_PATCH, &err));
    for (size_t i = 0; i < count; i++)
        ck_assert_mem_eq(&got[i], listed[i / CODEC_ROW_WIDTH] ? &src[i] : &old[i], sizeof(float));
}

/* Every count up to some rows, with every selection while there are few rows; then random ones. */
START_TEST(test_selected)
{
    static float src[COUNT_MAX];
    uint64_t set[WORDS_MAX];

    for (size_t i = 0; i < COUNT_MAX; i++)
        src[i] = (float)(support_random() - 0.5);
    for (size_t count = 0; count <= 100; count += count < 34 ? 1 : 11) {
        for (uint64_t bits = 0; bits < UINT64_C(1) << codec_row_count(count); bits++) {
            for (size_t row = 0; row < ROWS_MAX; row++)
                listed[row] = row < 64 && bits >> row & 1;
            set[0] = bits;
            check_selection(src, set, count);
        }
    }
    for (int round = 0; round < 200; round++) {
        size_t count = 1 + (size_t)(support_random() * (COUNT_MAX - 1));
        double density = support_random() * support_random();

        memset(set, 0, sizeof(set));
        for (size_t row = 0; row < ROWS_MAX; row++)
            listed[row] = row < codec_row_count(count) && support_random() < density;
        for (size_t row = 0; row < codec_row_count(count); row++)
            if (listed[row])
                codec_select_rows(set, row * CODEC_ROW_WIDTH, 1);
        check_selection(src, set, count);
    }
}
END_TEST

/* A range of elements selects all rows that it overlaps. */
START_TEST(test_ranges)
{
    for (size_t offset = 0; offset < 200; offset++) {
        for (size_t length = 0; length < 200; length++) {
            uint64_t set[1] = {0}, wanted = 0;

            for (size_t i = offset; i < offset + length; i++)
                wanted |= UINT64_C(1) << i / CODEC_ROW_WIDTH;
            codec_select_rows(set, offset, length);
            ck_assert_uint_eq(set[0], wanted);
        }
    }
}
END_TEST

static const struct {
    uint32_t numbers[3];
    size_t size;      /* of an array of 40 elements: rows 0, 1 and 2 */
    const char *text; /* NULL: good */
} cases[] = {
    {{0, 0, 0}, 0, NULL},
    {{0, 1, 2}, 12, NULL},
    {{2, 0, 0}, 4, NULL},
    {{3, 0, 0}, 4, "row 3 of 3"},
    {{0, UINT32_MAX, 0}, 8, "row 4294967295 of 3"},
    {{1, 0, 0}, 8, "row 0 is named after row 1"},
    {{1, 1, 0}, 8, "row 1 is named after row 1"},
    {{0, 1, 2}, 11, "end with 3 bytes of 4"},
    {{0, 1, 2}, 1, "end with 1 bytes of 4"},
};

START_TEST(test_malformed_numbers)
{
    uint64_t set[3] = {0, UINT64_MAX, UINT64_MAX};

    for (size_t stride = 1; stride < 13; stride++) {
        enum status status =
            read_names((const uint8_t *)cases[_i].numbers, cases[_i].size, stride, set, 40);

        if (cases[_i].text)
            assert_fails(status, STATUS_DATA, cases[_i].text);
        else
            assert_ok(status);
        ck_assert(set[1] == UINT64_MAX && set[2] == UINT64_MAX);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("codec_row_selection", 60, TEST(test_selected), TEST(test_ranges),
                       LOOP_TEST(test_malformed_numbers, 0, sizeof(cases) / sizeof(cases[0])));
}
