/*
 * Jobs of other frameworks' launchers: each process is a `sparring launch` with the variables of
 * ps-lite, BytePS or TFJob.  The same values as of a job of `launch` alone; and an end for all when
 * one fails, leaves or never comes.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL                                                                                      \
    "--model", "mlp:64-96-8", "--data", "random:4096,64,8", "--threads", "1", "--reduce",          \
        "reproducible"
#define MEMBERS_MAX 5

static struct process members[MEMBERS_MAX];
static size_t member_count;
static char port[16]; /* of the scheduler */

static void setup(void)
{
    member_count = 0;
    (void)snprintf(port, sizeof(port), "%u", support_port());
}

/* Start `launch`, followed by a program where there is one. */
static struct process *start(const char *const *variables, const char *const *program)
{
    const char *words[32] = {support_program("sparring"), "launch", "--run-dir",
                             support_path("run"), "--"};
    struct process *p = &members[member_count++];

    for (size_t i = 0; program && program[i]; i++)
        words[5 + i] = program[i];
    process_start(p, variables, words);
    return p;
}

/* A member of a job of ps-lite with two workers. */
static struct process *start_dmlc(const char *role, const char *servers, const char *id,
                                  const char *const *program)
{
    char texts[6][64];
    const char *variables[8] = {NULL};

    (void)snprintf(texts[0], 64, "DMLC_ROLE=%s", role);
    (void)snprintf(texts[1], 64, "DMLC_PS_ROOT_URI=127.0.0.1");
    (void)snprintf(texts[2], 64, "DMLC_PS_ROOT_PORT=%s", port);
    (void)snprintf(texts[3], 64, "DMLC_NUM_WORKER=2");
    (void)snprintf(texts[4], 64, "DMLC_NUM_SERVER=%s", servers);
    if (id)
        (void)snprintf(texts[5], 64, "DMLC_WORKER_ID=%s", id);
    for (size_t i = 0; i < (id ? 6 : 5); i++)
        variables[i] = texts[i];
    return start(variables, program);
}

static void expect_ends(int code)
{
    for (size_t i = 0; i < member_count; i++) {
        const int ended = process_wait(&members[i], JOB_TIMEOUT_MS);

        ck_assert_msg(ended == code, "member %zu: exit code %d: %s", i, ended,
                      process_output(&members[i]));
    }
}

static void run_here(void)
{
    (void)process_run(0, JOB_TIMEOUT_MS, NULL,
                      ARGS(support_program("sparring"), "launch", "--standalone",
                           "--nproc-per-node", "2", "--servers", "2", "--", "sparring-worker",
                           "--sync", "ps", MODEL, "--steps", "20", "--save", support_path("here")));
}

#define TRAIN                                                                                      \
    ARGS("sparring-worker", "--sync", "ps", MODEL, "--steps", "20", "--save", support_path("there"))

/* The order of the commands does not matter; 0: workers without numbers, as of ps-lite. */
START_TEST(test_dmlc)
{
    run_here();
    (void)start_dmlc("worker", "2", _i ? "1" : NULL, TRAIN);
    (void)start_dmlc("server", "2", NULL, NULL);
    (void)start_dmlc("scheduler", "2", NULL, NULL);
    (void)start_dmlc("worker", "2", _i ? "0" : NULL, TRAIN);
    (void)start_dmlc("server", "2", NULL, TRAIN); /* which it does not run */
    expect_ends(0);
    ck_assert(job_same_tensors(support_path("here"), support_path("there")));
    ck_assert_str_eq(job_record_text(support_path("run"), 1, "end", "status"), "ok");
    json_decref(job_server_record(support_path("run"), 1, "end"));
}
END_TEST

/* Its exit code is that of all. */
START_TEST(test_worker_fails)
{
    (void)start_dmlc("scheduler", "1", NULL, NULL);
    (void)start_dmlc("server", "1", NULL, NULL);
    (void)start_dmlc("worker", "1", "0", ARGS("sleep", "1000"));
    (void)start_dmlc("worker", "1", "1", ARGS("sh", "-c", "exit 3"));
    expect_ends(3);
}
END_TEST

/* The others see it within a second. */
START_TEST(test_scheduler_is_lost)
{
    struct process *scheduler = start_dmlc("scheduler", "1", NULL, NULL);
    struct process *server = start_dmlc("server", "1", NULL, NULL);
    struct process *workers[] = {
        start_dmlc("worker", "1", NULL, ARGS("sh", "-c", "echo begun >&2; exec sleep 1000")),
        start_dmlc("worker", "1", NULL, ARGS("sh", "-c", "echo begun >&2; exec sleep 1000"))};

    for (int i = 0; i < 2; i++)
        process_wait_output(workers[i], "begun", JOB_TIMEOUT_MS);
    process_signal(scheduler, _i);
    ck_assert_int_eq(process_wait(scheduler, JOB_TIMEOUT_MS), 128 + _i);
    ck_assert_int_eq(process_wait(server, JOB_TIMEOUT_MS), 1);
    assert_contains(process_output(server), "the scheduler at 127.0.0.1");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(process_wait(workers[i], JOB_TIMEOUT_MS), 1);
}
END_TEST

