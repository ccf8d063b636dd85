/*
 * Slurm: jobs through srun on three nodes, as in docs/cluster.md; jobs in which a rank fails; and
 * cancelled jobs.  Runs inside tests/support/cluster, so that all visible processes belong to
 * the cluster.
 */
#include "common/base/clock.h"
#include "tests/integration/cluster_jobs.h"
#include "tests/integration/job.h"
#include "tests/support/lateness.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES          3u
#define END_LIMIT_NS   INT64_C(3000000000)
#define MODEL          "--model mlp:64-96-8 --data random:4096,64,8 --threads 1 --reduce reproducible"
#define WITHOUT_END    "--epochs 1000000 --evaluate never"
#define NAME_BYTES_MAX 16

static const struct architecture {
    const char *name;
    const char *options;
    bool has_server;
} architectures[] = {
    {"allreduce", "--sync allreduce --backend ring", false},
    {"ps", "--sync ps --servers n1:5757", true},
};

#define ARCHITECTURES ((int)(sizeof(architectures) / sizeof(architectures[0])))

static struct process job;

/* ---- jobs */

/* Write the script of an allocation: a step with the server, if any, and a step with the ranks.
 * `srun` has options of srun, `before` shell code that each rank runs first. */
static const char *write_script(const struct architecture *a, const char *srun, const char *before,
                                const char *options)
{
    char text[4000];
    int length = 0;

    if (a->has_server)
        length = snprintf(text, sizeof(text),
                          "srun --overlap -N1 -n1 -w n1 %s --listen n1:5757 --insecure &\n",
                          support_program("sparring-server"));
    length += snprintf(text + length, sizeof(text) - (size_t)length,
                       "srun %s -N%u -n%u sh -c '%s exec \"$@\"' sh %s " MODEL
                       " --insecure --run-dir %s %s %s\n",
                       srun, NODES, NODES, before, support_program("sparring-worker"),
                       support_path("run"), a->options, options);
    return support_write("script", text, (size_t)length);
}

/* Slurm sends SIGCONT with each signal.  One that arrives while LeakSanitizer has stopped an ending
 * process hangs that process (4 of 30 workers), so jobs that get signals are not searched for
 * leaks. */
static void start_job(const struct architecture *a, const char *srun, const char *before,
                      const char *options)
{
    const bool ends = strcmp(options, WITHOUT_END) != 0;

    process_start(&job, ends ? NULL : ARGS("ASAN_OPTIONS=detect_leaks=0"),
                  ARGS("salloc", "--nodes=3", "sh", write_script(a, srun, before, options)));
}

/* ---- processes of the cluster */

static unsigned count_processes(const char *name)
{
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    unsigned count = 0;

    ck_assert_ptr_nonnull(folder);
    while ((entry = readdir(folder))) {
        char path[300], comm[NAME_BYTES_MAX + 1] = "";
        FILE *file;

        (void)snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
        file = fopen(path, "re");
        if (file && fscanf(file, "%16s", comm) == 1)
            count += strcmp(comm, name) == 0;
        if (file)
            (void)fclose(file);
    }
    (void)closedir(folder);
    return count;
}

/* When Slurm lists no job, no process or shared memory of a job may remain. */
static void check_nothing_left(void)
{
    cluster_wait("Slurm still lists jobs", CLUSTER_NO_JOBS);
    ck_assert_uint_eq(count_processes("sparring-worker"), 0);
    ck_assert_uint_eq(count_processes("sparring-server"), 0);
    ck_assert_msg(process_shell("[ -z \"$(ls /dev/shm)\" ]"), "left in /dev/shm");
}

/* Wait for the end of the job with a fault at fault_ns; check that it ends within the limit. */
static void check_ends_in_time(const char *what, int64_t fault_ns, struct lateness *lateness)
{
    const int code = process_wait(&job, JOB_TIMEOUT_MS);
    const int64_t took_ns = clock_now_ns() - fault_ns;
    const int64_t late_ns = lateness_end_ns(lateness);

    (void)printf("%s: ended after %.2f s\n", what, (double)took_ns * 1e-9);
    if (code < 0) /* what does salloc wait for? */
        (void)process_shell("exec >&2; squeue; tail -n 40 ${SLURM_CONF%%/*}/*.log; "
                            "for p in /proc/[0-9]*; do echo $p; cat $p/comm $p/wchan; done");
    ck_assert_msg(code > 0, "%s: exit code %d: %s", what, code, process_output(&job));
    ck_assert_msg(took_ns <= END_LIMIT_NS + late_ns,
                  "%s: ended after %.2f s on a host late by %.2f s: %s", what,
                  (double)took_ns * 1e-9, (double)late_ns * 1e-9, process_output(&job));
    check_nothing_left();
}

static void wait_for_training(void)
{
    process_wait_output(&job, "ranks: 3, ", JOB_TIMEOUT_MS);
    for (unsigned r = 0; r < NODES; r++)
        job_await_step(support_path("run"), r, 3);
}

