/*
 * `launch --on slurm` and `compare --on slurm` on four nodes: the same values as on one host, ranks
 * and servers on nodes of their own, blocks on drawn nodes, and allocations that end too early.
 * Runs inside tests/support/slurm_cluster, so that all visible processes belong to the cluster.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL    "--model mlp:64-96-8 --data random:4096,64,8 --threads 1 --reduce reproducible"
#define SALLOC   "salloc", "--nodes=4", "--exclusive", "--quiet"
#define NO_LEAKS "ASAN_OPTIONS=detect_leaks=0" /* see test_slurm.c */
/* Exit code 0 when no process of a job is left. */
#define NOTHING_LEFT "! cat /proc/[0-9]*/comm 2>/dev/null | grep -q 'sparring-\\|^srun$'"

#define HAS_BEGUN "cat out/runs/*/rank0.jsonl 2>/dev/null | grep -q '\"step\"'"

static struct process job;
static char folder[4096]; /* where the test began */

static void setup(void)
{
    char programs[4096], path[9000];

    ck_assert_ptr_nonnull(realpath(support_program(""), programs));
    (void)snprintf(path, sizeof(path), "%s:%s", programs, getenv("PATH"));
    ck_assert_int_eq(setenv("PATH", path, 1), 0);
    ck_assert_int_eq(setenv("SPARRING_INSECURE", "true", 1), 0);
    ck_assert_ptr_nonnull(getcwd(folder, sizeof(folder)));
    ck_assert_int_eq(chdir(support_path(".")), 0);
    /* What a test that failed has left. */
    (void)process_shell("scancel --user root; timeout 60 sh -c "
                        "'until [ -z \"$(squeue --noheader)\" ]; do sleep 0.05; done'");
}

static void teardown(void)
{
    ck_assert_int_eq(chdir(folder), 0);
}

static void wait_for_shell(const char *what, const char *condition)
{
    const int64_t deadline_ns = clock_deadline_ns(60000);

    while (!process_shell("%s", condition)) {
        ck_assert_msg(clock_left_ms(deadline_ns) > 0, "%s", what);
        (void)usleep(50000);
    }
}

/* ---- jobs */

static const struct architecture {
    const char *launch, *worker;
} architectures[] = {
    {"", "--sync allreduce --backend ring"},
    {"--servers 1", "--sync ps"},
    {"--server-placement colocated --ranks-per-host 2", "--sync ps"},
    {"--server-placement mixed --servers 1", "--sync ps"},
};

START_TEST(test_without_allocation)
{
    ck_assert_ptr_nonnull(strstr(
        process_run(3, JOB_TIMEOUT_MS, NULL, ARGS("sparring", "launch", "--on", "slurm", "true")),
        "no Slurm allocation here: SLURM_JOB_ID is not set"));
}
END_TEST

#define ARCHITECTURES ((int)(sizeof(architectures) / sizeof(architectures[0])))

START_TEST(test_same_values)
{
    const struct architecture *a = &architectures[_i];
    char here[1200], there[1200];

    (void)snprintf(here, sizeof(here),
                   "sparring launch --standalone --nproc-per-node 3 %s -- sparring-worker " MODEL
                   " %s --steps 20 --save here",
                   a->launch, a->worker);
    (void)snprintf(there, sizeof(there),
                   "sparring launch --on slurm --hosts n3,n1,n4,n2 --nproc-per-node 3 %s "
                   "--run-dir run -- sparring-worker " MODEL " %s --steps 20 --save there",
                   a->launch, a->worker);
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, ARGS("sh", "-c", here));
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, ARGS(SALLOC, "sh", "-c", there));
    ck_assert(job_same_tensors("here", "there"));
    ck_assert_str_eq(job_record_text("run", 2, "end", "status"), "ok");
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
             "exec sparring-worker --sync ps --steps 3 " MODEL "'"));

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
                       "sparring-worker --sync ps --epochs 1000000 --evaluate never " MODEL
                       " & echo $! >pid; wait $!; echo \"launch: $?\"; "
                       "until " NOTHING_LEFT "; do sleep 0.05; done; echo nothing left"));
    for (unsigned r = 0; r < 3; r++)
        job_await_step("run", r, 3);
    ck_assert(process_shell("kill -%d $(cat pid)", signal_number));
    ck_assert_msg(process_wait(&job, JOB_TIMEOUT_MS) == 0, "%s", process_output(&job));
    ck_assert_msg(strstr(process_output(&job), "nothing left") != NULL, "%s", process_output(&job));
    if (signal_number == SIGTERM) { /* they were asked to stop */
        unsigned asked = 0;         /* another may first see the one that was fastest leave */

        for (unsigned r = 0; r < 3; r++)
            asked += strcmp(job_record_text("run", r, "end", "status"), "CANCELLED") == 0;
        ck_assert_uint_ge(asked, 1);
        json_decref(job_server_record("run", 0, "end"));
    }
}
END_TEST

/* ---- experiments */

