/*
 * `--on kubernetes --dry-run`: the manifests are valid, and what they start, each pod a process
 * with the name, variables, user and file systems that it would have, trains to the same values as
 * `launch` here, in plaintext and with certificates.  Without a Kubernetes.
 * Runs inside tests/support/cluster as root; tests/support/pods plays the cluster.
 */
#include "tests/integration/cluster_jobs.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WAIT_MS 200000

static char pods[4096];

static void setup(void)
{
    cluster_setup();
    (void)snprintf(pods, sizeof(pods), "%s %s", support_python(),
                   support_source("tests/support/pods"));
}

/* Write manifests into job.yaml, check them and run them in the folder `shared`.  The commands of
 * their comment make the secret. */
static void run_pods(const char *command)
{
    char line[9000];

    (void)snprintf(
        line, sizeof(line),
        "mkdir -p shared certs && chmod 777 shared && %s >job.yaml && %s check job.yaml "
        "&& sed -n 's|^#   make-cert|%s-cert|p' job.yaml | sh -e && rm -f certs/ca.key && "
        "%s run job.yaml shared certs",
        command, pods, support_source("experiments/make"), pods);
    (void)process_run(0, WAIT_MS, NULL, ARGS("sh", "-c", line));
}

static const struct {
    const char *on, *launch, *worker;
} jobs[] = {
    {"kubernetes", "--ranks-per-host 2", "--sync allreduce --backend ring"},
    {"kubernetes", "--servers 2", "--sync ps"},
    {"kubernetes:jobs", "--servers 2 --ranks-per-host 4", "--sync ps"},
    {"kubernetes", "--server-placement colocated --ranks-per-host 2", "--sync ps"},
    {"kubernetes:jobs", "--server-placement mixed --servers 1 --ranks-per-host 2", "--sync ps"},
};

START_TEST(test_same_values)
{
    char line[1500];

    (void)snprintf(line, sizeof(line),
                   "sparring launch --standalone --nproc-per-node 4 %s -- sparring-worker "
                   "%s " CLUSTER_MODEL " --steps 20 --save here",
                   _i == 1 || _i == 2 ? "--servers 2" : "", jobs[_i].worker);
    if (_i >= 3) /* the servers have other shares of the parameters here, and sum the same */
        (void)snprintf(line, sizeof(line),
                       "sparring launch --standalone --nproc-per-node 4 --servers 1 -- "
                       "sparring-worker %s " CLUSTER_MODEL " --steps 20 --save here",
                       jobs[_i].worker);
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, ARGS("sh", "-c", line));
    (void)snprintf(line, sizeof(line),
                   "sparring launch --on %s --dry-run --nproc-per-node 4 %s --job-name same "
                   "--pod-claim runs --run-dir run -- sparring-worker %s " CLUSTER_MODEL
                   " --steps 20 --save there",
                   jobs[_i].on, jobs[_i].launch, jobs[_i].worker);
    run_pods(line);
    ck_assert(job_same_tensors("here", "shared/there"));
    ck_assert_str_eq(job_record_text("shared/run", 3, "end", "status"), "ok");
    cluster_wait("something is left", CLUSTER_NOTHING_LEFT);
}
END_TEST

/* All that the programs take as yes. */
START_TEST(test_plaintext)
{
    const char *words[] = {"", "--insecure=yes"}, *variables[] = {"SPARRING_INSECURE=1", "X=1"};
    char line[400];

    ck_assert_int_eq(unsetenv("SPARRING_INSECURE"), 0);
    (void)snprintf(line, sizeof(line),
                   "sparring launch --on kubernetes --dry-run -- sparring-worker %s", words[_i]);
    ck_assert_ptr_null(strstr(
        process_run(0, JOB_TIMEOUT_MS, ARGS(variables[_i]), ARGS("sh", "-c", line)), "secret"));
}
END_TEST

START_TEST(test_certificates)
{
    ck_assert_int_eq(unsetenv("SPARRING_INSECURE"), 0);
    run_pods("sparring launch --on kubernetes --dry-run --nproc-per-node 2 --servers 1 "
             "--pod-claim runs --run-dir run -- sparring-worker --sync ps " CLUSTER_MODEL
             " --steps 5");
    ck_assert_str_eq(job_record_text("shared/run", 1, "end", "status"), "ok");
}
END_TEST

