/*
 * Row selections of scripted workers: a pull and pushes are answered with the selected rows only; a
 * selection that is invalid, repeated, late, or not allowed by the terms ends the job and nothing
 * else.
 */
#include "tests/server/service/raw_job.h"
#include "tests/support/support.h"

#include <string.h>

#define ROWS 64 /* of partition 0: 1024 elements */

static struct join_request selection_terms(unsigned rank)
{
    struct join_request terms = raw_terms(rank);

    terms.update = 0;
    terms.dtype_down = CODEC_SELECTED_ROWS;
    return terms;
}

static void join_with_selection(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request terms = selection_terms(i);

        raw_begin_join(&workers[i], &terms);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
}

static float as_float(uint32_t number)
{
    float value;

    memcpy(&value, &number, sizeof(value));
    return value;
}

/* `bytes` of row numbers, all of them `number`. */
static void send_row_selection(struct raw_worker *w, uint32_t partition, uint32_t flags,
                               uint32_t number, size_t bytes)
{
    struct chunk_header h = {.kind = CHUNK_ROW_SELECTION,
                             .rank = w->rank,
                             .partition = partition,
                             .dtype = CODEC_SELECTED_ROWS,
                             .flags = flags,
                             .length = bytes};

    raw_send(w, &h, bytes, as_float(number));
}

/* The replies of a round: of partition 0 `rows` selected rows, or all of them uncoded; the others
 * whole. */
static void expect_rows(struct raw_worker *w, uint64_t round, unsigned rows)
{
    for (unsigned i = 0; i < RAW_PARTITIONS; i++) {
        float first;
        float width = as_float(CODEC_ROW_WIDTH);
        struct chunk_header h = raw_take(w, &first);
        bool selected = h.partition == 0 && rows < ROWS;

        ck_assert_int_eq(h.kind, CHUNK_VALUES);
        ck_assert_uint_eq(h.round, round);
        ck_assert_uint_eq(h.dtype, selected ? CODEC_SELECTED_ROWS : CODEC_NONE);
        if (h.partition < 2)
            ck_assert_uint_eq(h.length, selected ? 8 + 68 * rows : 4096);
        if (selected)
            ck_assert_mem_eq(&first, &width, sizeof(first));
    }
}

static void push_all(uint64_t round)
{
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_valid(&workers[i], CHUNK_PUSH, p, round, 1);
}

START_TEST(test_pull_and_push)
{
    open_service(20000, NULL);
    join_with_selection();
    for (unsigned i = 0; i < 2; i++)
        raw_start_stream(&workers[i]);
    send_row_selection(&workers[0], 0, 0, 63, 4); /* rank 0 pulls one row, rank 1 all */
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        raw_send_valid(&workers[0], CHUNK_INIT, p, 0, 0.5f);
        for (unsigned i = 0; i < 2; i++)
            raw_send_valid(&workers[i], CHUNK_PULL, p, 0, 0);
    }
    expect_rows(&workers[0], 0, 1);
    expect_rows(&workers[1], 0, ROWS);
    for (uint64_t round = 1; round < 5; round++) { /* a selection is used by one reply */
        bool selected = round < 4;

        if (selected)
            send_row_selection(&workers[0], 0, 0, 5, round == 2 ? 0 : 4);
        if (round == 3) /* as after a reconnect: the last selection counts */
            send_row_selection(&workers[0], 0, CHUNK_AGAIN, 6, 0);
        push_all(round);
        expect_rows(&workers[0], round, !selected ? ROWS : round == 1);
        expect_rows(&workers[1], round, ROWS);
    }
    close_service();
}
END_TEST

