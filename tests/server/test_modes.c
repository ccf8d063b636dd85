/*
 * The consistency modes over real gRPC, with workers played by hand on one partition of equal
 * elements: who is answered when and with what, what is dropped, who is waited for, how a rank
 * ends, and every job that is refused.  SGD with a learning rate that makes each step a round
 * number, so values say exactly which contributions they hold.
 */
#include "server/service.h"
#include "tests/server/raw_job.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS 64u
#define INITIAL  10.0f

enum { RUN_OUT_MS = 5000 }; /* of time-outs that are to run out: they bound the join before, too */

static struct error err;

static const struct consistency backup_1 = {.mode = CONSISTENCY_BSP, .backup = 1};
static const struct consistency ssp_0 = {.mode = CONSISTENCY_SSP};
static const struct consistency ssp_1 = {.mode = CONSISTENCY_SSP, .staleness = 1};
static const struct consistency asp = {.mode = CONSISTENCY_ASP};

static struct join_request terms_of(const struct consistency *c, unsigned rank, unsigned world_size)
{
    struct join_request terms = raw_terms(rank);

    terms.world_size = world_size;
    terms.element_count = ELEMENTS;
    terms.update = 0;
    terms.order = 0;
    terms.consistency = *c;
    terms.optimizer.learning_rate = consistency_steps_each(c) ? world_size : 1;
    return terms;
}

static void send_chunk(unsigned rank, enum chunk_kind kind, uint64_t round, float value)
{
    bool carries = kind == CHUNK_PUSH || kind == CHUNK_INIT;
    struct chunk_header header = {.kind = kind,
                                  .rank = rank,
                                  .round = round,
                                  .length = carries ? ELEMENTS * sizeof(float) : 0};

    raw_send(&workers[rank], &header, header.length, value);
}

static void push(unsigned rank, uint64_t round, float value)
{
    send_chunk(rank, CHUNK_PUSH, round, value);
}

static void expect(unsigned rank, uint64_t round, float value)
{
    float first;
    struct chunk_header h = raw_take(&workers[rank], &first);

    ck_assert_int_eq(h.kind, CHUNK_VALUES);
    ck_assert_uint_eq(h.rank, rank);
    ck_assert_msg(h.round == round && first == value,
                  "rank %u: got round %d, value %g; wanted round %d, value %g", rank, (int)h.round,
                  (double)first, (int)round, (double)value);
}

/* Of the next job. */
static struct exact_staleness rules[4];
static size_t rule_count;

static void join_all(const struct consistency *c, unsigned world_size)
{
    for (unsigned i = 0; i < world_size; i++) {
        struct join_request terms = terms_of(c, i, world_size);

        terms.rules = rules;
        terms.rule_count = rule_count;
        raw_begin_join(&workers[i], &terms);
    }
    for (unsigned i = 0; i < world_size; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
}

/* A job in that mode whose ranks have read the initial values. */
static void start_mode(const struct consistency *c, unsigned world_size)
{
    join_all(c, world_size);
    for (unsigned i = 0; i < world_size; i++) {
        raw_start_stream(&workers[i]);
        if (i == 0)
            send_chunk(0, CHUNK_INIT, 0, INITIAL);
        send_chunk(i, CHUNK_PULL, 0, 0);
    }
    for (unsigned i = 0; i < world_size; i++)
        expect(i, 0, INITIAL);
}

static void leave(unsigned rank)
{
    check_result("leave", raw_leave(&workers[rank], "raw", ""), STATUS_OK, "");
    rpc_call_send_done(workers[rank].stream.call);
}

/* Until the server has taken that many contributions in. */
static void wait_pushes(uint64_t pushes)
{
    uint64_t seen = 0;

    while (seen < pushes) {
        struct server_stats *stats = NULL;

        assert_ok(service_stats(service, &stats, &err));
        seen = stats->counters.pushes;
        free(stats);
        (void)sched_yield();
    }
}

/* The last line of the job's records. */
static json_t *end_record(void)
{
    FILE *file = fopen(support_path("server0.jsonl"), "r");
    char line[8192];
    json_t *last = NULL;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file)) {
        json_decref(last);
        last = json_loads(line, 0, NULL);
        ck_assert_ptr_nonnull(last);
    }
    (void)fclose(file);
    return last;
}

