/*
 * The optimizer on a GPU (by default the emulated one) in every synchronisation mode.  A run
 * resumed in another mode has the same bits; the survivors of a lost rank have equal bits; uneven
 * inputs give the result of the CPU; with fp16 all ranks skip the same updates, and unsupported
 * combinations are refused; the bytes between host and device are those of METRICS.md.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX   64
#define OPTIONS_MAX 64

/* 192 samples: 8 updates of 2 x 12 samples per epoch. */
#define JOB                                                                                        \
    "--data", "random:192,24,5", "--batch-size", "12", "--seed", "5", "--threads", "1",            \
        "--reduce", "reproducible", "--bucket-cap-mb", "0.002", "--partition-bytes", "4K",         \
        "--evaluate", "never", "--timeout-ms", "60000"

static const struct sync_case {
    const char *name, *backend;
    unsigned ranks, servers;
    const char *options[6];
} sync_cases[] = {
    {"shm", "shm", 2, 0, {"--sync", "allreduce"}},
    {"server", NULL, 2, 2, {"--sync", "ps"}},
    {"worker", NULL, 2, 2, {"--sync", "ps", "--ps-update", "worker"}},
    {"ring", "ring", 2, 0, {"--sync", "allreduce"}},
    {"local", NULL, 1, 0, {"--sync", "local"}},
    {"alone", "ring", 1, 0, {"--sync", "allreduce"}},
    {"nccl", "nccl", 2, 0, {"--sync", "allreduce", "--reduce", "fast"}},
};

enum { SHM, SERVER, WORKER, RING, LOCAL, ALONE, NCCL, SYNC_CASES };

static const char *run_sync_case(const struct sync_case *sync_case, const char *device,
                                 const char *const *more, int wanted)
{
    const char *options[OPTIONS_MAX] = {JOB, "--device", device};
    struct job job = {.backend = sync_case->backend,
                      .ranks = sync_case->ranks,
                      .servers = sync_case->servers,
                      .worker = options};
    size_t count = 0;

    while (options[count])
        count++;
    for (size_t i = 0; i < 6 && sync_case->options[i]; i++)
        options[count++] = sync_case->options[i];
    for (; *more; more++) {
        ck_assert_uint_lt(count, OPTIONS_MAX - 1);
        options[count++] = *more;
    }
    options[count] = NULL;
    return job_run(&job, wanted);
}

/* The hash of the parameters, which must be equal on all ranks. */
static void read_hash(const char *run_dir, unsigned ranks, char text[32])
{
    (void)snprintf(text, 32, "%s", job_record_text(run_dir, 0, "end", "parameters_hash"));
    ck_assert_uint_eq(strlen(text), 16);
    for (unsigned rank = 1; rank < ranks; rank++)
        ck_assert_str_eq(job_record_text(run_dir, rank, "end", "parameters_hash"), text);
}

/* ------------------------------------------------------------------ checkpoints */

/* Each mode resumes from the checkpoint of the previous mode, in the middle of an epoch. */
START_TEST(test_checkpoint_moves_between_sync_cases)
{
    static const char *const optimizers[][8] = {
        {"--model", "mlp-bn:24-32-17-5", "--lr", "0.05", "--momentum", "0.9"},
        {"--model", "mlp:24-20-5", "--lr", "0.01", "--optimizer", "adamw"},
    };
    static const int sync_order[] = {SHM, SERVER, WORKER, RING, SHM};
    const char *const *o = optimizers[_i];
    const char *folder = support_path("checkpoints");
    char wanted[32];
    char got[32];
    char until[16];

    read_hash(run_sync_case(&sync_cases[SHM], "cuda",
                            ARGS("--steps", "15", o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7]),
                            0),
              2, wanted);
    for (int part = 0; part < 5; part++) {
        (void)snprintf(until, sizeof(until), "%d", 3 * (part + 1));
        read_hash(run_sync_case(&sync_cases[sync_order[part]], "cuda",
                                ARGS("--steps", until, "--checkpoint-dir", folder, "--resume",
                                     part > 0 ? folder : "", o[0], o[1], o[2], o[3], o[4], o[5],
                                     o[6], o[7]),
                                0),
                  2, got);
    }
    ck_assert_str_eq(got, wanted);
}
END_TEST

/* ------------------------------------------------------------------ losses of ranks */

