/*
 * Compressed jobs that lose servers and workers: the values that a rank has received, and the
 * residuals of error feedback, survive the loss of a server.  A deterministic job must end with the
 * bits of an undisturbed run; in other jobs all ranks must succeed with equal parameters.
 */
#include "tests/integration/job.h"
#include "tests/integration/ps_fixture.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define STEPS "300" /* faults occur long before the last step */

/* A restart or takeover may take seconds on a busy host. */
#define LONG_RECONNECT "--reconnect-ms", "20000"

/* Victim of the fault; a worker, and a server without a replica, is restarted. */
enum victim { NO_VICTIM, PRIMARY, REPLICA, SERVER, WORKER, BOTH };

static const struct fault_case {
    const char *name;
    const char *const *worker; /* options */
    const char *update;
    enum victim victim;
    bool exact;
} fault_cases[] = {
    {"server restarted, compressed value updates",
     ARGS("--compression", "topk", "--compression-down", "onebit", LONG_RECONNECT), "server",
     SERVER, true},
    {"server restarted, compressed sums",
     ARGS("--compression", "onebit", "--compression-down", "topk", LONG_RECONNECT), "worker",
     SERVER, true},
    {"replica takes over, compressed value updates",
     ARGS("--compression", "fp16", "--compression-down", "topk", LONG_RECONNECT), "server", PRIMARY,
     true},
    {"replica lost", ARGS("--compression", "rows", "--compression-down", "rows", LONG_RECONNECT),
     "server", REPLICA, true},
    {"server and worker lost",
     ARGS("--compression", "fp16", "--compression-down", "onebit", "--on-rank-loss", "wait",
          "--reconnect-ms", "5000"),
     "server", BOTH, true},
    {"worker lost, values rounded to fp16",
     ARGS("--compression", "bf16", "--compression-down", "fp16", "--on-rank-loss", "wait",
          "--reconnect-ms", "500"),
     "server", WORKER, true},
    {"server restarted, ranks served independently",
     ARGS("--compression", "onebit", "--compression-down", "topk", "--consistency", "ssp",
          "--staleness", "2", "--reduce", "fast", LONG_RECONNECT),
     "server", SERVER, false},
    {"replica takes over, ranks served independently",
     ARGS("--compression-down", "onebit", "--consistency", "asp", "--reduce", "fast",
          LONG_RECONNECT),
     "server", PRIMARY, false},
    {"worker and its residual lost, other ranks continue",
     ARGS("--compression", "topk", "--compression-down", "rows", "--consistency", "asp", "--reduce",
          "fast", "--on-rank-loss", "wait", "--reconnect-ms", "500"),
     "server", WORKER, false},
};

static struct ps_fixture make_fixture(const struct fault_case *fault_case, enum victim victim)
{
    return (struct ps_fixture){.ranks = 2,
                               .servers = 1,
                               .worker = fault_case->worker,
                               .update = fault_case->update,
                               .steps = STEPS,
                               .replicas = victim == PRIMARY || victim == REPLICA,
                               .with_state = victim == SERVER || victim == BOTH};
}

static void kill_and_restart(struct ps_fixture *f, enum victim victim)
{
    bool server = victim == PRIMARY || victim == SERVER || victim == BOTH;

    job_await_step(f->run_dir, 0, 3 + (int64_t)(support_random() * 100));
    ps_fixture_mark_fault(f, 0);
    if (victim == WORKER || victim == BOTH)
        ps_fixture_signal_worker(f, 1, SIGKILL);
    if (server || victim == REPLICA)
        ps_fixture_signal_server(f, victim == REPLICA ? 1 : 0, SIGKILL);
    if (victim == SERVER || victim == BOTH)
        ps_fixture_start_server(f, 0);
    if (victim == WORKER || victim == BOTH)
        ps_fixture_start_worker(f, 1);
}

/* The records must show the takeover or reconnect. */
static void check_recovery_counts(const struct ps_fixture *f, enum victim victim)
{
    if (victim == PRIMARY)
        ck_assert_int_eq(job_record_int(f->run_dir, 0, "end", "takeovers"), 1);
    if (victim == SERVER || victim == BOTH)
        ck_assert_int_ge(job_record_int(f->run_dir, 0, "end", "reconnects"), 1);
}

/* All ranks must succeed with equal parameters; ret: the hash of them. */
static void check_end_and_close(struct ps_fixture *f, enum victim victim, char ret[32])
{
    ps_fixture_expect_success(f, PS_FIXTURE_NO_RANK, false);
    check_recovery_counts(f, victim);
    (void)snprintf(ret, 32, "%s", job_record_text(f->run_dir, 0, "end", "parameters_hash"));
    ck_assert_str_eq(ret, job_record_text(f->run_dir, 1, "end", "parameters_hash"));
    ps_fixture_close(f);
}

START_TEST(test_compressed_job_survives)
{
    const struct fault_case *fault_case = &fault_cases[_i];
    struct ps_fixture undisturbed = make_fixture(fault_case, NO_VICTIM),
                      disturbed = make_fixture(fault_case, fault_case->victim);
    char wanted[32], got[32];

    printf("%s\n", fault_case->name);
    ps_fixture_open(&disturbed);
    ps_fixture_start_workers(&disturbed);
    kill_and_restart(&disturbed, fault_case->victim);
    check_end_and_close(&disturbed, fault_case->victim, got);
    if (!fault_case->exact)
        return;
    ps_fixture_open(&undisturbed);
    ps_fixture_start_workers(&undisturbed);
    check_end_and_close(&undisturbed, NO_VICTIM, wanted);
    ck_assert_str_eq(got, wanted);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "ps_compressed", 240,
        LOOP_TEST(test_compressed_job_survives, 0, sizeof(fault_cases) / sizeof(fault_cases[0])));
}
