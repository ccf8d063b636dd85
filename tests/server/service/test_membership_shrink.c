/*
 * --on-rank-loss shrink, with scripted workers: the job continues with the remaining ranks, and
 * with sessions that take a vacant rank.
 */
#include "tests/server/service/member_job.h"
#include "tests/support/support.h"

/* Rank 2 has contributed to one partition when it is lost: that contribution stays, the other
 * partitions are the mean of two ranks; the next round is of two ranks everywhere. */
START_TEST(test_shrink_in_the_middle_of_a_round)
{
    struct stats_job job;

    member_start(3, WORKER_LOSS_SHRINK);
    member_push(2, 1, 1, 30);
    session_wait_taken(1);
    raw_disconnect(&workers[2]);
    member_push_all(0, 1, 4);
    member_push_all(1, 1, 8);
    for (unsigned i = 0; i < 2; i++)
        member_expect(i, (struct member_reply){1, 100 - 6}, 1, (struct member_reply){1, 100 - 14});
    (void)session_counters(&job);
    ck_assert_uint_eq(job.epoch, 2);
    ck_assert_uint_eq(job.joined, 2);
    ck_assert_uint_eq(job.left, 1);
    member_push_all(0, 2, 1);
    member_push_all(1, 2, 3);
    for (unsigned i = 0; i < 2; i++)
        member_expect(i, (struct member_reply){2, 92}, 1, (struct member_reply){2, 84});
    session_terms.world_size = 2; /* the remaining ranks */
    session_end();
    close_service();
}
END_TEST

/* A rank without a session, such as a stock client, cannot reconnect: it is lost at once. */
START_TEST(test_shrink_without_sessions)
{
    member_terms(2, WORKER_LOSS_SHRINK);
    session_terms.reconnect_ms = LONG_MS; /* not waited for */
    open_service(LONG_MS, NULL);
    session_join_all(0);
    raw_initialise(workers, 2, 100);
    member_push_all(0, 1, 4);
    raw_disconnect(&workers[1]);
    session_expect_all(0, 1, 96);
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    close_service();
}
END_TEST

/* A session that was given up cannot resume, a rank that reports a failure is given up at once, and
 * without any rank the job fails. */
START_TEST(test_shrink_until_no_rank_is_left)
{
    struct join_request request;

    member_start(2, WORKER_LOSS_SHRINK);
    check_result("leave", raw_leave(&workers[1], "raw", "out of cheese"), STATUS_OK, "");
    session_wait_lost(1);
    ck_assert_int_eq(raw_wait_closed(&workers[1].stream).status, STATUS_CANCELLED);
    request = session_request(1);
    request.resume = true;
    check_result("excluded", session_join(&workers[1], &request), STATUS_PEER_LOST,
                 "rank 1 was lost (failed: out of cheese); its place is vacant since epoch 2");
    member_push_all(0, 1, 4);
    session_expect_all(0, 1, 96);
    raw_disconnect(&workers[0]);
    session_wait_lost(2);
    request = session_request(0);
    request.resume = true;
    check_result("nobody", session_join(&workers[0], &request), STATUS_PEER_LOST,
                 "no rank is left: rank 0 was lost");
    close_service();
}
END_TEST

/* A session takes a vacant rank during a round: it reads the newest values, contributes where the
 * round waits for it, and gets the reply at once where it does not. */
START_TEST(test_join_at_a_round)
{
    struct stats_job job;

    member_start(2, WORKER_LOSS_SHRINK);
    member_round(1, 4, 8, 94);
    member_lose(1);
    member_push(0, 0, 2, 10); /* partition 0 is one round ahead */
    (void)raw_take(&workers[0], &(float){0});
    member_take_place(1, 201);
    member_pull_all(1, 0);
    member_expect(1, (struct member_reply){1, 94}, 0, (struct member_reply){2, 84});
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 2, 10.0f / 2);
    member_push(0, 1, 2, 20);
    member_push(0, 2, 2, 20);
    member_expect(1, (struct member_reply){2, 79}, 0, (struct member_reply){2, 84});
    for (uint32_t p = 1; p < RAW_PARTITIONS; p++) { /* rank 0 has read partition 0 */
        float first;

        ck_assert_uint_ne(raw_take(&workers[0], &first).partition, 0);
        ck_assert(first == 79.0f);
    }
    member_push_all(0, 3, 1);
    member_push_all(1, 3, 1);
    for (unsigned i = 0; i < 2; i++)
        member_expect(i, (struct member_reply){3, 78}, 0, (struct member_reply){3, 83});
    (void)session_counters(&job);
    ck_assert_uint_eq(job.epoch, 3);
    ck_assert_uint_eq(job.joined, 2);
    ck_assert_uint_eq(session_counters(NULL).taken_places, 1);
    session_end();
    close_service();
}
END_TEST

/* The remaining ranks do not wait for the lost one; one of them disconnects and reconnects; a new
 * session takes the vacant rank; all end with equal values. */
START_TEST(test_shrink_in_other_modes)
{
    member_start_mode(_i, WORKER_LOSS_SHRINK, MEMBER_BACK_MS);
    for (uint64_t round = 2; round <= 4; round++)
        member_run_round(0, 1, round);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_valid(&workers[1], CHUNK_PUSH, p, 5, 1);
    session_wait_taken(9 + 2 + 18 + 3);
    raw_disconnect(&workers[1]);
    session_resume(1);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 5, 1);
    member_run_round(0, 0, 5);
    member_take_replies(1);
    member_take_place(2, 202);
    member_catch_up(6);
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("membership_shrink", 60, TEST(test_shrink_in_the_middle_of_a_round),
                       TEST(test_shrink_without_sessions), TEST(test_shrink_until_no_rank_is_left),
                       TEST(test_join_at_a_round),
                       LOOP_TEST(test_shrink_in_other_modes, 0, MEMBER_MODES));
}
