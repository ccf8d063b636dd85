/*
 * A server with a replica, one of which is killed or stopped in every phase and at random bytes:
 * the job must continue and end with the bits of an undisturbed run.  A primary that is stopped and
 * continued must report that it is superseded.  If both are lost, every worker must end within a
 * limit, with an error that names them.
 */
#include "tests/integration/job.h"
#include "tests/integration/ps_fixture.h"
#include "tests/support/support.h"

#include "common/base/file.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum victim { PRIMARY, REPLICA };
enum phase { PUSH, SUM, PULL, SNAPSHOT };

static const char *const phase_names[] = {"push", "sum", "pull", "a snapshot"};

/* For jobs that must continue: on a busy host a reconnect may take seconds. */
#define LONG_RECONNECT ARGS("--reconnect-ms", "20000")

/* Byte positions, in rounds: a worker has joined; rank 0 is sending the first initial values. */
#define JOINED  0.034
#define INITIAL 0.06

/* Hold rank 1's link to the server in the middle of the phase; in SNAPSHOT stop the victim. */
static void reach_phase(struct ps_fixture *f, enum phase phase, enum victim victim)
{
    if (phase == SNAPSHOT) {
        ps_fixture_stop_in_snapshot(f, victim == PRIMARY ? 0 : 1);
        return;
    }
    if (phase == PULL)
        ps_fixture_freeze_at(f, 1, 0, FAULT_DOWN, 9.5);
    else
        ps_fixture_freeze_at(f, 1, 0, FAULT_UP, 8.5);
    ps_fixture_start_workers(f);
    ps_fixture_await_freeze(f, 1, 0);
    if (phase == SUM) /* the server has all chunks of rank 0 and half of rank 1's */
        ps_fixture_await_bytes(f, 0, 0, FAULT_UP, 9);
}

/* Hold rank 1 in the middle of a round.  No worker can pass the next round until rank 1's link is
 * released. */
static void freeze_rank_1_in_round(struct ps_fixture *f, double round)
{
    ps_fixture_freeze_at(f, 1, 0, FAULT_DOWN, round);
    ps_fixture_start_workers(f);
    ps_fixture_await_freeze(f, 1, 0);
}

static void report_fault(const struct ps_fixture *f, int signal_number, enum victim victim,
                         const char *when)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s %s in %s", signal_number == SIGKILL ? "kill" : "stop",
                   victim == PRIMARY ? "primary" : "replica", when);
    ps_fixture_report_fault(f, name);
}

/* Continue the stopped process.  A primary must report that it is superseded. */
static void resume_stopped(struct ps_fixture *f, enum victim victim)
{
    ps_fixture_signal_server(f, victim == PRIMARY ? 0 : 1, SIGCONT);
    if (victim == PRIMARY)
        process_wait_output(&f->server_process[0], "superseded by epoch 2", PS_FIXTURE_WAIT_MS);
}

static void expect_epoch_2(const struct ps_fixture *f, enum victim lost)
{
    const char *text = lost == PRIMARY
                           ? "this server takes over in epoch 2"
                           : "no replica from here on: all ranks have agreed to epoch 2";

    ck_assert_ptr_nonnull(strstr(ps_fixture_server_output(f, lost == PRIMARY ? 1 : 0), text));
}

/* _i: victim, signal, phase. */
START_TEST(test_one_is_lost)
{
    enum victim victim = _i % 2 == 0 ? PRIMARY : REPLICA;
    int signal_number = _i / 2 % 2 == 0 ? SIGKILL : SIGSTOP;
    enum phase phase = (enum phase)(_i / 4);
    struct ps_fixture f = {.ranks = 2,
                           .servers = 1,
                           .replicas = true,
                           .worker = LONG_RECONNECT,
                           .with_state = phase == SNAPSHOT};

    ps_fixture_open(&f);
    reach_phase(&f, phase, victim);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_server(&f, victim == PRIMARY ? 0 : 1, signal_number);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_await_recovery(&f);
    report_fault(&f, signal_number, victim, phase_names[phase]);
    if (signal_number == SIGSTOP)
        resume_stopped(&f, victim);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    expect_epoch_2(&f, victim);
    ps_fixture_close(&f);
}
END_TEST