#define EXPERIMENT                                                                                 \
    "nproc: 2\n"                                                                                   \
    "repeats: 2\n"                                                                                 \
    "verdict: none\n"                                                                              \
    "options: {model: 'mlp:64-96-8', data: 'random:4096,64,8', threads: 1, evaluate: never,\n"     \
    "          steps: %d, delay-schedule: %s}\n"                                                   \
    "modes:\n"                                                                                     \
    "  - {name: ring, options: {sync: allreduce, backend: ring}}\n"                                \
    "  - {name: ps, servers: 1, options: {sync: ps}}\n"

static void write_experiment(int steps)
{
    char text[1000];
    int length = snprintf(text, sizeof(text), EXPERIMENT, steps, job_pace(2));

    (void)support_write("e.yaml", text, (size_t)length);
}

/* The value of --hosts of a run. */
static const char *hosts_of(const char *run)
{
    static char text[64];
    char path[200];
    json_t *attempt;
    const char *found;

    (void)snprintf(path, sizeof(path), "out/runs/%s/attempt.json", run);
    attempt = json_load_file(path, 0, NULL);
    found = json_string_value(json_object_get(attempt, "command"));
    found = found ? strstr(found, "--hosts=") : NULL;
    ck_assert_ptr_nonnull(found);
    (void)snprintf(text, sizeof(text), "%.*s", (int)strcspn(found, " "), found);
    json_decref(attempt);
    return text;
}

static size_t count_good_runs(void)
{
    json_t *report = json_load_file("out/report.json", 0, NULL);
    json_t *run;
    size_t i, good = 0;

    json_array_foreach(json_object_get(report, "runs"), i, run) good +=
        strcmp(json_string_value(json_object_get(run, "state")), "good") == 0;
    json_decref(report);
    return good;
}

/* It allocates nodes for itself; both modes of a block use the same, in the same order. */
START_TEST(test_compare)
{
    const char *output;

    write_experiment(20);
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    ck_assert_msg(strstr(output, "Granted job allocation") != NULL, "%s", output);
    ck_assert_uint_eq(count_good_runs(), 4);
    for (int block = 0; block < 2; block++) {
        char ring[64], name[16];

        (void)snprintf(name, sizeof(name), "ring-%d", block);
        (void)snprintf(ring, sizeof(ring), "%s", hosts_of(name));
        (void)snprintf(name, sizeof(name), "ps-%d", block);
        ck_assert_msg(strncmp(hosts_of(name), ring, strlen(ring)) == 0, "%s, %s", ring,
                      hosts_of(name));
    }
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    ck_assert_msg(strstr(output, "4 runs are there already") != NULL, "%s", output);
}
END_TEST

START_TEST(test_experiment_that_cannot_run)
{
    write_experiment(20);
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

    write_experiment(500);
    process_start(&job, ARGS(NO_LEAKS),
                  ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    wait_for_shell("no run has begun", HAS_BEGUN);
    ck_assert(process_shell("scancel $(squeue --noheader --format %%i)"));
    ck_assert_msg(process_wait(&job, JOB_TIMEOUT_MS) > 0, "%s", process_output(&job));
    ck_assert_msg(strstr(process_output(&job), "the allocation has ended during ") != NULL, "%s",
                  process_output(&job));
    wait_for_shell("processes are left", NOTHING_LEFT);
    output = process_run(0, JOB_TIMEOUT_MS, NULL,
                         ARGS("sparring", "compare", "e.yaml", "--on", "slurm", "--out", "out"));
    ck_assert_msg(strstr(output, "runs again; they are in out/lost") != NULL, "%s", output);
    ck_assert_uint_eq(count_good_runs(), 4);
}
END_TEST

/* A job in the queue whose node dies: Slurm queues it again, and on other nodes it goes on where it
 * was.  The last test: n2 stays away. */
START_TEST(test_dead_node)
{
    struct error err;
    char *log;
    size_t size;

    write_experiment(500);
    ck_assert(process_shell("sparring compare e.yaml --on slurm --out out --dry-run >job.sh && "
                            "ASAN_OPTIONS=detect_leaks=0 sbatch --output log.txt job.sh"));
    wait_for_shell("no run has begun", HAS_BEGUN);
    ck_assert(process_shell("kill -KILL $(cat ${SLURM_CONF%%/*}/slurmd.n2.pid) && "
                            "scontrol update nodename=n2 state=down reason=killed"));
    wait_for_shell("the job is not in the queue again",
                   "squeue --noheader --states=PENDING --format %i | grep -q .");
    wait_for_shell("processes are left", NOTHING_LEFT);
    ck_assert(process_shell("scontrol update job=$(squeue --noheader --format %%i) starttime=now"));
    wait_for_shell("the job does not end", "[ -z \"$(squeue --noheader)\" ]");
    assert_ok(file_read("log.txt", 1 << 20, &log, &size, &err));
    ck_assert_msg(strstr(log, "runs again; they are in out/lost") && count_good_runs() == 4, "%s",
                  log);
    free(log);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("on_slurm", 200, CHECKED_FIXTURE(setup, teardown),
                       LOOP_TEST(test_same_values, 0, ARCHITECTURES), TEST(test_nodes),
                       LOOP_TEST(test_too_few_hosts, 0, 2), TEST(test_without_allocation),
                       LOOP_TEST(test_launcher_ends, 0, 2), TEST(test_compare),
                       TEST(test_experiment_that_cannot_run), TEST(test_cancelled_allocation),
                       TEST(test_dead_node));
}
