/*
 * Signals, ranks that ignore them, orphans and time limits: in every case no process that the
 * launcher started survives.
 */
#include "common/base/stop.h"
#include "tests/experiments/launch/launch_test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Waits without a child process: one between fork and exec would lose the signal. */
#define WAIT_FOR_SIGNAL "mkfifo $TMPDIR/w$RANK; echo \"ready $RANK\"; read x < $TMPDIR/w$RANK"

#define STUCK_MPIRUN                                                                               \
    "#!/bin/sh\n"                                                                                  \
    "trap '' TERM\n"                                                                               \
    "(exit 3) &\n"                                                                                 \
    "(exit 3) &\n"                                                                                 \
    "exec sleep 1000\n"

static void start_launcher(struct process *p, const char *ranks, const char *grace,
                           const char *script)
{
    ck_assert_int_eq(setenv("TMPDIR", support_folder(), 1), 0); /* for the scripts */
    launch_start(p, LAUNCH_PROGRAM, NULL,
                 ARGS("--nproc-per-node", ranks, "--grace-ms", grace, "--", "sh", "-c", script));
}

static void wait_until_ready(const struct process *p, unsigned ranks)
{
    for (unsigned r = 0; r < ranks; r++) {
        char line[32];

        (void)snprintf(line, sizeof(line), "ready %u\n", r);
        process_wait_output(p, line, LAUNCH_TIMEOUT_MS);
    }
}

static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

START_TEST(signals_are_forwarded)
{
    const char *script =
        "trap 'echo \"rank $RANK got it\"; exit 6' TERM INT HUP QUIT; " WAIT_FOR_SIGNAL;
    struct process p;

    start_launcher(&p, "2", "60000", script);
    wait_until_ready(&p, 2);
    process_signal(&p, forwarded[_i]);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 6);
    assert_holds(process_output(&p), "rank 0 got it\n");
    assert_holds(process_output(&p), "rank 1 got it\n");
    assert_holds(process_output(&p), "passed on to the ranks\n");
    assert_lacks(process_output(&p), "failed first");
}
END_TEST

START_TEST(default_reaction)
{
    struct process p;

    start_launcher(&p, "2", "60000", WAIT_FOR_SIGNAL);
    wait_until_ready(&p, 2);
    process_signal(&p, SIGTERM);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 128 + SIGTERM);
    assert_holds(process_output(&p), "ended after SIGTERM: killed by signal 15 (SIGTERM)\n");
}
END_TEST

/* Rank 1 fails, as after the loss of a peer, before rank 0 has ended on the signal. */
START_TEST(stopped_rank_outranks_failed_one)
{
    const char *script = "end() { [ $RANK = 1 ] && exit 1; read x < $TMPDIR/go; exit 6; }; "
                         "trap end TERM; echo pid$RANK $$; " WAIT_FOR_SIGNAL;
    const char *fifo = launch_fifo("go");
    int pidfd;
    struct process p;

    start_launcher(&p, "2", "60000", script);
    wait_until_ready(&p, 2);
    ck_assert_uint_eq(launch_find_pids(process_output(&p), "pid1", &pidfd, 1), 1);
    process_signal(&p, SIGTERM);
    launch_await_ends(&pidfd, 1, LAUNCH_TIMEOUT_MS);
    (void)close(launch_open_fifo(fifo));
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 6);
    assert_holds(process_output(&p), "ended after SIGTERM: exit code 6\n");
}
END_TEST

START_TEST(orderly_end_is_no_failure)
{
    struct process p;

    start_launcher(&p, "2", "60000", "trap 'exit 0' TERM; " WAIT_FOR_SIGNAL);
    wait_until_ready(&p, 2);
    process_signal(&p, SIGTERM);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 0);
}
END_TEST

START_TEST(stubborn_ranks_are_killed)
{
    struct process p;

    start_launcher(&p, "2", "100", "trap '' TERM; " WAIT_FOR_SIGNAL);
    wait_until_ready(&p, 2);
    process_signal(&p, SIGTERM);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 137);
    assert_holds(process_output(&p), "does not stop: killed");
}
END_TEST

START_TEST(second_signal_kills)
{
    struct process p;

    start_launcher(&p, "1", "100000", "trap '' TERM INT; " WAIT_FOR_SIGNAL);
    wait_until_ready(&p, 1);
    process_signal(&p, SIGTERM);
    process_wait_output(&p, "passed on", LAUNCH_TIMEOUT_MS);
    (void)usleep(STOP_ONE_REQUEST_NS / 1000 + 200000); /* no event: the time is what counts */
    process_signal(&p, SIGINT);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 137);
}
END_TEST

