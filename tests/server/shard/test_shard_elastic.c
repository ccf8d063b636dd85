/*
 * A shard when messages are resent, connections break, and ranks leave, join and are replaced.
 */
#include "tests/server/shard/shard_fixture.h"

static const struct consistency bsp = {.mode = CONSISTENCY_BSP};
static const struct consistency backup_1 = {.mode = CONSISTENCY_BSP, .backup = 1};
static const struct consistency ssp_1 = {.mode = CONSISTENCY_SSP, .staleness = 1};
static const struct consistency asp = {.mode = CONSISTENCY_ASP};

/* ------------------------------------------------------------------ resends */

START_TEST(test_a_resent_push_is_not_summed_again)
{
    struct shard_reply reply;

    fixture_start(fixture_config(2, bsp));
    reply = fixture_push(0, 1, 5, false);
    ck_assert(!reply.complete && !reply.again);
    ck_assert(shard_has_contributed(&shard, 1, 0, 1) && !shard_has_contributed(&shard, 1, 1, 1));
    fixture_refuse_push(0, 1, false, "came twice");
    reply = fixture_push(0, 1, 5, true);
    ck_assert(reply.again && !reply.data && !reply.complete);
    reply = fixture_push(1, 1, 2, true); /* marked as a resend, but the first to arrive */
    ck_assert(reply.complete && !reply.again && reply.contributions == 2);
    fixture_expect(3, 1, 93);
    reply = fixture_push(0, 1, 5, true); /* the reply was lost */
    ck_assert(reply.again && !reply.complete);
    fixture_check(&reply, 1, 93);
    fixture_expect(0, 0, 0);
    fixture_refuse_push(0, 1, false, "is complete");
    fixture_refuse_push(0, 3, true, "cannot have begun");
    ck_assert_uint_eq(shard_clock(&shard, 0), 0); /* partition 0 */
    fixture_close();
}
END_TEST

START_TEST(test_every_step_is_made_once)
{
    struct shard_reply reply;
    unsigned rank = 0;

    fixture_start(fixture_config(2, ssp_1));
    (void)fixture_push(0, 1, 1, false);
    fixture_expect(1, 1, 99);
    reply = fixture_push(0, 2, 1, false);
    ck_assert(reply.complete);
    fixture_expect(0, 0, 0);
    reply = fixture_push(0, 2, 1, true);
    ck_assert(reply.again && !reply.data);
    (void)fixture_push(1, 1, 10, true); /* makes the reply to rank 0 due, too */
    ck_assert(shard_next_reply(&shard, 1, &rank, &reply) && rank == 0);
    fixture_check(&reply, 2, 88);
    rank = 1;
    ck_assert(shard_next_reply(&shard, 1, &rank, &reply) && rank == 1);
    fixture_check(&reply, 1, 88);
    fixture_close();
}
END_TEST

/* After its connection broke, a rank gets no reply before it resends the request: each request has
 * one reply. */
START_TEST(test_no_reply_without_a_new_request)
{
    struct shard_reply reply;

    fixture_start(fixture_config(2, bsp));
    (void)fixture_push(0, 1, 5, false);
    shard_suspend(&shard, 0);
    (void)fixture_push(1, 1, 2, false);
    fixture_expect(2, 1, 93);
    reply = fixture_push(0, 1, 5, true);
    ck_assert(reply.again);
    fixture_check(&reply, 1, 93);
    (void)fixture_push(0, 2, 5, false);
    shard_suspend(&shard, 0);
    reply = fixture_push(0, 2, 5, true);
    ck_assert(reply.again && !reply.data);
    (void)fixture_push(1, 2, 1, false);
    fixture_expect(3, 2, 87);
    fixture_close();
}
END_TEST

