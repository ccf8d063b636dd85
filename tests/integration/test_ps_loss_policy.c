/*
 * Loss policies of the parameter server: a worker or server is killed or stopped in every phase,
 * and the job continues with a replacement (wait), without the worker (shrink), or with the
 * restarted server.  It must end as the policy specifies.  For replicas see test_ps_replica.c.
 */
#include "tests/integration/job.h"
#include "tests/integration/ps_fixture.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum phase { PUSH, SUM, PULL, SNAPSHOT };

struct victim_case {
    int signal_number;
    enum phase phase;
    const char *name;
};

/* Hold rank 1's link to the first server in the middle of the phase. */
static void reach_phase(struct ps_fixture *f, enum phase phase)
{
    if (phase == SNAPSHOT) {
        ps_fixture_stop_in_snapshot(f, 0);
        return;
    }
    ps_fixture_freeze_at(f, 1, 0, phase == PULL ? FAULT_DOWN : FAULT_UP, phase == PULL ? 9.5 : 8.5);
    ps_fixture_start_workers(f);
    ps_fixture_await_freeze(f, 1, 0);
    if (phase == SUM) /* the server has all chunks of rank 0 and half of rank 1's */
        ps_fixture_await_bytes(f, 0, 0, FAULT_UP, 9);
}

/* ------------------------------------------------------------------ workers */

static const struct victim_case workers[] = {
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

static void release_phase(struct ps_fixture *f, enum phase phase)
{
    if (phase != SNAPSHOT)
        ps_fixture_release(f, 1, 0);
    else if (f->server_runs[0])
        ps_fixture_signal_server(f, 0, SIGCONT);
}

static void report_fault(const struct ps_fixture *f, const char *name, const char *policy)
{
    char text[100];

    (void)snprintf(text, sizeof(text), "%s, %s", name, policy);
    ps_fixture_report_fault(f, text);
}

/* A new process replaces the lost one; the final parameters have the same bits. */
START_TEST(test_wait)
{
    struct ps_fixture f = {.ranks = 2,
                           .servers = 2,
                           .with_state = workers[_i].phase == SNAPSHOT,
                           .worker = ARGS("--on-rank-loss", "wait", "--reconnect-ms", "500")};
    struct process stopped;

    ps_fixture_open(&f);
    reach_phase(&f, workers[_i].phase);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_worker(&f, 1, workers[_i].signal_number);
    stopped = f.worker_process[1];
    release_phase(&f, workers[_i].phase);
    ps_fixture_start_worker(&f, 1);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    report_fault(&f, workers[_i].name, "wait");
    if (workers[_i].signal_number == SIGSTOP) { /* superseded by the replacement: it must fail */
        process_signal(&stopped, SIGCONT);
        ck_assert_int_gt(process_wait(&stopped, PS_FIXTURE_WAIT_MS), 0);
    }
    ps_fixture_close(&f);
}
END_TEST

/* A process lost before the job begins has pushed nothing: another one may join as its rank. */
START_TEST(test_wait_in_join)
{
    struct ps_fixture f = {.ranks = 2,
                           .servers = 2,
                           .worker = ARGS("--on-rank-loss", "wait", "--reconnect-ms", "500")};

    ps_fixture_open(&f);
    ps_fixture_freeze_at(&f, 1, 0, FAULT_UP, 0.006); /* within the Join request */
    ps_fixture_start_workers(&f);
    ps_fixture_await_freeze(&f, 1, 0);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_worker(&f, 1, SIGKILL);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_start_worker(&f, 1);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    report_fault(&f, "worker killed in join", "wait");
    ps_fixture_close(&f);
}
END_TEST

/* The other ranks continue and end with equal parameters. */
START_TEST(test_shrink)
{
    struct ps_fixture f = {.ranks = 3,
                           .servers = 2,
                           .worker = ARGS("--on-rank-loss", "shrink", "--reconnect-ms", "500")};
    char hash[64];

    ps_fixture_open(&f);
    reach_phase(&f, workers[_i].phase);
    ps_fixture_mark_fault(&f, 0);
    ps_fixture_signal_worker(&f, 1, workers[_i].signal_number);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, 1, false);
    report_fault(&f, workers[_i].name, "shrink");
    (void)snprintf(hash, sizeof(hash), "%s",
                   job_record_text(f.run_dir, 0, "end", "parameters_hash"));
    ck_assert_str_eq(hash, job_record_text(f.run_dir, 2, "end", "parameters_hash"));
    /* without the gradients of rank 1 */
    ck_assert_str_ne(hash, ps_fixture_reference_hash(3, "server"));
    ps_fixture_close(&f);
}
END_TEST

