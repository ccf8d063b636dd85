/*
 * The Exchange stream over real gRPC, with scripted workers: the messages of a valid job, and every
 * chunk and stream that must be refused, with its error text.  After each of them the server serves
 * the next job.
 */
#include "tests/server/service/raw_job.h"
#include "tests/support/support.h"

#define RUN_OUT_MS 4000 /* a time-out that is to expire; it also bounds the joins before */

START_TEST(test_a_good_job)
{
    open_service(20000, NULL);
    check_still_serves();
    check_still_serves();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ chunks */

struct bad_chunk {
    struct chunk_header header; /* its rank is the sender's unless wrong_rank */
    size_t bytes;
    unsigned sender;
    bool wrong_rank;
    const char *text;
};

static const struct bad_chunk bad_chunks[] = {
    {{.kind = CHUNK_PUSH, .round = 1, .partition = 1, .length = 4},
     4,
     1,
     false,
     "rank 1 sent 4 bytes for partition 1 of 4096 (its header says 4)"},
    {{.kind = CHUNK_PUSH, .round = 1, .partition = 1, .length = 4096},
     4092,
     1,
     false,
     "rank 1 sent 4092 bytes for partition 1 of 4096 (its header says 4096)"},
    {{.kind = CHUNK_PUSH, .round = 1, .partition = 1, .length = UINT64_MAX},
     4096,
     1,
     false,
     "(its header says 18446744073709551615)"},
    {{.kind = CHUNK_PUSH, .round = 1, .partition = 2, .length = 4096},
     4096,
     1,
     false,
     "rank 1 sent 4096 bytes for partition 2 of 400"},
    {{.kind = CHUNK_PUSH, .round = 1, .partition = 3, .length = 4096},
     4096,
     1,
     false,
     "partition 3, which server 0 of 1 does not hold (the slab has 3 partitions)"},
    {{.kind = CHUNK_PUSH, .round = 1, .partition = UINT32_MAX, .length = 4096},
     4096,
     0,
     false,
     "rank 0 sent a chunk for partition 4294967295"},
    {{.kind = CHUNK_PUSH, .round = 2, .partition = 0, .length = 4096},
     4096,
     1,
     false,
     "rank 1 pushed partition 0 of round 2 while round 1 is under way"},
    {{.kind = CHUNK_PUSH, .round = UINT64_MAX, .partition = 0, .length = 4096},
     4096,
     1,
     false,
     "of round 18446744073709551615 while"},
    {{.kind = CHUNK_PUSH, .round = 0, .partition = 0, .length = 4096},
     4096,
     1,
     false,
     "rank 1 sent a chunk of kind 1 in round 0"},
    {{.kind = CHUNK_PUSH, .round = 1, .partition = 0, .length = 4096, .rank = 0},
     4096,
     1,
     true,
     "the stream of rank 1 carries a chunk of rank 0"},
    {{.kind = CHUNK_PUSH, .round = 1, .partition = 0, .length = 4096, .dtype = 7},
     4096,
     1,
     false,
     "dtype 7"},
    {{.kind = CHUNK_INIT, .round = 0, .partition = 0, .length = 4096},
     4096,
     1,
     false,
     "rank 1 sent an initial value, which only rank 0 does"},
    {{.kind = CHUNK_INIT, .round = 0, .partition = 0, .length = 4096},
     4096,
     0,
     false,
     "the initial value of partition 0 came twice"},
    {{.kind = CHUNK_INIT, .round = 1, .partition = 0, .length = 4096},
     4096,
     0,
     false,
     "rank 0 sent a chunk of kind 2 in round 1"},
    {{.kind = CHUNK_PULL, .round = 0, .partition = 0},
     0,
     1,
     false,
     "the pull of partition 0 came twice"},
    {{.kind = CHUNK_PULL, .round = 0, .partition = 0, .length = 8},
     8,
     1,
     false,
     "rank 1 sent 8 bytes for partition 0 of 0"},
    {{.kind = CHUNK_VALUES, .round = 1, .partition = 0, .length = 4096},
     4096,
     1,
     false,
     "kind 4, which only a server sends"},
    {{.kind = CHUNK_MEAN, .round = 1, .partition = 0, .length = 4096},
     4096,
     1,
     false,
     "kind 5, which only a server sends"},
};

START_TEST(test_bad_chunks_end_the_job)
{
    const struct bad_chunk *c = &bad_chunks[_i];
    struct chunk_header header = c->header;

    open_service(20000, NULL);
    start_job();
    if (!c->wrong_rank)
        header.rank = c->sender;
    raw_send(&workers[c->sender], &header, c->bytes, 1);
    for (unsigned i = 0; i < 2; i++)
        check_result(i == c->sender ? "sender" : "other", raw_wait_closed(&workers[i].stream),
                     STATUS_PROTOCOL, c->text);
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_a_push_comes_twice)
{
    open_service(20000, NULL);
    start_job();
    raw_send_valid(&workers[1], CHUNK_PUSH, 2, 1, 1);
    raw_send_valid(&workers[1], CHUNK_PUSH, 2, 1, 1);
    check_result("sender", raw_wait_closed(&workers[1].stream), STATUS_PROTOCOL,
                 "rank 1, partition 2, round 1: the push came twice");
    check_result("other", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL, "came twice");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_a_push_before_the_values)
{
    open_service(20000, NULL);
    join_both();
    raw_start_stream(&workers[1]);
    raw_send_valid(&workers[1], CHUNK_PUSH, 0, 1, 1);
    check_result("sender", raw_wait_closed(&workers[1].stream), STATUS_PROTOCOL,
                 "before this rank has read the initial values");
    check_still_serves();
    close_service();
}
END_TEST

/* Bytes that are not a chunk, from a bound stream. */
START_TEST(test_garbage)
{
    static const uint8_t garbage[][6] = {
        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
        {0x08, 0x63, 0x10, 0x01, 0x18, 0x01}, /* kind 99 */
        {0x0a, 0x7f, 0x00, 0x00, 0x00, 0x00}, /* a length beyond the end */
    };

    open_service(20000, NULL);
    start_job();
    (void)rpc_call_send(workers[0].stream.call, garbage[_i], sizeof(garbage[0]), NULL);
    ck_assert_int_ne(raw_wait_closed(&workers[0].stream).status, STATUS_OK);
    ck_assert_int_ne(raw_wait_closed(&workers[1].stream).status, STATUS_OK);
    check_still_serves();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ streams */

START_TEST(test_foreign_streams_do_not_affect_the_job)
{
    open_service(20000, NULL);
    raw_start_stream(&workers[2]);
    raw_send_valid(&workers[2], CHUNK_PULL, 0, 0, 0);
    check_result("no job", raw_wait_closed(&workers[2].stream), STATUS_PROTOCOL,
                 "no job runs here");
    start_job();
    raw_start_stream(&workers[2]);
    raw_send_valid(&workers[2], CHUNK_PULL, 0, 0, 0);
    check_result("rank 2", raw_wait_closed(&workers[2].stream), STATUS_PROTOCOL,
                 "rank 2 sent a chunk, but is not in job 'raw'");
    workers[2].rank = 1;
    raw_start_stream(&workers[2]);
    raw_send_valid(&workers[2], CHUNK_PUSH, 0, 1, 1);
    check_result("second stream", raw_wait_closed(&workers[2].stream), STATUS_EXISTS,
                 "rank 1 has an open stream already");
    raw_start_stream(&workers[2]);
    rpc_call_send_done(workers[2].stream.call);
    check_result("empty stream", raw_wait_closed(&workers[2].stream), STATUS_OK, "");
    play_round(1);
    end_job();
    close_service();
}
END_TEST

START_TEST(test_a_lost_worker_is_named)
{
    open_service(20000, NULL);
    start_job();
    play_round(1);
    raw_send_valid(&workers[0], CHUNK_PUSH, 0, 2, 1);
    rpc_call_cancel(workers[1].stream.call);
    check_result("survivor", raw_wait_closed(&workers[0].stream), STATUS_PEER_LOST,
                 "rank 1 was lost (its connection closed in round 2)");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_a_stream_that_ends_without_leaving)
{
    open_service(20000, NULL);
    start_job();
    rpc_call_send_done(workers[0].stream.call);
    check_result("survivor", raw_wait_closed(&workers[1].stream), STATUS_PEER_LOST,
                 "rank 0 was lost (it closed its stream without leaving in round 1)");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_a_rank_that_never_opens_its_stream)
{
    open_service(RUN_OUT_MS, NULL);
    join_both();
    raw_start_stream(&workers[0]);
    raw_send_valid(&workers[0], CHUNK_INIT, 0, 0, 1);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_TIMEOUT,
                 "waited in round 0 for rank 1: nothing came for 4.0 s");
    close_service();
}
END_TEST

START_TEST(test_values_that_never_come)
{
    open_service(RUN_OUT_MS, NULL);
    join_both();
    for (unsigned i = 0; i < 2; i++) {
        raw_start_stream(&workers[i]);
        raw_send_valid(&workers[i], CHUNK_PULL, 0, 0, 0);
    }
    check_result("rank 1", raw_wait_closed(&workers[1].stream), STATUS_TIMEOUT,
                 "waited in round 0 for rank 0");
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "exchange", 30, TEST(test_a_good_job),
        LOOP_TEST(test_bad_chunks_end_the_job, 0, sizeof(bad_chunks) / sizeof(bad_chunks[0])),
        TEST(test_a_push_comes_twice), TEST(test_a_push_before_the_values),
        LOOP_TEST(test_garbage, 0, 3), TEST(test_foreign_streams_do_not_affect_the_job),
        TEST(test_a_lost_worker_is_named), TEST(test_a_stream_that_ends_without_leaving),
        TEST(test_a_rank_that_never_opens_its_stream), TEST(test_values_that_never_come));
}