START_TEST(test_sums_are_sent_again)
{
    struct shard_config config = fixture_config(2, bsp);
    struct shard_reply reply;

    config.update = false;
    fixture_start(config);
    for (uint64_t round = 1; round < 4; round++) {
        (void)fixture_push(0, round, (float)round, false);
        (void)fixture_push(1, round, 10, false);
        fixture_expect(3, round, (float)(round + 10));
        reply = fixture_push(1, round, 10, true);
        fixture_check(&reply, round, (float)(round + 10));
    }
    assert_fails(shard_pull(&shard, 1, 0, 0, true, &reply, &err), STATUS_PROTOCOL,
                 "optimizer runs on the workers");
    assert_ok(shard_vacate(&shard, 1, 1, &reply, &err));
    assert_fails(shard_occupy(&shard, 1, 1, &err), STATUS_UNSUPPORTED, "rank 1 cannot join");
    assert_fails(shard_replace(&shard, 1, 0, &err), STATUS_UNSUPPORTED, "rank 0 cannot join");
    fixture_close();
}
END_TEST

/* A rank may push the next round directly after its reply, so the round must be counted before. */
START_TEST(test_no_reply_before_a_round_is_counted)
{
    struct shard_config config = fixture_config(3, bsp);
    struct shard_reply reply;
    unsigned rank;

    config.defer_replies = true;
    fixture_start(config);
    (void)fixture_push(0, 1, 1, false);
    (void)fixture_push(1, 1, 1, false);
    shard_suspend(&shard, 1);
    reply = fixture_push(2, 1, 1, false);
    ck_assert(reply.complete);
    fixture_expect(0, 0, 0);
    reply = fixture_push(1, 1, 1, true);
    ck_assert(reply.again && !reply.data);
    reply = fixture_vacate(2);
    fixture_expect(0, 0, 0);
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    assert_ok(shard_pull(&shard, 1, 2, 0, false, &reply, &err));
    ck_assert(!reply.complete && !reply.data);
    ck_assert(!shard_next_parked(&shard, 1, &rank, &reply));

    shard_release_replies(&shard, 1);
    fixture_expect(3, 1, 97);
    ck_assert(shard_next_parked(&shard, 1, &rank, &reply));
    ck_assert_uint_eq(rank, 2);
    fixture_check(&reply, 1, 97);
    ck_assert(!shard_next_parked(&shard, 1, &rank, &reply));
    fixture_close();
}
END_TEST

START_TEST(test_resent_initial_values)
{
    struct shard_reply reply;
    float value = 7;
    struct shard_source source = fixture_source(&value);
    bool again;

    fixture_open(fixture_config(2, bsp));
    for (int i = 0; i < 2; i++) {
        reply = fixture_pull(1, 0);
        ck_assert(reply.again == (i == 1) && !reply.complete);
    }
    assert_ok(shard_set(&shard, 1, &source, false, &again, &err));
    ck_assert(!again);
    value = 8;
    assert_ok(shard_set(&shard, 1, &source, true, &again, &err));
    ck_assert(again);
    reply = fixture_pull(1, 0);
    fixture_check(&reply, 0, 7);
    fixture_close();
}
END_TEST

START_TEST(test_a_resent_finish)
{
    struct shard_reply reply;

    fixture_start(fixture_config(2, asp));
    assert_ok(shard_finish(&shard, 1, 0, true, false, &reply, &err));
    assert_fails(shard_finish(&shard, 1, 0, true, false, &reply, &err), STATUS_PROTOCOL, "twice");
    assert_ok(shard_finish(&shard, 1, 0, true, true, &reply, &err));
    ck_assert(reply.again);
    fixture_expect(0, 0, 0);
    assert_ok(shard_finish(&shard, 1, 1, false, true, &reply, &err));
    fixture_expect(1, 0, 100);
    assert_ok(shard_finish(&shard, 1, 0, true, true, &reply, &err));
    fixture_expect(1, 0, 100);
    fixture_close();
}
END_TEST

/* ------------------------------------------------------------------ leaving and joining */

