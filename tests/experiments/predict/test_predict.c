/*
 * `sparring predict` of a small experiment: it measures this machine, predicts every mode that the
 * model covers, and holds the predictions against a comparison.  How good they are is no test: that
 * depends on what else this machine does (experiments/RESULTS.md has measured errors).
 */
#include "common/base/file.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 300000

static struct error err;

static const char experiment[] =
    "repeats: 1\n"
    "verdict: [[ring, ps-1]]\n"
    "deadline: 60\n"
    "options: {model: 'mlp:784-64-10', data: digits, samples: 640, steps: 20, threads: 1,\n"
    "          device: cpu, batch-size: 8}\n"
    "axes: {nproc: [1, 2]}\n"
    "modes:\n"
    "- {name: ring, options: {sync: allreduce, backend: ring}}\n"
    "- {name: ps-1, servers: 1, options: {sync: ps, ps-transport: grpc}}\n"
    "- {name: asp, servers: 1, options: {sync: ps, consistency: asp}}\n"
    "- {name: batch, options: {sync: allreduce, backend: ring, batch-size: 16}}\n"
    "- {name: control, options: {sync: local}}\n";

START_TEST(test_predict_and_compare)
{
    const char *file = support_write("experiment.yaml", experiment, strlen(experiment));
    const char *out = support_path("predict"), *measured = support_path("measured");
    const char *sparring = support_program("sparring"), *printed;
    const char *left;
    char calibration[600];
    char *table;
    size_t size, rows = 0;

    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS(sparring, "compare", file, "--verdict", "none", "--out", measured));
    printed = process_run(0, TIMEOUT_MS, NULL, ARGS(sparring, "predict", file, "--out", out));
    ck_assert_msg(strstr(printed, "nproc=2\n  ring ") != NULL, "%s", printed);
    ck_assert_msg(strstr(printed, " not covered by the model\n") != NULL, "%s", printed);
    ck_assert_msg(strstr(printed, " times as fast as ") != NULL, "%s", printed);
    assert_ok(file_read(support_path("predict/predictions.csv"), 1 << 16, &table, &size, &err));
    for (const char *line = table; *line; line += strcspn(line, "\n") + 1)
        rows++;
    ck_assert_uint_eq(rows, 1 + 2 * 3);
    free(table);
    (void)snprintf(calibration, sizeof(calibration), "%s/calibration.json", out);
    /* In the same folder: of the runs there nothing is left. */
    left = support_write("predict/load-1-control/rank7.jsonl", "", 0);
    printed = process_run(0, TIMEOUT_MS, NULL,
                          ARGS(sparring, "predict", file, "--out", out, "--calibration",
                               calibration, "--against", measured));
    ck_assert_int_ne(access(left, F_OK), 0);
    ck_assert_msg(strstr(printed, "6 predictions beside measured steps: median error ") != NULL,
                  "%s", printed);
    ck_assert_msg(strstr(printed, ", measured ") != NULL, "%s", printed);
}
END_TEST

static const char on_hosts[] =
    "{\"in_network\":true,\"ring_message_s\":1,\"ring_byte_s\":1,\"ring_cpu_s\":1,"
    "\"ring_cpu_byte_s\":1,\"local_s\":1,\"local_byte_s\":1,\"local_cpu_s\":1,"
    "\"local_cpu_byte_s\":1,\"exchange_s\":1,\"exchange_byte_s\":1,\"exchange_cpu_s\":1,"
    "\"exchange_cpu_byte_s\":1,\"cores\":1,\"start_cpu_s\":1}";

