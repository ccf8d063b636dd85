/*
 * The consistency modes over real gRPC: when each rank gets a reply and with which values, which
 * pushes are dropped, which ranks are waited for, how a rank ends, and the statistics.
 */
#include "tests/server/service/mode_job.h"
#include "tests/support/support.h"

#include <stdlib.h>

enum { RUN_OUT_MS = 5000 }; /* a time-out that is to expire; it also bounds the join before */

static struct error err;

/* ------------------------------------------------------------------ backup workers */

START_TEST(test_backup_drops_what_comes_late)
{
    json_t *end;

    open_service(20000, support_folder());
    start_mode(&backup_1, 3);
    push(0, 1, 1);
    push(1, 1, 2);
    expect(0, 1, 7);
    expect(1, 1, 7);
    push(2, 1, 100); /* late: not in the values, replied to at once */
    expect(2, 1, 7);
    push(2, 2, 1);
    push(1, 2, 1);
    expect(2, 2, 5);
    expect(1, 2, 5);
    push(2, 3, 1);
    push(1, 3, 1);
    expect(2, 3, 3);
    expect(1, 3, 3);
    push(0, 2, 100); /* two rounds late: continues after the newest round */
    expect(0, 3, 3);
    for (unsigned rank = 0; rank < 3; rank++) {
        wait_pushes(8);
        send_chunk(rank, CHUNK_FINAL, 4, 0);
    }
    for (unsigned rank = 0; rank < 3; rank++)
        expect(rank, 3, 3);
    for (unsigned rank = 0; rank < 3; rank++)
        leave(rank);
    close_service();
    end = end_record();
    ck_assert_str_eq(json_string_value(json_object_get(end, "status")), "ok");
    ck_assert_int_eq(number(end, "rounds"), 3);
    ck_assert_int_eq(number(end, "late_pushes"), 2);
    ck_assert_int_eq(number(end, "rx_payload_bytes"), 8 * ELEMENTS * (int)sizeof(float));
    ck_assert_int_eq(number(end, "tx_payload_bytes"), 8 * ELEMENTS * (int)sizeof(float));
    ck_assert_int_eq(number(end, "final_tx_payload_bytes"), 3 * ELEMENTS * (int)sizeof(float));
    json_decref(end);
}
END_TEST

/* When fewer than n - b ranks are left, a round needs all of them, and their sum, of gradients that
 * were divided by n - b = 2, becomes their mean; a leave completes a round that waited for the
 * leaving rank. */
START_TEST(test_backup_goes_on_when_ranks_leave)
{
    open_service(20000, NULL);
    start_mode(&backup_1, 3);
    push(0, 1, 1);
    wait_pushes(1);
    leave(1);
    leave(2);
    expect(0, 1, 8);
    push(0, 2, 1);
    expect(0, 2, 6);
    leave(0);
    check_result("stream", raw_wait_closed(&workers[0].stream), STATUS_OK, "");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_backup_needs_every_round)
{
    open_service(20000, NULL);
    start_mode(&backup_1, 3);
    push(0, 2, 1);
    check_result("ahead", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "the push belongs to a round that cannot have begun");
    check_still_serves();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ ssp */

START_TEST(test_ssp_0_is_bsp)
{
    open_service(20000, NULL);
    start_mode(&ssp_0, 2);
    push(0, 1, 1);
    push(1, 1, 2);
    expect(0, 1, 7);
    expect(1, 1, 7);
    push(1, 2, 1);
    wait_pushes(3);
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    check_result("other", raw_wait_closed(&workers[1].stream), STATUS_PEER_LOST,
                 "rank 0 left in the middle of round 2");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_ssp_waits_for_the_slowest)
{
    open_service(20000, NULL);
    start_mode(&ssp_1, 2);
    push(0, 1, 1);
    expect(0, 1, 9); /* one ahead is allowed: a read at clock 1 needs clock 0 of the other */
    push(0, 2, 1);   /* 8, but may not be read yet */
    wait_pushes(2);
    push(1, 1, 1);
    expect(0, 2, 7);
    expect(1, 1, 7);
    push(1, 2, 1);
    expect(1, 2, 6);
    leave(0);
    leave(1);
    close_service();
}
END_TEST

START_TEST(test_ssp_does_not_wait_for_a_rank_that_left)
{
    open_service(20000, NULL);
    start_mode(&ssp_1, 2);
    push(0, 1, 1);
    expect(0, 1, 9);
    push(0, 2, 1);
    wait_pushes(2);
    leave(1);
    expect(0, 2, 8);
    for (uint64_t round = 3; round < 9; round++) {
        push(0, round, 1);
        expect(0, round, 10 - (float)round);
    }
    leave(0);
    check_result("stream", raw_wait_closed(&workers[0].stream), STATUS_OK, "");
    close_service();
}
END_TEST

START_TEST(test_ssp_names_a_silent_rank)
{
    open_service(RUN_OUT_MS, NULL);
    start_mode(&ssp_1, 2);
    push(0, 1, 1);
    expect(0, 1, 9);
    push(0, 2, 1);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_TIMEOUT,
                 "waited in round 1 for rank 1: nothing came for 5.0 s");
    check_result("rank 1", raw_wait_closed(&workers[1].stream), STATUS_TIMEOUT, "for rank 1");
    close_service();
}
END_TEST