/* A stopped rank could not react to SIGTERM: it is continued. */
START_TEST(stopped_rank_is_continued)
{
    const char *script = "if [ $RANK = 0 ]; then trap 'echo continued; exit 1' TERM; "
                         "echo ready; kill -STOP $$; fi; read x < $0; exit 3";
    const char *fifo = launch_fifo("go");
    struct process p;

    launch_start(&p, LAUNCH_PROGRAM, NULL,
                 ARGS("--nproc-per-node=2", "--grace-ms=100000", "--", "sh", "-c", script, fifo));
    process_wait_output(&p, "ready", LAUNCH_TIMEOUT_MS);
    (void)close(launch_open_fifo(fifo));
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 3);
    assert_holds(process_output(&p), "continued\n");
}
END_TEST

START_TEST(time_limit)
{
    const char *out = LAUNCH(4, "--nproc-per-node=2", "--timeout-ms=100", "--grace-ms=100", "sh",
                             "-c", "trap '' TERM; exec sleep 1000");

    assert_holds(out, "the job has not ended within its time limit: stopped\n");
}
END_TEST

/* The rank ends, a process that it started does not: that is stopped, and the launcher waits. */
START_TEST(left_behind_is_stopped)
{
    int pidfd;
    const char *fifo = launch_fifo("hold");
    struct process p;
    int hold;

    launch_start(&p, LAUNCH_PROGRAM, NULL,
                 ARGS("--grace-ms=100000", "sh", "-c",
                      "sh -c 'echo \"left $$\"; exec sleep 1000' & read x < $0; exit 0", fifo));
    process_wait_output(&p, "left ", LAUNCH_TIMEOUT_MS);
    ck_assert_uint_eq(launch_find_pids(process_output(&p), "left ", &pidfd, 1), 1);
    hold = launch_open_fifo(fifo);
    (void)close(hold);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 0);
    launch_await_ends(&pidfd, 1, 0); /* at once: the launcher has waited */
}
END_TEST

/* A process that a rank leaves behind gets the grace time even when the rank was only a shell
 * around it and ends at once; and it gets one SIGTERM, not a second one when the shell ends. */
START_TEST(grace_for_what_is_left_behind)
{
    const char *inner = "trap 'trap \"echo twice\" TERM; echo saving; read x < $0; exit 0' TERM; "
                        "mkfifo $0.wait; echo ready 0; read x < $0.wait";
    const char *fifo = launch_fifo("go");
    struct process p;

    launch_start(
        &p, LAUNCH_PROGRAM, NULL,
        ARGS("--grace-ms=100000", "--", "sh", "-c", "sh -c \"$0\" \"$1\"; true", inner, fifo));
    wait_until_ready(&p, 1);
    process_signal(&p, SIGTERM);
    process_wait_output(&p, "saving\n", LAUNCH_TIMEOUT_MS);
    process_wait_output(&p, "ended after SIGTERM", LAUNCH_TIMEOUT_MS);
    (void)close(launch_open_fifo(fifo));
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 128 + SIGTERM);
    assert_lacks(process_output(&p), "twice");
    assert_lacks(process_output(&p), "killed what it left behind");
}
END_TEST

/* "pid 123\n" of the first child of a process; that of the launcher is the orphan reaper. */
static void first_child(pid_t pid, char *line, size_t size)
{
    char path[64];
    char children[64] = "";
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(children, sizeof(children), file));
    (void)fclose(file);
    (void)snprintf(line, size, "pid %.*s\n", (int)strcspn(children, " "), children);
}

/* SIGKILL of the launcher: its ranks, their children and the reaper end. */
START_TEST(no_orphans)
{
    struct process p;
    char reaper[64];
    int pidfds[7];

    start_launcher(&p, "3", "100000",
                   "trap '' TERM HUP; mkfifo $TMPDIR/$RANK; "
                   "sh -c 'echo \"pid $$\"; echo > $TMPDIR/$RANK; exec sleep 1000' & "
                   "echo \"pid $$\"; read x < $TMPDIR/$RANK; echo \"ready $RANK\"; wait");
    wait_until_ready(&p, 3);
    ck_assert_uint_eq(launch_find_pids(process_output(&p), "pid ", pidfds, 6), 6);
    first_child(p.pid, reaper, sizeof(reaper));
    assert_lacks(process_output(&p), reaper);
    ck_assert_uint_eq(launch_find_pids(reaper, "pid ", &pidfds[6], 1), 1);
    process_signal(&p, SIGKILL);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 137);
    launch_await_ends(pidfds, 7, LAUNCH_TIMEOUT_MS);
}
END_TEST

/* With a parent that ignores SIGCHLD the exit codes are still known. */
START_TEST(ignored_sigchld)
{
    (void)process_run(7, LAUNCH_TIMEOUT_MS, NULL,
                      ARGS("sh", "-c",
                           "trap '' CHLD; exec \"$0\" --nproc-per-node=2 sh -c 'exit 7'",
                           LAUNCH_PROGRAM));
}
END_TEST

