/*
 * A server and its replica, of which one is killed or stopped, in every phase and at no moment in
 * particular: the job goes on by itself, and ends with the bits that it ends with undisturbed.  One
 * that was stopped and wakes up finds that it has been succeeded.  When both are lost every worker
 * ends, soon, with an error that names them.
 */
#include "tests/integration/job.h"
#include "tests/integration/room.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum victim { PRIMARY, REPLICA };
enum phase { PUSH, SUM, PULL, SNAPSHOT };

static const char *const phase_names[] = {"push", "sum", "pull", "a snapshot"};

/* Of a job that goes on: a busy machine may keep workers from connecting for seconds. */
#define PATIENT ARGS("--reconnect-ms", "20000")

/* Rounds of bytes at which a worker has joined, and rank 0 is in the middle of the first initial
 * values. */
#define JOINED  0.034
#define INITIAL 0.06

/* Rank 1's link to the server stands still in the middle of the phase, or the victim does. */
static void come_to(struct room *r, enum phase phase, enum victim victim)
{
    if (phase == SNAPSHOT) {
        room_stop_in_snapshot(r, victim == PRIMARY ? 0 : 1);
        return;
    }
    if (phase == PULL)
        room_freeze_at(r, 1, 0, FAULT_DOWN, 9.5);
    else
        room_freeze_at(r, 1, 0, FAULT_UP, 8.5);
    room_start_workers(r);
    room_await_freeze(r, 1, 0);
    if (phase == SUM) /* the server has all of rank 0's, and half of rank 1's */
        room_await(r, 0, 0, FAULT_UP, 9);
}

/* Rank 1 is in the middle of a round, no worker can be further than the next one, and everybody's
 * bytes flow again as soon as it is released. */
static void hold_in(struct room *r, double round)
{
    room_freeze_at(r, 1, 0, FAULT_DOWN, round);
    room_start_workers(r);
    room_await_freeze(r, 1, 0);
}

static void report(const struct room *r, int number, enum victim victim, const char *when)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s %s in %s", number == SIGKILL ? "kill" : "stop",
                   victim == PRIMARY ? "primary" : "replica", when);
    room_report(r, name);
}

/* Who was stopped wakes up: a primary has nothing more to say. */
static void wake_up(struct room *r, enum victim victim)
{
    room_hit_server(r, victim == PRIMARY ? 0 : 1, SIGCONT);
    if (victim == PRIMARY)
        process_wait_output(&r->server_process[0], "superseded by epoch 2", ROOM_WAIT_MS);
}

static void expect_epoch_2(const struct room *r, enum victim lost)
{
    const char *text = lost == PRIMARY
                           ? "this server takes over in epoch 2"
                           : "no replica from here on: all ranks have agreed to epoch 2";

    ck_assert_ptr_nonnull(strstr(room_server_output(r, lost == PRIMARY ? 1 : 0), text));
}

/* _i: victim, signal, phase. */
START_TEST(test_one_is_lost)
{
    enum victim victim = _i % 2 == 0 ? PRIMARY : REPLICA;
    int number = _i / 2 % 2 == 0 ? SIGKILL : SIGSTOP;
    enum phase phase = (enum phase)(_i / 4);
    struct room r = {.ranks = 2,
                     .servers = 1,
                     .replicas = true,
                     .worker = PATIENT,
                     .with_state = phase == SNAPSHOT};

    room_open(&r);
    come_to(&r, phase, victim);
    room_mark(&r, 0);
    room_hit_server(&r, victim == PRIMARY ? 0 : 1, number);
    room_release(&r, 1, 0);
    room_await_recovery(&r);
    report(&r, number, victim, phase_names[phase]);
    if (number == SIGSTOP)
        wake_up(&r, victim);
    room_expect_success(&r, ROOM_NOBODY, true);
    expect_epoch_2(&r, victim);
    room_close(&r);
}
END_TEST

/* All have joined, and no value is set: what there is, is the terms.  _i: victim, signal. */
START_TEST(test_one_is_lost_in_join)
{
    enum victim victim = _i % 2 == 0 ? PRIMARY : REPLICA;
    int number = _i / 2 == 0 ? SIGKILL : SIGSTOP;
    struct room r = {.ranks = 2, .servers = 1, .replicas = true, .worker = PATIENT};

    room_open(&r);
    room_freeze_at(&r, 0, 0, FAULT_UP, INITIAL);
    room_start_workers(&r);
    room_await_freeze(&r, 0, 0);
    room_await(&r, 1, 0, FAULT_UP, JOINED);
    room_mark(&r, 1);
    room_hit_server(&r, victim == PRIMARY ? 0 : 1, number);
    room_release(&r, 0, 0);
    room_await_recovery(&r);
    report(&r, number, victim, "join");
    if (number == SIGSTOP)
        wake_up(&r, victim);
    room_expect_success(&r, ROOM_NOBODY, true);
    expect_epoch_2(&r, victim);
    room_close(&r);
}
END_TEST