START_TEST(test_a_push_before_the_reply_is_refused)
{
    open_service(20000, NULL);
    start_mode(&ssp_1, 2);
    push(0, 1, 1);
    expect(0, 1, 9);
    push(0, 2, 1);
    push(0, 3, 1);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "the push belongs to a round that cannot have begun");
    check_still_serves();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ asp */

START_TEST(test_asp_waits_for_no_rank)
{
    json_t *end;

    open_service(20000, support_folder());
    start_mode(&asp, 2);
    for (uint64_t round = 1; round <= 4; round++) {
        push(0, round, 1);
        expect(0, round, 10 - (float)round);
    }
    push(1, 1, 1); /* four steps stale, but used */
    expect(1, 1, 5);
    send_chunk(0, CHUNK_FINAL, 5, 0);
    for (uint64_t round = 2; round <= 4; round++) {
        push(1, round, 1);
        expect(1, round, 6 - (float)round);
    }
    send_chunk(1, CHUNK_FINAL, 5, 0);
    expect(0, 4, 2); /* includes the pushes that came after its request */
    expect(1, 4, 2);
    leave(0);
    leave(1);
    close_service();
    end = end_record();
    ck_assert_int_eq(number(end, "rounds"), 4);
    ck_assert_int_eq(number(end, "late_pushes"), 0);
    ck_assert_int_eq(number(end, "used_pushes"), 8);
    ck_assert_int_eq(number(end, "staleness_sum"), 4);
    ck_assert_int_eq(bucket(end, 0), 7);
    ck_assert_int_eq(bucket(end, 3), 1);
    ck_assert_int_eq(number(end, "rx_payload_bytes"), 8 * ELEMENTS * (int)sizeof(float));
    ck_assert_int_eq(number(end, "tx_payload_bytes"), 8 * ELEMENTS * (int)sizeof(float));
    json_decref(end);
}
END_TEST

/* The learning rate is 2 for two ranks, 1 for each push; staleness 4 makes it 1/4. */
START_TEST(test_asp_divides_the_rate_by_staleness)
{
    struct consistency c = {.mode = CONSISTENCY_ASP, .lr_by_staleness = true};

    open_service(20000, NULL);
    start_mode(&c, 2);
    for (uint64_t round = 1; round <= 4; round++) {
        push(0, round, 1); /* staleness 0: the unchanged rate */
        expect(0, round, 10 - (float)round);
    }
    push(1, 1, 2);
    expect(1, 1, 5.5f);
    push(1, 2, 2); /* 0 */
    expect(1, 2, 3.5f);
    push(0, 5, 2); /* 2 */
    expect(0, 5, 2.5f);
    leave(0);
    leave(1);
    close_service();
}
END_TEST

/* g + lambda g g (w - w_read): 2 + 0.25 * 4 * (7 - 10) = -1. */
START_TEST(test_asp_compensates_delay)
{
    struct consistency c = {.mode = CONSISTENCY_ASP, .delay_compensation = 0.25};

    open_service(20000, NULL);
    start_mode(&c, 2);
    for (uint64_t round = 1; round <= 3; round++) {
        push(0, round, 1);
        expect(0, round, 10 - (float)round);
    }
    push(1, 1, 2);
    expect(1, 1, 8);
    push(1, 2, 2); /* it has read the newest values: nothing to compensate */
    expect(1, 2, 6);
    leave(0);
    leave(1);
    close_service();
}
END_TEST