/* ---- the tests */

/* The job ends with the parameters of the same job under `sparring launch`. */
START_TEST(test_trains)
{
    char options[800], launch[1200];
    json_t *manifest;

    (void)snprintf(options, sizeof(options), "--steps 20 --save %s", support_path("saved"));
    start_job(&architectures[_i], "", "", options);
    ck_assert_msg(process_wait(&job, JOB_TIMEOUT_MS) == 0, "%s", process_output(&job));
    check_nothing_left();
    manifest = json_load_file(support_path("run/manifest.json"), 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(manifest, "launch_source")), "SLURM_PROCID");
    json_decref(manifest);
    (void)snprintf(launch, sizeof(launch),
                   "%s launch --standalone --nproc-per-node %u --run-dir %s -- %s " MODEL
                   " --steps 20 --save %s",
                   support_program("sparring"), NODES, support_path("run-launched"),
                   support_program("sparring-worker"), support_path("launched"));
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, ARGS("sh", "-c", launch));
    ck_assert(job_same_tensors(support_path("saved"), support_path("launched")));
}
END_TEST

/* Case i has architecture i / 2 and fails rank 0, which hosts the store, or the last rank. */
#define CASES (2 * ARCHITECTURES)

static unsigned case_rank(int i)
{
    return i % 2 == 0 ? 0 : NODES - 1;
}

/* One rank gets SIGKILL or SIGTERM; the others must detect the loss. */
static void signal_rank_in_step(int i, int signal_number)
{
    const struct architecture *a = &architectures[i / 2];
    const unsigned rank = case_rank(i);
    char what[64];
    struct lateness lateness;
    int64_t fault_ns;
    pid_t pid;

    start_job(a, "", "", WITHOUT_END);
    wait_for_training();
    ck_assert_uint_eq(count_processes("sparring-worker"), NODES);
    pid = (pid_t)job_record_int(support_path("run"), rank, "start", "pid");
    lateness_begin(&lateness);
    fault_ns = clock_now_ns();
    ck_assert_int_eq(kill(pid, signal_number), 0);
    (void)snprintf(what, sizeof(what), "%s, rank %u gets signal %d", a->name, rank, signal_number);
    check_ends_in_time(what, fault_ns, &lateness);
}

START_TEST(test_killed_rank)
{
    signal_rank_in_step(_i, SIGKILL);
}
END_TEST

START_TEST(test_stopped_rank)
{
    signal_rank_in_step(_i, SIGTERM);
}
END_TEST

/* A rank fails while the others wait for it to join. */
START_TEST(test_failed_rank)
{
    const struct architecture *a = &architectures[_i / 2];
    const unsigned rank = case_rank(_i);
    const char *path = support_path("go");
    char before[200], what[64];
    struct lateness lateness;
    int64_t fault_ns;
    int go;

    ck_assert_int_eq(mkfifo(path, 0600), 0);
    go = open(path, O_RDWR | O_CLOEXEC); /* O_RDWR: neither side blocks in open */
    ck_assert_int_ge(go, 0);
    (void)snprintf(before, sizeof(before),
                   "if [ $SLURM_PROCID = %u ]; then read word <%s; "
                   "set -- \"$@\" --no-such-option; fi;",
                   rank, path);
    start_job(a, "--kill-on-bad-exit=1", before, WITHOUT_END);
    process_wait_output(&job, ", 3 s of ", JOB_TIMEOUT_MS); /* the other ranks wait */
    lateness_begin(&lateness);
    fault_ns = clock_now_ns();
    ck_assert_int_eq(write(go, "\n", 1), 1);
    (void)close(go);
    (void)snprintf(what, sizeof(what), "%s, rank %u fails while others wait", a->name, rank);
    check_ends_in_time(what, fault_ns, &lateness);
    ck_assert_ptr_nonnull(strstr(process_output(&job), "unknown option '--no-such-option'"));
}
END_TEST

START_TEST(test_scancel)
{
    char what[64];
    struct lateness lateness;
    int64_t fault_ns;

    start_job(&architectures[_i], "", "", WITHOUT_END);
    wait_for_training();
    lateness_begin(&lateness);
    fault_ns = clock_now_ns();
    ck_assert(process_shell("scancel $(squeue --noheader --format %%i)"));
    (void)snprintf(what, sizeof(what), "%s, scancel", architectures[_i].name);
    check_ends_in_time(what, fault_ns, &lateness);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "slurm", 200, LOOP_TEST(test_trains, 0, ARCHITECTURES),
        LOOP_TEST(test_killed_rank, 0, CASES), LOOP_TEST(test_stopped_rank, 0, CASES),
        LOOP_TEST(test_failed_rank, 0, CASES), LOOP_TEST(test_scancel, 0, ARCHITECTURES));
}
