/*
 * The optimizer on a GPU (the emulated one where there is no other) in every synchronisation: a run
 * continues from each mode into the next with the same bits; survivors of a lost rank have the same
 * bits; uneven inputs end as on the CPU; fp16 leaves out the same updates on all ranks, and is
 * refused where it cannot; and the bytes over the bus are those of METRICS.md.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 64
#define WORDS_MAX 64

/* 192 samples: 8 updates of 2 x 12 an epoch. */
#define JOB                                                                                        \
    "--data", "random:192,24,5", "--batch-size", "12", "--seed", "5", "--threads", "1",            \
        "--reduce", "reproducible", "--bucket-cap-mb", "0.002", "--partition-bytes", "4K",         \
        "--evaluate", "never", "--timeout-ms", "60000"

static const struct mode {
    const char *name, *backend;
    unsigned ranks, servers;
    const char *words[6];
} modes[] = {
    {"shm", "shm", 2, 0, {"--sync", "allreduce"}},
    {"server", NULL, 2, 2, {"--sync", "ps"}},
    {"worker", NULL, 2, 2, {"--sync", "ps", "--ps-update", "worker"}},
    {"ring", "ring", 2, 0, {"--sync", "allreduce"}},
    {"local", NULL, 1, 0, {"--sync", "local"}},
    {"alone", "ring", 1, 0, {"--sync", "allreduce"}},
    {"nccl", "nccl", 2, 0, {"--sync", "allreduce", "--reduce", "fast"}},
};

enum { SHM, SERVER, WORKER, RING, LOCAL, ALONE, NCCL, MODES };

static const char *run_mode(const struct mode *mode, const char *device, const char *const *more,
                            int wanted)
{
    const char *words[WORDS_MAX] = {JOB, "--device", device};
    struct job job = {
        .backend = mode->backend, .ranks = mode->ranks, .servers = mode->servers, .worker = words};
    size_t count = 0;

    while (words[count])
        count++;
    for (size_t i = 0; i < 6 && mode->words[i]; i++)
        words[count++] = mode->words[i];
    for (; *more; more++) {
        ck_assert_uint_lt(count, WORDS_MAX - 1);
        words[count++] = *more;
    }
    words[count] = NULL;
    return job_run(&job, wanted);
}

/* Of the parameters of all ranks, which are the same. */
static void read_hash(const char *run_dir, unsigned ranks, char text[32])
{
    (void)snprintf(text, 32, "%s", job_record_text(run_dir, 0, "end", "parameters_hash"));
    ck_assert_uint_eq(strlen(text), 16);
    for (unsigned rank = 1; rank < ranks; rank++)
        ck_assert_str_eq(job_record_text(run_dir, rank, "end", "parameters_hash"), text);
}

/* ------------------------------------------------------------------ checkpoints */

