/*
 * Compressed jobs that lose servers and workers: values already sent to a rank, and the residuals
 * of what was left out, survive the loss of their sender.  Where the job promises the bits of an
 * undisturbed run, it must end with them; elsewhere all ranks succeed with equal parameters.
 */
#include "tests/integration/job.h"
#include "tests/integration/ps_fixture.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define STEPS "300" /* faults occur far before the last step */

/* A restart or a takeover may take long on a busy host. */
#define LONG_RECONNECT "--reconnect-ms", "20000"

/* Victim of the fault; a worker, and a server without a replica, is started again. */
enum victim { NOBODY, PRIMARY, REPLICA, SERVER, WORKER, BOTH };

static const struct fault_case {
    const char *name;
    const char *const *worker; /* options */
    const char *update;
    enum victim victim;
    bool exact;
} fault_cases[] = {
    {"a server that is started again, changes of values",
     ARGS("--compression", "topk", "--compression-down", "onebit", LONG_RECONNECT), "server",
     SERVER, true},
    {"a server that is started again, sums",
     ARGS("--compression", "onebit", "--compression-down", "topk", LONG_RECONNECT), "worker",
     SERVER, true},
    {"a replica that takes over, changes of values",
     ARGS("--compression", "fp16", "--compression-down", "topk", LONG_RECONNECT), "server", PRIMARY,
     true},
    {"a replica that is lost",
     ARGS("--compression", "rows", "--compression-down", "rows", LONG_RECONNECT), "server", REPLICA,
     true},
    {"a server and a worker",
     ARGS("--compression", "fp16", "--compression-down", "onebit", "--on-worker-loss", "wait",
          "--reconnect-ms", "5000"),
     "server", BOTH, true},
    {"a worker, rounded values",
     ARGS("--compression", "bf16", "--compression-down", "fp16", "--on-worker-loss", "wait",
          "--reconnect-ms", "500"),
     "server", WORKER, true},
    {"a server of ranks that are told on their own",
     ARGS("--compression", "onebit", "--compression-down", "topk", "--consistency", "ssp",
          "--staleness", "2", "--reduce", "fast", LONG_RECONNECT),
     "server", SERVER, false},
    {"a replica that takes over, ranks that are told on their own",
     ARGS("--compression-down", "onebit", "--consistency", "asp", "--reduce", "fast",
          LONG_RECONNECT),
     "server", PRIMARY, false},
    {"a worker, whose residual is lost, among others that go on",
     ARGS("--compression", "topk", "--compression-down", "rows", "--consistency", "asp", "--reduce",
          "fast", "--on-worker-loss", "wait", "--reconnect-ms", "500"),
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

static void kill_and_restart(struct ps_fixture *r, enum victim victim)
{
    bool server = victim == PRIMARY || victim == SERVER || victim == BOTH;

    job_await_step(r->run_dir, 0, 3 + (int64_t)(support_random() * 100));
    ps_fixture_mark_fault(r, 0);
    if (victim == WORKER || victim == BOTH)
        ps_fixture_signal_worker(r, 1, SIGKILL);
    if (server || victim == REPLICA)
        ps_fixture_signal_server(r, victim == REPLICA ? 1 : 0, SIGKILL);
    if (victim == SERVER || victim == BOTH)
        ps_fixture_start_server(r, 0);
    if (victim == WORKER || victim == BOTH)
        ps_fixture_start_worker(r, 1);
}

/* The records must show that the fault had an effect. */
static void check_recovery_counts(const struct ps_fixture *r, enum victim victim)
{
    if (victim == PRIMARY)
        ck_assert_int_eq(job_record_int(r->run_dir, 0, "end", "takeovers"), 1);
    if (victim == SERVER || victim == BOTH)
        ck_assert_int_ge(job_record_int(r->run_dir, 0, "end", "reconnects"), 1);
}

/* All ranks succeed with equal parameters; ret: their hash. */
static void check_end_and_close(struct ps_fixture *r, enum victim victim, char ret[32])
{
    ps_fixture_expect_success(r, PS_FIXTURE_NO_RANK, false);
    check_recovery_counts(r, victim);
    (void)snprintf(ret, 32, "%s", job_record_text(r->run_dir, 0, "end", "parameters_hash"));
    ck_assert_str_eq(ret, job_record_text(r->run_dir, 1, "end", "parameters_hash"));
    ps_fixture_close(r);
}

START_TEST(test_compressed_job_survives)
{
    const struct fault_case *fault_case = &fault_cases[_i];
    struct ps_fixture undisturbed = make_fixture(fault_case, NOBODY),
                      struck = make_fixture(fault_case, fault_case->victim);
    char wanted[32], got[32];

    printf("%s\n", fault_case->name);
    ps_fixture_open(&struck);
    ps_fixture_start_workers(&struck);
    kill_and_restart(&struck, fault_case->victim);
    check_end_and_close(&struck, fault_case->victim, got);
    if (!fault_case->exact)
        return;
    ps_fixture_open(&undisturbed);
    ps_fixture_start_workers(&undisturbed);
    check_end_and_close(&undisturbed, NOBODY, wanted);
    ck_assert_str_eq(got, wanted);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ps_compressed");
    TCase *tests = tcase_create("ps_compressed");

    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, test_compressed_job_survives, 0,
                        (int)(sizeof(fault_cases) / sizeof(fault_cases[0])));
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