/* A request to stop is obeyed in order, whatever a member waits for. */
START_TEST(test_stop_while_waiting)
{
    struct process *scheduler = start_dmlc("scheduler", "1", NULL, NULL);
    struct process *worker = start_dmlc("worker", "1", "0", TRAIN);

    process_wait_output(scheduler, "for 2 workers and 1 servers", JOB_TIMEOUT_MS);
    process_wait_output(worker, "waiting for server 0", JOB_TIMEOUT_MS);
    process_signal(worker, SIGTERM);
    ck_assert_int_ne(process_wait(worker, JOB_TIMEOUT_MS), 0);
    ck_assert_int_ne(process_wait(scheduler, JOB_TIMEOUT_MS), 0);
}
END_TEST

START_TEST(test_stop_while_running)
{
    struct process *scheduler = start_dmlc("scheduler", "1", NULL, NULL);
    struct process *server = start_dmlc("server", "1", NULL, NULL);
    const char *script = "trap 'echo stopped >&2; exit 5' TERM; echo begun >&2; "
                         "mkfifo $0.$RANK; read x <$0.$RANK";
    struct process *workers[2];

    for (int i = 0; i < 2; i++)
        workers[i] =
            start_dmlc("worker", "1", NULL, ARGS("sh", "-c", script, support_path("fifo")));
    for (int i = 0; i < 2; i++)
        process_wait_output(workers[i], "begun", JOB_TIMEOUT_MS);
    process_signal(workers[0], SIGTERM);
    ck_assert_int_eq(process_wait(workers[0], JOB_TIMEOUT_MS), 5);
    assert_contains(process_output(workers[0]), "stopped");
    ck_assert_int_eq(process_wait(workers[1], JOB_TIMEOUT_MS), 5);
    ck_assert_int_eq(process_wait(server, JOB_TIMEOUT_MS), 5);
    ck_assert_int_eq(process_wait(scheduler, JOB_TIMEOUT_MS), 5);
}
END_TEST

START_TEST(test_two_of_a_number)
{
    (void)start_dmlc("scheduler", "1", NULL, NULL);
    (void)start_dmlc("worker", "1", "1", TRAIN);
    process_wait_output(&members[1], "waiting for", JOB_TIMEOUT_MS);
    (void)start_dmlc("worker", "1", "1", TRAIN);
    ck_assert_int_ne(process_wait(&members[2], JOB_TIMEOUT_MS), 0);
    assert_contains(process_output(&members[2]), "worker/1 is at 127.0.0.1:");
    (void)start_dmlc("worker", "1", "0", TRAIN);
    (void)start_dmlc("server", "1", NULL, NULL);
    for (int i = 0; i < 5; i++) /* the job goes on without it */
        ck_assert_msg(i == 2 || process_wait(&members[i], JOB_TIMEOUT_MS) == 0, "member %d: %s", i,
                      process_output(&members[i]));
}
END_TEST

static struct process *start_tf(const char *type, int index, const unsigned ports[3],
                                const char *const *program)
{
    char text[400];

    (void)snprintf(
        text, sizeof(text),
        "TF_CONFIG={\"cluster\":{\"worker\":[\"127.0.0.1:1\"],\"chief\":[\"127.0.0.1:%u\"],"
        "\"ps\":[\"127.0.0.1:%u\",\"127.0.0.1:%u\"]},"
        "\"task\":{\"type\":\"%s\",\"index\":%d}}",
        ports[0], ports[1], ports[2], type, index);
    return start(ARGS(text), program);
}

/* The servers of a TFJob are ended by its operator. */
START_TEST(test_tf_config)
{
    const unsigned ports[] = {support_port(), support_port(), support_port()};
    struct process *servers[] = {start_tf("ps", 0, ports, TRAIN), start_tf("ps", 1, ports, TRAIN)};
    struct process *workers[] = {start_tf("worker", 0, ports, TRAIN),
                                 start_tf("chief", 0, ports, TRAIN)};

    run_here();
    for (int i = 0; i < 2; i++)
        ck_assert_msg(process_wait(workers[i], JOB_TIMEOUT_MS) == 0, "%s",
                      process_output(workers[i]));
    for (int i = 0; i < 2; i++) {
        process_signal(servers[i], SIGTERM);
        ck_assert_int_eq(process_wait(servers[i], JOB_TIMEOUT_MS), 0);
    }
    ck_assert(job_same_tensors(support_path("here"), support_path("there")));
    ck_assert_str_eq(job_record_text(support_path("run"), 1, "end", "status"), "ok");
}
END_TEST