/* All ranks have joined and no initial value has arrived.  _i: victim, signal. */
START_TEST(test_one_is_lost_in_join)
{
    enum victim victim = _i % 2 == 0 ? PRIMARY : REPLICA;
    int signal_number = _i / 2 == 0 ? SIGKILL : SIGSTOP;
    struct ps_fixture f = {.ranks = 2, .servers = 1, .replicas = true, .worker = LONG_RECONNECT};

    ps_fixture_open(&f);
    ps_fixture_freeze_at(&f, 0, 0, FAULT_UP, INITIAL);
    ps_fixture_start_workers(&f);
    ps_fixture_await_freeze(&f, 0, 0);
    ps_fixture_await_bytes(&f, 1, 0, FAULT_UP, JOINED);
    ps_fixture_mark_fault(&f, 1);
    ps_fixture_signal_server(&f, victim == PRIMARY ? 0 : 1, signal_number);
    ps_fixture_release(&f, 0, 0);
    ps_fixture_await_recovery(&f);
    report_fault(&f, signal_number, victim, "join");
    if (signal_number == SIGSTOP)
        resume_stopped(&f, victim);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    expect_epoch_2(&f, victim);
    ps_fixture_close(&f);
}
END_TEST

/* Half of the last Join request has arrived, and the replica has no state of the job: it cannot
 * take over. */
START_TEST(test_the_primary_is_lost_in_a_request)
{
    struct ps_fixture f = {.ranks = 2, .servers = 1, .replicas = true, .timeout_ms = "6000"};

    ps_fixture_open(&f);
    ps_fixture_freeze_at(&f, 1, 0, FAULT_UP, 0.006);
    ps_fixture_start_workers(&f);
    ps_fixture_await_freeze(&f, 1, 0);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_server(&f, 0, SIGKILL);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_expect_failure(&f, PS_FIXTURE_NO_RANK, "parameter server 127.0.0.1:");
    report_fault(&f, SIGKILL, PRIMARY, "a request to join");
    ck_assert_double_le(f.last_ms, 15000);
    ps_fixture_close(&f);
}
END_TEST

/* At a random byte after the initial values, also with --ps-update worker. */
START_TEST(test_one_is_lost_at_any_byte)
{
    enum victim victim = _i % 2 == 0 ? PRIMARY : REPLICA;
    struct ps_fixture f = {.ranks = 3,
                           .servers = 1,
                           .replicas = true,
                           .worker = LONG_RECONNECT,
                           .seed = (uint64_t)_i + 1,
                           .update = _i / 2 % 2 == 0 ? "server" : "worker"};

    ps_fixture_open(&f);
    freeze_rank_1_in_round(&f, 0.1 + 35 * support_random());
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_server(&f, victim == PRIMARY ? 0 : 1, SIGKILL);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    report_fault(&f, SIGKILL, victim, "any moment");
    expect_epoch_2(&f, victim);
    ps_fixture_close(&f);
}
END_TEST

/* Each pair of a primary and a replica loses one process. */
START_TEST(test_one_lost_of_each_pair)
{
    struct ps_fixture f = {.ranks = 2, .servers = 2, .replicas = true, .worker = LONG_RECONNECT};

    ps_fixture_open(&f);
    freeze_rank_1_in_round(&f, 5.5);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_server(&f, 0, SIGKILL); /* primary of the first pair */
    ps_fixture_signal_server(&f, 3, SIGKILL); /* replica of the second pair */
    ps_fixture_release(&f, 1, 0);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ck_assert_ptr_nonnull(strstr(ps_fixture_server_output(&f, 2), "takes over in epoch 2"));
    ck_assert_ptr_nonnull(strstr(ps_fixture_server_output(&f, 1), "have agreed to epoch 2"));
    ps_fixture_report_fault(&f, "kill a primary and another's replica");
    ps_fixture_close(&f);
}
END_TEST

/* A silent link between primary and replica counts as a lost replica; all ranks agree on it. */
START_TEST(test_replication_link_is_lost)
{
    struct ps_fixture f = {.ranks = 2, .servers = 1, .replicas = true, .worker = LONG_RECONNECT};

    ps_fixture_open(&f);
    freeze_rank_1_in_round(&f, 5.5);
    fault_proxy_hold(f.links[PS_FIXTURE_REPLICA_LINK][0].proxy, FAULT_UP, true);
    fault_proxy_hold(f.links[PS_FIXTURE_REPLICA_LINK][0].proxy, FAULT_DOWN, true);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ps_fixture_report_fault(&f, "cut primary from replica");
    expect_epoch_2(&f, REPLICA);
    ps_fixture_close(&f);
}
END_TEST

/* _i = 0: both at once; 1: the replica, then the primary that continued alone; 2: the primary, then
 * the replica that took over. */
START_TEST(test_both_are_lost)
{
    struct ps_fixture f = {.ranks = 2, .servers = 1, .replicas = true, .steps = "4000"};
    unsigned first = _i == 1 ? 1 : 0;

    ps_fixture_open(&f);
    freeze_rank_1_in_round(&f, 5.5);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_server(&f, first, SIGKILL);
    if (_i > 0) {
        ps_fixture_release(&f, 1, 0);
        ps_fixture_await_recovery(&f);
        ps_fixture_mark_fault(&f, 0);
    }
    ps_fixture_signal_server(&f, 1 - first, SIGKILL);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_expect_failure(&f, PS_FIXTURE_NO_RANK, "parameter server 127.0.0.1:");
    ps_fixture_report_fault(&f, "kill primary and replica");
    ck_assert_double_le(f.last_ms, 15000);
    ps_fixture_close(&f);
}
END_TEST