/* ------------------------------------------------------------------ servers that restart */

static const struct victim_case restarts[] = {
    {SIGKILL, PUSH, "killed in push"},  {SIGKILL, SUM, "killed in sum"},
    {SIGKILL, PULL, "killed in pull"},  {SIGKILL, SNAPSHOT, "killed in a snapshot"},
    {SIGTERM, PUSH, "SIGTERM in push"}, {SIGTERM, SUM, "SIGTERM in sum"},
    {SIGTERM, PULL, "SIGTERM in pull"}, {SIGSTOP, SNAPSHOT, "stopped for 2.5 s in a snapshot"},
};
#define RESTARTS (int)(sizeof(restarts) / sizeof(restarts[0]))

/* Send the signal, then restart or continue the server. */
static void signal_and_restart_server(struct ps_fixture *f, const struct victim_case *restart)
{
    ps_fixture_signal_server(f, 0, restart->signal_number);
    if (restart->signal_number == SIGSTOP)
        (void)poll(NULL, 0, 2500);         /* longer than --heartbeat-timeout-ms */
    if (restart->signal_number == SIGTERM) /* or rounds could end before the signal is handled */
        process_wait_output(&f->server_process[0], "finishing the round under way",
                            PS_FIXTURE_WAIT_MS);
    release_phase(f, restart->phase);
    if (restart->signal_number == SIGTERM)
        ps_fixture_await_server_end(f, 0);
    if (restart->signal_number != SIGSTOP)
        ps_fixture_start_server(f, 0);
}

/* The restarted server continues from its state; the result has the same bits. */
START_TEST(test_restart)
{
    struct ps_fixture f = {.ranks = 2,
                           .servers = 2,
                           .with_state = true,
                           .worker = ARGS("--reconnect-ms", "30000"),
                           .update = _i % 2 ? "worker" : "server"};

    ps_fixture_open(&f);
    reach_phase(&f, restarts[_i].phase);
    ps_fixture_mark_fault(&f, 0);
    signal_and_restart_server(&f, &restarts[_i]);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    report_fault(&f, restarts[_i].name, "server restarts");
    ck_assert_int_gt(job_record_int(f.run_dir, 0, "end", "reconnects"), 0);
    ps_fixture_close(&f);
}
END_TEST

/* A server that cannot write its state fails the job, with an error that names the folder. */
START_TEST(test_full_disk)
{
    struct ps_fixture f = {.ranks = 2, .servers = 1, .with_state = true, .before = "ulimit -f 300"};

    ps_fixture_open(&f);
    ps_fixture_start_workers(&f);
    f.fault_ns = 0;
    ps_fixture_expect_failure(&f, PS_FIXTURE_NO_RANK, "/state-0/default.0/");
    ps_fixture_close(&f);
}
END_TEST

int main(void)
{
    /* CK_RUN_CASE=wait runs one case */
    return SUPPORT_RUN("ps_loss_policy", 0, PS_FIXTURE_CASE("wait"),
                       LOOP_TEST(test_wait, 0, WORKERS), TEST(test_wait_in_join),
                       PS_FIXTURE_CASE("shrink"), LOOP_TEST(test_shrink, 0, SHRINKS),
                       PS_FIXTURE_CASE("restart"), LOOP_TEST(test_restart, 0, RESTARTS),
                       PS_FIXTURE_CASE("disk"), TEST(test_full_disk));
}