static const struct {
    size_t bytes;
    uint64_t length; /* in the header; 0: bytes */
    uint32_t number, dtype, flags, partition;
    enum status status;
    const char *text;
} bad[] = {
    {4, 0, 64, CODEC_SELECTED_ROWS, 0, 0, STATUS_DATA, "row 64 of 64"},
    {4, 0, UINT32_MAX, CODEC_SELECTED_ROWS, 0, 0, STATUS_DATA, "row 4294967295 of 64"},
    {4, 0, 7, CODEC_SELECTED_ROWS, 0, 2, STATUS_DATA, "row 7 of 7"},
    {8, 0, 9, CODEC_SELECTED_ROWS, 0, 0, STATUS_DATA, "row 9 is named after row 9"},
    {6, 0, 9, CODEC_SELECTED_ROWS, 0, 0, STATUS_PROTOCOL, "in 6 bytes"},
    {4 * (ROWS + 1), 0, 9, CODEC_SELECTED_ROWS, 0, 0, STATUS_PROTOCOL, "in 260 bytes"},
    {4, 8, 9, CODEC_SELECTED_ROWS, 0, 0, STATUS_PROTOCOL, "its header says 8"},
    {0, UINT64_MAX, 9, CODEC_SELECTED_ROWS, 0, 0, STATUS_PROTOCOL,
     "its header says 18446744073709551615"},
    {4, 0, 9, CODEC_NONE, 0, 0, STATUS_PROTOCOL, "dtype 0"},
    {4, 0, 9, CODEC_ROWS, 0, 0, STATUS_PROTOCOL, "dtype 5"},
    {4, 0, 9, CODEC_SELECTED_ROWS, CHUNK_BY_REFERENCE, 0, STATUS_PROTOCOL, "no reference"},
    {4, 0, 9, CODEC_SELECTED_ROWS, 0, 3, STATUS_PROTOCOL, "partition 3, which server 0"},
    {4, 0, 9, CODEC_SELECTED_ROWS, 0, UINT32_MAX, STATUS_PROTOCOL, "partition 4294967295"},
};

START_TEST(test_bad_selections_end_the_job)
{
    struct chunk_header h = {.kind = CHUNK_ROW_SELECTION,
                             .rank = 1,
                             .round = 1,
                             .partition = bad[_i].partition,
                             .dtype = bad[_i].dtype,
                             .flags = bad[_i].flags};

    open_service(20000, NULL);
    join_with_selection();
    raw_initialise(workers, 2, 0.5f);
    h.length = bad[_i].length ? bad[_i].length : bad[_i].bytes;
    raw_send(&workers[1], &h, bad[_i].bytes, as_float(bad[_i].number));
    for (unsigned i = 0; i < 2; i++)
        check_result(i == 1 ? "sender" : "other", raw_wait_closed(&workers[i].stream),
                     bad[_i].status, bad[_i].text);
    check_still_serves();
    close_service();
}
END_TEST

/* A selection cannot change while its reply may be in flight. */
START_TEST(test_selections_at_the_wrong_time)
{
    open_service(20000, NULL);
    join_with_selection();
    raw_initialise(workers, 2, 0.5f);
    if (_i == 0) {
        send_row_selection(&workers[1], 0, 0, 1, 4);
        send_row_selection(&workers[1], 0, 0, 1, 4);
    } else {
        raw_send_valid(&workers[1], CHUNK_PUSH, 0, 1, 1);
        send_row_selection(&workers[1], 0, CHUNK_AGAIN, 1, 4);
    }
    check_result("sender", raw_wait_closed(&workers[1].stream), STATUS_PROTOCOL,
                 _i == 0 ? "came twice" : "a reply to the rank is pending");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_terms_without_selection)
{
    open_service(20000, NULL);
    start_job();
    send_row_selection(&workers[1], 0, 0, 1, 4);
    check_result("sender", raw_wait_closed(&workers[1].stream), STATUS_PROTOCOL,
                 "in a job without row selection");
    check_still_serves();
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("selected_rows", 120, TEST(test_pull_and_push),
                       LOOP_TEST(test_bad_selections_end_the_job, 0, sizeof(bad) / sizeof(bad[0])),
                       LOOP_TEST(test_selections_at_the_wrong_time, 0, 2),
                       TEST(test_terms_without_selection));
}