/* Daemons in pods, and a pod that compares on them. */
START_TEST(test_compare)
{
    static const char experiment[] =
        "nproc: 2\n"
        "repeats: 2\n"
        "verdict: none\n"
        "options: {model: 'mlp:64-96-8', data: 'random:4096,64,8', threads: 1, evaluate: never,\n"
        "          steps: 20}\n"
        "modes:\n"
        "  - {name: ring, options: {sync: allreduce, backend: ring}}\n"
        "  - {name: ps, servers: 1, options: {sync: ps}}\n";

    (void)support_write("e.yaml", experiment, sizeof(experiment) - 1);
    run_pods("cp e.yaml shared && sparring compare --on kubernetes --dry-run e.yaml --repeats=1 "
             "--host-check=warn --pod-claim runs --out out");
    ck_assert(
        process_shell("test \"$(grep -c '\"state\": *\"good\"' shared/out/report.json)\" = 2"));
}
END_TEST

static const struct {
    const char *words, *answer;
} refusals[] = {
    {"--on kubernetes -- true", "--on kubernetes and --dry-run go together"},
    {"--on slurm --dry-run -- true", "--on kubernetes and --dry-run go together"},
    {"--dry-run -- true", "--dry-run goes with --on kubernetes"},
    {"--image x -- true", "--image goes with --on kubernetes"},
    {"--on ssh:n1 --pod-claim x -- true", "--pod-claim goes with --on kubernetes"},
    {"--on kubernetes:x --dry-run -- true", "neither kubernetes nor kubernetes:jobs"},
    {"--on kubernetes --dry-run --job-name A_b -- true", "--job-name: 'A_b'"},
    {"--on kubernetes --dry-run --job-name a123456789012345678901234567890123456789012345678901"
     " -- true",
     "makes names of 64 characters, allowed are 57, since a JobSet adds 6"},
    {"--on kubernetes:jobs --dry-run --job-name "
     "a123456789012345678901234567890123456789012345678901 -- true",
     "makes names of 64 characters, allowed are 63"},
    {"--on kubernetes --dry-run --job-name 7b -- true", "begins with a letter"},
    {"--on kubernetes --dry-run --image 'a b' -- true", "--image: 'a b'"},
    {"--on kubernetes --dry-run --pod-claim B -- true", "--pod-claim: 'B'"},
    {"--on kubernetes --dry-run --pod-resources cpu -- true", "--pod-resources: 'cpu'"},
    {"--on kubernetes --dry-run --pod-resources cpu=1,=2 -- true", "--pod-resources: '=2'"},
    {"--on kubernetes --dry-run --run-dir r -- true", "--run-dir needs --pod-claim"},
    {"--on kubernetes --dry-run --state-dir r -- true", "--state-dir exclude each other"},
    {"--on kubernetes --dry-run --nproc-per-node 5 --ranks-per-host 2 -- true",
     "5 ranks are not the same number for each pod"},
    {"--on kubernetes --dry-run --nnodes 2 -- true", "--nnodes exclude each other"},
};

START_TEST(test_refusals)
{
    char line[600];

    (void)snprintf(line, sizeof(line), "sparring launch %s", refusals[_i].words);
    assert_contains(process_run(2, JOB_TIMEOUT_MS, NULL, ARGS("sh", "-c", line)),
                    refusals[_i].answer);
}
END_TEST

/* Texts of the command line are texts of the manifest, whatever they hold. */
START_TEST(test_quoting)
{
    run_pods("sparring launch --on kubernetes:jobs --dry-run --pod-claim runs -- sh -c "
             "'printf \"%s\" \"$(( 1 + 2 )) : {x: } $$\" >told && test $(id -u) = 65532 && "
             "grep -q \"^[^ ]* / [^ ]* ro\" /proc/mounts'");
    ck_assert(process_shell("grep -q '^3 : {x: } [0-9][0-9]*$' shared/told"));
}
END_TEST

int main(void)
{
    if (!process_shell("%s -c 'import yaml' 2>/dev/null", support_python())) {
        support_skip_package("python3-yaml");
        return 0;
    }
    return SUPPORT_RUN("on_kubernetes", 240, CHECKED_FIXTURE(setup, cluster_teardown),
                       LOOP_TEST(test_same_values, 0, sizeof(jobs) / sizeof(jobs[0])),
                       LOOP_TEST(test_plaintext, 0, 2), TEST(test_certificates), TEST(test_compare),
                       LOOP_TEST(test_refusals, 0, sizeof(refusals) / sizeof(refusals[0])),
                       TEST(test_quoting));
}