static json_int_t number(const json_t *record, const char *key)
{
    const json_t *value = json_object_get(record, key);

    ck_assert_msg(json_is_integer(value), "no number '%s'", key);
    return json_integer_value(value);
}

/* How many pushes had a staleness of bucket i: 0, 1, 2, 3-4, ... */
static json_int_t bucket(const json_t *record, size_t i)
{
    const json_t *pushes = json_object_get(record, "staleness_pushes");
    const json_t *bounds = json_object_get(record, "staleness_bounds");

    ck_assert_uint_eq(json_array_size(pushes), json_array_size(bounds) + 1);
    return json_integer_value(json_array_get(pushes, i));
}

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
    push(2, 1, 100); /* late: not in the values, answered at once */
    expect(2, 1, 7);
    push(2, 2, 1);
    push(1, 2, 1);
    expect(2, 2, 5);
    expect(1, 2, 5);
    push(2, 3, 1);
    push(1, 3, 1);
    expect(2, 3, 3);
    expect(1, 3, 3);
    push(0, 2, 100); /* two rounds late: goes on behind the newest */
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

/* When too few are left for n - b, all that are left are enough; and a round that waited for the
 * one who leaves becomes whole by it. */
START_TEST(test_backup_goes_on_when_ranks_leave)
{
    open_service(20000, NULL);
    start_mode(&backup_1, 3);
    push(0, 1, 1);
    wait_pushes(1);
    leave(1);
    leave(2);
    expect(0, 1, 9);
    push(0, 2, 1);
    expect(0, 2, 8);
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
    expect(0, 1, 9); /* one ahead is allowed: read at clock 1 needs clock 0 of the other */
    push(0, 2, 1);   /* 8, but not to be read yet */
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

START_TEST(test_ssp_does_not_wait_for_who_has_left)
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

START_TEST(test_a_push_before_the_answer_is_refused)
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

START_TEST(test_asp_waits_for_nobody)
{
    json_t *end;

    open_service(20000, support_folder());
    start_mode(&asp, 2);
    for (uint64_t round = 1; round <= 4; round++) {
        push(0, round, 1);
        expect(0, round, 10 - (float)round);
    }
    push(1, 1, 1); /* four steps stale, used all the same */
    expect(1, 1, 5);
    send_chunk(0, CHUNK_FINAL, 5, 0);
    for (uint64_t round = 2; round <= 4; round++) {
        push(1, round, 1);
        expect(1, round, 6 - (float)round);
    }
    send_chunk(1, CHUNK_FINAL, 5, 0);
    expect(0, 4, 2); /* the pushes that came behind its wish are in */
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
        push(0, round, 1); /* staleness 0: the rate as it is */
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
    push(1, 2, 2); /* reads as it is now: nothing to compensate */
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
    raw_send_right(&workers[0], CHUNK_FINAL, 0, 1, 0);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "all ranks are in step here");
    check_still_serves();
    close_service();
}
END_TEST

/* Those who wait for the final values are told who keeps them waiting. */
START_TEST(test_the_end_names_a_silent_rank)
{
    open_service(RUN_OUT_MS, NULL);
    start_mode(&asp, 2);
    send_chunk(0, CHUNK_FINAL, 1, 0);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_TIMEOUT, "for rank 1");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ exact staleness */

/* Rank 1's pushes are applied behind exactly two of rank 0's, whenever they come: an answer to it
 * holds exactly those. */
START_TEST(test_exact_staleness)
{
    json_t *end;

    rules[0] = (struct exact_staleness){.rank = 1, .steps = 2, .first = 1, .last = 2};
    rule_count = 1;
    open_service(20000, support_folder());
    start_mode(&asp, 2);
    push(1, 1, 1); /* too early */
    wait_pushes(1);
    push(0, 1, 1);
    expect(0, 1, 9);
    push(0, 2, 1);
    expect(1, 1, 7);
    expect(0, 2, 8);
    for (uint64_t round = 3; round <= 4; round++) {
        push(0, round, 1);
        expect(0, round, 9 - (float)round);
    }
    push(0, 5, 1); /* its place is kept for rank 1 */
    wait_pushes(6);
    push(1, 2, 1); /* too late */
    expect(1, 2, 4);
    expect(0, 5, 3);
    push(1, 3, 1); /* no rule any more */
    expect(1, 3, 2);
    leave(0);
    leave(1);
    close_service();
    end = end_record();
    ck_assert_int_eq(number(end, "missed_rules"), 0);
    json_decref(end);
}
END_TEST

