/*
 * `launch --on standby:...` and `compare --on standby:...` on four nodes, each with a daemon: the
 * same values as on one host, who may use a host, what a daemon refuses, and what is left when a
 * client, a task or a daemon is stopped, killed or stands still.
 * Runs inside tests/support/cluster, so that all visible processes belong to the cluster.
 *
 * Variables for reproduction:
 *   SPARRING_STANDBY_SEEDS (8)    seeds of test_ends
 */
#include "common/base/parse.h"
#include "tests/integration/cluster_jobs.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES  4
#define ON_ALL "standby:n1,n2,n3,n4"
#define RUN    "sparring", "standby", "run", "--holder", "bob"

/* Shell: the daemons' folders of tasks are gone, too. */
#define NOTHING_LEFT CLUSTER_NOTHING_LEFT " && ! ls tasks | grep -q ."
#define STEPS        "$(cat tasks/*/rank0.jsonl 2>/dev/null | grep -c '\"step\"')"

static struct process daemons[NODES], job;
static char make_certificates[4096];

static void start_daemon(int node)
{
    char address[32];

    (void)snprintf(address, sizeof(address), "n%d:5750", node + 1);
    process_start(&daemons[node], ARGS("TMPDIR=tasks"),
                  ARGS("sparring", "standby", "serve", "--listen", address, "--allow-dir", "."));
}

static void setup(void)
{
    cluster_setup();
    (void)snprintf(make_certificates, sizeof(make_certificates), "%s",
                   support_source("experiments/make-certificates"));
    (void)unsetenv("SPARRING_SOURCE"); /* the variables of tests are not a job's */
    (void)unsetenv("SPARRING_BIN");
    (void)unsetenv("SPARRING_DATA");
    ck_assert(process_shell("mkdir -p tasks"));
    for (int n = 0; n < NODES; n++)
        start_daemon(n);
    for (int n = 0; n < NODES; n++)
        process_wait_output(&daemons[n], "serving on", JOB_TIMEOUT_MS);
}

static void teardown(void)
{
    for (int n = 0; n < NODES; n++)
        process_signal(&daemons[n], SIGTERM);
    for (int n = 0; n < NODES; n++)
        ck_assert_int_eq(process_wait(&daemons[n], JOB_TIMEOUT_MS), 0);
    cluster_teardown();
}

START_TEST(test_same_values)
{
    cluster_check_same_values(_i, "", "standby", "run/there");
    cluster_wait("something is left", NOTHING_LEFT);
}
END_TEST

/* The last words of `standby run`, and the answer. */
static const struct {
    const char *words[4];
    const char *answer;
} refusals[] = {
    {{"sh", "-c", "id"}, "'sh' is not a program that runs here"},
    {{"sparring-worker", "--data", "text:/etc/passwd"}, "'text:/etc/passwd' is not in a folder"},
    {{"sparring-worker", "--tls-key=x"}, "a task has the daemon's keys"},
    {{"sparring-worker", "--data", "../x"}, "a value with '..' is not accepted"},
    {{"sparring-worker", "--config=x"}, "have to be in its words"},
    {{"sparring-worker", "--no-such-option"}, "unknown option '--no-such-option'"},
};

START_TEST(test_refusal)
{
    const char *const *w = refusals[_i].words;

    assert_contains(process_run(PROCESS_FAILS, JOB_TIMEOUT_MS, NULL,
                                ARGS(RUN, "--host", "n1", "--", w[0], w[1], w[2], w[3])),
                    refusals[_i].answer);
    cluster_wait("something is left", NOTHING_LEFT);
}
END_TEST

START_TEST(test_hosts_that_do_not_answer)
{
    assert_contains(process_run(PROCESS_FAILS, JOB_TIMEOUT_MS, NULL,
                                ARGS(RUN, "--host", "n1:9", "--", "probe")),
                    "the standby daemon at n1:9: ");
    assert_contains(process_run(PROCESS_FAILS, JOB_TIMEOUT_MS, NULL,
                                ARGS("sparring", "launch", "--on", "standby:n1,n9",
                                     "--nproc-per-node", "2", "--", "sparring-worker", "--model",
                                     "mlp:64-8", "--data", "random:64,64,8", "--steps", "9")),
                    "the standby daemon at n9:5750: ");
}
END_TEST

