/*
 * `sparring bench train` from the command line, small: the control and both ways of synchronising,
 * the JSON file.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define WAIT_MS 100000

static double number_of(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);

    ck_assert_msg(json_is_number(value), "no number '%s'", name);
    return json_number_value(value);
}

/* The parts of a step, which add up to it, and the figures of the model. */
static void check_parts(const json_t *row, double flops)
{
    static const char *const parts[] = {"input_ms", "forward_ms", "backward_ms", "exposed_comm_ms",
                                        "optimizer_ms"};
    double sum = number_of(row, "other_ms");
    double rate;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        ck_assert_double_ge(number_of(row, parts[i]), 0);
        sum += number_of(row, parts[i]);
    }
    ck_assert_double_gt(number_of(row, "forward_ms"), 0);
    ck_assert_double_eq_tol(sum, number_of(row, "step_ms"), 1e-5);
    ck_assert_double_gt(number_of(row, "peak_rss_bytes"), 1 << 20);
    ck_assert_double_eq_tol(number_of(row, "model_flops_per_sample"), flops, 0.1);
    rate = flops * number_of(row, "batch") / number_of(row, "step_ms") * 1e-6;
    ck_assert_double_eq_tol(number_of(row, "gflop_per_s"), rate, rate * 1e-5);
    ck_assert_double_gt(number_of(row, "ceiling_gflop_per_s"), 0);
    ck_assert_double_eq_tol(number_of(row, "model_flop_utilisation") *
                                number_of(row, "ceiling_gflop_per_s"),
                            rate, rate * 1e-5);
}

START_TEST(test_a_small_run)
{
    static const char *const syncs[] = {"local", "allreduce", "allreduce", "ps", "ps"};
    static const char *const backends[] = {"none", "ring", "auto", "grpc", "shm"};
    const char *file = support_path("train.json");
    const char *output =
        process_run(0, WAIT_MS, NULL,
                    ARGS(support_program("sparring"), "bench", "train", "--model",
                         "mlp:20-16-4@8@30,linear:10-2", "--batch-size", "4", "--backend",
                         "ring,auto", "--ps-transport", "grpc,shm", "--nproc", "2", "--steps", "20",
                         "--repeats", "2", "--bind", "core", "--json", file));
    json_t *report = json_load_file(file, 0, NULL);
    const json_t *rows = json_object_get(report, "rows");

    ck_assert_ptr_nonnull(strstr(output, "x control"));
    ck_assert_uint_eq(json_array_size(rows), 2 * 5);
    for (size_t i = 0; i < 10; i++) {
        const json_t *row = json_array_get(rows, i);
        double batch = i < 5 ? 8 : 4;
        double ms = number_of(row, "step_ms");
        double over = number_of(row, "over_control");

        ck_assert_pstr_eq(json_string_value(json_object_get(row, "sync")), syncs[i % 5]);
        ck_assert_pstr_eq(json_string_value(json_object_get(row, "backend")), backends[i % 5]);
        ck_assert_pstr_eq(json_string_value(json_object_get(row, "model")),
                          i < 5 ? "mlp:20-16-4" : "linear:10-2");
        ck_assert(number_of(row, "nranks") == 2 && number_of(row, "batch") <= batch &&
                  number_of(row, "batch") >= batch);
        ck_assert(number_of(row, "steps") == (i < 5 ? 30 : 20));
        ck_assert_double_gt(ms, 0);
        ck_assert_double_le(number_of(row, "step_ms_min"), ms);
        ck_assert_double_eq_tol(number_of(row, "samples_per_s") * ms, 2 * batch * 1e3, 1e-3);
        ck_assert_double_le(number_of(row, "over_control_min"), over);
        ck_assert_double_ge(number_of(row, "over_control_max"), over);
        if (i % 5 == 0) /* the control over itself */
            ck_assert(over >= 1 && over <= 1 && number_of(row, "sync_us") <= 0);
        else /* the signs agree, whichever was faster */
            ck_assert((number_of(row, "sync_us_max") > 0) ==
                      (number_of(row, "over_control_max") > 1));
        if (strcmp(syncs[i % 5], "allreduce") == 0)
            ck_assert_double_gt(number_of(row, "exposed_comm_ms"), 0);
        check_parts(row, i < 5 ? 2304 : 120); /* 6 (20 x 16 + 16 x 4), 6 (10 x 2) */
    }
    json_decref(report);
}
END_TEST

/* PyTorch's rows, where python3 has it. */
START_TEST(test_the_peer)
{
    const char *file = support_path("peer.json");
    json_t *report;
    const json_t *rows;

    if (!process_shell("/usr/bin/python3 -c 'import torch' 2>/dev/null")) {
        (void)printf("skipped: the peer: /usr/bin/python3 has no PyTorch\n");
        return;
    }
    (void)process_run(0, WAIT_MS, NULL,
                      ARGS(support_program("sparring"), "bench", "train", "--model",
                           "cnn:1x8x8-conv4-pool-fc6@8@30", "--nproc", "1", "--sync", "local",
                           "--repeats", "1", "--no-ceiling", "--peer", "/usr/bin/python3", "--json",
                           file));
    report = json_load_file(file, 0, NULL);
    rows = json_object_get(report, "rows");
    ck_assert_uint_eq(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        const char *sync = json_string_value(json_object_get(row, "sync"));

        ck_assert_pstr_eq(sync, i == 0 ? "local" : i == 1 ? "torch-local" : "torch-compile");
        if (json_object_get(row, "not_measured")) {
            ck_assert_pstr_eq(sync, "torch-compile");
            continue;
        }
        ck_assert_double_gt(number_of(row, "over_torch_eager"), 0);
        ck_assert_double_gt(number_of(row, "forward_ms"), 0);
        ck_assert_double_gt(number_of(row, "backward_ms"), 0);
        /* 3 x 2 (4 x 9 x 64 + 64 x 6), each by its own count */
        ck_assert_double_eq_tol(number_of(row, "model_flops_per_sample"), 16128, 0.1);
        ck_assert_double_gt(number_of(row, "peak_rss_bytes"), 1 << 20);
        ck_assert(json_is_null(json_object_get(row, "model_flop_utilisation")));
    }
    json_decref(report);
}
END_TEST

START_TEST(test_bad_options)
{
    const char *program = support_program("sparring");
    const char *output =
        process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "train", "--sync", "gossip"));
    char folder[256]; /* the output of a failed job stays there */

    ck_assert_ptr_nonnull(strstr(output, "gossip"));
    output =
        process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "train", "--model", "mlp:4-2@none"));
    ck_assert_ptr_nonnull(strstr(output, "'none' is no batch size"));
    (void)snprintf(folder, sizeof(folder), "TMPDIR=%s", support_folder());
    output = process_run(1, WAIT_MS, ARGS(folder),
                         ARGS(program, "bench", "train", "--model", "mlp:4-0-2", "--repeats", "1"));
    ck_assert_ptr_nonnull(strstr(output, "its output is in"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("bench_train", 120, TEST(test_a_small_run), TEST(test_the_peer),
                       TEST(test_bad_options));
}