/* Both want to come behind the other: the one with the nearer place goes first, and is counted. */
START_TEST(test_rules_that_cannot_be_kept)
{
    json_t *end;

    rules[0] = (struct exact_staleness){.rank = 0, .steps = 3, .first = 1, .last = 1};
    rules[1] = (struct exact_staleness){.rank = 1, .steps = 1, .first = 1, .last = 1};
    rule_count = 2;
    open_service(20000, support_folder());
    start_mode(&asp, 2);
    push(0, 1, 1);
    push(1, 1, 2);
    expect(1, 1, 8); /* behind nobody, not one */
    leave(1);
    expect(0, 1, 7); /* nobody else is left */
    leave(0);
    close_service();
    end = end_record();
    ck_assert_int_eq(number(end, "missed_rules"), 2);
    json_decref(end);
}
END_TEST

START_TEST(test_rules_need_steps_of_their_own)
{
    struct join_request terms = terms_of(_i ? &ssp_0 : &backup_1, 0, 2);

    rules[0] = (struct exact_staleness){.rank = 0, .steps = 3, .first = 1, .last = 1};
    terms.rules = rules;
    terms.rule_count = 1;
    open_service(20000, NULL);
    raw_begin_join(&workers[0], &terms);
    check_result("join", raw_end_join(&workers[0]), STATUS_INVALID,
                 "rules of staleness need asp, or ssp with a bound above 0");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_ranks_must_agree_on_the_rules)
{
    struct join_request terms;

    rules[0] = (struct exact_staleness){.rank = 0, .steps = 3, .first = 1, .last = 9};
    open_service(20000, NULL);
    terms = terms_of(&asp, 0, 2);
    raw_begin_join(&workers[0], &terms);
    terms = terms_of(&asp, 1, 2);
    terms.rules = rules;
    terms.rule_count = 1;
    raw_begin_join(&workers[1], &terms);
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_MISMATCH, "rank 0 rounds 1-9: 3");
    check_still_serves();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ what is refused */

static const struct {
    struct consistency consistency;
    unsigned update, order;
    const char *text;
} bad_terms[] = {
    {{.mode = CONSISTENCY_BSP, .staleness = 1}, 0, 0, "a staleness bound of 1 needs ssp, not bsp"},
    {{.mode = CONSISTENCY_ASP, .staleness = 3}, 0, 0, "a staleness bound of 3 needs ssp, not asp"},
    {{.mode = CONSISTENCY_SSP, .staleness = UINT32_MAX}, 0, 0, "(at most 1000000)"},
    {{.mode = CONSISTENCY_SSP, .backup = 1}, 0, 0, "1 backup workers need bsp, not ssp"},
    {{.mode = CONSISTENCY_BSP, .backup = 2}, 0, 0, "2 backup workers among 2 ranks leave nobody"},
    {{.mode = CONSISTENCY_BSP, .backup = UINT32_MAX}, 0, 0, "leave nobody to wait for"},
    {{.mode = CONSISTENCY_BSP, .lr_by_staleness = true}, 0, 0, "needs asp, not bsp"},
    {{.mode = CONSISTENCY_SSP, .delay_compensation = 1}, 0, 0, "needs asp, not ssp"},
    {{.mode = CONSISTENCY_ASP, .delay_compensation = -1}, 0, 0, "a delay compensation of -1"},
    {{.mode = CONSISTENCY_ASP, .delay_compensation = (double)NAN}, 0, 0, "compensation of nan"},
    {{.mode = CONSISTENCY_ASP}, 1, 0, "asp needs the optimizer on the server"},
    {{.mode = CONSISTENCY_SSP}, 1, 0, "ssp needs the optimizer on the server"},
    {{.mode = CONSISTENCY_BSP, .backup = 1}, 1, 0, "bsp with backup workers needs the optimizer"},
    {{.mode = CONSISTENCY_ASP}, 0, 1, "asp takes what comes first"},
    {{.mode = CONSISTENCY_SSP, .staleness = 1}, 0, 1, "ssp with a staleness bound takes what"},
    {{.mode = CONSISTENCY_BSP, .backup = 1}, 0, 1, "bsp with backup workers takes what comes"},
    {{.mode = (enum consistency_mode)3}, 0, 0, "unknown consistency 3"},
};

