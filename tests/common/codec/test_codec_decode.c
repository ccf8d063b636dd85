/*
 * Decoding: pieces of any size and alignment give the same result as one piece, and malformed bytes
 * fail, with nothing written outside the array.
 */
#include "common/codec/codec.h"
#include "common/tensor/half.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 3001
#define GUARD     12345.0f

static float src[MAX_COUNT], residual[MAX_COUNT];
static float got[MAX_COUNT + 2], wanted[MAX_COUNT + 2];
static _Alignas(8) uint8_t bytes[8 * MAX_COUNT + 64];
static struct error err;

static const struct codec codecs[] = {{.kind = CODEC_NONE},
                                      {.kind = CODEC_FP16},
                                      {.kind = CODEC_BF16},
                                      {.kind = CODEC_TOP_K, .top_k_ppm = 150000},
                                      {.kind = CODEC_TOP_K, .top_k_ppm = 1},
                                      {.kind = CODEC_ONE_BIT}};

#define CODECS (sizeof(codecs) / sizeof(codecs[0]))

static void fill_random(float *dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = (float)(support_random() - 0.5);
}

static size_t encode_random(const struct codec *c, size_t count)
{
    fill_random(src, count);
    memset(residual, 0, sizeof(residual));
    assert_ok(codec_encode(c, src, codec_has_residual(c) ? residual : NULL, count, bytes, &err));
    return codec_bytes(c, count);
}

/* Each piece in memory of its own, so that a sanitizer sees a read outside it. */
static enum status feed_exact_copy(struct codec_decoder *d, size_t at, size_t size)
{
    uint8_t *piece = malloc(size > 0 ? size : 1);
    enum status status;

    ck_assert_ptr_nonnull(piece);
    memcpy(piece, bytes + at, size);
    status = codec_decode_feed(d, piece, size, &err);
    free(piece);
    return status;
}

static void decode_rows_in_pieces(const struct codec *c, size_t size, size_t count,
                                  enum codec_mode mode)
{
    struct codec_decoder d;

    codec_decode_start(&d, c, got + 1, count, mode);
    for (size_t at = 0; at < size;) {
        size_t step = (size_t)(support_random() * 100.0);

        step = step < size - at ? step : size - at;
        assert_ok(feed_exact_copy(&d, at, step));
        at += step;
    }
    assert_ok(codec_decode_end(&d, &err));
}

static void decode_in_pieces(const struct codec *c, size_t size, size_t count, size_t longest,
                             bool add)
{
    struct codec_decoder d;

    codec_decode_start(&d, c, got + 1, count, add);
    for (size_t at = 0; at < size;) {
        size_t step = (size_t)(support_random() * (double)(longest + 1)); /* also none */

        step = step < size - at ? step : size - at;
        assert_ok(feed_exact_copy(&d, at, step));
        at += step;
    }
    assert_ok(codec_decode_end(&d, &err));
}

START_TEST(test_pieces)
{
    static const size_t longest[] = {1, 3, 9, 64, 1000};

    for (int round = 0; round < 100; round++) {
        const struct codec *c = &codecs[(size_t)round % CODECS];
        size_t count = 1 + (size_t)(support_random() * (MAX_COUNT - 1));
        size_t size = encode_random(c, count);
        bool add = support_random() < 0.5;

        fill_random(wanted, count + 2);
        wanted[0] = wanted[count + 1] = GUARD;
        memcpy(got, wanted, sizeof(got));
        assert_ok(codec_decode(c, bytes, size, wanted + 1, count, add, &err));
        decode_in_pieces(c, size, count, longest[round % 5], add);
        ck_assert_mem_eq(got, wanted, (count + 2) * sizeof(float));
    }
}
END_TEST

/* Adding equals decoding and one float32 addition per element, or none for elements topk omits. */
START_TEST(test_add)
{
    for (size_t k = 0; k < CODECS; k++) {
        size_t size = encode_random(&codecs[k], MAX_COUNT);
        static float sum[MAX_COUNT];

        fill_random(sum, MAX_COUNT);
        memcpy(wanted, sum, sizeof(sum));
        assert_ok(codec_decode(&codecs[k], bytes, size, got, MAX_COUNT, false, &err));
        assert_ok(codec_decode(&codecs[k], bytes, size, sum, MAX_COUNT, true, &err));
        for (size_t i = 0; i < MAX_COUNT; i++)
            if (float_bits(sum[i]) != float_bits(wanted[i] + got[i]))
                ck_abort_msg("%s, element %zu: %a + %a gave %a", codec_name(codecs[k].kind), i,
                             (double)wanted[i], (double)got[i], (double)sum[i]);
    }
}
END_TEST