/* Each mode continues from the checkpoint of the mode before, in the middle of epochs. */
START_TEST(test_from_mode_to_mode)
{
    static const char *const optimizers[][8] = {
        {"--model", "mlp-bn:24-32-17-5", "--lr", "0.05", "--momentum", "0.9"},
        {"--model", "mlp:24-20-5", "--lr", "0.01", "--optimizer", "adamw"},
    };
    static const int chain[] = {SHM, SERVER, WORKER, RING, SHM};
    const char *const *o = optimizers[_i];
    const char *folder = support_path("checkpoints");
    char wanted[32];
    char got[32];
    char until[16];

    read_hash(run_mode(&modes[SHM], "cuda",
                       ARGS("--steps", "15", o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7]), 0),
              2, wanted);
    for (int part = 0; part < 5; part++) {
        (void)snprintf(until, sizeof(until), "%d", 3 * (part + 1));
        read_hash(
            run_mode(&modes[chain[part]], "cuda",
                     ARGS("--steps", until, "--checkpoint-dir", folder, "--resume",
                          part > 0 ? folder : "", o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7]),
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
    const struct mode three = {
        "three",
        backends[_i],
        3,
        0,
        {"--sync", "allreduce", "--reduce", _i == 2 ? "fast" : "reproducible"}};
    const char *reduce = three.words[3];
    const char *run_dir = support_path("loss");
    static double undisturbed[STEPS_MAX];
    static double got[STEPS_MAX];
    char hashes[2][32];
    struct process launch;
    int64_t redone;

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
    redone = job_record_int(run_dir, 2, "recovery", "step");
    ck_assert_int_ge(redone, 5);
    ck_assert_uint_eq(job_losses(run_dir, 2, got, STEPS_MAX), 50);
    (void)job_losses(
        run_mode(&three, "cuda", ARGS("--steps", "50", model[0], model[1], model[2], model[3]), 0),
        2, undisturbed, STEPS_MAX);
    for (int64_t step = 0; step <= redone && step < 50; step++)
        ck_assert_msg(got[step] == undisturbed[step], "step %jd of %jd: %.17g, not %.17g",
                      (intmax_t)step, (intmax_t)redone, got[step], undisturbed[step]);
}
END_TEST

/* ------------------------------------------------------------------ uneven inputs */

/* Two batches make an update.  Cases: the second rank's inputs end an update earlier, so it adds
 * zeros to the last one; both end with a remainder, and all ranks get the running statistics of
 * one; one rank alone. */
START_TEST(test_join)
{
    const char *model = _i == 1 ? "mlp-bn:24-32-17-5" : "mlp:24-32-5";
    const char *samples = _i == 1 ? "61" : "49";
    const unsigned ranks = _i == 2 ? 1 : 2;
    const struct mode join = {"join", "shm", ranks, 0, {"--sync", "allreduce", "--uneven", "join"}};
    const char *saved[] = {support_path("cpu.safetensors"), support_path("gpu.safetensors")};
    char hash[32];

    for (int gpu = 0; gpu < 2; gpu++)
        read_hash(run_mode(&join, gpu ? "cuda" : "cpu",
                           ARGS("--model", model, "--momentum", "0.9", "--lr", "0.05", "--samples",
                                samples, "--epochs", "3", "--accumulate-steps", "2", "--save",
                                saved[gpu]),
                           0),
                  ranks, hash);
    ck_assert_double_lt(job_checkpoint_distance(saved[0], saved[1]), 1e-5);
}
END_TEST

/* ------------------------------------------------------------------ fp16 */

START_TEST(test_fp16)
{
    static const int ways[] = {SHM, WORKER, ALONE, NCCL};
    const struct mode *mode = &modes[ways[_i]];
    static const char *const model[] = {"--model", "mlp:24-32-5", "--lr", "0.05", "--steps", "12"};
    static double exact[STEPS_MAX];
    static double half[STEPS_MAX];
    char hash[32];
    const char *run_dir;
    double worst = 0;

    run_dir =
        run_mode(mode, "cuda", ARGS(model[0], model[1], model[2], model[3], model[4], model[5]), 0);
    ck_assert_uint_eq(job_losses(run_dir, 0, exact, STEPS_MAX), 12);
    run_dir = run_mode(
        mode, "cuda",
        ARGS(model[0], model[1], model[2], model[3], model[4], model[5], "--precision", "fp16"), 0);
    ck_assert_uint_eq(job_losses(run_dir, 0, half, STEPS_MAX), 12);
    read_hash(run_dir, mode->ranks, hash);
    for (size_t i = 0; i < 12; i++)
        worst = fmax(worst, fabs(half[i] - exact[i]) / exact[i]);
    (void)printf("%s: losses in fp16 differ by %.2g\n", mode->name, worst);
    ck_assert_msg(worst < 0.01, "%s: %g", mode->name, worst);
    ck_assert_msg(worst > 1e-6, "%s: not in 16 bits", mode->name);
}
END_TEST

/* Whichever rank's gradient overflows, all leave the update out. */
START_TEST(test_fp16_overflows)
{
    const struct mode *mode = &modes[_i == 0 ? RING : WORKER];
    const char *run_dir = run_mode(mode, "cuda",
                                   ARGS("--model", "mlp:24-32-16-5", "--optimizer", "adamw", "--lr",
                                        "1", "--steps", "24", "--precision", "fp16"),
                                   0);
    int64_t left_out = job_record_int(run_dir, 0, "end", "overflowed_updates");
    char hash[32];

    ck_assert_int_gt(left_out, 0);
    ck_assert_int_lt(left_out, 24);
    ck_assert_int_eq(job_record_int(run_dir, 1, "end", "overflowed_updates"), left_out);
    read_hash(run_dir, 2, hash);
}
END_TEST

START_TEST(test_fp16_refused)
{
    static const struct {
        int mode;
        const char *words[4];
        const char *obstacle;
    } cases[] = {
        {SERVER, {NULL}, "--ps-update server"},
        {SHM, {"--comm-hook", "powersgd"}, "--comm-hook powersgd"},
        {SHM, {"--find-unused-parameters"}, "--find-unused-parameters"},
        {WORKER, {"--compression", "onebit"}, "--compression topk or onebit"},
        {LOCAL, {"--layer-drop", "0.5"}, "--layer-drop"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const *w = cases[i].words;
        char line[128];

        (void)run_mode(
            &modes[cases[i].mode], "cuda",
            ARGS("--model", "mlp:24-32-32-5", "--steps", "4", "--precision", "fp16", w[0], w[1]),
            PROCESS_FAILS);
        (void)snprintf(line, sizeof(line), "--precision fp16: not with %s", cases[i].obstacle);
        ck_assert_msg(strstr(job_output(), line) != NULL, "%s lacks '%s'", job_output(), line);
    }
}
END_TEST

/* ------------------------------------------------------------------ the bus */

enum {
    PARAMETER_BYTES = 4 * (24 * 32 + 32 + 32 * 5 + 5),
    BATCH_BYTES = 4 * 12 * 24,
    MORE = 6, /* steps by which two runs differ */
};

/* Nothing is copied to the device twice; only gradients that other ranks need are copied back. */
START_TEST(test_bus)
{
    bool travels = _i != LOCAL && _i != ALONE && _i != NCCL;
    int64_t tx[2];
    int64_t rx[2];

    for (int i = 0; i < 2; i++) {
        const char *run_dir = run_mode(
            &modes[_i], "cuda",
            ARGS("--model", "mlp:24-32-5", "--lr", "0.05", "--steps", i == 0 ? "4" : "10"), 0);

        tx[i] = job_record_int(run_dir, 0, "end", "device_tx_bytes");
        rx[i] = job_record_int(run_dir, 0, "end", "device_rx_bytes");
    }
    ck_assert_int_eq(tx[1] - tx[0], MORE * (BATCH_BYTES + travels * PARAMETER_BYTES));
    ck_assert_int_eq(rx[1] - rx[0], MORE * travels * PARAMETER_BYTES);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_resident");
    TCase *cases = tcase_create("jobs");

    tcase_set_timeout(cases, 200);
    tcase_add_loop_test(cases, test_from_mode_to_mode, 0, 2);
    tcase_add_loop_test(cases, test_survivors, 0, 3);
    tcase_add_loop_test(cases, test_join, 0, 3);
    tcase_add_loop_test(cases, test_fp16, 0, 4);
    tcase_add_loop_test(cases, test_fp16_overflows, 0, 2);
    tcase_add_test(cases, test_fp16_refused);
    tcase_add_loop_test(cases, test_bus, 0, MODES);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
