/*
 * All-reduce under --on-rank-loss shrink: ranks are killed or stopped at random steps, and the
 * others continue.
 *
 * Invariants: the job succeeds and names the lost rank; every survivor makes every update once, in
 * order; up to and including the repeated step the losses of each survivor have the bits of an
 * undisturbed run (same parameters, same batches: a loss is computed before its update), and later
 * losses differ, because a gradient is missing; all survivors end with the same bits.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS     4
#define STEPS     1000
#define STEP_TEXT "1000"

#define JOB                                                                                        \
    "--model", "mlp:64-96-64-8", "--data", "random:4096,64,8", "--batch-size", "8", "--momentum",  \
        "0.9", "--bucket-cap-mb", "0.02", "--reduce", "reproducible", "--threads", "1",            \
        "--device", job_device(), "--seed", "7", "--timeout-ms", "20000"

struct loss_case {
    const char *backend;
    unsigned victims[2];
    unsigned count;
    int signal_number;
    const char *fault;
};

static const struct loss_case loss_cases[] = {
    {"ring", {2}, 1, SIGKILL, "dead"},    {"shm", {1}, 1, SIGKILL, "dead"},
    {"ring", {0}, 1, SIGKILL, "dead"},    {"shm", {0}, 1, SIGKILL, "dead"},
    {"ring", {0, 3}, 2, SIGKILL, "dead"}, {"shm", {1, 2}, 2, SIGKILL, "dead"},
    {"ring", {0}, 1, SIGSTOP, "stopped"}, {"shm", {3}, 1, SIGSTOP, "stopped"},
};
#define LOSS_CASES (sizeof(loss_cases) / sizeof(loss_cases[0]))

static const char *start_job(struct process *launch, const struct loss_case *loss_case,
                             const char *on_loss, const char *length, const char *amount)
{
    static unsigned serial;
    char name[32];
    const char *run_dir;

    (void)snprintf(name, sizeof(name), "loss-%u", serial++);
    run_dir = support_path(name);
    process_start(launch, NULL,
                  ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node",
                       "4", "--on-rank-loss", on_loss, "--run-dir", run_dir, "--",
                       support_program("sparring-worker"), JOB, "--backend", loss_case->backend,
                       "--delay-schedule",
                       job_pace_and_hold(RANKS, 300, loss_case->victims, loss_case->count), length,
                       amount));
    return run_dir;
}

static void signal_victims(const char *run_dir, const struct loss_case *loss_case)
{
    for (unsigned i = 0; i < loss_case->count; i++)
        job_await_step(run_dir, loss_case->victims[i], 20 + (int64_t)(support_random() * 60));
    for (unsigned i = 0; i < loss_case->count; i++)
        ck_assert_int_eq(kill((pid_t)job_record_int(run_dir, loss_case->victims[i], "start", "pid"),
                              loss_case->signal_number),
                         0);
}

static bool is_victim(const struct loss_case *loss_case, unsigned rank)
{
    for (unsigned i = 0; i < loss_case->count; i++)
        if (loss_case->victims[i] == rank)
            return true;
    return false;
}

static void check_survivor(const char *run_dir, unsigned rank, const struct loss_case *loss_case,
                           const double *undisturbed, char *hash, size_t size)
{
    static double got[STEPS + 1];
    int64_t repeated_step = job_record_int(run_dir, rank, "recovery", "step");
    const char *text;

    ck_assert_int_ge(repeated_step, 20);
    ck_assert_str_eq(job_record_text(run_dir, rank, "recovery", "fault"), loss_case->fault);
    /* each step once, in order */
    ck_assert_uint_eq(job_losses(run_dir, rank, got, STEPS + 1), STEPS);
    for (int64_t step = 0; step <= repeated_step; step++)
        ck_assert_msg(got[step] == undisturbed[step], "rank %u, step %jd of %jd: %.17g, not %.17g",
                      rank, (intmax_t)step, (intmax_t)repeated_step, got[step], undisturbed[step]);
    ck_assert_msg(memcmp(got, undisturbed, STEPS * sizeof(double)) != 0,
                  "rank %u has the losses of an undisturbed run", rank);
    text = job_record_text(run_dir, rank, "end", "parameters_hash");
    ck_assert_uint_eq(strlen(text), 16);
    if (hash[0] == '\0')
        (void)snprintf(hash, size, "%s", text);
    ck_assert_str_eq(text, hash);
}

/* One undisturbed run for all tests: reproducible sums are equal in every backend. */
static const char *undisturbed_run;

static void run_undisturbed(void)
{
    struct job job = {.ranks = RANKS,
                      .worker =
                          ARGS(JOB, "--backend", "shm", "--steps", "150", "--evaluate", "never")};

    undisturbed_run = job_run(&job, 0);
}

static void check_summary(const char *run_dir, const struct loss_case *loss_case)
{
    json_t *summary = job_summary(run_dir);
    char lost[16];

    (void)snprintf(lost, sizeof(lost), loss_case->count > 1 ? "%u,%u" : "%u", loss_case->victims[0],
                   loss_case->victims[1]);
    ck_assert_str_eq(json_string_value(json_object_get(summary, "status")), "ok");
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "steps")), STEPS);
    ck_assert_uint_eq(strlen(json_string_value(json_object_get(summary, "lost_ranks"))),
                      strlen(lost));
    for (unsigned i = 0; i < loss_case->count; i++) {
        (void)snprintf(lost, sizeof(lost), "%u", loss_case->victims[i]);
        ck_assert_ptr_nonnull(
            strstr(json_string_value(json_object_get(summary, "lost_ranks")), lost));
    }
    ck_assert_int_ge(json_integer_value(json_object_get(summary, "recoveries")), 1);
    ck_assert_int_gt(json_integer_value(json_object_get(summary, "samples_lost")), 0);
    json_decref(summary);
}