START_TEST(test_survivors)
{
    static const char *const backends[] = {"shm", "ring", "nccl"};
    static const char *const model[] = {"--model", "mlp-bn:24-32-17-5", "--optimizer", "adam"};
    const struct sync_case three = {
        "three",
        backends[_i],
        3,
        0,
        {"--sync", "allreduce", "--reduce", _i == 2 ? "fast" : "reproducible"}};
    const char *reduce = three.options[3];
    const char *run_dir = support_path("loss");
    static double undisturbed[STEPS_MAX];
    static double got[STEPS_MAX];
    char hashes[2][32];
    struct process launch;
    int64_t repeated_step;

    process_start(&launch, NULL,
                  ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node",
                       "3", "--on-rank-loss", "shrink", "--run-dir", run_dir, "--",
                       support_program("sparring-worker"), JOB, "--device", "cuda", "--backend",
                       backends[_i], "--reduce", reduce, "--steps", "50", model[0], model[1],
                       model[2], model[3]));
    job_await_step(run_dir, 1, 5);
    ck_assert_int_eq(kill((pid_t)job_record_int(run_dir, 1, "start", "pid"), SIGKILL), 0);
    ck_assert_int_eq(process_wait(&launch, JOB_TIMEOUT_MS), 7);
    for (unsigned i = 0; i < 2; i++)
        (void)snprintf(hashes[i], sizeof(hashes[i]), "%s",
                       job_record_text(run_dir, 2 * i, "end", "parameters_hash"));
    ck_assert_uint_eq(strlen(hashes[0]), 16);
    ck_assert_str_eq(hashes[0], hashes[1]);
    repeated_step = job_record_int(run_dir, 2, "recovery", "step");
    ck_assert_int_ge(repeated_step, 5);
    ck_assert_uint_eq(job_losses(run_dir, 2, got, STEPS_MAX), 50);
    (void)job_losses(run_sync_case(&three, "cuda",
                                   ARGS("--steps", "50", model[0], model[1], model[2], model[3]),
                                   0),
                     2, undisturbed, STEPS_MAX);
    for (int64_t step = 0; step <= repeated_step && step < 50; step++)
        ck_assert_msg(got[step] == undisturbed[step], "step %jd of %jd: %.17g, not %.17g",
                      (intmax_t)step, (intmax_t)repeated_step, got[step], undisturbed[step]);
}
END_TEST

/* ------------------------------------------------------------------ uneven inputs */

/* An update has two batches.  Cases: the second rank has one update less and adds zeros to the last
 * one; both ranks have a remainder, and the running statistics of one rank are used on all; a
 * single rank. */
START_TEST(test_join)
{
    const char *model = _i == 1 ? "mlp-bn:24-32-17-5" : "mlp:24-32-5";
    const char *samples = _i == 1 ? "61" : "49";
    const unsigned ranks = _i == 2 ? 1 : 2;
    const struct sync_case join = {
        "join", "shm", ranks, 0, {"--sync", "allreduce", "--uneven", "join"}};
    const char *saved[] = {support_path("cpu.safetensors"), support_path("gpu.safetensors")};
    char hash[32];

    for (int gpu = 0; gpu < 2; gpu++)
        read_hash(run_sync_case(&join, gpu ? "cuda" : "cpu",
                                ARGS("--model", model, "--momentum", "0.9", "--lr", "0.05",
                                     "--samples", samples, "--epochs", "3", "--accumulate-steps",
                                     "2", "--save", saved[gpu]),
                                0),
                  ranks, hash);
    ck_assert_double_lt(job_checkpoint_distance(saved[0], saved[1]), 1e-5);
}
END_TEST

/* ------------------------------------------------------------------ fp16 */

START_TEST(test_fp16)
{
    static const int fp16_cases[] = {SHM, WORKER, ALONE, NCCL};
    const struct sync_case *sync_case = &sync_cases[fp16_cases[_i]];
    static const char *const model[] = {"--model", "mlp:24-32-5", "--lr", "0.05", "--steps", "12"};
    static double exact[STEPS_MAX];
    static double half[STEPS_MAX];
    char hash[32];
    const char *run_dir;
    double worst = 0;

    run_dir = run_sync_case(sync_case, "cuda",
                            ARGS(model[0], model[1], model[2], model[3], model[4], model[5]), 0);
    ck_assert_uint_eq(job_losses(run_dir, 0, exact, STEPS_MAX), 12);
    run_dir = run_sync_case(
        sync_case, "cuda",
        ARGS(model[0], model[1], model[2], model[3], model[4], model[5], "--precision", "fp16"), 0);
    ck_assert_uint_eq(job_losses(run_dir, 0, half, STEPS_MAX), 12);
    read_hash(run_dir, sync_case->ranks, hash);
    for (size_t i = 0; i < 12; i++)
        worst = fmax(worst, fabs(half[i] - exact[i]) / exact[i]);
    (void)printf("%s: losses in fp16 differ by %.2g\n", sync_case->name, worst);
    ck_assert_msg(worst < 0.01, "%s: %g", sync_case->name, worst);
    ck_assert_msg(worst > 1e-6, "%s: not in 16 bits", sync_case->name);
}
END_TEST