/* Under nohup SIGHUP stays ignored. */
START_TEST(ignored_hangup)
{
    const char *fifo = launch_fifo("hold");
    struct process p;

    process_start(&p, NULL,
                  ARGS("sh", "-c",
                       "trap '' HUP; exec \"$0\" sh -c 'echo \"ready $RANK\"; read x < $0' \"$1\"",
                       LAUNCH_PROGRAM, fifo));
    wait_until_ready(&p, 1);
    process_signal(&p, SIGHUP);
    (void)close(launch_open_fifo(fifo));
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 1); /* read meets the end of the FIFO */
    assert_lacks(process_output(&p), "SIGHUP");
}
END_TEST

/* Ranks keep their default signals though the launcher blocks them. */
START_TEST(ranks_have_plain_signals)
{
    const char *out = LAUNCH(0, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status");

    assert_holds(out, "SigBlk:\t0000000000000000\n");
    assert_holds(out, "SigIgn:\t0000000000000000\n");
}
END_TEST

/* The reader of our output exits: the job goes on, and its exit code is kept. */
START_TEST(reader_leaves)
{
    const char *script = "(\"$0\" --tee --nproc-per-node=2 sh -c "
                         "'i=0; while [ $i -lt 3000 ]; do echo line; i=$((i+1)); done; exit 3'; "
                         "echo \"code $?\" >&2) | head -n 1";

    assert_holds(process_run(0, LAUNCH_TIMEOUT_MS, NULL, ARGS("sh", "-c", script, LAUNCH_PROGRAM)),
                 "code 3\n");
}
END_TEST

/* The reader of our output does not read: a signal still ends the job. */
START_TEST(reader_stalls)
{
    const char *fifo = launch_fifo("hold");
    const char *script = "(sh -c 'echo \"launcher $$\" >&2; exec \"$0\" --tee --grace-ms=5000 yes' "
                         "\"$0\"; echo \"code $?\" >&2) | "
                         "(read line; echo reading >&2; read x < \"$1\"; exit 0)";
    struct process p;
    const char *at;

    process_start(&p, NULL, ARGS("sh", "-c", script, LAUNCH_PROGRAM, fifo));
    process_wait_output(&p, "reading", LAUNCH_TIMEOUT_MS);
    at = strstr(process_output(&p), "launcher ");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(kill((pid_t)strtol(at + 9, NULL, 10), SIGTERM), 0);
    process_wait_output(&p, "code 143", LAUNCH_TIMEOUT_MS);
    (void)close(launch_open_fifo(fifo));
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 0);
}
END_TEST

/* Open MPI's launcher sometimes waits for ever for ranks that have ended, and SIGTERM does not end
 * it; this script always does so. */
START_TEST(stuck_mpirun_is_killed)
{
    const char *mpirun = support_write("mpirun", STUCK_MPIRUN, sizeof(STUCK_MPIRUN) - 1);
    char path[4400];

    (void)snprintf(path, sizeof(path), "PATH=%s:%s", support_folder(), getenv("PATH"));
    ck_assert_int_eq(chmod(mpirun, 0755), 0);
    assert_holds(
        launch_with(LAUNCH_PROGRAM, 128 + SIGKILL,
                    ARGS(path, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
                    ARGS("--backend", "mpi", "--nproc-per-node", "2", "--", "true")),
        "mpirun does not end, and all its ranks have: killed\n");
}
END_TEST

TCase *launch_fault_cases(void)
{
    TCase *cases = tcase_create("faults");

    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, signals_are_forwarded, 0, sizeof(forwarded) / sizeof(forwarded[0]));
    tcase_add_test(cases, default_reaction);
    tcase_add_test(cases, stopped_rank_outranks_failed_one);
    tcase_add_test(cases, orderly_end_is_no_failure);
    tcase_add_test(cases, stubborn_ranks_are_killed);
    tcase_add_test(cases, second_signal_kills);
    tcase_add_test(cases, stopped_rank_is_continued);
    tcase_add_test(cases, time_limit);
    tcase_add_test(cases, left_behind_is_stopped);
    tcase_add_test(cases, grace_for_what_is_left_behind);
    tcase_add_test(cases, no_orphans);
    tcase_add_test(cases, ignored_sigchld);
    tcase_add_test(cases, ignored_hangup);
    tcase_add_test(cases, ranks_have_plain_signals);
    tcase_add_test(cases, reader_leaves);
    tcase_add_test(cases, reader_stalls);
    tcase_add_test(cases, stuck_mpirun_is_killed);
    return cases;
}