START_TEST(test_refused)
{
    const char *file = support_write("experiment.yaml", experiment, strlen(experiment));
    const char *bad = support_write("bad.json", "{\"cores\":2}", 11);
    const char *other = support_write("other.json", on_hosts, strlen(on_hosts));
    const char *sparring = support_program("sparring"), *out = support_path("out");

    ck_assert_ptr_nonnull(
        strstr(process_run(2, TIMEOUT_MS, NULL, ARGS(sparring, "predict")), "name one experiment"));
    ck_assert_ptr_nonnull(
        strstr(process_run(3, TIMEOUT_MS, NULL,
                           ARGS(sparring, "predict", file, "--out", out, "--calibration", bad)),
               "bad.json:1: "));
    ck_assert_ptr_nonnull(
        strstr(process_run(3, TIMEOUT_MS, NULL,
                           ARGS(sparring, "predict", file, "--out", out, "--calibration", other)),
               "other.json' was measured on emulated hosts, and it has none"));
    ck_assert_ptr_nonnull(
        strstr(process_run(1, TIMEOUT_MS, NULL, ARGS(sparring, "predict", "no-such-experiment")),
               "no experiment 'no-such-experiment'"));
    ck_assert_ptr_nonnull(
        strstr(process_run(2, TIMEOUT_MS, NULL, ARGS(sparring, "predict", file, "--step-ms", "5")),
               "--parameters and --step-ms need --what-if"));
}
END_TEST

static const char cluster[] = "verdict: [[ring, ps]]\n"
                              "network: {delay: 0.05}\n"
                              "axes: {nproc: 2..8192 *4, network-rate: [1gbit, 20gbit, 400gbit]}\n"
                              "options: {batch-size: 16}\n"
                              "modes:\n"
                              "- {name: ring, options: {sync: allreduce, backend: ring}}\n"
                              "- {name: ps, servers: 8, options: {sync: ps}}\n"
                              "- {name: over-grpc, options: {sync: allreduce, backend: ring,\n"
                              "   transport: grpc}}\n"
                              "- {name: in-order, options: {sync: allreduce, backend: ring,\n"
                              "   reduce: reproducible}}\n"
                              "- {name: copied, servers: 8, options: {sync: ps, replicas: true}}\n"
                              "- {name: uneven, servers: 2, options: {sync: ps,\n"
                              "   server-weights: '1,9'}}\n"
                              "- {name: half-down, servers: 8, options: {sync: ps,\n"
                              "   compression-down: bf16}}\n"
                              "- {name: summed, options: {sync: allreduce, backend: ring,\n"
                              "   accumulate-steps: 4}}\n"
                              "- {name: late, servers: 8, options: {sync: ps,\n"
                              "   delay-schedule: ./some.delays}}\n"
                              "- {name: cut, options: {sync: allreduce, backend: ring,\n"
                              "   fault-schedule: ./some.faults}}\n";

static const char *const not_covered[] = {
    "  over-grpc       not covered by the model\n", "  in-order        not covered by the model\n",
    "  copied          not covered by the model\n", "  uneven          not covered by the model\n",
    "  half-down       not covered by the model\n", "  summed          not covered by the model\n",
    "  late            not covered by the model\n", "  cut             not covered by the model\n"};

/* Nothing is run: there is no program where it is looked for. */
START_TEST(test_what_if)
{
    const char *file = support_write("cluster.yaml", cluster, strlen(cluster));
    const char *sparring = support_program("sparring"), *printed;
    char *page;
    size_t size;

    printed = process_run(0, TIMEOUT_MS, NULL,
                          ARGS(sparring, "predict", file, "--what-if", "--parameters", "25e6",
                               "--step-ms", "120", "--out", support_path("out"), "--programs",
                               support_path("nowhere")));
    ck_assert_msg(strstr(printed, "Software takes no time here") != NULL, "%s", printed);
    ck_assert_msg(strstr(printed, "nproc=2,network-rate=1gbit\n  ring ") != NULL, "%s", printed);
    for (size_t i = 0; i < sizeof(not_covered) / sizeof(not_covered[0]); i++)
        ck_assert_msg(strstr(printed, not_covered[i]) != NULL, "%s", printed);
    ck_assert_msg(strstr(printed, "the winner changes from ps to ring") != NULL, "%s", printed);
    assert_ok(file_read(support_path("out/index.html"), 1 << 22, &page, &size, &err));
    ck_assert_ptr_nonnull(strstr(page, "Who wins where: ring, ps"));
    ck_assert_ptr_nonnull(strstr(page, "nproc=2048, network-rate=1gbit: ring "));
    free(page);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("predict", 600, TEST(test_predict_and_compare), TEST(test_refused),
                       TEST(test_what_if));
}
