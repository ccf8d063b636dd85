/*
 * Losses and disorders under mpirun.  MPI cannot cancel a call, so each survivor ends its process
 * with a text and an exit code (collective_blocking.h).  Each case runs twice: once with an mpirun
 * that ends no rank, where every survivor has to end by itself, and once through 'sparring launch',
 * where mpirun ends what is left as soon as the first process fails.  (That mpirun itself hangs or
 * crashes then, as 4.1.4 did in 13 of 300 jobs, is the launcher's to mend.)
 *
 * SPARRING_TEST_MPIEXEC names the mpirun of the first; empty: there is none.
 */
#include "tests/common/collective/chaos/mpi_rank.h"
#include "tests/support/lateness.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS        3u
#define VICTIM       1u
#define EXIT_SKIPPED 77
#define EVENT_MS     60000 /* for what must come; a test that waits so long fails */
#define LONG_MS      60000 /* a time-out that is not reached */
#define SHORT_MS     5000  /* of opening the group, too */
#define HEARTBEAT_MS 1500  /* mpi_rank's */
#define BLOCKING_MS  2000  /* a library's own second, and what a verdict takes */

static const struct loss {
    const char *role;
    int signal; /* 0: none */
    int timeout_ms;
    int within_ms; /* until every survivor has ended */
    int exit_code; /* of every survivor */
    const char *text;
    const char *other_text; /* likewise */
    bool includes_victim;   /* it has an error, too */
} losses[] = {
    {"work", SIGKILL, LONG_MS, 2000, 1, "rank 1 was lost, it is dead", "all_reduce #", false},
    {"hold", SIGKILL, LONG_MS, 2000, 1, "rank 1 was lost, it is dead", "all_reduce #4", false},
    {"work", SIGSTOP, LONG_MS, HEARTBEAT_MS + 1000, 1, "rank 1 was lost, it is stopped",
     "all_reduce #", false},
    {"hold", SIGSTOP, LONG_MS, HEARTBEAT_MS + 1000, 1, "rank 1 was lost, it is stopped",
     "all_reduce #4", false},
    {"hold", 0, SHORT_MS, SHORT_MS + BLOCKING_MS, 4, "rank 1 stalled",
     "has begun nothing since it ended all_reduce #3", false},
    {"count", 0, LONG_MS, 2500, 3, "1001 float32", "1000 float32", true},
    {"leave", 0, LONG_MS, 2000, 3, "rank 1 has finished early", "all_reduce #4", false},
};

#define LOSSES ((int)(sizeof(losses) / sizeof(losses[0])))

static const char *mpirun = "mpirun";
static char self[4096]; /* this program */

/* Start the ranks; `alone`: mpirun ends none of them, and we hear how each has ended; else the
 * launcher starts mpirun. */
static void start(struct process *p, const struct loss *c, bool alone)
{
    static const char *const environment[] = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                              "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", NULL};
    const char *by_hand[] = {mpirun, "--enable-recovery", "--oversubscribe", "--bind-to", "none",
                             "-n"};
    const char *launched[] = {support_program("sparring"), "launch", "--backend", "mpi",
                              "--nproc-per-node"};
    const char *argv[20];
    static char ranks[16];
    static char victim[16];
    static char timeout[16];
    static char store[600];
    size_t n = 0;

    (void)snprintf(ranks, sizeof(ranks), "%u", RANKS);
    (void)snprintf(victim, sizeof(victim), "%u", VICTIM);
    (void)snprintf(timeout, sizeof(timeout), "%d", c->timeout_ms);
    (void)snprintf(store, sizeof(store), "file://%s/store", support_folder());
    for (size_t i = 0; i < (alone ? sizeof(by_hand) : sizeof(launched)) / sizeof(*argv); i++)
        argv[n++] = alone ? by_hand[i] : launched[i];
    argv[n++] = ranks;
    if (!alone)
        argv[n++] = "--";
    argv[n++] = self;
    argv[n++] = "rank";
    argv[n++] = store;
    argv[n++] = timeout;
    argv[n++] = victim;
    argv[n++] = c->role;
    argv[n++] = alone ? "1" : "0";
    argv[n] = NULL;
    process_start(p, environment, argv);
}

