/*
 * Ranks that live and do something else than the others: nothing, another operation, one less, the
 * end of the group, another generation.  All others name that rank and what it does, within the
 * operation's time-out.
 */
#include "tests/common/collective/chaos/chaos_world.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define RANKS      3u
#define VICTIM     1u
#define TIMEOUT_MS 5000 /* of opening the group, too */
#define LONG_MS    60000
#define LATE_MS    3000  /* more than any patience of the verdicts */
#define EVENT_MS   50000 /* for what must come before LONG_MS is over */

/* The time-out is not reached: the error is found long before. */
static struct chaos_config make_config(const char *backend, enum chaos_role role, size_t count)
{
    return (struct chaos_config){.backend = backend,
                                 .size = RANKS,
                                 .count = count,
                                 .timeout_ms = LONG_MS,
                                 .heartbeat_timeout_ms = 10000, /* all live */
                                 .victim = VICTIM,
                                 .second_victim = RANKS,
                                 .role = role,
                                 .at = 4};
}

static void check(const struct chaos_world *w, unsigned rank, const struct chaos_report *r,
                  enum fault fault, const char *part)
{
    ck_assert_msg(r->fault == fault && r->culprit == (int)VICTIM,
                  "%s: rank %u says %s of rank %d, not %s of rank %u: %s", w->config.backend, rank,
                  fault_name(r->fault), r->culprit, fault_name(fault), VICTIM, r->text);
    ck_assert_msg(strstr(r->text, part) != NULL, "%s: rank %u: no '%s' in: %s", w->config.backend,
                  rank, part, r->text);
    (void)printf("%-5s rank %u: %s\n", w->config.backend, rank, r->text);
}

static const size_t counts[] = {17, 1 << 18};

/* It runs, its heartbeats live, and it never comes. */
static void never_come(const char *backend, const void *argument)
{
    const size_t *count = argument;
    struct chaos_config config = make_config(backend, CHAOS_HOLD, *count);
    struct chaos_world w;

    config.timeout_ms = TIMEOUT_MS;
    chaos_start(&w, &config);
    chaos_await_hold(&w, VICTIM);
    for (unsigned r = 0; r < RANKS; r++) {
        struct chaos_report report;

        if (r == VICTIM)
            continue;
        report = chaos_report_of(&w, r, TIMEOUT_MS + 60000);
        check(&w, r, &report, FAULT_STALLED, "has begun nothing since it ended all_reduce #3");
    }
    chaos_end(&w);
}

START_TEST(a_rank_that_never_comes_is_stalled)
{
    chaos_each_backend(RANKS, CHAOS_AT_ONCE, never_come, &counts[_i]);
}
END_TEST

static const struct mismatch {
    enum chaos_role role;
    const char *theirs, *ours;
} mismatches[] = {
    {CHAOS_OTHER_COUNT, "1001 float32", "1000 float32"},
    {CHAOS_OTHER_TYPE, "500 float64", "1000 float32"},
    {CHAOS_OTHER_OP, "(max)", "(sum)"},
    {CHAOS_OTHER_CALL, "broadcast #4", "all_reduce #4"},
    {CHAOS_SKIP, "barrier #4", "all_reduce #4"},
};

/* Every rank sees the two sides that met; all survivors blame the odd one. */
static void differ(const char *backend, const void *argument)
{
    const struct mismatch *m = argument;
    struct chaos_config config = make_config(backend, m->role, 1000);
    struct chaos_world w;

    chaos_start(&w, &config);
    for (unsigned r = 0; r < RANKS; r++) {
        struct chaos_report report = chaos_report_of(&w, r, EVENT_MS);

        check(&w, r, &report, FAULT_DESYNC, m->theirs);
        check(&w, r, &report, FAULT_DESYNC, m->ours);
        ck_assert_msg(report.status == STATUS_MISMATCH, "%s", report.text);
    }
    chaos_end(&w);
}

START_TEST(a_mismatch_names_both_sides)
{
    chaos_each_backend(RANKS, CHAOS_AT_ONCE, differ, &mismatches[_i]);
}
END_TEST

/* Of a few members that do not agree, the others show who is the odd one, however late they come.
 * One below the odd one, and one above; two roles, which end in different ways inside a library. */
static const struct late_case {
    enum chaos_role role;
    unsigned late;
    const char *theirs;
} late_cases[] = {
    {CHAOS_OTHER_COUNT, 0, "1001 float32"},
    {CHAOS_OTHER_CALL, 0, "broadcast #4"},
    {CHAOS_OTHER_CALL, 2, "broadcast #4"},
};

static void differ_late(const char *backend, const void *argument)
{
    const struct late_case *c = argument;
    struct chaos_config config = make_config(backend, c->role, 1000);
    struct chaos_world w;

    config.late_rank = c->late;
    config.late_ms = LATE_MS;
    chaos_start(&w, &config);
    for (unsigned r = 0; r < RANKS; r++) {
        struct chaos_report report = chaos_report_of(&w, r, EVENT_MS);

        check(&w, r, &report, FAULT_DESYNC, c->theirs);
        check(&w, r, &report, FAULT_DESYNC, "all_reduce #4");
    }
    chaos_end(&w);
}

