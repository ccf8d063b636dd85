/*
 * Compression from the command line: compressed jobs reach the accuracy of uncompressed ones, the
 * records of workers and servers show the bytes of the formula, and invalid combinations of options
 * are refused.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#define RANKS 2
#define STEPS 96 /* 3 epochs of 2048 samples in batches of 2 x 32 */

static const char *run_digits_job(const char *const options[8], int wanted)
{
    struct job job = {
        .ranks = RANKS,
        .servers = 2,
        .worker = (const char *const[]){"--model",
                                        "mlp:784-64-10",
                                        "--data",
                                        "digits",
                                        "--samples",
                                        "2048",
                                        "--epochs",
                                        "3",
                                        "--batch-size",
                                        "32",
                                        "--lr",
                                        "0.1",
                                        "--seed",
                                        "3",
                                        "--sync",
                                        "ps",
                                        "--threads",
                                        "1",
                                        "--device",
                                        job_device(),
                                        options[0],
                                        options[1],
                                        options[2],
                                        options[3],
                                        options[4],
                                        options[5],
                                        options[6],
                                        options[7],
                                        NULL},
    };

    return job_run(&job, wanted);
}

static double test_accuracy_of(const char *folder)
{
    json_t *summary = job_summary(folder);
    double value = json_number_value(json_object_get(summary, "test_accuracy"));

    json_decref(summary);
    return value;
}

static int64_t server_bytes(const char *folder, const char *member)
{
    int64_t sum = 0;

    for (unsigned k = 0; k < 2; k++) {
        json_t *end = job_server_record(folder, k, "end");

        ck_assert_msg(json_object_get(end, member) != NULL, "no '%s' in the server's record",
                      member);
        sum += json_integer_value(json_object_get(end, member));
        json_decref(end);
    }
    return sum;
}

/* The bytes of the ranks, of the servers and of the formula must agree. */
static void check_bytes(const char *folder, int64_t tx, int64_t rx)
{
    for (unsigned rank = 0; rank < RANKS; rank++) {
        ck_assert_int_eq(job_record_int(folder, rank, "end", "expected_tx_payload_bytes"), tx);
        ck_assert_int_eq(job_record_int(folder, rank, "end", "expected_rx_payload_bytes"), rx);
        ck_assert_int_eq(job_record_int(folder, rank, "step", "tx_payload_bytes"), tx);
        ck_assert_int_eq(job_record_int(folder, rank, "step", "rx_payload_bytes"), rx);
    }
    ck_assert_int_eq(server_bytes(folder, "rx_payload_bytes"), RANKS * STEPS * tx);
    ck_assert_int_eq(server_bytes(folder, "tx_payload_bytes"), RANKS * STEPS * rx);
}

#define ELEMENTS 50890 /* of mlp:784-64-10 */

static const struct {
    const char *options[8];
    int64_t tx, rx;           /* bytes of two equal partitions of 25445 elements */
    double accuracy_loss_max; /* against the uncompressed job */
} cases[] = {
    {{"--compression", "fp16", "--compression-down", "fp16", "--ps-update", "server"},
     2 * ELEMENTS,
     2 * ELEMENTS,
     0.02},
    {{"--compression", "bf16", "--compression-down", "bf16", "--ps-update", "worker"},
     2 * ELEMENTS,
     2 * ELEMENTS,
     0.02},
    {{"--compression", "onebit", "--compression-down", "onebit", "--ps-update", "server"},
     2 * (8 + 3181),
     2 * (8 + 3181),
     0.05},
    {{"--compression", "onebit", "--compression-down", "onebit", "--ps-update", "worker"},
     2 * (8 + 3181),
     2 * (8 + 3181),
     0.05},
    {{"--compression", "topk", "--compression-down", "none", "--top-k", "5"},
     2 * 8 * 1273,
     4 * ELEMENTS,
     0.05},
};

#define FEATURES 2048 /* features, in blocks of 16 */
#define SAMPLES  512

/* Sparse samples, as of an embedding: each has non-zero features in one block only, which also
 * determines its class. */
