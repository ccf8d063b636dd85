/*
 * --fault-schedule: faults come when they should, last as long, and are recorded.  Ranks write the
 * time of day into files, which is compared with faults.json.
 */
#include "common/base/file.h"
#include "tests/experiments/launch/launch_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct error err;

static const char *schedule(const char *text)
{
    return support_write("faults", text, strlen(text));
}

/* The number behind `name` in the fault number `index` of faults.json; 0: it has none. */
static double recorded(size_t index, const char *name)
{
    char *text, *fault, key[32], *found;
    size_t size;
    double value = 0;

    assert_ok(file_read(support_path("faults.json"), 1 << 16, &text, &size, &err));
    fault = strstr(text, "[\n{");
    for (size_t i = 0; fault && i < index; i++)
        fault = strstr(fault + 2, "\n{");
    ck_assert_ptr_nonnull(fault);
    *strchr(fault, '}') = '\0';
    (void)snprintf(key, sizeof(key), "\"%s\":", name);
    found = strstr(fault, key);
    if (found)
        value = strtod(found + strlen(key), NULL);
    free(text);
    return value;
}

static double start_of_schedule(void)
{
    char *text, *found;
    size_t size;
    double value;

    assert_ok(file_read(support_path("faults.json"), 1 << 16, &text, &size, &err));
    found = strstr(text, "\"start_wall\":");
    ck_assert_ptr_nonnull(found);
    value = strtod(found + strlen("\"start_wall\":"), NULL);
    free(text);
    return value;
}

/* How many of the times in a file lie in between. */
static size_t count_times(const char *name, double from, double to)
{
    FILE *file = fopen(support_path(name), "re");
    double time;
    size_t count = 0;

    ck_assert_ptr_nonnull(file);
    while (fscanf(file, "%lf", &time) == 1)
        count += time > from && time < to;
    (void)fclose(file);
    return count;
}

/* Rank 1 writes the time again and again, and is started again if it is killed; run it under the
 * schedule until `last` is printed. */
static void run_with(const char *rules, const char *last)
{
    const char *script = "if [ $RANK = 0 ]; then read x < $0; echo > $TMPDIR/end; exit; fi; "
                         "while [ ! -e $TMPDIR/end ]; do date +%s.%N; done >> $TMPDIR/times; "
                         "date +%s.%N >> $TMPDIR/times";
    const char *go = launch_fifo("go");
    struct process p;

    ck_assert_int_eq(setenv("TMPDIR", support_folder(), 1), 0);
    launch_start(&p, LAUNCH_PROGRAM, NULL,
                 ARGS("--nproc-per-node=2", "--on-rank-loss=wait", "--max-restarts=1", "--run-dir",
                      support_folder(), "--fault-schedule", schedule(rules), "--", "sh", "-c",
                      script, go));
    process_wait_output(&p, last, LAUNCH_TIMEOUT_MS);
    (void)close(launch_open_fifo(go));
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 0);
}

#define SIGNAL_S 0.005 /* that a signal may take to arrive */

START_TEST(a_paused_rank_stands_still)
{
    double begin, end;

    run_with("0.3 pause rank1 for 0.5\n", "fault: pause rank1 has ended\n");
    begin = recorded(0, "begin_wall");
    end = recorded(0, "end_wall");
    ck_assert_double_ge(begin, start_of_schedule() + recorded(0, "planned_s") - 1e-3);
    ck_assert_double_eq(recorded(0, "length_s"), 0.5);
    ck_assert_double_ge(end - begin, 0.5 - 1e-3);
    ck_assert_uint_eq(count_times("times", begin + SIGNAL_S, end), 0);
    ck_assert_uint_gt(count_times("times", end, (double)INFINITY), 0);
}
END_TEST

/* It goes on when both are over. */
START_TEST(pauses_of_one_rank_overlap)
{
    run_with("0.3 pause rank1 for 1\n0.5 pause rank1 for 0.2\n", "fault: pause rank1 has ended\n");
    ck_assert_double_gt(recorded(0, "end_wall"), recorded(1, "end_wall"));
    ck_assert_uint_eq(
        count_times("times", recorded(0, "begin_wall") + SIGNAL_S, recorded(0, "end_wall")), 0);
}
END_TEST

/* A rank that is killed and started again meanwhile stands still, too. */
START_TEST(a_pause_outlasts_a_restart)
{
    double end;

    run_with("0.2 pause rank1 for 1.5\n0.4 kill rank1 for 0.3\n", "fault: pause rank1 has ended\n");
    end = recorded(0, "end_wall");
    ck_assert_double_lt(recorded(1, "end_wall"), end - 0.5);
    ck_assert_uint_eq(count_times("times", end - 0.2, end), 0);
    ck_assert_uint_gt(count_times("times", end, (double)INFINITY), 0);
}
END_TEST