/* Once all ranks are where the victim does its worst. */
static void strike(const struct process *p, const struct loss *c)
{
    char text[64];
    long pid;

    for (unsigned r = 0; r < RANKS; r++) {
        (void)snprintf(text, sizeof(text), "rank %u is process ", r);
        process_wait_output(p, text, EVENT_MS);
    }
    (void)snprintf(text, sizeof(text), "rank %u is process ", VICTIM);
    pid = strtol(strstr(process_output(p), text) + strlen(text), NULL, 10);
    ck_assert_int_gt(pid, 1);
    if (c->signal != 0)
        ck_assert_int_eq(kill((pid_t)pid, c->signal), 0);
}

/* The line in which this rank reports why it ends. */
static void check_error(const char *output, const struct loss *c, unsigned rank)
{
    char prefix[64];
    char line[2048];
    const char *error;

    (void)snprintf(prefix, sizeof(prefix), "chaos[%u]: error: ", rank);
    error = strstr(output, prefix);
    ck_assert_msg(error != NULL, "%s: rank %u says nothing:\n%s", c->role, rank, output);
    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(error, "\n"), error);
    (void)printf("%s\n", line);
    ck_assert_msg(strstr(line, c->text) && strstr(line, c->other_text), "no '%s', '%s' in: %s",
                  c->text, c->other_text, line);
}

static bool must_end(const struct loss *c, unsigned rank)
{
    return rank != VICTIM || c->includes_victim;
}

START_TEST(every_survivor_ends_in_time_and_says_why)
{
    const struct loss *c = &losses[_i];
    struct lateness lateness;
    struct process p;
    int64_t struck_ns;
    int64_t ended_ns;
    int64_t late_ns;

    start(&p, c, true);
    strike(&p, c);
    lateness_begin(&lateness);
    struck_ns = clock_now_ns();
    for (unsigned r = 0; r < RANKS; r++) {
        char text[64];

        (void)snprintf(text, sizeof(text), "rank %u ended with %d\n", r, c->exit_code);
        if (must_end(c, r))
            process_wait_output(&p, text, c->within_ms + EVENT_MS);
    }
    ended_ns = clock_now_ns();
    late_ns = lateness_end_ns(&lateness);
    process_signal(&p, SIGTERM); /* the victim may be there still: stopped, held, at MPI's end */
    ck_assert_int_ne(process_wait(&p, EVENT_MS), -1);
    for (unsigned r = 0; r < RANKS; r++)
        if (must_end(c, r))
            check_error(process_output(&p), c, r);
    ck_assert_msg(ended_ns - struck_ns <=
                      (c->within_ms + LATENESS_TOLERANCE_MS) * INT64_C(1000000) + late_ns,
                  "%s: the last survivor ended after %.3f s, on a host that was late by %.3f s",
                  c->role, (double)(ended_ns - struck_ns) * 1e-9, (double)late_ns * 1e-9);
}
END_TEST

/* Who is ended by mpirun before it can speak says nothing, but mpirun itself names a killed one. */
START_TEST(launched_job_ends_and_the_reason_is_there)
{
    const struct loss *c = &losses[_i];
    struct process p;
    const char *output;
    int code;

    start(&p, c, false);
    strike(&p, c);
    code = process_wait(&p, EVENT_MS);
    output = process_output(&p);
    ck_assert_msg(code > 0, "the launcher ended with %d:\n%s", code, output);
    ck_assert_msg(strstr(output, c->text) ||
                      (c->signal == SIGKILL && strstr(output, "process rank 1 ") &&
                       strstr(output, "signal 9")),
                  "no '%s' in:\n%s", c->text, output);
}
END_TEST

static bool has_mpirun(void)
{
    const char *name = getenv("SPARRING_TEST_MPIEXEC");

    mpirun = name ? name : mpirun;
    return mpirun[0] != '\0' && process_shell("'%s' --version >/dev/null 2>&1", mpirun);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "rank") == 0)
        return mpi_rank_main(argc - 2, argv + 2);
    if (!has_mpirun()) {
        support_skip_package("openmpi-bin (or no MPI in this build)");
        return EXIT_SKIPPED;
    }
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
        (void)fprintf(stderr, "/proc/self/exe: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    return SUPPORT_RUN("chaos_mpi", 240,
                       LOOP_TEST(every_survivor_ends_in_time_and_says_why, 0, LOSSES),
                       LOOP_TEST(launched_job_ends_and_the_reason_is_there, 0, LOSSES));
}
