/*
 * The example of PyTorch's DDP articles as docs/allreduce.md prints it: linear:10-5-2, SGD at
 * 0.001, batch 32, 10 epochs, two ranks.  Started by sparring launch, as two separate workers, and
 * by mpirun.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOB                                                                                        \
    "--model", "linear:10-5-2", "--data", "random:1000,10,2", "--lr", "0.001", "--batch-size",     \
        "32", "--epochs", "10", "--evaluate", "never"

static void check_run(const char *run_dir)
{
    json_t *summary = job_summary(run_dir);
    double losses[400];

    ck_assert_str_eq(json_string_value(json_object_get(summary, "status")), "ok");
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "world_size")), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(summary, "epochs")), 10);
    for (unsigned rank = 0; rank < 2; rank++)
        ck_assert_uint_eq(job_losses(run_dir, rank, losses, 400), 160);
    json_decref(summary);
}

START_TEST(test_launch)
{
    struct job job = {.ranks = 2, .worker = ARGS(JOB)};

    check_run(job_run(&job, 0));
}
END_TEST

/* Two workers started separately, whose store is at `url`. */
static void run_two_workers(const char *url, const char *run_dir)
{
    struct process workers[2];

    for (unsigned rank = 0; rank < 2; rank++)
        process_start(&workers[rank], NULL,
                      ARGS(support_program("sparring-worker"), JOB, "--init-method", url,
                           "--world-size", "2", "--rank", rank ? "1" : "0", "--run-dir", run_dir));
    for (unsigned rank = 0; rank < 2; rank++)
        ck_assert_msg(process_wait(&workers[rank], JOB_TIMEOUT_MS) == 0, "rank %u: %s", rank,
                      process_output(&workers[rank]));
    check_run(run_dir);
}

START_TEST(test_separate_workers)
{
    char url[64];

    (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%u", support_port());
    run_two_workers(url, support_path("by-hand"));
}
END_TEST

START_TEST(test_file_store)
{
    char url[600];

    (void)snprintf(url, sizeof(url), "file://%s", support_path("store"));
    run_two_workers(url, support_path("by-file"));
}
END_TEST

START_TEST(test_mpirun)
{
    const char *run_dir = support_path("by-mpirun");
    char port[32];

    if (access("/usr/bin/mpirun", X_OK) != 0) {
        support_skip_package("openmpi-bin");
        return;
    }
    (void)snprintf(port, sizeof(port), "MASTER_PORT=%u", support_port());
    (void)process_run(0, JOB_TIMEOUT_MS,
                      ARGS("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", port),
                      ARGS("/usr/bin/mpirun", "--oversubscribe", "-n", "2",
                           support_program("sparring-worker"), JOB, "--run-dir", run_dir));
    check_run(run_dir);
}
END_TEST

/* The trace contains every step of every rank and every round of the server. */
START_TEST(test_trace)
{
    struct job job = {.ranks = 2, .servers = 1, .worker = ARGS("--sync", "ps", JOB)};
    const char *trace = support_path("trace.json");
    json_t *root;
    size_t index, steps = 0, rounds = 0;
    json_t *event;

    (void)process_run(
        0, JOB_TIMEOUT_MS, NULL,
        ARGS(support_program("sparring"), "inspect", job_run(&job, 0), "--trace", trace));
    root = json_load_file(trace, 0, NULL);
    ck_assert_ptr_nonnull(root);
    json_array_foreach(json_object_get(root, "traceEvents"), index, event)
    {
        const char *kind = json_string_value(json_object_get(event, "cat"));

        if (!kind)
            continue;
        ck_assert_double_ge(json_number_value(json_object_get(event, "ts")), 0);
        if (strcmp(kind, "wait") != 0) /* an arrow */
            ck_assert_double_gt(json_number_value(json_object_get(event, "dur")), 0);
        steps += strcmp(kind, "step") == 0;
        rounds += strcmp(kind, "round") == 0;
    }
    ck_assert_uint_eq(steps, 2 * 160);
    ck_assert_uint_eq(rounds, 160);
    json_decref(root);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("article", 200, TEST(test_launch), TEST(test_separate_workers),
                       TEST(test_file_store), TEST(test_mpirun), TEST(test_trace));
}