/* Of another user, while the host is held, and afterwards. */
START_TEST(test_busy)
{
    assert_contains(process_run(PROCESS_FAILS, JOB_TIMEOUT_MS, NULL,
                                ARGS("sparring", "standby", "hold", "--holder", "alice", "--hosts",
                                     "n1,n2", "--", "sparring", "standby", "run", "--holder", "bob",
                                     "--host", "n2", "--", "probe")),
                    "the host is in use by alice since 20");
    (void)process_run(0, JOB_TIMEOUT_MS, NULL,
                      ARGS("sparring", "standby", "hold", "--holder", "alice", "--hosts", "n1,n2",
                           "--", "sh", "-c", "sparring standby run --host n2 -- probe"));
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, ARGS(RUN, "--host", "n2", "--", "probe"));
    (void)process_run(7, JOB_TIMEOUT_MS, NULL,
                      ARGS("sparring", "standby", "hold", "--holder", "alice", "--hosts", "n1",
                           "--", "sh", "-c", "exit 7"));
}
END_TEST

/* No certificate, one of another authority, and a good one. */
START_TEST(test_certificates)
{
    struct process daemon;
    const char *tls = "--tls-ca=good/ca.pem --tls-cert=good/host.pem --tls-key=good/host.key";
    const char *run = "sparring standby run --holder bob --host n1:5751";
    char line[800];

    ck_assert(process_shell("for f in good bad; do %s $f && %s $f host --host n1 --ranks 0-1 || "
                            "exit 1; done >/dev/null 2>&1",
                            make_certificates, make_certificates));
    (void)snprintf(line, sizeof(line),
                   "exec env -u SPARRING_INSECURE sparring standby serve --listen n1:5751 %s", tls);
    process_start(&daemon, NULL, ARGS("sh", "-c", line));
    process_wait_output(&daemon, "serving on", JOB_TIMEOUT_MS);
    ck_assert(process_shell("%s %s -- probe >/dev/null", run, tls));
    ck_assert(!process_shell("%s -- probe 2>/dev/null", run));
    ck_assert(!process_shell("%s --tls-ca=good/ca.pem --tls-cert=bad/host.pem "
                             "--tls-key=bad/host.key -- probe 2>/dev/null",
                             run));
    process_signal(&daemon, SIGTERM);
    ck_assert_int_eq(process_wait(&daemon, JOB_TIMEOUT_MS), 0);
}
END_TEST

/* What happens to a job; $draw is a random number.  Nothing remains on any node, no run is called
 * good, and the daemons take the next job. */
static const struct {
    const char *what, *shell;
    int daemon_ends; /* the signal; 0: no daemon does */
} ends[] = {
    {"launch is stopped", "kill -TERM $(cat pid)", 0},
    {"launch is killed", "kill -KILL $(cat pid)", 0},
    {"a client is killed", "kill -KILL $(pgrep -f 'standby run' | sed -n ${draw}p)", 0},
    {"a client stands still", "kill -STOP $(pgrep -f 'standby run' | sed -n ${draw}p)", 0},
    {"a task is killed", "kill -KILL $(pgrep '^sparring-' | sed -n ${draw}p)", 0},
    {"a task stands still",
     "kill -STOP $(pgrep '^sparring-' | sed -n ${draw}p); kill -TERM $(cat pid)", 0},
    {"a daemon is stopped", NULL, SIGTERM},
    {"a daemon is killed", NULL, SIGKILL},
};

static void take_next_job(void)
{
    (void)process_run(0, JOB_TIMEOUT_MS, NULL,
                      ARGS("sparring", "launch", "--on", ON_ALL, "--nproc-per-node", "4", "--",
                           "sparring-worker", "--model", "mlp:64-8", "--data", "random:64,64,8",
                           "--steps", "2", "--evaluate", "never"));
    cluster_wait("something is left of the next job", NOTHING_LEFT);
}

