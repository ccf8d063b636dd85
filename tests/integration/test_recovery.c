/*
 * Ranks are killed and stopped at random steps, and the others continue.
 *
 * What must hold: the job succeeds and names the lost rank; every survivor has made every update
 * once, in order; up to and including the redone step, each survivor's losses are bit for bit those
 * of a run without losses (same parameters, same batches: the loss is taken before the update), and
 * after it they are not, because a gradient is missing; and all survivors end with the same bits.
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

struct loss {
    const char *backend;
    unsigned victims[2];
    unsigned count;
    int number;
    const char *fault;
};

static const struct loss losses[] = {
    {"ring", {2}, 1, SIGKILL, "dead"},    {"shm", {1}, 1, SIGKILL, "dead"},
    {"ring", {0}, 1, SIGKILL, "dead"},    {"shm", {0}, 1, SIGKILL, "dead"},
    {"ring", {0, 3}, 2, SIGKILL, "dead"}, {"shm", {1, 2}, 2, SIGKILL, "dead"},
    {"ring", {0}, 1, SIGSTOP, "stopped"}, {"shm", {3}, 1, SIGSTOP, "stopped"},
};
#define LOSSES (sizeof(losses) / sizeof(losses[0]))

static const char *start_job(struct process *launch, const char *backend, const char *on_loss,
                             const char *length, const char *amount)
{
    static unsigned serial;
    char name[32];
    const char *run_dir;

    (void)snprintf(name, sizeof(name), "loss-%u", serial++);
    run_dir = support_path(name);
    process_start(launch, NULL,
                  ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node",
                       "4", "--on-rank-loss", on_loss, "--run-dir", run_dir, "--",
                       support_program("sparring-worker"), JOB, "--backend", backend,
                       "--delay-schedule", job_pace(RANKS), length, amount));
    return run_dir;
}

static void disturb_rank(const char *run_dir, const struct loss *loss)
{
    for (unsigned i = 0; i < loss->count; i++)
        job_await_step(run_dir, loss->victims[i], 20 + (int64_t)(support_random() * 60));
    for (unsigned i = 0; i < loss->count; i++)
        ck_assert_int_eq(
            kill((pid_t)job_record_int(run_dir, loss->victims[i], "start", "pid"), loss->number),
            0);
}

static bool is_victim(const struct loss *loss, unsigned rank)
{
    for (unsigned i = 0; i < loss->count; i++)
        if (loss->victims[i] == rank)
            return true;
    return false;
}

static void check_survivor(const char *run_dir, unsigned rank, const struct loss *loss,
                           const double *undisturbed, char *hash, size_t size)
{
    static double got[STEPS + 1];
    int64_t redone = job_record_int(run_dir, rank, "recovery", "step");
    const char *text;

    ck_assert_int_ge(redone, 20);
    ck_assert_str_eq(job_record_text(run_dir, rank, "recovery", "fault"), loss->fault);
    ck_assert_uint_eq(job_losses(run_dir, rank, got, STEPS + 1), STEPS); /* each once, in order */
    for (int64_t step = 0; step <= redone; step++)
        ck_assert_msg(got[step] == undisturbed[step], "rank %u, step %jd of %jd: %.17g, not %.17g",
                      rank, (intmax_t)step, (intmax_t)redone, got[step], undisturbed[step]);
    ck_assert_msg(memcmp(got, undisturbed, STEPS * sizeof(double)) != 0,
                  "rank %u went on as if nobody was lost", rank);
    text = job_record_text(run_dir, rank, "end", "parameters_hash");
    ck_assert_uint_eq(strlen(text), 16);
    if (hash[0] == '\0')
        (void)snprintf(hash, size, "%s", text);
    ck_assert_str_eq(text, hash);
}

/* One undisturbed run for all tests: reproducible sums are the same through every backend. */
static const char *undisturbed_run;

static void run_undisturbed(void)
{
    struct job job = {.ranks = RANKS,
                      .worker =
                          ARGS(JOB, "--backend", "shm", "--steps", "150", "--evaluate", "never")};

    undisturbed_run = job_run(&job, 0);
}