START_TEST(test_rounds_go_on_without_a_rank)
{
    struct shard_reply reply;

    fixture_start(fixture_config(4, bsp));
    (void)fixture_push(0, 1, 1, false);
    (void)fixture_push(1, 1, 2, false);
    reply = fixture_vacate(2);
    ck_assert(!reply.complete);
    (void)fixture_push(3, 1, 3, false);
    fixture_expect(0xb, 1, 100 - 8); /* 6 of three are 8 of four */
    fixture_refuse_push(2, 1, true, "no longer in the job");
    assert_fails(shard_pull(&shard, 1, 2, 0, true, &reply, &err), STATUS_PROTOCOL,
                 "no longer in the job");
    (void)fixture_push(0, 2, 3, false);
    (void)fixture_push(1, 2, 3, false);
    reply = fixture_vacate(3);
    ck_assert(reply.complete && reply.contributions == 2);
    fixture_expect(3, 2, 92 - 12);
    ck_assert(!fixture_vacate(3).complete);
    fixture_close();
}
END_TEST

/* The contribution of a rank that left stays, and the sum is not scaled. */
START_TEST(test_a_contribution_of_a_vacated_rank_stays)
{
    fixture_start(fixture_config(3, bsp));
    (void)fixture_push(0, 1, 1, false);
    (void)fixture_push(1, 1, 2, false);
    ck_assert(!fixture_vacate(1).complete);
    (void)fixture_push(2, 1, 4, false);
    fixture_expect(1 | 1 << 2, 1, 93);
    fixture_close();
}
END_TEST

START_TEST(test_a_newcomer_takes_a_vacant_rank)
{
    struct shard_reply reply;

    fixture_start(fixture_config(2, bsp));
    (void)fixture_vacate(1);
    (void)fixture_push(0, 1, 1, false);
    fixture_expect(1, 1, 98);
    assert_ok(shard_occupy(&shard, 1, 1, &err));
    (void)fixture_push(0, 2, 1, false);
    fixture_expect(0, 0, 0);
    fixture_refuse_push(1, 2, false, "initial values");
    reply = fixture_pull(1, 0);
    fixture_check(&reply, 1, 98);
    (void)fixture_push(1, 2, 3, false);
    fixture_expect(3, 2, 94);
    /* The rank's contribution stays; that of its next session is not summed. */
    (void)fixture_push(1, 3, 5, false);
    (void)fixture_vacate(1);
    assert_ok(shard_occupy(&shard, 1, 1, &err));
    reply = fixture_pull(1, 0);
    fixture_check(&reply, 2, 94);
    ck_assert(shard_has_contributed(&shard, 1, 1, 3));
    ck_assert(!fixture_push(0, 3, 1, false).complete); /* the newcomer may not have read yet */
    reply = fixture_push(1, 3, 7, true);
    ck_assert(reply.again && !reply.data && reply.complete);
    fixture_expect(3, 3, 88);
    fixture_close();
}
END_TEST

START_TEST(test_a_newcomer_where_each_push_is_a_step)
{
    struct shard_reply reply;

    fixture_start(fixture_config(3, ssp_1));
    (void)fixture_vacate(2);
    for (uint64_t round = 1; round < 4; round++) {
        (void)fixture_push(0, round, 1, false);
        (void)fixture_push(1, round, 1, false);
        fixture_expect(3, round, (float)(100 - 2 * (int)round));
    }
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    reply = fixture_pull(2, 0);
    fixture_check(&reply, 3, 94); /* starts after the slowest rank's round */
    reply = fixture_push(2, 3, 1, true);
    fixture_check(&reply, 3, 94);
    (void)fixture_push(2, 4, 1, false);
    fixture_expect(1 << 2, 4, 93);
    fixture_close();
}
END_TEST