static const char *write_sparse_samples(void)
{
    const char *path = support_path("samples.safetensors");
    char head[512];
    uint64_t length;
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    length =
        (uint64_t)snprintf(head, sizeof(head),
                           "{\"x\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]},"
                           "\"y\":{\"dtype\":\"I64\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
                           SAMPLES, FEATURES, 4 * SAMPLES * FEATURES, SAMPLES,
                           4 * SAMPLES * FEATURES, 4 * SAMPLES * FEATURES + 8 * SAMPLES);
    ck_assert_uint_eq(fwrite(&length, sizeof(length), 1, file), 1);
    ck_assert_uint_eq(fwrite(head, length, 1, file), 1);
    for (int i = 0; i < SAMPLES; i++) {
        static float x[FEATURES];
        int block = i * 37 % (FEATURES / 16);

        memset(x, 0, sizeof(x));
        for (int k = 0; k < 16; k++)
            x[16 * block + k] = (float)(1 + k % 3);
        ck_assert_uint_eq(fwrite(x, sizeof(x), 1, file), 1);
    }
    for (int i = 0; i < SAMPLES; i++) {
        int64_t class = i * 37 % (FEATURES / 16) % 4;

        ck_assert_uint_eq(fwrite(&class, sizeof(class), 1, file), 1);
    }
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

static const char *run_sparse_job(const char *data, const char *up, const char *down,
                                  const char *update, const char *save)
{
    struct job job = {
        .ranks = RANKS,
        .servers = 2,
        .worker =
            ARGS("--model", "linear:2048-16-4", "--data", data, "--epochs", "3", "--batch-size",
                 "8", "--lr", "0.05", "--seed", "3", "--sync", "ps", "--threads", "1", "--device",
                 job_device(), "--evaluate", "never", "--reduce", "reproducible", "--compression",
                 up, "--compression-down", down, "--ps-update", update, "--save", save),
    };

    return job_run(&job, 0);
}

/* Row compression is lossless, and a batch changes few rows: a rank sends the rows of its batch and
 * receives those of all ranks. */
START_TEST(test_rows_of_a_sparse_model)
{
    const char *update = _i == 0 ? "server" : "worker";
    const char *data = write_sparse_samples();
    const char *plain = support_path("plain.safetensors"), *rows = support_path("rows.safetensors");
    int64_t uncompressed_bytes = RANKS * STEPS * INT64_C(4) * (FEATURES * 16 + 16 + 16 * 4 + 4);
    const char *folder = run_sparse_job(data, "none", "none", update, plain);

    ck_assert_int_eq(server_bytes(folder, "rx_payload_bytes"), uncompressed_bytes);
    folder = run_sparse_job(data, "rows", "rows", update, rows);
    ck_assert(job_same_tensors(plain, rows));
    ck_assert_int_lt(server_bytes(folder, "rx_payload_bytes"), uncompressed_bytes * 20 / 100);
    ck_assert_int_lt(server_bytes(folder, "tx_payload_bytes"), uncompressed_bytes * 35 / 100);
    ck_assert_int_gt(server_bytes(folder, "rx_payload_bytes"), uncompressed_bytes / 100);
    ck_assert_int_eq(job_record_int(folder, 0, "end", "expected_tx_payload_bytes"), 0); /* none */
}
END_TEST

/* With --compression-down named a rank requests the rows of its next batch and receives no others.
 * The result is the same, because the features of the other rows are 0. */
START_TEST(test_row_selection_of_a_sparse_model)
{
    const char *data = write_sparse_samples();
    const char *plain = support_path("plain.safetensors"),
               *selected = support_path("named.safetensors");
    int64_t uncompressed_bytes = RANKS * STEPS * INT64_C(4) * (FEATURES * 16 + 16 + 16 * 4 + 4);
    int64_t changed_bytes, selected_bytes;
    const char *folder;

    (void)run_sparse_job(data, "none", "none", "server", plain);
    folder = run_sparse_job(data, "rows", "rows", "server", selected);
    ck_assert(job_same_tensors(plain, selected));
    changed_bytes = server_bytes(folder, "tx_payload_bytes");
    folder = run_sparse_job(data, "rows", "named", "server", selected);
    ck_assert(job_same_tensors(plain, selected));
    selected_bytes = server_bytes(folder, "tx_payload_bytes");
    /* 8 of 128 blocks, each in two rows; after the last step all rows are sent */
    ck_assert_int_lt(selected_bytes, uncompressed_bytes * 16 / 100);
    ck_assert_int_gt(selected_bytes, uncompressed_bytes / 100);
    ck_assert_msg(selected_bytes < changed_bytes * 6 / 10,
                  "%jd bytes of selected rows, %jd of changed rows", (intmax_t)selected_bytes,
                  (intmax_t)changed_bytes);
    ck_assert_int_eq(job_record_int(folder, 0, "end", "expected_rx_payload_bytes"), 0); /* none */
}
END_TEST

START_TEST(test_trains_as_well)
{
    static const char *const plain[8] = {"--compression", "none",        "--compression-down",
                                         "none",          "--ps-update", "server"};
    double wanted = test_accuracy_of(run_digits_job(plain, 0));
    const char *folder = run_digits_job(cases[_i].options, 0);
    double got = test_accuracy_of(folder);

    check_bytes(folder, cases[_i].tx, cases[_i].rx);
    ck_assert_msg(got >= wanted - cases[_i].accuracy_loss_max, "accuracy %.4f, uncompressed %.4f",
                  got, wanted);
    ck_assert(wanted > 0.7);
}
END_TEST

static const struct {
    const char *options[8];
    const char *wanted;
} refused[] = {
    {{"--compression", "named", "--ps-update", "server", "--reduce", "fast"}, "compression"},
    {{"--compression-down", "named", "--ps-update", "worker", "--reduce", "fast"},
     "optimizer runs on the workers"},
    {{"--compression-down", "named", "--backup-workers", "1", "--reduce", "fast"},
     "no backup workers"},
    {{"--compression-down", "named", "--accumulate-steps", "2", "--reduce", "fast"},
     "named for one batch"},
    {{"--compression-down", "named", "--consistency", "asp", "--on-rank-loss", "shrink", "--reduce",
      "fast"},
     "may be moved to another batch"},
    {{"--compression-down", "fp16", "--ps-transport", "shm", "--reduce", "fast"},
     "nothing is compressed in shared memory (--ps-transport shm)"},
    {{"--compression", "gzip", "--top-k", "1", "--reduce", "fast"}, "compression"},
    {{"--compression", "topk", "--top-k", "0", "--reduce", "fast"}, "top-k"},
};

START_TEST(test_refused)
{
    (void)run_digits_job(refused[_i].options, 2);
    ck_assert_msg(strstr(job_output(), refused[_i].wanted) != NULL, "%s", job_output());
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "compression_job", 200, LOOP_TEST(test_trains_as_well, 0, sizeof(cases) / sizeof(cases[0])),
        LOOP_TEST(test_rows_of_a_sparse_model, 0, 2), TEST(test_row_selection_of_a_sparse_model),
        LOOP_TEST(test_refused, 0, sizeof(refused) / sizeof(refused[0])));
}
