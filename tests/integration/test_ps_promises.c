/*
 * Jobs that are to go on without who was lost, or with another in its place: a worker or a server,
 * killed and stopped at every phase.  What the policy promises is what the job ends with.  Of
 * replicas see test_ps_replica.c.
 */
#include "tests/integration/job.h"
#include "tests/integration/room.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum phase { PUSH, SUM, PULL, SNAPSHOT };

struct strike {
    int number;
    enum phase phase;
    const char *name;
};

/* Rank 1's link to the first server stands still in the middle of the phase. */
static void come_to(struct room *r, enum phase phase)
{
    if (phase == SNAPSHOT) {
        room_stop_in_snapshot(r, 0);
        return;
    }
    room_freeze_at(r, 1, 0, phase == PULL ? FAULT_DOWN : FAULT_UP, phase == PULL ? 9.5 : 8.5);
    room_start_workers(r);
    room_await_freeze(r, 1, 0);
    if (phase == SUM) /* the server has all of rank 0's, and half of rank 1's */
        room_await(r, 0, 0, FAULT_UP, 9);
}

/* ------------------------------------------------------------------ workers */

static const struct strike workers[] = {
    {SIGKILL, PUSH, "worker killed in push"},
    {SIGKILL, SUM, "worker killed in sum"},
    {SIGKILL, PULL, "worker killed in pull"},
    {SIGSTOP, PUSH, "worker stopped in push"},
    {SIGSTOP, SUM, "worker stopped in sum"},
    {SIGSTOP, PULL, "worker stopped in pull"},
    {SIGKILL, SNAPSHOT, "worker killed in a snapshot"},
    {SIGSTOP, SNAPSHOT, "worker stopped in a snapshot"},
};
#define WORKERS (int)(sizeof(workers) / sizeof(workers[0]))
#define SHRINKS (WORKERS - 2)

static void go_on(struct room *r, enum phase phase)
{
    if (phase != SNAPSHOT)
        room_release(r, 1, 0);
    else if (r->server_runs[0])
        room_hit_server(r, 0, SIGCONT);
}

static void report(const struct room *r, const char *name, const char *policy)
{
    char text[100];

    (void)snprintf(text, sizeof(text), "%s, %s", name, policy);
    room_report(r, text);
}

