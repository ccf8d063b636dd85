/* What a shard does when connections break, ranks go and others come. */
#include "tests/server/shard/shard_bench.h"

static const struct consistency bsp = {.mode = CONSISTENCY_BSP};
static const struct consistency backup_1 = {.mode = CONSISTENCY_BSP, .backup = 1};
static const struct consistency ssp_1 = {.mode = CONSISTENCY_SSP, .staleness = 1};
static const struct consistency asp = {.mode = CONSISTENCY_ASP};

/* ------------------------------------------------------------------ again */

START_TEST(test_a_push_that_comes_again_is_not_summed_again)
{
    struct shard_reply answer;

    bench_start(bench_config(2, bsp));
    answer = bench_push(0, 1, 5, false);
    ck_assert(!answer.complete && !answer.again);
    ck_assert(shard_is_in(&shard, 1, 0, 1) && !shard_is_in(&shard, 1, 1, 1));
    bench_refuse_push(0, 1, false, "came twice");
    answer = bench_push(0, 1, 5, true);
    ck_assert(answer.again && !answer.data && !answer.complete);
    answer = bench_push(1, 1, 2, true); /* which did not come before */
    ck_assert(answer.complete && !answer.again && answer.contributions == 2);
    bench_expect(3, 1, 93);
    answer = bench_push(0, 1, 5, true); /* the answer was lost */
    ck_assert(answer.again && !answer.complete);
    bench_check(&answer, 1, 93);
    bench_expect(0, 0, 0);
    bench_refuse_push(0, 1, false, "is complete");
    bench_refuse_push(0, 3, true, "cannot have begun");
    ck_assert_uint_eq(shard_clock(&shard, 0), 0); /* partition 0 */
    bench_close();
}
END_TEST

START_TEST(test_every_step_is_made_once)
{
    struct shard_reply answer;
    unsigned rank = 0;

    bench_start(bench_config(2, ssp_1));
    (void)bench_push(0, 1, 1, false);
    bench_expect(1, 1, 99);
    answer = bench_push(0, 2, 1, false);
    ck_assert(answer.complete);
    bench_expect(0, 0, 0);
    answer = bench_push(0, 2, 1, true);
    ck_assert(answer.again && !answer.data);
    (void)bench_push(1, 1, 10, true); /* which frees rank 0, too */
    ck_assert(shard_next_reply(&shard, 1, &rank, &answer) && rank == 0);
    bench_check(&answer, 2, 88);
    rank = 1;
    ck_assert(shard_next_reply(&shard, 1, &rank, &answer) && rank == 1);
    bench_check(&answer, 1, 88);
    bench_close();
}
END_TEST

/* Whose connection broke is answered when it has asked again, and not before: one question, one
 * answer. */
START_TEST(test_a_broken_connection_is_not_answered_by_itself)
{
    struct shard_reply answer;

    bench_start(bench_config(2, bsp));
    (void)bench_push(0, 1, 5, false);
    shard_suspend(&shard, 0);
    (void)bench_push(1, 1, 2, false);
    bench_expect(2, 1, 93);
    answer = bench_push(0, 1, 5, true);
    ck_assert(answer.again);
    bench_check(&answer, 1, 93);
    (void)bench_push(0, 2, 5, false);
    shard_suspend(&shard, 0);
    answer = bench_push(0, 2, 5, true);
    ck_assert(answer.again && !answer.data);
    (void)bench_push(1, 2, 1, false);
    bench_expect(3, 2, 87);
    bench_close();
}
END_TEST

START_TEST(test_sums_are_answered_again)
{
    struct shard_config config = bench_config(2, bsp);
    struct shard_reply answer;

    config.update = false;
    bench_start(config);
    for (uint64_t round = 1; round < 4; round++) {
        (void)bench_push(0, round, (float)round, false);
        (void)bench_push(1, round, 10, false);
        bench_expect(3, round, (float)(round + 10));
        answer = bench_push(1, round, 10, true);
        bench_check(&answer, round, (float)(round + 10));
    }
    assert_fails(shard_pull(&shard, 1, 0, 0, true, &answer, &err), STATUS_PROTOCOL,
                 "optimizer runs on the workers");
    assert_ok(shard_vacate(&shard, 1, 1, &answer, &err));
    assert_fails(shard_occupy(&shard, 1, 1, &err), STATUS_UNSUPPORTED, "rank 1 cannot join");
    assert_fails(shard_replace(&shard, 1, 0, &err), STATUS_UNSUPPORTED, "rank 0 cannot join");
    bench_close();
}
END_TEST