START_TEST(test_ends)
{
    const size_t kind = (size_t)_i % (sizeof(ends) / sizeof(ends[0]));
    const unsigned draw = (unsigned)_i * 2654435761u >> 30;
    char has_begun[200];
    int code;

    (void)snprintf(has_begun, sizeof(has_begun), "[ " STEPS " -gt %u ]",
                   (unsigned)_i * 40503u % 200u);
    cluster_start_endless(&job, ON_ALL);
    cluster_wait("the job does not begin", has_begun);
    if (ends[kind].shell)
        ck_assert(process_shell("draw=%u; %s", draw + 1, ends[kind].shell));
    else
        process_signal(&daemons[draw], ends[kind].daemon_ends);
    code = process_wait(&job, JOB_TIMEOUT_MS);
    ck_assert_msg(code > 0, "%s: %d, %s", ends[kind].what, code, process_output(&job));
    if (ends[kind].daemon_ends) {
        (void)process_wait(&daemons[draw], JOB_TIMEOUT_MS);
        cluster_wait(ends[kind].what, CLUSTER_NOTHING_LEFT);
        ck_assert(process_shell("rm -rf tasks/*")); /* of a daemon that was killed */
        start_daemon((int)draw);
        process_wait_output(&daemons[draw], "serving on", JOB_TIMEOUT_MS);
    }
    cluster_wait(ends[kind].what, NOTHING_LEFT);
    if (kind == 0)
        cluster_check_cancelled(3);
    take_next_job();
}
END_TEST

START_TEST(test_compare)
{
    cluster_check_compare(ON_ALL);
    cluster_wait("something is left", NOTHING_LEFT);
}
END_TEST

/* Two of three daemons are killed, of which a run has at least one: it says nothing of its mode,
 * and its block runs again whole. */
START_TEST(test_lost_hosts)
{
    const char *output;

    cluster_write_experiment(500);
    process_start(
        &job, NULL,
        ARGS("sparring", "compare", "e.yaml", "--on", "standby:n1,n2,n3", "--out", "out"));
    cluster_wait("no rank trains", "[ " STEPS " -gt 40 ]"); /* the check of links has 24 */
    for (int n = 0; n < 2; n++) {
        process_signal(&daemons[n], SIGKILL);
        (void)process_wait(&daemons[n], JOB_TIMEOUT_MS);
    }
    ck_assert_int_eq(process_wait(&job, JOB_TIMEOUT_MS), 6);
    assert_contains(process_output(&job), " is lost: host n");
    cluster_wait("something is left", CLUSTER_NOTHING_LEFT);
    for (int n = 0; n < 2; n++) {
        start_daemon(n);
        process_wait_output(&daemons[n], "serving on", JOB_TIMEOUT_MS);
    }
    output = process_run(
        0, JOB_TIMEOUT_MS, NULL,
        ARGS("sparring", "compare", "e.yaml", "--on", "standby:n1,n2,n3", "--out", "out"));
    assert_contains(output, "what ran of it is in out/lost");
    ck_assert_uint_eq(cluster_count_good_runs(), 4);
}
END_TEST

int main(void)
{
    const char *text = getenv("SPARRING_STANDBY_SEEDS");
    uint64_t seeds;

    if (!text || !parse_uint64(text, &seeds))
        seeds = 8;
    return SUPPORT_RUN("on_standby", 120, CHECKED_FIXTURE(setup, teardown),
                       LOOP_TEST(test_same_values, 0, CLUSTER_ARCHITECTURES),
                       LOOP_TEST(test_refusal, 0, sizeof(refusals) / sizeof(refusals[0])),
                       TEST(test_hosts_that_do_not_answer), TEST(test_busy),
                       TEST(test_certificates), TEST(test_compare), TEST(test_lost_hosts),
                       LOOP_TEST(test_ends, 0, (int)seeds));
}