static const struct {
    const char *variables[6];
    const char *answer;
} refusals[] = {
    {{"DMLC_ROLE=king", "DMLC_NUM_WORKER=1"}, "DMLC_ROLE is 'king'"},
    {{"DMLC_ROLE=worker"}, "DMLC_NUM_WORKER is ''"},
    {{"DMLC_ROLE=worker", "DMLC_NUM_WORKER=2"}, "DMLC_PS_ROOT_URI is not"},
    {{"DMLC_ROLE=worker", "DMLC_NUM_WORKER=2", "DMLC_PS_ROOT_URI=h"}, "DMLC_PS_ROOT_PORT is ''"},
    {{"DMLC_ROLE=worker", "DMLC_NUM_WORKER=2", "DMLC_PS_ROOT_URI=h", "DMLC_PS_ROOT_PORT=9",
      "DMLC_WORKER_ID=2"},
     "DMLC_WORKER_ID is 2, and DMLC_NUM_WORKER 2"},
    {{"DMLC_ROLE=server", "DMLC_NUM_WORKER=2", "DMLC_NUM_SERVER=-1"}, "DMLC_NUM_SERVER is '-1'"},
    {{"TF_CONFIG={"}, "TF_CONFIG is not JSON: line 1"},
    {{"TF_CONFIG={\"cluster\":{\"worker\":[\"h:1\"]}}"}, "no task with a type"},
    {{"TF_CONFIG={\"cluster\":{\"worker\":[\"h:1\"]},\"task\":{\"type\":\"worker\",\"index\":1}}"},
     "the cluster has no worker 1"},
    {{"TF_CONFIG={\"cluster\":{\"chief\":[\"h:1\"],\"worker\":[\"h:1\"]},"
      "\"task\":{\"type\":\"chief\",\"index\":1}}"},
     "the cluster has no chief 1"},
    {{"TF_CONFIG={\"cluster\":{\"worker\":[\"h:1\"]},\"task\":{\"type\":\"evaluator\",\"index\":0}"
      "}"},
     "the cluster has no evaluator 0"},
    {{"TF_CONFIG={\"cluster\":{\"worker\":[\"h\"]},\"task\":{\"type\":\"worker\",\"index\":0}}"},
     "TF_CONFIG: "},
};

/* It does not join the job. */
START_TEST(test_print_config)
{
    assert_contains(process_run(0, JOB_TIMEOUT_MS,
                                ARGS("DMLC_ROLE=server", "DMLC_NUM_WORKER=2", "DMLC_NUM_SERVER=1",
                                     "DMLC_PS_ROOT_URI=127.0.0.1", "DMLC_PS_ROOT_PORT=9"),
                                ARGS(support_program("sparring"), "launch", "--print-config")),
                    "on-rank-loss: fail");
    assert_contains(process_run(0, JOB_TIMEOUT_MS, NULL,
                                ARGS(support_program("sparring"), "net", "up", "--hosts", "3",
                                     "--print-config")),
                    "hosts: 3");
}
END_TEST

START_TEST(test_refusal)
{
    assert_contains(process_run(3, JOB_TIMEOUT_MS, refusals[_i].variables,
                                ARGS(support_program("sparring"), "launch", "--", "true")),
                    refusals[_i].answer);
    (void)process_run(0, JOB_TIMEOUT_MS, refusals[_i].variables,
                      ARGS(support_program("sparring"), "launch", "--help"));
}
END_TEST

/* BytePS on one host, and TensorFlow without a cluster, are jobs alone. */
START_TEST(test_alone)
{
    const char *variables[][3] = {{"DMLC_ROLE=worker", "DMLC_NUM_WORKER=1"}, {"TF_CONFIG={}"}};

    (void)process_run(
        0, JOB_TIMEOUT_MS, variables[_i],
        ARGS(support_program("sparring"), "launch", "--", "sh", "-c", "test $WORLD_SIZE = 1"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "roles", 120, CHECKED_FIXTURE(setup, NULL), LOOP_TEST(test_dmlc, 0, 2),
        TEST(test_worker_fails), LOOP_TEST(test_scheduler_is_lost, SIGKILL, SIGKILL + 1),
        TEST(test_stop_while_waiting), TEST(test_stop_while_running), TEST(test_two_of_a_number),
        TEST(test_tf_config), LOOP_TEST(test_refusal, 0, sizeof(refusals) / sizeof(refusals[0])),
        LOOP_TEST(test_alone, 0, 2), TEST(test_print_config));
}
