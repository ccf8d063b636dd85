/*
 * Features of DistributedDataParallel from the command line: uneven inputs with the mean over
 * samples against one process, batch normalisation, LayerDrop, communication hooks, error texts.
 */
#include "common/checkpoint/safetensors.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODEL            "mlp:20-24-16-5"
#define LAYER_DROP_MODEL "mlp:20-16-16-16-5"
#define DATA             "random:205,20,5" /* three ranks: 69, 68, 68 samples */

static struct error err;

/* Each update uses the same samples for any number of ranks, so with the mean over samples the run
 * equals one process with the whole batch, up to and including the last, uneven update. */
START_TEST(test_uneven_ranks_equal_one_process)
{
    const char *alone = support_path("alone.safetensors");
    const char *joined = support_path("joined.safetensors");
    struct job job = {
        .ranks = 1,
        .worker = ARGS("--model", MODEL, "--data", DATA, "--batch-size", "24", "--epochs", "3",
                       "--lr", "0.1", "--momentum", "0.9", "--sync", "local", "--threads", "1",
                       "--device", job_device(), "--evaluate", "never", "--save", alone),
    };
    double distance;

    (void)job_run(&job, 0);
    job.ranks = 3;
    for (const char *const *backend = ARGS("shm", "ring"); *backend; backend++) {
        job.worker = ARGS("--model", MODEL, "--data", DATA, "--batch-size", "8", "--epochs", "3",
                          "--lr", "0.1", "--momentum", "0.9", "--uneven", "join", "--weighting",
                          "samples", "--backend", *backend, "--threads", "1", "--device",
                          job_device(), "--evaluate", "never", "--save", joined);
        (void)job_run(&job, 0);
        distance = job_checkpoint_distance(alone, joined);
        ck_assert_msg(distance < 1e-5, "%s: %g", *backend, distance);
    }
    job.worker = ARGS("--model", MODEL, "--data", DATA, "--batch-size", "8", "--epochs", "3",
                      "--lr", "0.1", "--momentum", "0.9", "--uneven", "join", "--threads", "1",
                      "--device", job_device(), "--evaluate", "never", "--save", joined);
    (void)job_run(&job, 0);
    distance = job_checkpoint_distance(alone, joined);
    ck_assert_msg(distance > 1e-4, "the mean over ranks gives the same result: %g", distance);
}
END_TEST

/* 205 samples in batches of 4: rank 0 has 18 updates per epoch, the others 17. */
START_TEST(test_join_and_stop)
{
    struct job job = {
        .ranks = 3,
        .worker = ARGS("--model", MODEL, "--data", DATA, "--batch-size", "4", "--epochs", "2",
                       "--uneven", "join", "--join-divide", "active", "--threads", "1", "--device",
                       job_device(), "--evaluate", "never"),
    };
    const char *run_dir = job_run(&job, 0);

    for (unsigned rank = 0; rank < 3; rank++)
        ck_assert_int_eq(job_record_int(run_dir, rank, "end", "steps"), 36);
    job.worker = ARGS("--model", MODEL, "--data", DATA, "--batch-size", "4", "--epochs", "2",
                      "--uneven", "stop", "--threads", "1", "--device", job_device());
    (void)job_run(&job, 3);
    ck_assert_ptr_nonnull(strstr(job_output(), "rank 1 has no inputs left after step 16"));
}
END_TEST