START_TEST(test_survivors_continue)
{
    const struct loss_case *loss_case = &loss_cases[_i];
    static double undisturbed[STEPS + 1];
    struct process launch;
    const char *run_dir;
    char hash[32] = "";
    int code;

    run_undisturbed();
    run_dir = start_job(&launch, loss_case, "shrink", "--steps", STEP_TEXT);
    signal_victims(run_dir, loss_case);
    code = process_wait(&launch, JOB_TIMEOUT_MS);
    ck_assert_msg(code == 7, "exit code %d:\n%.3000s", code, process_output(&launch));
    for (unsigned rank = 0; rank < RANKS; rank++) {
        size_t known = job_losses(undisturbed_run, rank, undisturbed, STEPS);
        int64_t repeated_step;

        if (is_victim(loss_case, rank))
            continue;
        repeated_step = job_record_int(run_dir, rank, "recovery", "step");
        if ((size_t)repeated_step >= known) { /* late fault: run as many steps as necessary */
            struct job job = {.ranks = RANKS,
                              .worker = ARGS(JOB, "--backend", "shm", "--steps", STEP_TEXT,
                                             "--evaluate", "never")};

            undisturbed_run = job_run(&job, 0);
            (void)job_losses(undisturbed_run, rank, undisturbed, STEPS);
        }
        check_survivor(run_dir, rank, loss_case, undisturbed, hash, sizeof(hash));
    }
    check_summary(run_dir, loss_case);
    ck_assert_ptr_nonnull(
        strstr(process_run(0, 60000, NULL, ARGS(support_program("sparring"), "inspect", run_dir)),
               "ok after a loss: without rank "));
}
END_TEST

/* With --epochs the data is divided among three ranks from the next epoch on, and every update of
 * every epoch is made. */
START_TEST(test_epochs_are_counted_anew)
{
    const struct loss_case loss_case = {"shm", {3}, 1, SIGKILL, "dead"};
    struct process launch;
    const char *run_dir =
        start_job(&launch, &loss_case, "shrink", "--epochs", "8"); /* 128 updates each */
    json_t *summary;
    int64_t repeated_step;
    int64_t epoch;

    signal_victims(run_dir, &loss_case);
    ck_assert_int_eq(process_wait(&launch, JOB_TIMEOUT_MS), 7);
    summary = job_summary(run_dir);
    repeated_step = job_record_int(run_dir, 0, "recovery", "step");
    epoch = repeated_step / 128;
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "epochs")), 8);
    /* 4096 samples: 1024 for each of four ranks, then 1366 for each of three. */
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "steps")),
                     128 * (epoch + 1) + 171 * (7 - epoch));
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "samples_lost")),
                     1024 - 8 * (repeated_step % 128));
    json_decref(summary);
}
END_TEST

/* Without shrink the job fails, and `sparring inspect` names the killed rank. */
START_TEST(test_inspect_names_a_killed_rank)
{
    const struct loss_case loss_case = {"ring", {2}, 1, SIGKILL, "dead"};
    struct process launch;
    const char *run_dir = start_job(&launch, &loss_case, "fail", "--steps", "100000000");
    const char *text;

    job_await_step(run_dir, 2, 20);
    text = process_run(0, 60000, NULL, ARGS(support_program("sparring"), "inspect", run_dir));
    ck_assert_msg(strstr(text, "running.") != NULL, "%.3000s", text);
    signal_victims(run_dir, &loss_case);
    ck_assert_int_eq(process_wait(&launch, JOB_TIMEOUT_MS), 128 + SIGKILL);
    text = process_run(0, 60000, NULL, ARGS(support_program("sparring"), "inspect", run_dir));
    ck_assert_msg(strstr(text, "FAILED: rank 2 ") != NULL, "%.3000s", text);
    ck_assert_msg(strstr(text, "all_reduce #") != NULL, "%.3000s", text);
}
END_TEST

START_TEST(test_shrink_is_refused_where_unsupported)
{
    const char *text = process_run(2, 60000, NULL,
                                   ARGS(support_program("sparring-worker"), JOB, "--steps", "5",
                                        "--on-rank-loss", "shrink", "--uneven", "join"));

    ck_assert_ptr_nonnull(strstr(text, "--uneven"));
    text = process_run(2, 60000, NULL,
                       ARGS(support_program("sparring-worker"), JOB, "--steps", "5",
                            "--on-rank-loss", "shrink", "--sync", "local"));
    ck_assert_ptr_nonnull(strstr(text, "--sync allreduce"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("recovery", 400, LOOP_TEST(test_survivors_continue, 0, LOSS_CASES),
                       TEST(test_epochs_are_counted_anew), TEST(test_inspect_names_a_killed_rank),
                       TEST(test_shrink_is_refused_where_unsupported));
}