START_TEST(test_no_push_behind_the_last)
{
    open_service(20000, NULL);
    start_mode(&asp, 2);
    send_chunk(0, CHUNK_FINAL, 1, 0);
    push(0, 1, 1);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "the push came after the rank's last one");
    start_mode(&asp, 2);
    send_chunk(1, CHUNK_FINAL, 1, 0);
    send_chunk(1, CHUNK_FINAL, 1, 0);
    check_result("rank 1", raw_wait_closed(&workers[1].stream), STATUS_PROTOCOL, "came twice");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_no_final_values_in_lockstep)
{
    open_service(20000, NULL);
    start_job();
    raw_send_valid(&workers[0], CHUNK_FINAL, 0, 1, 0);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "all ranks are in step here");
    check_still_serves();
    close_service();
}
END_TEST

/* A rank that waits for the final values gets an error that names the silent rank. */
START_TEST(test_the_end_names_a_silent_rank)
{
    open_service(RUN_OUT_MS, NULL);
    start_mode(&asp, 2);
    send_chunk(0, CHUNK_FINAL, 1, 0);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_TIMEOUT, "for rank 1");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ statistics */

static struct server_stats *read_stats(uint64_t pushes)
{
    struct server_stats *stats;

    wait_pushes(pushes);
    assert_ok(service_stats(service, &stats, &err));
    return stats;
}

START_TEST(test_lag_of_a_rank_that_skips_rounds)
{
    struct server_stats *stats;

    open_service(20000, NULL);
    start_mode(&backup_1, 3);
    for (uint64_t round = 1; round <= 3; round++) {
        push(1, round, 1);
        push(2, round, 1);
        expect(1, round, 10 - 2 * (float)round);
        expect(2, round, 10 - 2 * (float)round);
    }
    stats = read_stats(6);
    ck_assert_str_eq(stats->job.mode, "bsp");
    ck_assert_uint_eq(stats->job.backup_workers, 1);
    ck_assert(stats->workers[0].lag_rounds == 3.0);
    ck_assert(stats->workers[1].lag_rounds == 0.0);
    free(stats);
    push(0, 1, 1); /* late */
    expect(0, 3, 4);
    stats = read_stats(7);
    ck_assert(stats->workers[0].lag_rounds == 2.0);
    ck_assert_uint_eq(stats->workers[0].late_pushes, 1);
    ck_assert_uint_eq(stats->counters.late_pushes, 1);
    ck_assert_uint_eq(stats->counters.staleness.counts[0], 6);
    free(stats);
    push(0, 4, 1); /* it skips to the current round */
    stats = read_stats(8);
    ck_assert(stats->workers[0].lag_rounds == 0.0);
    ck_assert(stats->workers[1].lag_rounds == 1.0);
    ck_assert_uint_eq(stats->workers[0].pushes, 2);
    free(stats);
    close_service();
}
END_TEST

START_TEST(test_staleness_of_a_slow_rank)
{
    struct server_stats *stats;

    open_service(20000, NULL);
    start_mode(&asp, 2);
    for (uint64_t round = 1; round <= 3; round++) {
        push(0, round, 1);
        expect(0, round, 10 - (float)round);
    }
    push(1, 1, 1); /* three steps after its read */
    expect(1, 1, 6);
    stats = read_stats(4);
    ck_assert_str_eq(stats->job.mode, "asp");
    ck_assert_uint_eq(stats->counters.staleness.counts[0], 3);
    ck_assert_uint_eq(stats->counters.staleness.counts[3], 1); /* 3 or 4 */
    ck_assert_uint_eq(stats->counters.staleness.sum, 3);
    ck_assert_uint_eq(stats->workers[0].staleness_sum, 0);
    ck_assert_uint_eq(stats->workers[1].staleness_sum, 3);
    ck_assert(stats->workers[1].lag_rounds == 2.0);
    free(stats);
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "modes", 60, TEST(test_backup_drops_what_comes_late),
        TEST(test_backup_goes_on_when_ranks_leave), TEST(test_backup_needs_every_round),
        TEST(test_ssp_0_is_bsp), TEST(test_ssp_waits_for_the_slowest),
        TEST(test_ssp_does_not_wait_for_a_rank_that_left), TEST(test_ssp_names_a_silent_rank),
        TEST(test_a_push_before_the_reply_is_refused), TEST(test_asp_waits_for_no_rank),
        TEST(test_asp_divides_the_rate_by_staleness), TEST(test_asp_compensates_delay),
        TEST(test_no_push_behind_the_last), TEST(test_no_final_values_in_lockstep),
        TEST(test_the_end_names_a_silent_rank), TEST(test_lag_of_a_rank_that_skips_rounds),
        TEST(test_staleness_of_a_slow_rank));
}