static bool has_file(const char *folder, const char *name)
{
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* In the folder of an earlier run nothing remains of ranks and servers that the next one lacks. */
START_TEST(test_folder_of_an_earlier_run)
{
    struct job job = {
        .ranks = 2,
        .worker = ARGS("--model", MODEL, "--data", DATA, "--steps", "2", "--threads", "1",
                       "--evaluate", "never"),
    };
    const char *folders[2];

    folders[0] = job_run(&job, 0);
    ck_assert(has_file(folders[0], "flight-rank0.bin") && has_file(folders[0], "rank1.jsonl"));
    job.servers = 1;
    job.worker = ARGS("--model", MODEL, "--data", DATA, "--steps", "2", "--threads", "1",
                      "--evaluate", "never", "--sync", "ps");
    folders[1] = job_run(&job, 0);
    ck_assert(has_file(folders[1], "server0.jsonl") && has_file(folders[1], "rank1.jsonl"));
    job.ranks = 1;
    job.servers = 0;
    for (size_t i = 0; i < 2; i++) {
        job.worker = ARGS("--model", MODEL, "--data", DATA, "--steps", "2", "--threads", "1",
                          "--evaluate", "never", "--sync", "local", "--run-dir", folders[i]);
        (void)job_run(&job, 0);
        ck_assert_msg(has_file(folders[i], "rank0.jsonl"), "%s: %s", folders[i], job_output());
        ck_assert(!has_file(folders[i], "rank1.jsonl"));
        ck_assert(!has_file(folders[i], "server0.jsonl"));
        ck_assert(!has_file(folders[i], "flight-rank0.bin"));
    }
}
END_TEST

/* Buffers are saved and loaded; their values are those of rank 0. */
START_TEST(test_batch_norm)
{
    const char *save = support_path("bn.safetensors");
    const char *again = support_path("again.safetensors");
    struct safetensors file;
    const struct safetensors_entry *entry;
    int64_t steps = 0;
    struct job job = {
        .ranks = 2,
        .worker =
            ARGS("--model", "mlp-bn:20-16-5", "--data", DATA, "--batch-size", "16", "--steps", "9",
                 "--threads", "1", "--evaluate", "never", "--device", "cpu", "--save", save),
    };

    (void)job_run(&job, 0);
    assert_ok(safetensors_read(save, 1 << 20, &file, &err));
    ck_assert_uint_eq(file.length, 9);
    entry = safetensors_find(&file, "1.num_batches_tracked");
    ck_assert_ptr_nonnull(entry);
    ck_assert_uint_eq(entry->bytes, sizeof(steps));
    memcpy(&steps, entry->data, sizeof(steps));
    ck_assert_int_eq(steps, 9);
    safetensors_release(&file);
    job.worker = ARGS("--model", "mlp-bn:20-16-5", "--data", DATA, "--batch-size", "16", "--steps",
                      "1", "--lr", "0", "--init", save, "--threads", "1", "--evaluate", "never",
                      "--device", "cpu", "--save", again);
    (void)job_run(&job, 0);
    ck_assert(!job_same_tensors(save, again)); /* the statistics have changed */
    ck_assert_double_lt(job_checkpoint_distance(save, again), 2);
}
END_TEST

static void run_layer_drop_job(const char *backend, const char *save)
{
    struct job job = {
        .ranks = 3,
        .worker =
            ARGS("--model", LAYER_DROP_MODEL, "--data", DATA, "--batch-size", "8", "--epochs", "2",
                 "--lr", "0.05", "--momentum", "0.9", "--layer-drop", "0.6",
                 "--find-unused-parameters", "--reduce", "reproducible", "--backend", backend,
                 "--threads", "1", "--device", job_device(), "--evaluate", "never", "--save", save),
    };
    const char *run_dir = job_run(&job, 0);

    ck_assert_int_eq(job_record_int(run_dir, 0, "ddp_runtime", "can_set_static_graph"), 0);
    ck_assert_int_eq(job_record_int(run_dir, 0, "ddp", "find_unused_parameters"), 1);
}

START_TEST(test_layer_drop)
{
    const char *shm = support_path("shm.safetensors");
    const char *ring = support_path("ring.safetensors");
    struct job job = {.ranks = 2,
                      .worker = ARGS("--model", LAYER_DROP_MODEL, "--data", DATA, "--steps", "3",
                                     "--layer-drop", "0.5")};

    run_layer_drop_job("shm", shm);
    run_layer_drop_job("ring", ring);
    ck_assert(job_same_tensors(shm, ring));
    (void)job_run(&job, 2);
    ck_assert_ptr_nonnull(strstr(job_output(), "--find-unused-parameters"));
}
END_TEST

/* Compression hooks send half of the bytes or less, and the model still learns the digits. */
START_TEST(test_hooks)
{
    static const char *const hooks[] = {"none", "fp16", "bf16", "powersgd"};
    static const double shares[] = {1, 0.5, 0.5, 0.2};
    int64_t plain = 0;

    for (size_t i = 0; i < 4; i++) {
        struct job job = {
            .ranks = 2,
            .worker = ARGS("--model", "mlp:784-64-10", "--data", "digits", "--batch-size", "16",
                           "--epochs", "1", "--lr", "0.1", "--momentum", "0.9", "--comm-hook",
                           hooks[i], "--powersgd-rank", "2", "--samples", "4000", "--threads", "1",
                           "--device", job_device()),
        };
        const char *run_dir = job_run(&job, 0);
        json_t *summary = job_summary(run_dir);
        double accuracy = json_number_value(json_object_get(summary, "test_accuracy"));
        int64_t bytes = job_record_int(run_dir, 0, "end", "expected_tx_payload_bytes");

        plain = i == 0 ? bytes : plain;
        ck_assert_msg(accuracy > 0.7, "%s: accuracy %g", hooks[i], accuracy);
        ck_assert_msg((double)bytes <= 1.05 * shares[i] * (double)plain, "%s: %jd of %jd bytes",
                      hooks[i], (intmax_t)bytes, (intmax_t)plain);
        json_decref(summary);
    }
}
END_TEST

/* Ranks that join end their last epoch outside of the loop; and steps may end in the midst of one.
 */
START_TEST(test_last_evaluation_is_of_the_end)
{
    struct job job = {
        .ranks = 3,
        .worker =
            ARGS("--model", MODEL, "--data", DATA, "--batch-size", "24", "--epochs", "2",
                 "--uneven", "join", "--threads", "1", "--device", "cpu", "--evaluate", "epoch"),
    };
    const char *run_dir = job_run(&job, 0);
    json_t *summary;

    ck_assert_int_eq(job_record_int(run_dir, 0, "evaluation", "epoch"), 1);
    ck_assert_int_eq(job_newest_int(run_dir, 0, "evaluation", "epoch"), 2);
    job.worker = ARGS("--model", MODEL, "--data", DATA, "--batch-size", "24", "--steps", "2",
                      "--threads", "1", "--device", "cpu", "--evaluate", "epoch");
    run_dir = job_run(&job, 0);
    summary = job_summary(run_dir);
    ck_assert_int_eq(job_record_int(run_dir, 0, "evaluation", "epoch"), 0);
    ck_assert(json_is_number(json_object_get(summary, "test_accuracy")));
    json_decref(summary);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("ddp", 200, TEST(test_uneven_ranks_equal_one_process),
                       TEST(test_join_and_stop), TEST(test_folder_of_an_earlier_run),
                       TEST(test_batch_norm), TEST(test_layer_drop), TEST(test_hooks),
                       TEST(test_last_evaluation_is_of_the_end));
}
