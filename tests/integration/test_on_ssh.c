/*
 * `launch --on ssh:...` and `compare --on ssh:...` on four nodes: the same values as on one host,
 * what the tasks find there, and what is left when somebody fails, is stopped or killed.
 * Runs inside tests/support/cluster, so that all visible processes belong to the cluster.
 */
#include "tests/integration/cluster_jobs.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ON_ALL "ssh:n1,n2,n3,n4"

static struct process job;

START_TEST(test_same_values)
{
    cluster_check_same_values(_i, "", "ssh", "there");
}
END_TEST

/* Their variables, folder and words, with what shells treat specially. */
START_TEST(test_tasks)
{
    static const char script[] =
        "echo \"$RANK of $WORLD_SIZE: $LOCAL_RANK of $LOCAL_WORLD_SIZE on ${SSH_CONNECTION% *} "
        "$NCCL_X $MASTER_ADDR $1 in $PWD\"; readlink /proc/self/fd/0";
    char folder[4096], line[4200];
    const char *output = process_run(0, JOB_TIMEOUT_MS, ARGS("NCCL_X=a b"),
                                     ARGS("sparring", "launch", "--on", "ssh:n2,n1",
                                          "--nproc-per-node", "3", "--ranks-per-host", "2", "--",
                                          "sh", "-c", script, "sh", "it's \"$HOME\" `x` \\"));

    ck_assert_ptr_nonnull(getcwd(folder, sizeof(folder)));
    (void)snprintf(line, sizeof(line), " a b n2 it's \"$HOME\" `x` \\ in %s\n", folder);
    assert_contains(output, "0 of 3: 0 of 2 on ");
    assert_contains(output, "1 of 3: 1 of 2 on ");
    assert_contains(output, "2 of 3: 0 of 1 on ");
    assert_contains(output, line);
    assert_contains(output, "/dev/null\n");
}
END_TEST

START_TEST(test_hosts_that_do_not_answer)
{
    assert_contains(process_run(PROCESS_FAILS, JOB_TIMEOUT_MS, NULL,
                                ARGS("sparring", "launch", "--on", "ssh:n1,n9", "--nproc-per-node",
                                     "2", "--", "sleep", "60")),
                    "Could not resolve hostname n9");
    assert_contains(
        process_run(3, JOB_TIMEOUT_MS, NULL,
                    ARGS("sparring", "launch", "--on", "ssh:n1", "--nproc-per-node", "2", "true")),
        "the job takes 2 hosts, 2 of them for ranks, and there are 1: 'n1'");
    cluster_write_experiment(20);
    assert_contains(
        process_run(3, JOB_TIMEOUT_MS, NULL,
                    ARGS("sparring", "compare", "e.yaml", "--on", "ssh:n1,n9,n2", "--out", "out")),
        "host n9 did not answer: ssh: Could not resolve hostname n9");
    cluster_wait("processes are left", CLUSTER_NOTHING_LEFT);
}
END_TEST

/* The others are stopped, and its exit code is kept. */
START_TEST(test_rank_that_fails)
{
    (void)process_run(7, JOB_TIMEOUT_MS, NULL,
                      ARGS("sparring", "launch", "--on", ON_ALL, "--nproc-per-node", "3", "--",
                           "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 300"));
    cluster_wait("processes are left", "! pidof sleep >/dev/null");
    cluster_wait("processes are left", CLUSTER_NOTHING_LEFT);
}
END_TEST

/* What is killed, or stopped; nothing remains on any node. */
static const struct {
    const char *what, *shell;
    bool asks; /* ranks and servers end in order */
} ends[] = {
    {"launch is stopped", "kill -TERM $(cat pid)", true},
    {"launch is killed", "kill -KILL $(cat pid)", false},
    {"a client is killed", "kill -KILL $(pidof -s ssh)", false},
};

START_TEST(test_ends)
{
    cluster_start_endless(&job, ON_ALL);
    for (unsigned r = 0; r < 3; r++)
        job_await_step("run", r, 3);
    ck_assert(process_shell("%s", ends[_i].shell));
    ck_assert_msg(process_wait(&job, JOB_TIMEOUT_MS) > 0, "%s: %s", ends[_i].what,
                  process_output(&job));
    cluster_wait(ends[_i].what, CLUSTER_NOTHING_LEFT);
    if (ends[_i].asks)
        cluster_check_cancelled(3);
}
END_TEST

START_TEST(test_compare)
{
    cluster_check_compare(ON_ALL);
    cluster_wait("processes are left", CLUSTER_NOTHING_LEFT);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("on_ssh", 200, CHECKED_FIXTURE(cluster_setup, cluster_teardown),
                       LOOP_TEST(test_same_values, 0, CLUSTER_ARCHITECTURES), TEST(test_tasks),
                       TEST(test_hosts_that_do_not_answer), TEST(test_rank_that_fails),
                       LOOP_TEST(test_ends, 0, 3), TEST(test_compare));
}