/* If the gradient of any rank overflows, all ranks skip the update. */
START_TEST(test_fp16_overflows)
{
    const struct sync_case *sync_case = &sync_cases[_i == 0 ? RING : WORKER];
    const char *run_dir = run_sync_case(sync_case, "cuda",
                                        ARGS("--model", "mlp:24-32-16-5", "--optimizer", "adamw",
                                             "--lr", "1", "--steps", "24", "--precision", "fp16"),
                                        0);
    int64_t overflows = job_record_int(run_dir, 0, "end", "overflowed_updates");
    char hash[32];

    ck_assert_int_gt(overflows, 0);
    ck_assert_int_lt(overflows, 24);
    ck_assert_int_eq(job_record_int(run_dir, 1, "end", "overflowed_updates"), overflows);
    read_hash(run_dir, 2, hash);
}
END_TEST

START_TEST(test_fp16_refused)
{
    static const struct {
        int sync_case;
        const char *options[4];
        const char *obstacle;
    } cases[] = {
        {SERVER, {NULL}, "--ps-update server"},
        {SHM, {"--comm-hook", "powersgd"}, "--comm-hook powersgd"},
        {SHM, {"--find-unused-parameters"}, "--find-unused-parameters"},
        {WORKER, {"--compression", "onebit"}, "--compression topk or onebit"},
        {LOCAL, {"--layer-drop", "0.5"}, "--layer-drop"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const *w = cases[i].options;
        char line[128];

        (void)run_sync_case(
            &sync_cases[cases[i].sync_case], "cuda",
            ARGS("--model", "mlp:24-32-32-5", "--steps", "4", "--precision", "fp16", w[0], w[1]),
            PROCESS_FAILS);
        (void)snprintf(line, sizeof(line), "--precision fp16: not with %s", cases[i].obstacle);
        ck_assert_msg(strstr(job_output(), line) != NULL, "%s lacks '%s'", job_output(), line);
    }
}
END_TEST

/* ------------------------------------------------------------------ transfers */

enum {
    PARAMETER_BYTES = 4 * (24 * 32 + 32 + 32 * 5 + 5),
    BATCH_BYTES = 4 * 12 * 24,
    MORE = 6, /* difference of the steps of two runs */
};

/* No byte is copied to the device twice; only gradients that are exchanged are copied back. */
START_TEST(test_device_bytes)
{
    bool sends_gradients = _i != LOCAL && _i != ALONE && _i != NCCL;
    int64_t tx[2];
    int64_t rx[2];

    for (int i = 0; i < 2; i++) {
        const char *run_dir = run_sync_case(
            &sync_cases[_i], "cuda",
            ARGS("--model", "mlp:24-32-5", "--lr", "0.05", "--steps", i == 0 ? "4" : "10"), 0);

        tx[i] = job_record_int(run_dir, 0, "end", "device_tx_bytes");
        rx[i] = job_record_int(run_dir, 0, "end", "device_rx_bytes");
    }
    ck_assert_int_eq(tx[1] - tx[0], MORE * (BATCH_BYTES + sends_gradients * PARAMETER_BYTES));
    ck_assert_int_eq(rx[1] - rx[0], MORE * sends_gradients * PARAMETER_BYTES);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cuda_resident", 200,
                       LOOP_TEST(test_checkpoint_moves_between_sync_cases, 0, 2),
                       LOOP_TEST(test_survivors, 0, 3), LOOP_TEST(test_join, 0, 3),
                       LOOP_TEST(test_fp16, 0, 4), LOOP_TEST(test_fp16_overflows, 0, 2),
                       TEST(test_fp16_refused), LOOP_TEST(test_device_bytes, 0, SYNC_CASES));
}
