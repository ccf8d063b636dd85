/*
 * Terms of a job besides its mode, over real gRPC: exact staleness, and every combination that is
 * refused.
 */
#include "tests/server/service/mode_job.h"
#include "tests/support/support.h"

/* ------------------------------------------------------------------ exact staleness */

/* Rank 1's pushes are applied after exactly two pushes of rank 0, whenever they come: a reply to it
 * contains exactly those. */
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
    push(0, 5, 1); /* held: rank 1 is next in order */
    wait_pushes(6);
    push(1, 2, 1); /* too late */
    expect(1, 2, 4);
    expect(0, 5, 3);
    push(1, 3, 1); /* no rule applies any more */
    expect(1, 3, 2);
    leave(0);
    leave(1);
    close_service();
    end = end_record();
    ck_assert_int_eq(number(end, "missed_rules"), 0);
    json_decref(end);
}
END_TEST

/* Each rule requires the other push first: the one with the smaller bound is applied first, and the
 * miss is counted. */
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
    expect(1, 1, 8); /* after no push, instead of one */
    leave(1);
    expect(0, 1, 7); /* no other rank is left */
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

/* A replacement of a rank could not be distinguished from the rank whose contribution is held. */
START_TEST(test_rules_need_ranks_that_stay)
{
    struct join_request terms = terms_of(&asp, 0, 2);

    rules[0] = (struct exact_staleness){.rank = 0, .steps = 3, .first = 1, .last = 1};
    terms.rules = rules;
    terms.rule_count = 1;
    terms.on_loss = _i ? WORKER_LOSS_WAIT : WORKER_LOSS_SHRINK;
    open_service(20000, NULL);
    raw_begin_join(&workers[0], &terms);
    check_result("join", raw_end_join(&workers[0]), STATUS_INVALID,
                 "no session can replace a lost rank");
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

int main(void)
{
    return SUPPORT_RUN(
        "modes_terms", 60, TEST(test_exact_staleness), TEST(test_rules_that_cannot_be_kept),
        LOOP_TEST(test_rules_need_steps_of_their_own, 0, 2),
        LOOP_TEST(test_rules_need_ranks_that_stay, 0, 2), TEST(test_ranks_must_agree_on_the_rules),
        LOOP_TEST(test_bad_terms_are_refused, 0, sizeof(bad_terms) / sizeof(bad_terms[0])),
        TEST(test_ranks_must_agree_on_the_mode));
}