START_TEST(a_mismatch_waits_for_who_is_late)
{
    chaos_each_backend(RANKS, CHAOS_AT_ONCE, differ_late, &late_cases[_i]);
}
END_TEST

static void leave(const char *backend, const void *argument)
{
    const size_t *count = argument;
    struct chaos_config config = make_config(backend, CHAOS_LEAVE, *count);
    struct chaos_world w;

    chaos_start(&w, &config);
    for (unsigned r = 0; r < RANKS; r++) {
        struct chaos_report report = chaos_report_of(&w, r, EVENT_MS);

        if (r == VICTIM)
            ck_assert_msg(report.status == STATUS_OK, "%s: %s", backend, report.text);
        else
            check(&w, r, &report, FAULT_FINISHED, "rank 1");
    }
    chaos_end(&w);
}

START_TEST(a_rank_that_leaves_has_finished_early)
{
    chaos_each_backend(RANKS, CHAOS_AT_ONCE, leave, &counts[_i]);
}
END_TEST

static void meet(const char *backend, const void *unused)
{
    struct chaos_config config = make_config(backend, CHAOS_OTHER_GENERATION, 17);
    struct chaos_world w;

    (void)unused;
    config.timeout_ms = TIMEOUT_MS;
    chaos_start(&w, &config);
    for (unsigned r = 0; r < RANKS; r++) {
        struct chaos_report report = chaos_report_of(&w, r, TIMEOUT_MS + 60000);

        ck_assert_msg(report.status != STATUS_OK, "%s: generations met", backend);
        ck_assert_msg(strstr(report.text, "second") && strstr(report.text, "rank"), "%s: %s",
                      backend, report.text);
    }
    chaos_end(&w);
}

START_TEST(another_generation_does_not_meet)
{
    chaos_each_backend(RANKS, CHAOS_AT_ONCE, meet, NULL);
}
END_TEST

/* Two jobs with the same names on one host: what befalls one leaves the other alone. */
static void share(const char *backend, const void *unused)
{
    struct chaos_config config = make_config(backend, CHAOS_WORK, 1 << 16);
    struct chaos_world doomed;
    struct chaos_world other;
    struct chaos_report report;

    (void)unused;
    chaos_start(&doomed, &config);
    config.close_after = 200;
    chaos_start(&other, &config);
    chaos_await(&doomed, VICTIM, 3);
    chaos_await(&other, VICTIM, 3);
    (void)chaos_signal(&doomed, VICTIM, SIGKILL);
    report = chaos_report_of(&doomed, 0, 60000);
    check(&doomed, 0, &report, FAULT_DEAD, "rank 1");
    for (unsigned r = 0; r < RANKS; r++) {
        report = chaos_report_of(&other, r, 60000);
        ck_assert_msg(report.status == STATUS_OK, "%s: %s", backend, report.text);
    }
    chaos_end(&doomed);
    chaos_end(&other);
}

START_TEST(two_jobs_share_a_host)
{
    chaos_each_backend(RANKS, CHAOS_AT_ONCE, share, NULL);
}
END_TEST

/* Its heartbeats live, it has begun the operation, and its working thread hardly runs: the rank is
 * named, not the neighbour that waits for it, and as slow, not as stopped. */
static void slow_down(const char *backend, const void *unused)
{
    struct chaos_config config = make_config(backend, CHAOS_SLOW, (size_t)16 << 20);
    struct chaos_world w;

    (void)unused;
    if (strcmp(backend, "mpi") == 0 || strcmp(backend, "nccl") == 0) {
        (void)printf("skipped: nothing shows how long a rank waits inside %s\n", backend);
        return;
    }
    if (strcmp(backend, "gloo") == 0) /* its own threads move the bytes, and go on to do so */
        config.count *= 2;
    config.timeout_ms = TIMEOUT_MS; /* time is the fault */
    config.at = 1;
    chaos_start(&w, &config);
    for (unsigned r = 0; r < RANKS; r++) {
        struct chaos_report report = chaos_report_of(&w, r, 60000);

        check(&w, r, &report, FAULT_SLOW, "rank 1 is slow: it is in the operation");
    }
    chaos_end(&w);
}

START_TEST(a_slow_rank_is_named_itself)
{
    chaos_each_backend(RANKS, 1, slow_down, NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "chaos_order", 240, LOOP_TEST(a_rank_that_never_comes_is_stalled, 0, 2),
        LOOP_TEST(a_mismatch_names_both_sides, 0, sizeof(mismatches) / sizeof(mismatches[0])),
        LOOP_TEST(a_mismatch_waits_for_who_is_late, 0, sizeof(late_cases) / sizeof(late_cases[0])),
        LOOP_TEST(a_rank_that_leaves_has_finished_early, 0, 2),
        TEST(another_generation_does_not_meet), TEST(two_jobs_share_a_host), TEST_CASE("slow", 240),
        TEST(a_slow_rank_is_named_itself));
}