/* Whoever is told may push the next round at once, which the books must be ready for. */
START_TEST(test_nobody_is_told_of_a_round_that_is_not_counted)
{
    struct shard_config config = bench_config(3, bsp);
    struct shard_reply answer;
    unsigned rank;

    config.defer_replies = true;
    bench_start(config);
    (void)bench_push(0, 1, 1, false);
    (void)bench_push(1, 1, 1, false);
    shard_suspend(&shard, 1);
    answer = bench_push(2, 1, 1, false);
    ck_assert(answer.complete);
    bench_expect(0, 0, 0);
    answer = bench_push(1, 1, 1, true);
    ck_assert(answer.again && !answer.data);
    answer = bench_vacate(2);
    bench_expect(0, 0, 0);
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    assert_ok(shard_pull(&shard, 1, 2, 0, false, &answer, &err));
    ck_assert(!answer.complete && !answer.data);
    ck_assert(!shard_next_parked(&shard, 1, &rank, &answer));

    shard_release_replies(&shard, 1);
    bench_expect(3, 1, 97);
    ck_assert(shard_next_parked(&shard, 1, &rank, &answer));
    ck_assert_uint_eq(rank, 2);
    bench_check(&answer, 1, 97);
    ck_assert(!shard_next_parked(&shard, 1, &rank, &answer));
    bench_close();
}
END_TEST

START_TEST(test_initial_values_come_again)
{
    struct shard_reply answer;
    float value = 7;
    struct shard_source source = bench_source(&value);
    bool again;

    bench_open(bench_config(2, bsp));
    for (int i = 0; i < 2; i++) {
        answer = bench_pull(1, 0);
        ck_assert(answer.again == (i == 1) && !answer.complete);
    }
    assert_ok(shard_set(&shard, 1, &source, false, &again, &err));
    ck_assert(!again);
    value = 8;
    assert_ok(shard_set(&shard, 1, &source, true, &again, &err));
    ck_assert(again);
    answer = bench_pull(1, 0);
    bench_check(&answer, 0, 7);
    bench_close();
}
END_TEST

START_TEST(test_the_end_comes_again)
{
    struct shard_reply answer;

    bench_start(bench_config(2, asp));
    assert_ok(shard_finish(&shard, 1, 0, true, false, &answer, &err));
    assert_fails(shard_finish(&shard, 1, 0, true, false, &answer, &err), STATUS_PROTOCOL, "twice");
    assert_ok(shard_finish(&shard, 1, 0, true, true, &answer, &err));
    ck_assert(answer.again);
    bench_expect(0, 0, 0);
    assert_ok(shard_finish(&shard, 1, 1, false, true, &answer, &err));
    bench_expect(1, 0, 100);
    assert_ok(shard_finish(&shard, 1, 0, true, true, &answer, &err));
    bench_expect(1, 0, 100);
    bench_close();
}
END_TEST

/* ------------------------------------------------------------------ ranks go and come */

START_TEST(test_rounds_go_on_without_a_rank)
{
    struct shard_reply answer;

    bench_start(bench_config(4, bsp));
    (void)bench_push(0, 1, 1, false);
    (void)bench_push(1, 1, 2, false);
    answer = bench_vacate(2);
    ck_assert(!answer.complete);
    (void)bench_push(3, 1, 3, false);
    bench_expect(0xb, 1, 100 - 8); /* 6 of three are 8 of four */
    bench_refuse_push(2, 1, true, "no longer in the job");
    assert_fails(shard_pull(&shard, 1, 2, 0, true, &answer, &err), STATUS_PROTOCOL,
                 "no longer in the job");
    (void)bench_push(0, 2, 3, false);
    (void)bench_push(1, 2, 3, false);
    answer = bench_vacate(3);
    ck_assert(answer.complete && answer.contributions == 2);
    bench_expect(3, 2, 92 - 12);
    ck_assert(!bench_vacate(3).complete);
    bench_close();
}
END_TEST

/* A contribution of one who left stays, and its sum is not scaled. */
START_TEST(test_what_is_in_stays)
{
    bench_start(bench_config(3, bsp));
    (void)bench_push(0, 1, 1, false);
    (void)bench_push(1, 1, 2, false);
    ck_assert(!bench_vacate(1).complete);
    (void)bench_push(2, 1, 4, false);
    bench_expect(1 | 1 << 2, 1, 93);
    bench_close();
}
END_TEST

START_TEST(test_a_newcomer_takes_a_vacant_slot)
{
    struct shard_reply answer;

    bench_start(bench_config(2, bsp));
    (void)bench_vacate(1);
    (void)bench_push(0, 1, 1, false);
    bench_expect(1, 1, 98);
    assert_ok(shard_occupy(&shard, 1, 1, &err));
    (void)bench_push(0, 2, 1, false);
    bench_expect(0, 0, 0);
    bench_refuse_push(1, 2, false, "initial values");
    answer = bench_pull(1, 0);
    bench_check(&answer, 1, 98);
    (void)bench_push(1, 2, 3, false);
    bench_expect(3, 2, 94);
    /* The slot's contribution stays; the next newcomer's is not summed on top of it. */
    (void)bench_push(1, 3, 5, false);
    (void)bench_vacate(1);
    assert_ok(shard_occupy(&shard, 1, 1, &err));
    answer = bench_pull(1, 0);
    bench_check(&answer, 2, 94);
    ck_assert(shard_is_in(&shard, 1, 1, 3));
    ck_assert(!bench_push(0, 3, 1, false).complete); /* the newcomer may not have read yet */
    answer = bench_push(1, 3, 7, true);
    ck_assert(answer.again && !answer.data && answer.complete);
    bench_expect(3, 3, 88);
    bench_close();
}
END_TEST