START_TEST(test_bad_terms_are_refused)
{
    struct join_request terms = terms_of(&bad_terms[_i].consistency, 0, 2);
    struct rpc_result result;

    open_service(20000, NULL);
    terms.update = bad_terms[_i].update;
    terms.order = bad_terms[_i].order;
    raw_begin_join(&workers[0], &terms);
    result = raw_end_join(&workers[0]);
    ck_assert_msg(result.status == STATUS_INVALID || result.status == STATUS_DATA, "%s",
                  status_name(result.status));
    check_result("join", result, result.status, bad_terms[_i].text);
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_ranks_must_agree_on_the_mode)
{
    struct join_request terms;

    open_service(20000, NULL);
    terms = terms_of(&ssp_1, 0, 2);
    raw_begin_join(&workers[0], &terms);
    terms = terms_of(&asp, 1, 2);
    raw_begin_join(&workers[1], &terms);
    check_result("rank 0", raw_end_join(&workers[0]), STATUS_MISMATCH, "consistency");
    check_result("rank 1", raw_end_join(&workers[1]), STATUS_MISMATCH, "ssp, staleness bound 1");
    check_still_serves();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ what operators see */

static struct server_stats *look(uint64_t pushes)
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
    stats = look(6);
    ck_assert_str_eq(stats->job.mode, "bsp");
    ck_assert_uint_eq(stats->job.backup_workers, 1);
    ck_assert(stats->workers[0].lag_rounds == 3.0);
    ck_assert(stats->workers[1].lag_rounds == 0.0);
    free(stats);
    push(0, 1, 1); /* late */
    expect(0, 3, 4);
    stats = look(7);
    ck_assert(stats->workers[0].lag_rounds == 2.0);
    ck_assert_uint_eq(stats->workers[0].late_pushes, 1);
    ck_assert_uint_eq(stats->counters.late_pushes, 1);
    ck_assert_uint_eq(stats->counters.staleness.counts[0], 6);
    free(stats);
    push(0, 4, 1); /* it skips to the round under way */
    stats = look(8);
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
    stats = look(4);
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
    Suite *suite = suite_create("modes");
    TCase *tests = tcase_create("modes");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_backup_drops_what_comes_late);
    tcase_add_test(tests, test_backup_goes_on_when_ranks_leave);
    tcase_add_test(tests, test_backup_needs_every_round);
    tcase_add_test(tests, test_ssp_0_is_bsp);
    tcase_add_test(tests, test_ssp_waits_for_the_slowest);
    tcase_add_test(tests, test_ssp_does_not_wait_for_who_has_left);
    tcase_add_test(tests, test_ssp_names_a_silent_rank);
    tcase_add_test(tests, test_a_push_before_the_answer_is_refused);
    tcase_add_test(tests, test_asp_waits_for_nobody);
    tcase_add_test(tests, test_asp_divides_the_rate_by_staleness);
    tcase_add_test(tests, test_asp_compensates_delay);
    tcase_add_test(tests, test_no_push_behind_the_last);
    tcase_add_test(tests, test_no_final_values_in_lockstep);
    tcase_add_test(tests, test_the_end_names_a_silent_rank);
    tcase_add_test(tests, test_exact_staleness);
    tcase_add_test(tests, test_rules_that_cannot_be_kept);
    tcase_add_loop_test(tests, test_rules_need_steps_of_their_own, 0, 2);
    tcase_add_test(tests, test_ranks_must_agree_on_the_rules);
    tcase_add_loop_test(tests, test_bad_terms_are_refused, 0,
                        (int)(sizeof(bad_terms) / sizeof(bad_terms[0])));
    tcase_add_test(tests, test_ranks_must_agree_on_the_mode);
    tcase_add_test(tests, test_lag_of_a_rank_that_skips_rounds);
    tcase_add_test(tests, test_staleness_of_a_slow_rank);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
