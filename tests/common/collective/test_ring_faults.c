/*
 * Ranks that die or stop in the middle: processes all-reduce over and over, one of them gets
 * SIGKILL or SIGSTOP, and every survivor must name that one (not its neighbour that gave up) in
 * time.  With "grpc" as an argument the store is the one that rank 0 hosts, and dies with it.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define SMALL ((size_t)17)
#define LARGE ((size_t)1 << 20)

static const struct fault_case {
    unsigned size;
    unsigned victim;
    size_t count;
} fault_cases[] = {
    {2, 0, SMALL}, {2, 1, SMALL}, {2, 1, LARGE}, {3, 0, SMALL}, {3, 1, LARGE}, {3, 2, SMALL},
    {4, 0, LARGE}, {4, 1, SMALL}, {4, 2, SMALL}, {4, 2, LARGE}, {4, 3, LARGE},
};

#define FAULT_CASES ((int)(sizeof(fault_cases) / sizeof(fault_cases[0])))

/* The text blames `victim` and nobody else. */
static void check_blame(const struct world_report *report, unsigned rank,
                        const struct fault_case *c)
{
    static const char *const forms[][2] = {
        {"rank ", " was lost"}, {"rank ", " is lost"}, {"rank ", " failed"}, {"for rank ", " ("}};
    bool named = false;

    for (unsigned r = 0; r < c->size; r++) {
        for (size_t k = 0; k < 4; k++) {
            char part[32];

            (void)snprintf(part, sizeof(part), "%s%u%s", forms[k][0], r, forms[k][1]);
            if (!strstr(report->text, part))
                continue;
            ck_assert_msg(r == c->victim, "rank %u of %u blames rank %u, not %u: %s", rank, c->size,
                          r, c->victim, report->text);
            named = true;
        }
    }
    ck_assert_msg(named, "rank %u of %u blames nobody: %s", rank, c->size, report->text);
}

/* Send `number` to the victim once all ranks work; check what the others report. */
static void run_fault(const struct fault_case *c, int number, int64_t timeout_ms, int64_t within_ms)
{
    struct world_process processes[WORLD_RANKS_MAX];
    int64_t struck_ns;

    world_start(c->size, c->count, timeout_ms, processes);
    for (unsigned r = 0; r < c->size; r++)
        world_await(&processes[r], 3);
    struck_ns = clock_now_ns();
    ck_assert_int_eq(kill(processes[c->victim].pid, number), 0);
    for (unsigned r = 0; r < c->size; r++) {
        struct world_report report;

        if (r == c->victim)
            continue;
        report = world_report_of(&processes[r], within_ms + 10000);
        ck_assert_msg(report.status == STATUS_PEER_LOST || report.status == STATUS_TIMEOUT, "%s",
                      report.text);
        ck_assert_int_le((report.ended_ns - struck_ns) / 1000000, within_ms);
        check_blame(&report, r, c);
    }
    world_end(processes, c->size);
}

/* Seen through the connections, long before the time-out. */
START_TEST(a_killed_rank_is_named_by_all)
{
    run_fault(&fault_cases[_i], SIGKILL, 60000, 5000);
}
END_TEST

/* A stopped process keeps its connections: only the time-out finds it.  Should it be the host of
 * the store, the notice to the others comes to nothing, which takes the store's own two seconds. */
START_TEST(a_stopped_rank_is_named_by_all)
{
    run_fault(&fault_cases[_i], SIGSTOP, 1200, 1200 + 3000);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("ring_faults");
    TCase *cases = tcase_create("faults");

    if (argc > 1 && strcmp(argv[1], "grpc") == 0)
        tcase_add_checked_fixture(cases, world_use_grpc, NULL);
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, a_killed_rank_is_named_by_all, 0, FAULT_CASES);
    tcase_add_loop_test(cases, a_stopped_rank_is_named_by_all, 0, FAULT_CASES);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