START_TEST(test_wrong_lengths)
{
    for (size_t k = 0; k < CODECS; k++) {
        for (size_t count = 1; count < 40; count++) {
            size_t size = encode_random(&codecs[k], count);

            memset(bytes + size, 0, 16);
            got[count] = GUARD;
            assert_ok(codec_decode(&codecs[k], bytes, size, got, count, true, &err));
            for (size_t less = 1; less <= size && less < 10; less++)
                assert_fails(codec_decode(&codecs[k], bytes, size - less, got, count, true, &err),
                             STATUS_DATA, "fewer bytes");
            for (size_t more = 1; more < 10; more++)
                assert_fails(codec_decode(&codecs[k], bytes, size + more, got, count, true, &err),
                             STATUS_DATA, "more bytes");
            ck_assert(got[count] == GUARD);
        }
    }
}
END_TEST

static void put_record(size_t at, uint32_t index)
{
    memcpy(bytes + 8 * at, &index, sizeof(index));
}

START_TEST(test_malformed_top_k)
{
    struct codec c = {.kind = CODEC_TOP_K, .top_k_ppm = 300000}; /* 3 of 10 */
    static const enum codec_mode modes[] = {CODEC_REPLACE, CODEC_ADD};

    for (int add = 0; add < 2; add++) {
        memset(bytes, 0, sizeof(bytes));
        put_record(0, 0);
        put_record(1, 4);
        put_record(2, 9);
        assert_ok(codec_decode(&c, bytes, 24, got, 10, modes[add], &err));
        put_record(2, 10);
        assert_fails(codec_decode(&c, bytes, 24, got, 10, modes[add], &err), STATUS_DATA,
                     "element 10 of 10");
        put_record(2, UINT32_MAX);
        assert_fails(codec_decode(&c, bytes, 24, got, 10, modes[add], &err), STATUS_DATA,
                     "element 4294967295 of 10");
        put_record(2, 4);
        assert_fails(codec_decode(&c, bytes, 24, got, 10, modes[add], &err), STATUS_DATA,
                     "element 4 after element 4");
        put_record(2, 3);
        assert_fails(codec_decode(&c, bytes, 24, got, 10, modes[add], &err), STATUS_DATA,
                     "element 3 after element 4");
    }
}
END_TEST

START_TEST(test_malformed_one_bit)
{
    static const float bad[] = {NAN, INFINITY, -1.0f, -0.0f};
    struct codec c = {.kind = CODEC_ONE_BIT};

    memset(bytes, 0, sizeof(bytes));
    assert_ok(codec_decode(&c, bytes, 10, got, 11, false, &err));
    for (size_t i = 0; i < 4; i++) {
        for (size_t at = 0; at < 8; at += 4) {
            memset(bytes, 0, 8);
            memcpy(bytes + at, &bad[i], 4);
            assert_fails(codec_decode(&c, bytes, 10, got, 11, false, &err), STATUS_DATA,
                         "mean magnitude of");
        }
    }
    memset(bytes, 0, 8);
    bytes[9] = 0x08; /* the twelfth sign of eleven */
    assert_fails(codec_decode(&c, bytes, 10, got, 11, false, &err), STATUS_DATA,
                 "behind the last of 11");
    bytes[9] = 0x07;
    assert_ok(codec_decode(&c, bytes, 10, got, 11, false, &err));
}
END_TEST

/* ------------------------------------------------------------------ rows */

/* Mostly zeros with some values; base has the same values with a few changes. */
static void fill_rows(float *base, size_t count, double density)
{
    for (size_t i = 0; i < count; i++)
        src[i] = base ? (base[i] = (float)support_random()) : 0.0f;
    for (size_t i = 0; i < count; i++)
        if (support_random() < density)
            src[i] = (float)(support_random() - 0.5);
}