/* Half of the last request is here, and the replica has not heard of the job: it cannot take it
 * over. */
START_TEST(test_the_primary_is_lost_in_a_request)
{
    struct room r = {.ranks = 2, .servers = 1, .replicas = true, .timeout_ms = "6000"};

    room_open(&r);
    room_freeze_at(&r, 1, 0, FAULT_UP, 0.006);
    room_start_workers(&r);
    room_await_freeze(&r, 1, 0);
    room_mark(&r, 0);
    room_hit_server(&r, 0, SIGKILL);
    room_release(&r, 1, 0);
    room_expect_failure(&r, ROOM_NOBODY, "parameter server 127.0.0.1:");
    report(&r, SIGKILL, PRIMARY, "a request to join");
    ck_assert_double_le(r.last_ms, 15000);
    room_close(&r);
}
END_TEST

/* At no moment in particular, from the initial values on; the sums alone, too. */
START_TEST(test_any_moment)
{
    enum victim victim = _i % 2 == 0 ? PRIMARY : REPLICA;
    struct room r = {.ranks = 3,
                     .servers = 1,
                     .replicas = true,
                     .worker = PATIENT,
                     .seed = (uint64_t)_i + 1,
                     .update = _i / 2 % 2 == 0 ? "server" : "worker"};

    room_open(&r);
    hold_in(&r, 0.1 + 35 * support_random());
    room_mark(&r, 0);
    room_hit_server(&r, victim == PRIMARY ? 0 : 1, SIGKILL);
    room_release(&r, 1, 0);
    room_expect_success(&r, ROOM_NOBODY, true);
    report(&r, SIGKILL, victim, "any moment");
    expect_epoch_2(&r, victim);
    room_close(&r);
}
END_TEST

/* Each pair loses one. */
START_TEST(test_one_of_each)
{
    struct room r = {.ranks = 2, .servers = 2, .replicas = true, .worker = PATIENT};

    room_open(&r);
    hold_in(&r, 5.5);
    room_mark(&r, 0);
    room_hit_server(&r, 0, SIGKILL); /* the first one's primary */
    room_hit_server(&r, 3, SIGKILL); /* the second one's replica */
    room_release(&r, 1, 0);
    room_expect_success(&r, ROOM_NOBODY, true);
    ck_assert_ptr_nonnull(strstr(room_server_output(&r, 2), "takes over in epoch 2"));
    ck_assert_ptr_nonnull(strstr(room_server_output(&r, 1), "have agreed to epoch 2"));
    room_report(&r, "kill a primary and another's replica");
    room_close(&r);
}
END_TEST