/* Both have a state folder.  Both, or one of them, are killed and restarted, in either order: the
 * job continues on one of them without loss of a round. */
START_TEST(test_pair_is_restarted)
{
    struct ps_fixture f = {.ranks = 2,
                           .servers = 1,
                           .replicas = true,
                           .with_state = true,
                           .seed = (uint64_t)_i + 1,
                           .update = _i % 2 ? "worker" : "server",
                           .worker = ARGS("--reconnect-ms", "30000")};
    unsigned first = (unsigned)_i % 2, count = _i < 4 ? 2 : 1;

    ps_fixture_open(&f);
    freeze_rank_1_in_round(&f, 5 + 20 * support_random());
    ps_fixture_mark_fault(&f, 0);
    for (unsigned k = 0; k < count; k++)
        ps_fixture_signal_server(&f, _i / 2 % 2 == 0 ? first ^ k : 1 ^ first ^ k, SIGKILL);
    ps_fixture_release(&f, 1, 0);
    for (unsigned k = 0; k < count; k++)
        ps_fixture_start_server(&f, first ^ k);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ps_fixture_report_fault(&f, count == 2 ? "kill primary and replica, start both"
                                           : "kill one, start it");
    ps_fixture_close(&f);
}
END_TEST

/* The replica is absent or stopped before the job begins. */
START_TEST(test_no_replica)
{
    struct ps_fixture f = {.ranks = 2, .servers = 1, .replicas = true, .timeout_ms = "8000"};

    ps_fixture_open(&f);
    ps_fixture_signal_server(&f, 1, _i == 0 ? SIGKILL : SIGSTOP);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_start_workers(&f);
    ps_fixture_expect_failure(&f, PS_FIXTURE_NO_RANK, "replica 127.0.0.1:");
    ck_assert_double_le(f.last_ms, 20000);
    ps_fixture_close(&f);
}
END_TEST

/* On SIGTERM a primary hands the job over to its replica. */
START_TEST(test_orderly_stop)
{
    struct ps_fixture f = {.ranks = 2, .servers = 1, .replicas = true, .worker = LONG_RECONNECT};

    ps_fixture_open(&f);
    freeze_rank_1_in_round(&f, 5.5);
    ps_fixture_signal_server(&f, 0, SIGTERM);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ck_assert_int_eq(process_wait(&f.server_process[0], PS_FIXTURE_WAIT_MS), 0);
    f.server_runs[0] = false;
    ps_fixture_close(&f);
}
END_TEST

/* The primary is lost, then a worker; its replacement joins at the replica. */
START_TEST(test_a_server_and_then_a_worker)
{
    struct ps_fixture f = {
        .ranks = 2, .servers = 1, .replicas = true, .worker = ARGS("--on-rank-loss", "wait")};

    ps_fixture_open(&f);
    freeze_rank_1_in_round(&f, 5.5);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_server(&f, 0, SIGKILL);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_await_recovery(&f);
    ps_fixture_signal_worker(&f, 1, SIGKILL);
    ps_fixture_start_worker(&f, 1);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ps_fixture_close(&f);
}
END_TEST

#define JOB                                                                                        \
    "--sync", "ps", "--model", "mlp:64-96-64-8", "--data", "random:4096,64,8", "--batch-size",     \
        "8", "--momentum", "0.9", "--reduce", "reproducible", "--threads", "1", "--device", "cpu", \
        "--seed", "7", "--partition-bytes", "4096", "--steps", "600", "--evaluate", "never"

static pid_t server_pid(const char *run_dir, unsigned server)
{
    json_t *start = job_server_record(run_dir, server, "start");
    pid_t pid = (pid_t)json_integer_value(json_object_get(start, "pid"));

    json_decref(start);
    ck_assert_int_gt(pid, 0);
    return pid;
}

/* All processes started by `sparring launch`, with shared memory between workers and servers.  The
 * launcher tolerates the loss of one server of each pair. */
