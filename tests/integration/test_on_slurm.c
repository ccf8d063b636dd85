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
    (void)process_shell("scancel --user root");
    cluster_wait("Slurm still lists jobs", CLUSTER_NO_JOBS);
    /* without one no allocation of four nodes comes, and each test would wait for its time-out */
    ck_assert_msg(process_shell("cd ${SLURM_CONF%%/*} && for n in 1 2 3 4; do "
                                "kill -0 $(cat slurmd.n$n.pid) || "
                                "{ tail -n 20 slurmd.n$n.log slurmctld.log >&2; exit 1; }; done"),
                  "the slurmd of a node has ended");
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

/* Each rank has a node of its own, and a server beside it. */
START_TEST(test_scaling)
{
    static const char text[] =
        "repeats: 1\n"
        "verdict: none\n"
        "axes: {nproc: [1, 2, 3, 4]}\n"
        "options: {model: 'mlp:64-96-8', data: 'random:4096,64,8', threads: 1, evaluate: never,\n"
        "          steps: 20}\n"
        "modes:\n"
        "  - {name: ring, options: {sync: allreduce, backend: ring}}\n"
        "  - {name: ps, options: {sync: ps, server-placement: colocated}}\n";

    (void)support_write("scaling.yaml", text, sizeof(text) - 1);
    (void)process_run(0, JOB_TIMEOUT_MS, NULL,
                      ARGS("sparring", "compare", "scaling.yaml", "--on", "slurm", "--out", "out"));
    for (int nodes = 1; nodes <= 4; nodes++)
        for (int i = 0; i < 2; i++)
            ck_assert(process_shell("grep -q '\"outcome\":\"ok\".* --hosts=n.\\(,n.\\)\\{%d\\} ' "
                                    "out/cells/nproc=%d/runs/%s-0/attempt.json",
                                    nodes - 1, nodes, i == 0 ? "ring" : "ps"));
}
END_TEST

static unsigned count_allocations(const char *output)
{
    unsigned count = 0;

    while ((output = strstr(output, "Granted job allocation"))) {
        output++;
        count++;
    }
    return count;
}

/* In one of its own it runs a block and says that there is more. */
START_TEST(test_allocation_for_each_block)
{
    const char *output;

    cluster_write_experiment(20);
    (void)process_run(75, JOB_TIMEOUT_MS, NULL,
                      ARGS(SALLOC, "sparring", "compare", "e.yaml", "--repeats", "3", "--on",
                           "slurm", "--allocation", "block", "--out", "out"));
    ck_assert(process_shell("ls -d out/runs/*-0 && ! ls out/report.json out/runs/*-1 2>/dev/null"));
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--repeats", "3", "--on", "slurm",
                              "--allocation", "block", "--out", "out"));
    ck_assert_msg(count_allocations(output) == 2, "%s", output);
    ck_assert_uint_eq(cluster_count_good_runs(), 6);
}
END_TEST

START_TEST(test_experiment_that_cannot_run)
{
    cluster_write_experiment(20);
    ck_assert_ptr_nonnull(
        strstr(process_run(3, JOB_TIMEOUT_MS, NULL,
                           ARGS("salloc", "--nodes=2", "--exclusive", "sparring", "compare",
                                "e.yaml", "--on", "slurm", "--out", "out")),
               "'e.yaml' takes 3 hosts, and there are 2"));
    ck_assert(process_shell("sed 's/nproc: 2/nproc: 9/' e.yaml >large.yaml"));
    ck_assert_ptr_nonnull(
        strstr(process_run(3, JOB_TIMEOUT_MS, NULL,
                           ARGS("sparring", "compare", "large.yaml", "--on", "slurm")),
               "the experiment takes 10 nodes, and sinfo lists 4"));
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
    ck_assert_msg(strstr(process_output(&job), " is lost: the allocation has ended") != NULL, "%s",
                  process_output(&job));
    cluster_wait("processes are left", CLUSTER_NOTHING_LEFT);
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    ck_assert_msg(strstr(output, "what ran of it is in out/lost") != NULL, "%s", output);
    ck_assert_uint_eq(cluster_count_good_runs(), 4);
}
END_TEST

/* Slurm would start a job that it has queued again two minutes later.  Not at once either: a slurmd
 * refuses a job that it was told to end in the same second. */
static void await_second_run(void)
{
    ck_assert(process_shell("scontrol update job=$(squeue --noheader --partition=all --format %%i) "
                            "starttime=now+2"));
    cluster_wait("the job does not end", CLUSTER_NO_JOBS);
}

/* A job that gives way to an urgent one saves a checkpoint, and ends later as if nothing had been.
 */
START_TEST(test_preempted)
{
    static const char train[] = "sparring-worker --backend ring " CLUSTER_MODEL
                                " --steps 400 --momentum 0.9 --evaluate never --save";
    const unsigned held = 1;
    char text[1200];
    int length = snprintf(text, sizeof(text),
                          "#!/bin/sh\n#SBATCH --nodes=3 --exclusive --requeue --open-mode=append\n"
                          "exec sparring launch --on slurm --nproc-per-node 3 -- %s there "
                          "--delay-schedule %s --checkpoint-dir ck --resume auto\n",
                          train, job_pace_and_hold(3, 200, &held, 1));

    (void)support_write("job.sh", text, (size_t)length);
    ck_assert(process_shell("sparring launch --standalone --nproc-per-node 3 -- %s here && "
                            "ASAN_OPTIONS=detect_leaks=0 sbatch --output log.txt job.sh",
                            train));
    cluster_wait("no rank trains", "grep -q 'updates: 400' log.txt 2>/dev/null");
    ck_assert(process_shell("sbatch --partition=urgent --nodes=4 --exclusive --wrap=true"));
    cluster_wait("the job is not in the queue again",
                 "squeue --noheader --partition=all --states=PENDING --format %i | grep -q .");
    cluster_wait("processes are left", CLUSTER_NOTHING_LEFT);
    ck_assert_msg(process_shell("ls ck/step-*.safetensors && ! ls there 2>/dev/null"),
                  "no checkpoint: the job was not interrupted in time");
    await_second_run();
    ck_assert_msg(process_shell("[ $(grep -c 'a new run begins' log.txt) = 1 ]"), "it began anew");
    ck_assert(job_same_tensors("here", "there"));
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
    await_second_run();
    assert_ok(file_read("log.txt", 1 << 20, &log, &size, &err));
    ck_assert_msg(strstr(log, "what ran of it is in out/lost") && cluster_count_good_runs() == 4,
                  "%s", log);
    free(log);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("on_slurm", 200, CHECKED_FIXTURE(setup, cluster_teardown),
                       LOOP_TEST(test_same_values, 0, CLUSTER_ARCHITECTURES), TEST(test_nodes),
                       LOOP_TEST(test_too_few_hosts, 0, 2), TEST(test_without_allocation),
                       LOOP_TEST(test_launcher_ends, 0, 2), TEST(test_compare), TEST(test_scaling),
                       TEST(test_allocation_for_each_block), TEST(test_experiment_that_cannot_run),
                       TEST(test_cancelled_allocation), TEST(test_preempted), TEST(test_dead_node));
}
