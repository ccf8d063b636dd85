/*
 * `launch --on slurm` and `compare --on slurm` on four nodes: the same values as on one host, ranks
 * and servers on nodes of their own, blocks on drawn nodes, and allocations that end too early.
 * Runs inside tests/support/cluster, so that all visible processes belong to the cluster.
 */
#include "common/base/file.h"
#include "tests/integration/cluster_jobs.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SALLOC   "salloc", "--nodes=4", "--exclusive", "--quiet"
#define NO_LEAKS "ASAN_OPTIONS=detect_leaks=0" /* see test_slurm.c */

static struct process job;
/* What a test that failed has left ends first. */
static void setup(void)
{
    cluster_setup();
    (void)process_shell("scancel --user root; timeout 60 sh -c "
                        "'until [ -z \"$(squeue --noheader)\" ]; do sleep 0.05; done'");
}

/* ---- jobs */

START_TEST(test_without_allocation)
{
    ck_assert_ptr_nonnull(strstr(
        process_run(3, JOB_TIMEOUT_MS, NULL, ARGS("sparring", "launch", "--on", "slurm", "true")),
        "no Slurm allocation here: SLURM_JOB_ID is not set"));
}
END_TEST

START_TEST(test_same_values)
{
    cluster_check_same_values(_i, "salloc --nodes=4 --exclusive --quiet", "slurm", "there");
}
END_TEST

/* Ranks and servers are tasks of different steps, on nodes of their own. */
START_TEST(test_nodes)
{
    const char *output = process_run(
        0, JOB_TIMEOUT_MS, NULL,
        ARGS(SALLOC, "sh", "-c",
             "sparring launch --on slurm --hosts n3,n1,n4,n2 --nproc-per-node 4 --ranks-per-host 2 "
             "--servers 1 --run-dir run -- sh -c "
             "'echo \"rank $SLURM_PROCID of $SLURM_STEP_NUM_TASKS on $SLURMD_NODENAME\"; "
             "exec sparring-worker --sync ps --steps 3 " CLUSTER_MODEL "'"));

    for (unsigned r = 0; r < 4; r++) {
        char line[64];

        (void)snprintf(line, sizeof(line), "rank %u of 4 on %s\n", r, r < 2 ? "n3" : "n1");
        ck_assert_msg(strstr(output, line) != NULL, "%s", output);
    }
    ck_assert_msg(strstr(output, "serving on n4:5757") != NULL, "%s", output);
}
END_TEST

static const struct {
    const char *words, *text;
} refused[] = {
    {"--nproc-per-node 4 --servers 1", "the job takes 5 hosts, 4 of them for ranks, and there are "
                                       "4: 'n1,n2,n3,n4'"},
    {"--hosts n3 --nproc-per-node 2", "the job takes 2 hosts, 2 of them for ranks, and there are "
                                      "1: 'n3'"},
};

START_TEST(test_too_few_hosts)
{
    char line[400];

    (void)snprintf(line, sizeof(line), "sparring launch --on slurm %s -- true", refused[_i].words);
    ck_assert_ptr_nonnull(strstr(
        process_run(3, JOB_TIMEOUT_MS, NULL, ARGS(SALLOC, "sh", "-c", line)), refused[_i].text));
}
END_TEST

/* A launcher that is stopped, or killed, leaves no process on any node while the allocation goes
 * on. */
START_TEST(test_launcher_ends)
{
    const int signal_number = _i == 0 ? SIGTERM : SIGKILL;

    process_start(&job, ARGS(NO_LEAKS),
                  ARGS(SALLOC, "sh", "-c",
                       "sparring launch --on slurm --nproc-per-node 3 --servers 1 --run-dir run -- "
                       "sparring-worker --sync ps --epochs 1000000 --evaluate never " CLUSTER_MODEL
                       " & echo $! >pid; wait $!; echo \"launch: $?\"; "
                       "until " CLUSTER_NOTHING_LEFT "; do sleep 0.05; done; echo nothing left"));
    for (unsigned r = 0; r < 3; r++)
        job_await_step("run", r, 3);
    ck_assert(process_shell("kill -%d $(cat pid)", signal_number));
    ck_assert_msg(process_wait(&job, JOB_TIMEOUT_MS) == 0, "%s", process_output(&job));
    ck_assert_msg(strstr(process_output(&job), "nothing left") != NULL, "%s", process_output(&job));
    if (signal_number == SIGTERM)
        cluster_check_cancelled(3);
}
END_TEST