/* A link between the two that breaks is a replica that is lost; the workers hear of it in time. */
START_TEST(test_the_link_between_them)
{
    struct room r = {.ranks = 2, .servers = 1, .replicas = true, .worker = PATIENT};

    room_open(&r);
    hold_in(&r, 5.5);
    fault_proxy_hold(r.links[ROOM_CHAIN][0].proxy, FAULT_UP, true);
    fault_proxy_hold(r.links[ROOM_CHAIN][0].proxy, FAULT_DOWN, true);
    room_mark(&r, 0);
    room_release(&r, 1, 0);
    room_await_recovery(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    room_report(&r, "cut primary from replica");
    expect_epoch_2(&r, REPLICA);
    room_close(&r);
}
END_TEST

/* _i: both at once, the replica and then the primary that went on alone, the primary and then the
 * replica that took over. */
START_TEST(test_both_are_lost)
{
    struct room r = {.ranks = 2, .servers = 1, .replicas = true, .steps = "4000"};
    unsigned first = _i == 1 ? 1 : 0;

    room_open(&r);
    hold_in(&r, 5.5);
    room_mark(&r, 0);
    room_hit_server(&r, first, SIGKILL);
    if (_i > 0) {
        room_release(&r, 1, 0);
        room_await_recovery(&r);
        room_mark(&r, 0);
    }
    room_hit_server(&r, 1 - first, SIGKILL);
    room_release(&r, 1, 0);
    room_expect_failure(&r, ROOM_NOBODY, "parameter server 127.0.0.1:");
    room_report(&r, "kill primary and replica");
    ck_assert_double_le(r.last_ms, 15000);
    room_close(&r);
}
END_TEST

/* Both keep their state, are killed, and started again, in either order; or one of them alone: the
 * job goes on at one of them, and nothing is lost. */
START_TEST(test_started_again)
{
    struct room r = {.ranks = 2,
                     .servers = 1,
                     .replicas = true,
                     .with_state = true,
                     .seed = (uint64_t)_i + 1,
                     .update = _i % 2 ? "worker" : "server",
                     .worker = ARGS("--reconnect-ms", "30000")};
    unsigned first = (unsigned)_i % 2, count = _i < 4 ? 2 : 1;

    room_open(&r);
    hold_in(&r, 5 + 20 * support_random());
    room_mark(&r, 0);
    for (unsigned k = 0; k < count; k++)
        room_hit_server(&r, _i / 2 % 2 == 0 ? first ^ k : 1 ^ first ^ k, SIGKILL);
    room_release(&r, 1, 0);
    for (unsigned k = 0; k < count; k++)
        room_start_server(&r, first ^ k);
    room_await_recovery(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    room_report(&r, count == 2 ? "kill primary and replica, start both" : "kill one, start it");
    room_close(&r);
}
END_TEST

/* A replica that is not there, or is lost before the job has begun. */
START_TEST(test_no_replica)
{
    struct room r = {.ranks = 2, .servers = 1, .replicas = true, .timeout_ms = "8000"};

    room_open(&r);
    room_hit_server(&r, 1, _i == 0 ? SIGKILL : SIGSTOP);
    room_mark(&r, 0);
    room_start_workers(&r);
    room_expect_failure(&r, ROOM_NOBODY, "replica 127.0.0.1:");
    ck_assert_double_le(r.last_ms, 20000);
    room_close(&r);
}
END_TEST

/* A primary that is told to stop leaves the job to its replica. */
START_TEST(test_orderly_stop)
{
    struct room r = {.ranks = 2, .servers = 1, .replicas = true, .worker = PATIENT};

    room_open(&r);
    hold_in(&r, 5.5);
    room_hit_server(&r, 0, SIGTERM);
    room_release(&r, 1, 0);
    room_expect_success(&r, ROOM_NOBODY, true);
    ck_assert_int_eq(process_wait(&r.server_process[0], ROOM_WAIT_MS), 0);
    r.server_runs[0] = false;
    room_close(&r);
}
END_TEST

/* First a server, then a worker, which another process replaces; it finds the job at the replica.
 */
START_TEST(test_a_server_and_then_a_worker)
{
    struct room r = {
        .ranks = 2, .servers = 1, .replicas = true, .worker = ARGS("--on-worker-loss", "wait")};

    room_open(&r);
    hold_in(&r, 5.5);
    room_mark(&r, 0);
    room_hit_server(&r, 0, SIGKILL);
    room_release(&r, 1, 0);
    room_await_recovery(&r);
    room_hit_worker(&r, 1, SIGKILL);
    room_start_worker(&r, 1);
    room_expect_success(&r, ROOM_NOBODY, true);
    room_close(&r);
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

/* As a user has it: launch starts all, workers and servers share memory, and the launcher can do
 * without one of each two. */
START_TEST(test_launched)
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

int main(void)
{
    Suite *suite = suite_create("ps_replica");
    TCase *tests = tcase_create("ps_replica");

    tcase_set_timeout(tests, 200);
    tcase_add_unchecked_fixture(tests, room_find_references, NULL);
    tcase_add_loop_test(tests, test_one_is_lost, 0, 16);
    tcase_add_loop_test(tests, test_one_is_lost_in_join, 0, 4);
    tcase_add_test(tests, test_the_primary_is_lost_in_a_request);
    tcase_add_loop_test(tests, test_any_moment, 0, 4);
    tcase_add_test(tests, test_one_of_each);
    tcase_add_test(tests, test_the_link_between_them);
    tcase_add_loop_test(tests, test_both_are_lost, 0, 3);
    tcase_add_loop_test(tests, test_started_again, 0, 6);
    tcase_add_loop_test(tests, test_no_replica, 0, 2);
    tcase_add_test(tests, test_orderly_stop);
    tcase_add_test(tests, test_a_server_and_then_a_worker);
    tcase_add_test(tests, test_launched);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