/* Another process takes the place, and not a bit is different. */
START_TEST(test_wait)
{
    struct room r = {.ranks = 2,
                     .servers = 2,
                     .with_state = workers[_i].phase == SNAPSHOT,
                     .worker = ARGS("--on-worker-loss", "wait", "--reconnect-ms", "500")};
    struct process stopped;

    room_open(&r);
    come_to(&r, workers[_i].phase);
    room_mark(&r, 0);
    room_hit_worker(&r, 1, workers[_i].number);
    stopped = r.worker_process[1];
    go_on(&r, workers[_i].phase);
    room_start_worker(&r, 1);
    room_await_recovery(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    report(&r, workers[_i].name, "wait");
    if (workers[_i].number == SIGSTOP) { /* it wakes up in a job that has no place for it */
        process_signal(&stopped, SIGCONT);
        ck_assert_int_gt(process_wait(&stopped, ROOM_WAIT_MS), 0);
    }
    room_close(&r);
}
END_TEST

/* Before the job has begun nothing is lost with a process: another one may join as its rank. */
START_TEST(test_wait_in_join)
{
    struct room r = {.ranks = 2,
                     .servers = 2,
                     .worker = ARGS("--on-worker-loss", "wait", "--reconnect-ms", "500")};

    room_open(&r);
    room_freeze_at(&r, 1, 0, FAULT_UP, 0.006); /* in the request */
    room_start_workers(&r);
    room_await_freeze(&r, 1, 0);
    room_mark(&r, 0);
    room_hit_worker(&r, 1, SIGKILL);
    room_release(&r, 1, 0);
    room_start_worker(&r, 1);
    room_await_recovery(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    report(&r, "worker killed in join", "wait");
    room_close(&r);
}
END_TEST

/* The others go on, and agree. */
START_TEST(test_shrink)
{
    struct room r = {.ranks = 3,
                     .servers = 2,
                     .worker = ARGS("--on-worker-loss", "shrink", "--reconnect-ms", "500")};
    char hash[64];

    room_open(&r);
    come_to(&r, workers[_i].phase);
    room_mark(&r, 0);
    room_hit_worker(&r, 1, workers[_i].number);
    room_release(&r, 1, 0);
    room_await_recovery(&r);
    room_expect_success(&r, 1, false);
    report(&r, workers[_i].name, "shrink");
    (void)snprintf(hash, sizeof(hash), "%s",
                   job_record_text(r.run_dir, 0, "end", "parameters_hash"));
    ck_assert_str_eq(hash, job_record_text(r.run_dir, 2, "end", "parameters_hash"));
    ck_assert_str_ne(hash, room_reference(3, "server")); /* gradients are missing */
    room_close(&r);
}
END_TEST

/* ------------------------------------------------------------------ servers that come back */

static const struct strike restarts[] = {
    {SIGKILL, PUSH, "killed in push"},  {SIGKILL, SUM, "killed in sum"},
    {SIGKILL, PULL, "killed in pull"},  {SIGKILL, SNAPSHOT, "killed in a snapshot"},
    {SIGTERM, PUSH, "SIGTERM in push"}, {SIGTERM, SUM, "SIGTERM in sum"},
    {SIGTERM, PULL, "SIGTERM in pull"}, {SIGSTOP, SNAPSHOT, "stopped for 2.5 s in a snapshot"},
};
#define RESTARTS (int)(sizeof(restarts) / sizeof(restarts[0]))

/* And have it there again. */
static void strike_server(struct room *r, const struct strike *how)
{
    room_hit_server(r, 0, how->number);
    if (how->number == SIGSTOP)
        (void)poll(NULL, 0, 2500); /* longer than --heartbeat-timeout-ms */
    if (how->number == SIGTERM) /* a busy machine may do the other rounds before it hears of it */
        process_wait_output(&r->server_process[0], "finishing the round under way", ROOM_WAIT_MS);
    go_on(r, how->phase);
    if (how->number == SIGTERM)
        room_end_server(r, 0);
    if (how->number != SIGSTOP)
        room_start_server(r, 0);
}

/* The server's next process goes on where the last one was, and nobody notices but by the clock. */
START_TEST(test_restart)
{
    struct room r = {.ranks = 2,
                     .servers = 2,
                     .with_state = true,
                     .worker = ARGS("--reconnect-ms", "30000"),
                     .update = _i % 2 ? "worker" : "server"};

    room_open(&r);
    come_to(&r, restarts[_i].phase);
    room_mark(&r, 0);
    strike_server(&r, &restarts[_i]);
    room_await_recovery(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    report(&r, restarts[_i].name, "a server that comes back");
    ck_assert_int_gt(job_record_int(r.run_dir, 0, "end", "reconnects"), 0);
    room_close(&r);
}
END_TEST

/* A server that cannot keep what it would promise says so, and promises nothing. */
START_TEST(test_full_disk)
{
    struct room r = {.ranks = 2, .servers = 1, .with_state = true, .before = "ulimit -f 300"};

    room_open(&r);
    room_start_workers(&r);
    r.struck_ns = 0;
    room_expect_failure(&r, ROOM_NOBODY, "/state-0/default.0/");
    room_close(&r);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *cases = tcase_create(name);

    tcase_set_timeout(cases, 3 * ROOM_WAIT_MS / 1000.0);
    tcase_add_unchecked_fixture(cases, room_find_references, NULL);
    suite_add_tcase(suite, cases);
    return cases;
}

int main(void)
{
    Suite *suite = suite_create("ps_promises"); /* CK_RUN_CASE=wait runs one case */
    TCase *waits = add_case(suite, "wait");

    tcase_add_loop_test(waits, test_wait, 0, WORKERS);
    tcase_add_test(waits, test_wait_in_join);
    tcase_add_loop_test(add_case(suite, "shrink"), test_shrink, 0, SHRINKS);
    tcase_add_loop_test(add_case(suite, "restart"), test_restart, 0, RESTARTS);
    tcase_add_test(add_case(suite, "disk"), test_full_disk);
    return support_run(suite);
}