START_TEST(test_a_newcomer_where_each_push_is_a_step)
{
    struct shard_reply answer;

    bench_start(bench_config(3, ssp_1));
    (void)bench_vacate(2);
    for (uint64_t round = 1; round < 4; round++) {
        (void)bench_push(0, round, 1, false);
        (void)bench_push(1, round, 1, false);
        bench_expect(3, round, (float)(100 - 2 * (int)round));
    }
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    answer = bench_pull(2, 0);
    bench_check(&answer, 3, 94); /* goes on behind the slowest's round */
    answer = bench_push(2, 3, 1, true);
    bench_check(&answer, 3, 94);
    (void)bench_push(2, 4, 1, false);
    bench_expect(1 << 2, 4, 93);
    bench_close();
}
END_TEST

START_TEST(test_late_values_for_a_newcomer)
{
    struct shard_reply answer;

    bench_start(bench_config(3, backup_1));
    (void)bench_vacate(0);
    for (uint64_t round = 1; round < 3; round++) {
        (void)bench_push(1, round, 1, false);
        (void)bench_push(2, round, 1, false);
        bench_expect(6, round, (float)(100 - 2 * (int)round));
    }
    assert_ok(shard_occupy(&shard, 1, 0, &err));
    answer = bench_pull(0, 0);
    bench_check(&answer, 2, 96);
    (void)bench_push(1, 3, 1, false);
    (void)bench_push(2, 3, 1, false);
    bench_expect(6, 3, 94);
    answer = bench_push(0, 3, 1, true);
    ck_assert(answer.late && !answer.again);
    bench_check(&answer, 3, 94);
    bench_close();
}
END_TEST

/* The lost rank's round: it had contributed to partition 1, which is complete, not to partition 0.
 */
START_TEST(test_a_replacement_repeats_the_lost_round)
{
    struct shard_config config = bench_config(2, bsp);
    struct shard_reply answer;

    config.previous = true;
    bench_start(config);
    (void)bench_push(0, 1, 1, false);
    (void)bench_push(1, 1, 2, false);
    bench_expect(3, 1, 97);
    assert_ok(shard_replace(&shard, 0, 1, &err));
    assert_ok(shard_replace(&shard, 1, 1, &err));
    answer = bench_pull(1, 0);
    bench_check(&answer, 1, 97);
    answer = bench_pull(1, 1);
    bench_check(&answer, 0, 100);
    answer = bench_pull(1, 2);
    bench_check(&answer, 1, 97);
    assert_fails(shard_pull(&shard, 1, 1, 3, true, &answer, &err), STATUS_PROTOCOL,
                 "asks for round 2, which is not here (round 1 is complete)");
    answer = bench_push(1, 1, 2, true);
    bench_check(&answer, 1, 97);
    (void)bench_push(1, 2, 1, false);
    (void)bench_push(0, 2, 1, false);
    bench_expect(3, 2, 95);
    bench_close();
}
END_TEST

/* Early contributions wait for a lower rank that never comes; a newcomer in a slot that was passed
 * over. */
START_TEST(test_rank_order_passes_over_vacant_slots)
{
    struct shard_config config = bench_config(5, bsp);

    config.rank_order = true;
    bench_start(config);
    (void)bench_push(4, 1, 16, false);
    (void)bench_push(3, 1, 8, false);
    (void)bench_vacate(0);
    (void)bench_vacate(1);
    ck_assert_uint_eq(shard.parts[1].summed, 0);
    ck_assert(bench_vacate(2).complete);
    bench_expect(0x18, 1, 100 - 24 * 2.5f);
    (void)bench_push(3, 2, 1, false);
    ck_assert_uint_eq(shard.parts[1].summed, 1); /* nobody below it will come */
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    (void)bench_pull(2, 0);
    (void)bench_push(4, 2, 1, false);
    ck_assert(bench_push(2, 2, 1, false).complete);
    bench_expect(0x1c, 2, 40 - 5);
    bench_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard_elastic");
    TCase *tests = tcase_create("shard_elastic");

    tcase_add_test(tests, test_a_push_that_comes_again_is_not_summed_again);
    tcase_add_test(tests, test_every_step_is_made_once);
    tcase_add_test(tests, test_a_broken_connection_is_not_answered_by_itself);
    tcase_add_test(tests, test_sums_are_answered_again);
    tcase_add_test(tests, test_nobody_is_told_of_a_round_that_is_not_counted);
    tcase_add_test(tests, test_initial_values_come_again);
    tcase_add_test(tests, test_the_end_comes_again);
    tcase_add_test(tests, test_rounds_go_on_without_a_rank);
    tcase_add_test(tests, test_what_is_in_stays);
    tcase_add_test(tests, test_a_newcomer_takes_a_vacant_slot);
    tcase_add_test(tests, test_a_newcomer_where_each_push_is_a_step);
    tcase_add_test(tests, test_late_values_for_a_newcomer);
    tcase_add_test(tests, test_a_replacement_repeats_the_lost_round);
    tcase_add_test(tests, test_rank_order_passes_over_vacant_slots);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
