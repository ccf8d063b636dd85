/*
 * `sparring bench` when a rank or the parent is killed or stopped: it reports that, and no rank
 * survives, with or without mpirun.
 */
#include "tests/experiments/bench/backends.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/parse.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#define WAIT_MS        120000
#define TEST_TIMEOUT_S 240
#define RANKS          3 /* of start_long_run */

static pid_t parent_of(const char *pid)
{
    char path[64];
    char line[512] = "";
    const char *after;
    FILE *f;
    long parent = 0;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    f = fopen(path, "re");
    if (!f)
        return 0; /* ended meanwhile */
    if (fgets(line, sizeof(line), f)) {
        after = strrchr(line, ')'); /* the command may hold anything */
        if (after)
            parent = strtol(after + 4, NULL, 10); /* ") S 123" */
    }
    (void)fclose(f);
    return (pid_t)parent;
}

/* The children of a process; exactly `wanted` are expected. */
static void find_children(pid_t parent, pid_t *children, size_t wanted)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry;
    size_t found = 0;

    ck_assert_ptr_nonnull(processes);
    while (found < wanted && (entry = readdir(processes)) != NULL) {
        uint64_t pid;

        if (parse_uint64(entry->d_name, &pid) && parent_of(entry->d_name) == parent)
            children[found++] = (pid_t)pid;
    }
    (void)closedir(processes);
    ck_assert_uint_eq(found, wanted);
}

/* Start a run of several minutes and wait until it measures: its first row comes soon, even where
 * MPI ranks, which spin, share their cores. */
static void start_long_run(struct process *p, const char *backend)
{
    static char folder[300];

    /* A parent that is killed cannot remove its folder: keep it in the test's. */
    (void)snprintf(folder, sizeof(folder), "TMPDIR=%s", support_folder());
    process_start(p, ARGS(folder),
                  ARGS(support_program("sparring"), "bench", "allreduce", "--backend", backend,
                       "--nproc", "3", "--rounds", "100", "--iterations", "1", "--min-bytes", "4K",
                       "--max-bytes", "256M", "--ceiling=false"));
    process_wait_output(p, "  ring\n", WAIT_MS);
}

/* Call it before the processes can end: their pids may be reused afterwards. */
static void open_pidfds(const pid_t ranks[RANKS], int ret_pidfds[RANKS])
{
    for (size_t r = 0; r < RANKS; r++) {
        ret_pidfds[r] = pidfd_open(ranks[r], 0);
        ck_assert_int_ge(ret_pidfds[r], 0);
    }
}

static void wait_for_ends(const int pidfds[RANKS])
{
    for (size_t r = 0; r < RANKS; r++) {
        struct pollfd ended = {.fd = pidfds[r], .events = POLLIN};

        ck_assert_int_eq(poll(&ended, 1, WAIT_MS), 1);
        (void)close(pidfds[r]);
    }
}

START_TEST(a_dead_rank_fails_the_bench)
{
    struct process p;
    pid_t ranks[RANKS];
    int code;

    start_long_run(&p, "ring");
    find_children(p.pid, ranks, RANKS);
    ck_assert_int_eq(kill(ranks[1], SIGKILL), 0);
    code = process_wait(&p, WAIT_MS);
    ck_assert_msg(code == 1, "%s", process_output(&p));
    ck_assert_msg(strstr(process_output(&p), "was killed by signal 9") ||
                      strstr(process_output(&p), "ended with exit code"),
                  "%s", process_output(&p));
}
END_TEST

START_TEST(ranks_die_with_their_parent)
{
    struct process p;
    pid_t ranks[RANKS];
    int pidfds[RANKS];

    start_long_run(&p, "ring");
    find_children(p.pid, ranks, RANKS);
    open_pidfds(ranks, pidfds);
    process_signal(&p, SIGKILL);
    (void)process_wait(&p, WAIT_MS);
    wait_for_ends(pidfds);
}
END_TEST

/* mpirun is the parent's only child; the ranks are children of mpirun. */
START_TEST(ranks_under_mpirun_die_with_the_parent)
{
    struct process p;
    pid_t mpirun;
    pid_t ranks[RANKS];
    int pidfds[RANKS];

    if (!bench_has_backend("mpi"))
        return;
    start_long_run(&p, "mpi,ring");
    find_children(p.pid, &mpirun, 1);
    find_children(mpirun, ranks, RANKS);
    open_pidfds(ranks, pidfds);
    if (_i == 0) {
        ck_assert_int_eq(kill(ranks[1], SIGKILL), 0);
        ck_assert_int_eq(process_wait(&p, WAIT_MS), 1);
        ck_assert_ptr_nonnull(strstr(process_output(&p), "mpirun ended with exit code"));
    } else {
        process_signal(&p, SIGKILL);
        (void)process_wait(&p, WAIT_MS);
    }
    wait_for_ends(pidfds);
}
END_TEST

START_TEST(a_signal_stops_the_bench_in_order)
{
    struct process p;

    start_long_run(&p, "ring");
    process_signal(&p, SIGINT);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 6);
    ck_assert_ptr_nonnull(strstr(process_output(&p), "stopped by a signal"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("bench_deaths", TEST_TIMEOUT_S,
                       LOOP_TEST(ranks_under_mpirun_die_with_the_parent, 0, 2),
                       TEST(a_dead_rank_fails_the_bench), TEST(ranks_die_with_their_parent),
                       TEST(a_signal_stops_the_bench_in_order));
}