START_TEST(test_late_values_for_a_newcomer)
{
    struct shard_reply reply;

    fixture_start(fixture_config(3, backup_1));
    (void)fixture_vacate(0);
    for (uint64_t round = 1; round < 3; round++) {
        (void)fixture_push(1, round, 1, false);
        (void)fixture_push(2, round, 1, false);
        fixture_expect(6, round, (float)(100 - 2 * (int)round));
    }
    assert_ok(shard_occupy(&shard, 1, 0, &err));
    reply = fixture_pull(0, 0);
    fixture_check(&reply, 2, 96);
    (void)fixture_push(1, 3, 1, false);
    (void)fixture_push(2, 3, 1, false);
    fixture_expect(6, 3, 94);
    reply = fixture_push(0, 3, 1, true);
    ck_assert(reply.late && !reply.again);
    fixture_check(&reply, 3, 94);
    fixture_close();
}
END_TEST

/* A replacement repeats the lost session's round: complete in partition 1, not in partition 0. */
START_TEST(test_a_replacement_repeats_the_lost_round)
{
    struct shard_config config = fixture_config(2, bsp);
    struct shard_reply reply;

    config.previous = true;
    fixture_start(config);
    (void)fixture_push(0, 1, 1, false);
    (void)fixture_push(1, 1, 2, false);
    fixture_expect(3, 1, 97);
    assert_ok(shard_replace(&shard, 0, 1, &err));
    assert_ok(shard_replace(&shard, 1, 1, &err));
    reply = fixture_pull(1, 0);
    fixture_check(&reply, 1, 97);
    reply = fixture_pull(1, 1);
    fixture_check(&reply, 0, 100);
    reply = fixture_pull(1, 2);
    fixture_check(&reply, 1, 97);
    assert_fails(shard_pull(&shard, 1, 1, 3, true, &reply, &err), STATUS_PROTOCOL,
                 "asks for round 2, which is not here (round 1 is complete)");
    reply = fixture_push(1, 1, 2, true);
    fixture_check(&reply, 1, 97);
    (void)fixture_push(1, 2, 1, false);
    (void)fixture_push(0, 2, 1, false);
    fixture_expect(3, 2, 95);
    fixture_close();
}
END_TEST

/* Early contributions wait for lower ranks that are vacated; a newcomer takes a rank that was
 * skipped. */
START_TEST(test_rank_order_skips_vacant_ranks)
{
    struct shard_config config = fixture_config(5, bsp);

    config.rank_order = true;
    fixture_start(config);
    (void)fixture_push(4, 1, 16, false);
    (void)fixture_push(3, 1, 8, false);
    (void)fixture_vacate(0);
    (void)fixture_vacate(1);
    ck_assert_uint_eq(shard.parts[1].summed, 0);
    ck_assert(fixture_vacate(2).complete);
    fixture_expect(0x18, 1, 100 - 24 * 2.5f);
    (void)fixture_push(3, 2, 1, false);
    ck_assert_uint_eq(shard.parts[1].summed, 1); /* no lower rank will contribute */
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    (void)fixture_pull(2, 0);
    (void)fixture_push(4, 2, 1, false);
    ck_assert(fixture_push(2, 2, 1, false).complete);
    fixture_expect(0x1c, 2, 40 - 5);
    fixture_close();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "shard_elastic", 0, TEST(test_a_resent_push_is_not_summed_again),
        TEST(test_every_step_is_made_once), TEST(test_no_reply_without_a_new_request),
        TEST(test_sums_are_sent_again), TEST(test_no_reply_before_a_round_is_counted),
        TEST(test_resent_initial_values), TEST(test_a_resent_finish),
        TEST(test_rounds_go_on_without_a_rank), TEST(test_a_contribution_of_a_vacated_rank_stays),
        TEST(test_a_newcomer_takes_a_vacant_rank), TEST(test_a_newcomer_where_each_push_is_a_step),
        TEST(test_late_values_for_a_newcomer), TEST(test_a_replacement_repeats_the_lost_round),
        TEST(test_rank_order_skips_vacant_ranks));
}