START_TEST(a_killed_rank_stays_away)
{
    FILE *file;
    double again;
    const char *script = "if [ $RANK = 0 ]; then read x < $0; exit 0; fi; "
                         "if [ $SPARRING_RESTARTS = 0 ]; then exec sleep 1000; fi; "
                         "date +%s.%N > $TMPDIR/again; echo > $0";
    const char *out;

    ck_assert_int_eq(setenv("TMPDIR", support_folder(), 1), 0);
    out = LAUNCH(0, "--nproc-per-node=2", "--on-rank-loss=wait", "--max-restarts=1", "--run-dir",
                 support_folder(), "--fault-schedule", schedule("0.2 kill rank1 for 0.7\n"), "--",
                 "sh", "-c", script, launch_fifo("go"));
    assert_holds(out, "fault: kill rank1\n");
    assert_holds(out, "is lost: killed by signal 9 (SIGKILL); started again (0 restarts left)\n");
    file = fopen(support_path("again"), "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lf", &again), 1);
    (void)fclose(file);
    ck_assert_double_ge(again - recorded(0, "begin_wall"), 0.7 - 1e-3);
    ck_assert_double_ge(again, recorded(0, "end_wall"));
}
END_TEST

/* Also where it is the only process, so that nothing runs meanwhile. */
START_TEST(a_job_waits_for_its_only_rank)
{
    const char *script = "[ $SPARRING_RESTARTS = 1 ] || exec sleep 1000; echo \"back again\"";
    const char *out = LAUNCH(0, "--on-rank-loss=wait", "--max-restarts=1", "--fault-schedule",
                             schedule("0.1 kill rank0 for 0.3\n"), "--", "sh", "-c", script);

    assert_holds(out, "back again\n");
}
END_TEST

START_TEST(without_restarts_a_kill_fails_the_job)
{
    const char *out = LAUNCH(137, "--nproc-per-node=2", "--fault-schedule",
                             schedule("0.1 kill rank0\n"), "--", "sleep", "1000");

    assert_holds(out, "fault: kill rank0\n");
    assert_holds(out, "failed first: killed by signal 9 (SIGKILL)\n");
}
END_TEST

/* A rank that is paused for good does not keep the launcher from ending. */
START_TEST(a_pause_without_end)
{
    const char *go = launch_fifo("go");
    struct process p;

    launch_start(&p, LAUNCH_PROGRAM, NULL,
                 ARGS("--nproc-per-node=2", "--run-dir", support_folder(), "--fault-schedule",
                      schedule("0.1 pause rank1\n"), "--", "sh", "-c",
                      "if [ $RANK = 0 ]; then read x < $0; exit 3; fi; exec sleep 1000", go));
    process_wait_output(&p, "fault: pause rank1\n", LAUNCH_TIMEOUT_MS);
    (void)close(launch_open_fifo(go));
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 3);
    ck_assert_double_gt(recorded(0, "begin_wall"), 0);
    ck_assert_double_eq(recorded(0, "end_wall"), 0);
    ck_assert_double_eq(recorded(0, "length_s"), 0);
}
END_TEST

static const struct {
    int code;
    const char *rule, *word, *message;
} refusals[] = {
    {3, "1 pause rank2", "--nproc-per-node=2", ":1: no such process"},
    {3, "1 cut host0", "--nproc-per-node=2", "no emulated network"},
    {3, "1 slow host0 1gbit", "--network-delay=2", "has no rate to return to"},
    {3, "1 kill rank0 for 1", "--nproc-per-node=2", "no rank is started again here"},
    {3, "1 kill rank0 for 1", "--max-restarts=1", "no rank is started again here"},
    {2, "1 pause rank0", "--nnodes=2", "not for several --nnodes or --backend mpi"},
};

START_TEST(refused)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%s\n", refusals[_i].rule);
    assert_holds(LAUNCH(refusals[_i].code, refusals[_i].word, "--fault-schedule", schedule(text),
                        "--", "true"),
                 refusals[_i].message);
}
END_TEST

TCase *launch_injection_cases(void)
{
    TCase *cases = tcase_create("injection");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, a_paused_rank_stands_still);
    tcase_add_test(cases, pauses_of_one_rank_overlap);
    tcase_add_test(cases, a_pause_outlasts_a_restart);
    tcase_add_test(cases, a_killed_rank_stays_away);
    tcase_add_test(cases, a_job_waits_for_its_only_rank);
    tcase_add_test(cases, without_restarts_a_kill_fails_the_job);
    tcase_add_test(cases, a_pause_without_end);
    tcase_add_loop_test(cases, refused, 0, sizeof(refusals) / sizeof(refusals[0]));
    return cases;
}