static void check_summary(const char *run_dir, const struct loss *loss)
{
    json_t *summary = job_summary(run_dir);
    char lost[16];

    (void)snprintf(lost, sizeof(lost), loss->count > 1 ? "%u,%u" : "%u", loss->victims[0],
                   loss->victims[1]);
    ck_assert_str_eq(json_string_value(json_object_get(summary, "status")), "ok");
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "steps")), STEPS);
    ck_assert_uint_eq(strlen(json_string_value(json_object_get(summary, "lost_ranks"))),
                      strlen(lost));
    for (unsigned i = 0; i < loss->count; i++) {
        (void)snprintf(lost, sizeof(lost), "%u", loss->victims[i]);
        ck_assert_ptr_nonnull(
            strstr(json_string_value(json_object_get(summary, "lost_ranks")), lost));
    }
    ck_assert_int_ge(json_integer_value(json_object_get(summary, "recoveries")), 1);
    ck_assert_int_gt(json_integer_value(json_object_get(summary, "samples_lost")), 0);
    json_decref(summary);
}

START_TEST(test_survivors_continue)
{
    const struct loss *loss = &losses[_i];
    static double undisturbed[STEPS + 1];
    struct process launch;
    const char *run_dir;
    char hash[32] = "";
    int code;

    run_undisturbed();
    run_dir = start_job(&launch, loss->backend, "shrink", "--steps", STEP_TEXT);
    disturb_rank(run_dir, loss);
    code = process_wait(&launch, JOB_TIMEOUT_MS);
    ck_assert_msg(code == 7, "exit code %d:\n%.3000s", code, process_output(&launch));
    for (unsigned rank = 0; rank < RANKS; rank++) {
        size_t known = job_losses(undisturbed_run, rank, undisturbed, STEPS);
        int64_t redone;

        if (is_victim(loss, rank))
            continue;
        redone = job_record_int(run_dir, rank, "recovery", "step");
        if ((size_t)redone >= known) { /* the fault came late: as many steps as it needs */
            struct job job = {.ranks = RANKS,
                              .worker = ARGS(JOB, "--backend", "shm", "--steps", STEP_TEXT,
                                             "--evaluate", "never")};

            undisturbed_run = job_run(&job, 0);
            (void)job_losses(undisturbed_run, rank, undisturbed, STEPS);
        }
        check_survivor(run_dir, rank, loss, undisturbed, hash, sizeof(hash));
    }
    check_summary(run_dir, loss);
    ck_assert_ptr_nonnull(
        strstr(process_run(0, 60000, NULL, ARGS(support_program("sparring"), "inspect", run_dir)),
               "ok after a loss: without rank "));
}
END_TEST

/* Whole epochs: the data is divided among three from the next epoch on, and every update of every
 * epoch is made. */
START_TEST(test_epochs_are_counted_anew)
{
    const struct loss loss = {"shm", {3}, 1, SIGKILL, "dead"};
    struct process launch;
    const char *run_dir =
        start_job(&launch, loss.backend, "shrink", "--epochs", "8"); /* 128 updates each */
    json_t *summary;
    int64_t redone;
    int64_t epoch;

    disturb_rank(run_dir, &loss);
    ck_assert_int_eq(process_wait(&launch, JOB_TIMEOUT_MS), 7);
    summary = job_summary(run_dir);
    redone = job_record_int(run_dir, 0, "recovery", "step");
    epoch = redone / 128;
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "epochs")), 8);
    /* 4096 samples: 1024 for each of four ranks, then 1366 for each of three. */
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "steps")),
                     128 * (epoch + 1) + 171 * (7 - epoch));
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "samples_lost")),
                     1024 - 8 * (redone % 128));
    json_decref(summary);
}
END_TEST

/* Without shrink the job fails, and the ranks' records name the culprit. */
START_TEST(test_inspect_names_a_killed_rank)
{
    const struct loss loss = {"ring", {2}, 1, SIGKILL, "dead"};
    struct process launch;
    const char *run_dir = start_job(&launch, loss.backend, "fail", "--steps", "100000000");
    const char *text;

    job_await_step(run_dir, 2, 20);
    text = process_run(0, 60000, NULL, ARGS(support_program("sparring"), "inspect", run_dir));
    ck_assert_msg(strstr(text, "running.") != NULL, "%.3000s", text);
    disturb_rank(run_dir, &loss);
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
    Suite *suite = suite_create("recovery");
    TCase *cases = tcase_create("recovery");

    tcase_set_timeout(cases, 400);
    tcase_add_loop_test(cases, test_survivors_continue, 0, (int)LOSSES);
    tcase_add_test(cases, test_epochs_are_counted_anew);
    tcase_add_test(cases, test_inspect_names_a_killed_rank);
    tcase_add_test(cases, test_shrink_is_refused_where_unsupported);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
