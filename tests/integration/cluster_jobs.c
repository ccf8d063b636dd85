#include "tests/integration/cluster_jobs.h"

#include "common/base/clock.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char before[4096]; /* the folder where the test began */

void cluster_setup(void)
{
    char programs[4096], path[9000];

    ck_assert_ptr_nonnull(realpath(support_program(""), programs));
    (void)snprintf(path, sizeof(path), "%s:%s", programs, getenv("PATH"));
    ck_assert_int_eq(setenv("PATH", path, 1), 0);
    ck_assert_int_eq(setenv("SPARRING_INSECURE", "true", 1), 0);
    ck_assert_int_eq(setenv("SPARRING_HOST_CHECK", "warn", 1), 0); /* other tests run meanwhile */
    ck_assert_ptr_nonnull(getcwd(before, sizeof(before)));
    ck_assert_int_eq(chdir(support_path(".")), 0);
}

void cluster_teardown(void)
{
    ck_assert_int_eq(chdir(before), 0);
}

void cluster_wait(const char *what, const char *condition)
{
    const int64_t deadline_ns = clock_deadline_ns(60000);

    while (!process_shell("%s", condition)) {
        ck_assert_msg(clock_left_ms(deadline_ns) > 0, "%s", what);
        (void)usleep(50000);
    }
}

void cluster_check_same_values(int architecture, const char *allocation, const char *on,
                               const char *saved)
{
    static const struct {
        const char *launch, *worker;
    } architectures[CLUSTER_ARCHITECTURES] = {
        {"", "--sync allreduce --backend ring"},
        {"--servers 1", "--sync ps"},
        {"--server-placement colocated --ranks-per-host 2", "--sync ps"},
        {"--server-placement mixed --servers 1", "--sync ps"},
    };
    const char *launch = architectures[architecture].launch;
    const char *worker = architectures[architecture].worker;
    char here[1200], there[1200];

    (void)snprintf(here, sizeof(here),
                   "sparring launch --standalone --nproc-per-node 3 %s -- sparring-worker "
                   "%s " CLUSTER_MODEL " --steps 20 --save here",
                   launch, worker);
    (void)snprintf(there, sizeof(there),
                   "%s sparring launch --on %s --hosts n3,n1,n4,n2 --nproc-per-node 3 %s "
                   "--run-dir run -- sparring-worker %s " CLUSTER_MODEL " --steps 20 --save there",
                   allocation, on, launch, worker);
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, ARGS("sh", "-c", here));
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, ARGS("sh", "-c", there));
    ck_assert(job_same_tensors("here", saved));
    ck_assert_str_eq(job_record_text("run", 2, "end", "status"), "ok");
}

void cluster_start_endless(struct process *job, const char *on)
{
    char line[600];

    (void)snprintf(line, sizeof(line),
                   "sparring launch --on %s --nproc-per-node 3 --servers 1 --run-dir run -- "
                   "sparring-worker --sync ps --epochs 1000000 --evaluate never " CLUSTER_MODEL
                   " & echo $! >pid; wait $!",
                   on);
    process_start(job, NULL, ARGS("sh", "-c", line));
}

void cluster_check_cancelled(unsigned ranks)
{
    unsigned asked = 0; /* another may first see the one that was fastest leave */

    for (unsigned r = 0; r < ranks; r++)
        asked += strcmp(job_record_text("run", r, "end", "status"), "CANCELLED") == 0;
    ck_assert_uint_ge(asked, 1);
    json_decref(job_server_record("run", 0, "end"));
}

void cluster_write_experiment(int steps)
{
    char text[1000];
    int length = snprintf(
        text, sizeof(text),
        "nproc: 2\n"
        "repeats: 2\n"
        "verdict: none\n"
        "options: {model: 'mlp:64-96-8', data: 'random:4096,64,8', threads: 1, evaluate: never,\n"
        "          steps: %d, delay-schedule: %s}\n"
        "modes:\n"
        "  - {name: ring, options: {sync: allreduce, backend: ring}}\n"
        "  - {name: ps, servers: 1, options: {sync: ps}}\n",
        steps, job_pace(2));

    (void)support_write("e.yaml", text, (size_t)length);
}

size_t cluster_count_good_runs(void)
{
    json_t *report = json_load_file("out/report.json", 0, NULL);
    json_t *run;
    size_t i, good = 0;

    json_array_foreach(json_object_get(report, "runs"), i, run) good +=
        strcmp(json_string_value(json_object_get(run, "state")), "good") == 0;
    json_decref(report);
    return good;
}

/* The value of --hosts of a run. */
static void read_hosts_of(const char *mode, int block, char *text, size_t size)
{
    char path[200];
    json_t *attempt;
    const char *found;

    (void)snprintf(path, sizeof(path), "out/runs/%s-%d/attempt.json", mode, block);
    attempt = json_load_file(path, 0, NULL);
    found = json_string_value(json_object_get(attempt, "command"));
    found = found ? strstr(found, "--hosts=") : NULL;
    ck_assert_msg(found != NULL, "%s", path);
    (void)snprintf(text, size, "%.*s", (int)strcspn(found, " "), found);
    json_decref(attempt);
}

void cluster_check_hosts_of_blocks(void)
{
    for (int block = 0; block < 2; block++) {
        char ring[64], ps[64];

        read_hosts_of("ring", block, ring, sizeof(ring));
        read_hosts_of("ps", block, ps, sizeof(ps));
        ck_assert_msg(strncmp(ps, ring, strlen(ring)) == 0, "%s, %s", ring, ps);
        ck_assert_uint_eq(strlen(ps), strlen("--hosts=n1,n2,n3"));
    }
}

void cluster_check_compare(const char *on)
{
    cluster_write_experiment(20);
    (void)process_run(0, JOB_TIMEOUT_MS, NULL,
                      ARGS("sparring", "compare", "e.yaml", "--on", on, "--out", "out"));
    ck_assert_uint_eq(cluster_count_good_runs(), 4);
    ck_assert(process_shell("grep -q '\"link_gbit\":[0-9.]*[1-9]' out/hosts.jsonl"));
    cluster_check_hosts_of_blocks();
}