START_TEST(test_launched_job_survives_server_loss)
{
    const char *undisturbed =
        job_run(&(struct job){.ranks = 2, .servers = 2, .worker = ARGS(JOB)}, 0);
    const char *run_dir = support_path("replicas");
    char wanted[32];
    struct process launch;
    const char *output;
    int code;

    (void)snprintf(wanted, sizeof(wanted), "%s",
                   job_record_text(undisturbed, 0, "end", "parameters_hash"));
    process_start(&launch, NULL,
                  ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node",
                       "2", "--servers", "2", "--replicas", "--run-dir", run_dir, "--",
                       support_program("sparring-worker"), JOB));
    job_await_step(run_dir, 0, 20 + (int64_t)(support_random() * 100));
    ck_assert_int_eq(kill(server_pid(run_dir, 1), SIGKILL), 0);
    code = process_wait(&launch, JOB_TIMEOUT_MS);
    output = process_output(&launch);
    ck_assert_msg(code == 0, "exit code %d:\n%.3000s", code, output);
    ck_assert_ptr_nonnull(strstr(output, "server 1 (pid "));
    ck_assert_ptr_nonnull(strstr(output, "(SIGKILL); its replica goes on"));
    for (unsigned rank = 0; rank < 2; rank++) {
        ck_assert_str_eq(job_record_text(run_dir, rank, "end", "parameters_hash"), wanted);
        ck_assert_int_eq(job_record_int(run_dir, rank, "end", "takeovers"), 1);
    }
}
END_TEST

static pid_t replica_pid(const char *run_dir)
{
    struct error err = {0};
    char path[4200], *text;
    size_t size;
    json_t *start;
    pid_t pid;

    (void)snprintf(path, sizeof(path), "%s/replica0.jsonl", run_dir);
    assert_ok(file_read(path, 1 << 20, &text, &size, &err));
    start = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    pid = (pid_t)json_integer_value(json_object_get(start, "pid"));
    ck_assert_int_gt(pid, 0);
    json_decref(start);
    free(text);
    return pid;
}

/* The server that says so listens on an address on which one has listened before. */
static void check_address(const char *output, const char *said)
{
    const char *last = strstr(output, said);
    char line[128];

    ck_assert_ptr_nonnull(last);
    last = strstr(last, "serving on ");
    ck_assert_msg(last != NULL, "%.3000s", output);
    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(last, "\n") + 1, last);
    ck_assert_msg(strstr(output, line) < last, "%.3000s", output);
}

/* A replica that was lost comes back on its address, with the copy that the job went on without;
 * the next run of the job, in the same folder, puts that aside. */
START_TEST(test_copy_that_was_left_behind)
{
    static const char copy[] = "a copy, in case its primary is lost";
    const char *run_dir = support_path("left"), *state = support_path("state");
    const char *words[] = {support_program("sparring"),
                           "launch",
                           "--standalone",
                           "--nproc-per-node",
                           "2",
                           "--servers",
                           "1",
                           "--replicas",
                           "--state-dir",
                           state,
                           "--max-restarts",
                           "1",
                           "--run-dir",
                           run_dir,
                           "--",
                           support_program("sparring-worker"),
                           JOB,
                           "--heartbeat-timeout-ms",
                           "60000",
                           "--delay-schedule",
                           job_pace(2),
                           NULL};
    struct process launch;
    pid_t rank_1;

    process_start(&launch, NULL, words);
    job_await_step(run_dir, 1, 20);
    rank_1 = (pid_t)job_record_int(run_dir, 1, "start", "pid");
    ck_assert_int_eq(kill(rank_1, SIGSTOP), 0); /* so that the job outlasts the restart */
    ck_assert_int_eq(kill(replica_pid(run_dir), SIGKILL), 0);
    process_wait_output(&launch, copy, JOB_TIMEOUT_MS);
    ck_assert_int_eq(kill(rank_1, SIGCONT), 0);
    ck_assert_int_eq(process_wait(&launch, JOB_TIMEOUT_MS), 0);
    check_address(process_output(&launch), copy);
    ck_assert_int_eq(access(support_path("state/server-1/default.0"), F_OK), 0);
    (void)process_run(0, JOB_TIMEOUT_MS, NULL, words);
    ck_assert_int_eq(access(support_path("state/server-1/default.0.failed"), F_OK), 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "ps_replica", 200, UNCHECKED_FIXTURE(ps_fixture_compute_references, NULL),
        LOOP_TEST(test_one_is_lost, 0, 16), LOOP_TEST(test_one_is_lost_in_join, 0, 4),
        TEST(test_the_primary_is_lost_in_a_request), LOOP_TEST(test_one_is_lost_at_any_byte, 0, 4),
        TEST(test_one_lost_of_each_pair), TEST(test_replication_link_is_lost),
        LOOP_TEST(test_both_are_lost, 0, 3), LOOP_TEST(test_pair_is_restarted, 0, 6),
        LOOP_TEST(test_no_replica, 0, 2), TEST(test_orderly_stop),
        TEST(test_a_server_and_then_a_worker), TEST(test_launched_job_survives_server_loss),
        TEST(test_copy_that_was_left_behind));
}
