/*
 * Compressed pushes of scripted workers: a push with another codec than the terms, of a wrong
 * length, or with invalid contents ends the job and nothing else; and joins whose compression terms
 * are invalid or differ.
 */
#include "tests/server/service/raw_job.h"
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

/* Both ranks join with that compression of pushes and read the initial values. */
static void start_compressed(enum codec_kind up, uint32_t top_k_ppm)
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request terms = raw_terms(i);

        terms.dtype_up = up;
        terms.top_k_ppm = top_k_ppm;
        raw_begin_join(&workers[i], &terms);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
    raw_initialise(workers, 2, 0.5f);
}

/* Floats of one value, 0x3f800000 for 1: as records of topk index and value alike. */
static const struct {
    enum codec_kind up, dtype;
    uint32_t top_k_ppm;
    size_t bytes;
    uint64_t length; /* in the header; 0: bytes */
    float value;
    enum status status;
    const char *text;
} bad[] = {
    {CODEC_FP16, CODEC_NONE, 0, 4096, 0, 1, STATUS_PROTOCOL, "dtype 0 (wanted: 1, fp16)"},
    {CODEC_FP16, CODEC_BF16, 0, 2048, 0, 1, STATUS_PROTOCOL, "dtype 2 (wanted: 1, fp16)"},
    {CODEC_FP16, CODEC_FP16, 0, 2044, 0, 1, STATUS_PROTOCOL, "2044 bytes for partition 0"},
    {CODEC_FP16, CODEC_FP16, 0, 2048, 4096, 1, STATUS_PROTOCOL, "its header says 4096"},
    {CODEC_TOP_K, CODEC_TOP_K, 2000, 24, 0, 1, STATUS_DATA, "names element 1065353216 of 1024"},
    {CODEC_TOP_K, CODEC_TOP_K, 2000, 24, 0, 0, STATUS_DATA, "names element 0 after element 0"},
    {CODEC_TOP_K, CODEC_TOP_K, 2000, 16, 0, 0, STATUS_PROTOCOL, "16 bytes for partition 0 of 24"},
    {CODEC_ONE_BIT, CODEC_ONE_BIT, 0, 136, 0, NAN, STATUS_DATA, "mean magnitude of nan"},
    {CODEC_ONE_BIT, CODEC_ONE_BIT, 0, 136, 0, -1, STATUS_DATA, "mean magnitude of -1"},
    {CODEC_ONE_BIT, CODEC_ROWS, 0, 136, 0, 0, STATUS_PROTOCOL, "dtype 5"},
};

START_TEST(test_bad_payloads_end_the_job)
{
    struct chunk_header h = {.kind = CHUNK_PUSH, .rank = 1, .round = 1, .dtype = bad[_i].dtype};

    open_service(20000, NULL);
    start_compressed(bad[_i].up, bad[_i].top_k_ppm);
    h.length = bad[_i].length ? bad[_i].length : bad[_i].bytes;
    raw_send(&workers[1], &h, bad[_i].bytes, bad[_i].value);
    for (unsigned i = 0; i < 2; i++)
        check_result(i == 1 ? "sender" : "other", raw_wait_closed(&workers[i].stream),
                     bad[_i].status, bad[_i].text);
    check_still_serves();
    close_service();
}
END_TEST

/* The last partition has 100 elements: 13 bytes of signs. */
START_TEST(test_a_missing_last_byte)
{
    struct chunk_header h = {.kind = CHUNK_PUSH,
                             .rank = 0,
                             .round = 1,
                             .partition = 2,
                             .dtype = CODEC_ONE_BIT,
                             .length = 8 + 13};

    open_service(20000, NULL);
    start_compressed(CODEC_ONE_BIT, 0);
    raw_send(&workers[0], &h, 20, 0); /* one byte is missing */
    check_result("sender", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "20 bytes for partition 2 of 21");
    check_still_serves();
    close_service();
}
END_TEST

/* A reference to compressed elements is refused. */
START_TEST(test_compressed_reference_is_refused)
{
    struct chunk_header h = {.kind = CHUNK_PUSH,
                             .rank = 0,
                             .round = 1,
                             .dtype = CODEC_FP16,
                             .flags = CHUNK_BY_REFERENCE,
                             .length = 2048};

    open_service(20000, NULL);
    start_compressed(CODEC_FP16, 0);
    raw_send(&workers[0], &h, 0, 0);
    check_result("sender", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL, "by reference");
    check_still_serves();
    close_service();
}
END_TEST

/* A compressed push cannot be undivided. */
START_TEST(test_compressed_undivided_is_refused)
{
    struct chunk_header h = {.kind = CHUNK_PUSH,
                             .rank = 0,
                             .round = 1,
                             .dtype = CODEC_FP16,
                             .flags = CHUNK_UNDIVIDED,
                             .length = 2048};

    open_service(20000, NULL);
    start_compressed(CODEC_FP16, 0);
    raw_send(&workers[0], &h, 2048, 0);
    check_result("sender", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL, "undivided");
    check_still_serves();
    close_service();
}
END_TEST

static const struct {
    uint32_t up[2], down[2], top_k_ppm[2];
    enum status status;
    const char *text;
} terms[] = {
    {{0, 1}, {0, 0}, {0, 0}, STATUS_MISMATCH, "compression"},
    {{1, 1}, {0, 2}, {0, 0}, STATUS_MISMATCH, "compression"},
    {{3, 3}, {0, 0}, {10, 11}, STATUS_MISMATCH, "compression"},
    {{3, 3}, {0, 0}, {0, 0}, STATUS_INVALID, "topk of 0 parts per million"},
    {{0, 0}, {3, 3}, {1000001, 1000001}, STATUS_DATA, "top-k of 1000001"},
    {{7, 7}, {0, 0}, {0, 0}, STATUS_DATA, "dtypes 7"},
    {{6, 6}, {0, 0}, {0, 0}, STATUS_INVALID, "'named' is for replies only"},
    {{0, 0}, {6, 6}, {0, 0}, STATUS_INVALID, "optimizer runs on the workers"},
};

START_TEST(test_terms)
{
    open_service(20000, NULL);
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request = raw_terms(i);

        request.dtype_up = terms[_i].up[i];
        request.dtype_down = terms[_i].down[i];
        request.top_k_ppm = terms[_i].top_k_ppm[i];
        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), terms[_i].status, terms[_i].text);
    check_still_serves();
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compression", 120,
                       LOOP_TEST(test_bad_payloads_end_the_job, 0, sizeof(bad) / sizeof(bad[0])),
                       TEST(test_a_missing_last_byte), TEST(test_compressed_reference_is_refused),
                       TEST(test_compressed_undivided_is_refused),
                       LOOP_TEST(test_terms, 0, sizeof(terms) / sizeof(terms[0])));
}
