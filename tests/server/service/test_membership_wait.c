/*
 * --on-rank-loss wait, with scripted workers: the job pauses until a session replaces the lost
 * rank, and its results equal those of a run without faults.
 */
#include "tests/server/service/member_job.h"
#include "tests/support/support.h"

/* Rank 1 is lost when one partition of its round 2 was accepted and round 1 was answered: the
 * replacement reads the values that round 2 is computed from and repeats the round; the sums are
 * those of a run without faults. */
START_TEST(test_wait_for_a_replacement)
{
    struct stats_job job;
    float value;

    member_start(2, WORKER_LOSS_WAIT);
    member_round(1, 4, 8, 94);
    member_push_all(0, 2, 2);
    member_push(1, 2, 2, 6); /* partition 2 is complete, the reply is lost */
    session_wait_taken(2 * RAW_PARTITIONS + RAW_PARTITIONS + 1);
    (void)raw_take(&workers[0], &(float){0});
    member_lose(1);
    member_take_place(1, 201);
    member_pull_all(1, 0);
    member_expect(1, (struct member_reply){1, 94}, 2, (struct member_reply){2, 90});
    raw_send_again(&workers[1], CHUNK_PULL, 2, 2, 0); /* as of the end of round 1 */
    ck_assert_uint_eq(raw_take(&workers[1], &value).round, 1);
    ck_assert(value == 94.0f);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 2, 6.0f / 2);
    session_expect_all(1, 2, 90);
    for (uint32_t p = 0; p < 2; p++) {
        (void)raw_take(&workers[0], &value);
        ck_assert(value == 90.0f);
    }
    member_round(3, 1, 1, 89);
    (void)session_counters(&job);
    ck_assert_uint_eq(job.epoch, 2);
    session_end();
    close_service();
}
END_TEST

/* The replacement joins before the old session is given up: its join waits for that. */
START_TEST(test_a_replacement_that_comes_early)
{
    member_start(2, WORKER_LOSS_WAIT);
    raw_disconnect(&workers[1]);
    member_take_place(1, 201);
    ck_assert_uint_eq(session_counters(NULL).lost_ranks, 1);
    member_pull_all(1, 0);
    session_expect_all(1, 0, 100);
    member_round(1, 4, 8, 94);
    session_end();
    close_service();
}
END_TEST

/* The old process is dead, but its connection has not closed: the replacement's join waits until
 * the heartbeat time-out. */
START_TEST(test_a_replacement_before_the_silence_is_noticed)
{
    session_terms.heartbeat_timeout_ms = 4000;
    member_start(2, WORKER_LOSS_WAIT);
    for (unsigned i = 0; i < 2; i++) {
        raw_start_attend(&workers[i]);
        raw_send_heartbeat(&workers[i], "raw", 1);
        (void)raw_wait_heartbeats(&workers[i], 1);
    }
    session_terms.world_size = 2;
    workers[2].rank = 1;
    workers[2].session = 201;
    {
        struct join_request request = session_request(1);

        request.session = 201;
        raw_begin_join(&workers[2], &request);
    }
    for (uint64_t i = 2; session_counters(NULL).taken_places == 0; i++) { /* rank 0 stays alive */
        raw_send_heartbeat(&workers[0], "raw", i);
        (void)raw_wait_heartbeats(&workers[0], i);
    }
    check_result("take", raw_end_join(&workers[2]), STATUS_OK, "");
    ck_assert_uint_eq(session_counters(NULL).disconnects, 1);
    close_service();
}
END_TEST

/* The old process died between the reply to its join and its first stream, so no connection
 * broke. */
START_TEST(test_a_replacement_of_a_rank_that_never_began)
{
    member_terms(2, WORKER_LOSS_WAIT);
    open_service(LONG_MS, NULL);
    session_join_all(100);
    member_take_place(1, 201);
    session_begin(0, 100);
    session_expect_all(0, 0, 100);
    member_pull_all(1, 0);
    session_expect_all(1, 0, 100);
    member_round(1, 4, 8, 94);
    session_end();
    close_service();
}
END_TEST

START_TEST(test_no_replacement_comes)
{
    const int64_t timeout_ms = 4000; /* also bounds the joins before */
    struct rpc_result r;

    member_terms(2, WORKER_LOSS_WAIT);
    open_service(timeout_ms, NULL);
    session_start(100);
    member_push_all(0, 1, 4);
    raw_disconnect(&workers[1]);
    r = raw_wait_closed(&workers[0].stream);
    check_result("other", r, STATUS_PEER_LOST,
                 "rank 1 was lost (its connection closed in round 1; waited ");
    check_seconds(r.text, "; waited ", (double)timeout_ms * 1e-3);
    close_service();
}
END_TEST

/* Ranks that are not in lockstep also wait for the replacement, which makes the remaining
 * pushes. */
START_TEST(test_wait_in_other_modes)
{
    member_start_mode(_i, WORKER_LOSS_WAIT, MEMBER_AWAY_MS);
    member_take_place(2, 202);
    member_catch_up(2);
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("membership_wait", 60, TEST(test_wait_for_a_replacement),
                       TEST(test_a_replacement_that_comes_early),
                       TEST(test_a_replacement_before_the_silence_is_noticed),
                       TEST(test_a_replacement_of_a_rank_that_never_began),
                       TEST(test_no_replacement_comes),
                       LOOP_TEST(test_wait_in_other_modes, 0, MEMBER_MODES));
}