START_TEST(test_rows)
{
    static const double densities[] = {0, 0.001, 0.01, 0.1, 1};
    static const struct codec rows = {.kind = CODEC_ROWS};
    static float base[MAX_COUNT];

    for (int round = 0; round < 400; round++) {
        size_t count =
            round < 60 ? (size_t)round + 1 : 1 + (size_t)(support_random() * (MAX_COUNT - 1));
        bool patch = round % 2;
        size_t size, touched = 0;

        fill_rows(patch ? base : NULL, count, densities[round % 5]);
        for (size_t at = 0; at < count; at += CODEC_ROW_WIDTH) {
            size_t width = count - at < CODEC_ROW_WIDTH ? count - at : CODEC_ROW_WIDTH;
            static const float zeros[CODEC_ROW_WIDTH];

            if (memcmp(src + at, patch ? base + at : zeros, width * sizeof(float)) != 0)
                touched += 4 + 4 * width;
        }
        size = codec_encode_rows(src, patch ? base : NULL, count, bytes);
        ck_assert_uint_eq(size, 8 + touched < 4 * count ? 8 + touched : 0);
        if (size == 0)
            continue;
        if (patch)
            memcpy(got + 1, base, count * sizeof(float));
        else
            fill_random(got, count + 2); /* replaced, also in rows that are omitted */
        decode_rows_in_pieces(&rows, size, count, patch ? CODEC_PATCH : CODEC_REPLACE);
        ck_assert_mem_eq(got + 1, src, count * sizeof(float));
        for (size_t i = 0; i < count; i++)
            wanted[i] = src[i] + 1.0f;
        for (size_t i = 0; i < count; i++)
            got[i] = 1.0f;
        if (!patch) {
            assert_ok(codec_decode(&rows, bytes, size, got, count, CODEC_ADD, &err));
            ck_assert_mem_eq(got, wanted, count * sizeof(float));
        }
    }
}
END_TEST

static void put_uint32(size_t at, uint32_t value)
{
    memcpy(bytes + at, &value, sizeof(value));
}

static const struct {
    uint32_t width, rows, name[2];
    size_t size;      /* of an array of 40 elements: rows of 16, 16 and 8 */
    const char *text; /* NULL: good */
} row_cases[] = {
    {16, 2, {0, 2}, 8 + 68 + 36, NULL},
    {16, 2, {0, 2}, 8 + 68 + 35, "fewer bytes"},
    {16, 2, {0, 2}, 8 + 68 + 2, "fewer bytes"},
    {16, 2, {0, 2}, 8 + 68 + 37, "more bytes"},
    {16, 2, {0, 3}, 8 + 68 + 68, "row 3 of 3"},
    {16, 2, {0, UINT32_MAX}, 8 + 68 + 68, "row 4294967295 of 3"},
    {16, 2, {1, 1}, 8 + 68 + 68, "row 1 is named after row 1"},
    {16, 4, {0, 1}, 8 + 68 + 68, "4 rows of 16"},
    {16, UINT32_MAX, {0, 1}, 8 + 68 + 68, "4294967295 rows of 16"},
    {0, 1, {0, 0}, 8 + 68, "rows of 0"},
    {UINT32_MAX, 1, {0, 0}, 8 + 4 + 160, NULL}, /* one row that is all */
    {1, 2, {39, 0}, 8 + 8 + 8, "row 0 is named after row 39"},
    {16, 0, {0, 0}, 8, NULL},
    {16, 0, {0, 0}, 9, "more bytes"},
    {16, 0, {0, 0}, 7, "fewer bytes"},
};

START_TEST(test_malformed_rows)
{
    static const struct codec rows = {.kind = CODEC_ROWS};
    size_t row = row_cases[_i].width == UINT32_MAX ? 160 : 4 * (size_t)row_cases[_i].width;

    memset(bytes, 0, sizeof(bytes));
    put_uint32(0, row_cases[_i].width);
    put_uint32(4, row_cases[_i].rows);
    put_uint32(8, row_cases[_i].name[0]);
    put_uint32(8 + 4 + row, row_cases[_i].name[1]);
    for (unsigned mode = 0; mode < 3; mode++) {
        got[40] = GUARD;
        if (row_cases[_i].text)
            assert_fails(codec_decode(&rows, bytes, row_cases[_i].size, got, 40,
                                      (enum codec_mode)mode, &err),
                         STATUS_DATA, row_cases[_i].text);
        else
            assert_ok(codec_decode(&rows, bytes, row_cases[_i].size, got, 40, (enum codec_mode)mode,
                                   &err));
        ck_assert(got[40] == GUARD);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("codec_decode", 60, TEST(test_pieces), TEST(test_add),
                       TEST(test_wrong_lengths), TEST(test_malformed_top_k),
                       TEST(test_malformed_one_bit), TEST(test_rows),
                       LOOP_TEST(test_malformed_rows, 0, sizeof(row_cases) / sizeof(row_cases[0])));
}