/* ---- experiments */

/* It allocates nodes for itself; both modes of a block use the same, in the same order. */
START_TEST(test_compare)
{
    const char *output;

    cluster_write_experiment(20);
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    ck_assert_msg(strstr(output, "Granted job allocation") != NULL, "%s", output);
    ck_assert_uint_eq(cluster_count_good_runs(), 4);
    cluster_check_hosts_of_blocks();
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    ck_assert_msg(strstr(output, "4 runs are there already") != NULL, "%s", output);
}
END_TEST

START_TEST(test_experiment_that_cannot_run)
{
    cluster_write_experiment(20);
    ck_assert_ptr_nonnull(
        strstr(process_run(3, JOB_TIMEOUT_MS, NULL,
                           ARGS("salloc", "--nodes=2", "--exclusive", "sparring", "compare",
                                "e.yaml", "--on", "slurm", "--out", "out")),
               "'e.yaml' takes 3 hosts, and the allocation has 2"));
    ck_assert(process_shell("sed -i 's/^repeats/network: {rate: 1gbit}\\nrepeats/' e.yaml"));
    ck_assert_ptr_nonnull(
        strstr(process_run(3, JOB_TIMEOUT_MS, NULL,
                           ARGS("sparring", "compare", "e.yaml", "--on", "slurm")),
               "describes an emulated network, which --on slurm does not have"));
}
END_TEST

/* The run under way says nothing of its mode, and its block runs again whole. */
START_TEST(test_cancelled_allocation)
{
    const char *output;

    cluster_write_experiment(500);
    process_start(&job, ARGS(NO_LEAKS),
                  ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    cluster_wait("no run has begun", CLUSTER_HAS_BEGUN);
    ck_assert(process_shell("scancel $(squeue --noheader --format %%i)"));
    ck_assert_msg(process_wait(&job, JOB_TIMEOUT_MS) > 0, "%s", process_output(&job));
    ck_assert_msg(strstr(process_output(&job), "the allocation has ended during ") != NULL, "%s",
                  process_output(&job));
    cluster_wait("processes are left", CLUSTER_NOTHING_LEFT);
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    ck_assert_msg(strstr(output, "runs again; they are in out/lost") != NULL, "%s", output);
    ck_assert_uint_eq(cluster_count_good_runs(), 4);
}
END_TEST

/* A job in the queue whose node dies: Slurm queues it again, and on other nodes it goes on where it
 * was.  The last test: n2 stays away. */
START_TEST(test_dead_node)
{
    struct error err;
    char *log;
    size_t size;

    cluster_write_experiment(500);
    ck_assert(process_shell("sparring compare --on slurm --out out --dry-run e.yaml --repeats 2 "
                            ">job.sh && grep -q 'compare e.yaml --repeats 2 ' job.sh && "
                            "ASAN_OPTIONS=detect_leaks=0 sbatch --output log.txt job.sh"));
    cluster_wait("no run has begun", CLUSTER_HAS_BEGUN);
    ck_assert(process_shell("kill -KILL $(cat ${SLURM_CONF%%/*}/slurmd.n2.pid) && "
                            "scontrol update nodename=n2 state=down reason=killed"));
    cluster_wait("the job is not in the queue again",
                 "squeue --noheader --states=PENDING --format %i | grep -q .");
    cluster_wait("processes are left", CLUSTER_NOTHING_LEFT);
    ck_assert(process_shell("scontrol update job=$(squeue --noheader --format %%i) starttime=now"));
    cluster_wait("the job does not end", "[ -z \"$(squeue --noheader)\" ]");
    assert_ok(file_read("log.txt", 1 << 20, &log, &size, &err));
    ck_assert_msg(strstr(log, "runs again; they are in out/lost") && cluster_count_good_runs() == 4,
                  "%s", log);
    free(log);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("on_slurm", 200, CHECKED_FIXTURE(setup, cluster_teardown),
                       LOOP_TEST(test_same_values, 0, CLUSTER_ARCHITECTURES), TEST(test_nodes),
                       LOOP_TEST(test_too_few_hosts, 0, 2), TEST(test_without_allocation),
                       LOOP_TEST(test_launcher_ends, 0, 2), TEST(test_compare),
                       TEST(test_experiment_that_cannot_run), TEST(test_cancelled_allocation),
                       TEST(test_dead_node));
}
