/*
 * One training run on GPUs with different numbers of processes and synchronisation modes: 1, 2 and
 * 4 workers with parameter servers (update on the servers or on the workers), and 1, 2 and 4 ranks
 * of each all-reduce.  The global batch is constant, so each update uses the same samples.
 *
 * Invariant: the mean loss of all ranks at each update, and the final parameters, equal those of
 * one process on the CPU up to the order of sums.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STEPS 12
#define BATCH 24 /* global */

static const struct sync_case {
    const char *name, *backend;
    unsigned servers;
    const char *options[4];
} sync_cases[] = {
    {"servers update", NULL, 2, {"--sync", "ps", "--ps-update", "server"}},
    {"workers update", NULL, 2, {"--sync", "ps", "--ps-update", "worker"}},
    {"ring", "ring", 0, {"--sync", "allreduce", "--seed", "5"}},
    {"shm", "shm", 0, {"--sync", "allreduce", "--seed", "5"}},
    {"nccl", "nccl", 0, {"--sync", "allreduce", "--seed", "5"}},
};

#define SYNC_CASES (int)(sizeof(sync_cases) / sizeof(sync_cases[0]))

static const unsigned rank_counts[] = {1, 2, 4};

/* Store the mean loss of all ranks of each step in losses[0..STEPS). */
static void run_sync_case(const struct sync_case *sync_case, unsigned ranks, const char *device,
                          const char *save, double *losses)
{
    char batch[16];
    struct job job = {.backend = sync_case->backend, .ranks = ranks, .servers = sync_case->servers};
    const char *run_dir;

    (void)snprintf(batch, sizeof(batch), "%u", BATCH / ranks);
    job.worker =
        ARGS("--model", "mlp:24-32-17-5", "--data", "random:192,24,5", "--optimizer", "adamw",
             "--lr", "0.02", "--seed", "5", "--steps", "12", "--batch-size", batch,
             "--bucket-cap-mb", "0.004", "--partition-bytes", "4K", "--threads", "1", "--evaluate",
             "never", "--device", device, "--save", save, sync_case->options[0],
             sync_case->options[1], sync_case->options[2], sync_case->options[3]);
    run_dir = job_run(&job, 0);
    memset(losses, 0, STEPS * sizeof(*losses));
    for (unsigned rank = 0; rank < ranks; rank++) {
        double one[STEPS + 1];

        ck_assert_uint_eq(job_losses(run_dir, rank, one, STEPS + 1), STEPS);
        for (size_t i = 0; i < STEPS; i++)
            losses[i] += one[i] / ranks;
    }
}

/* Only the emulated NCCL allows more ranks than GPUs. */
static bool has_nccl(void)
{
    const char *folder = getenv("LD_LIBRARY_PATH");
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/libnccl.so.2", folder ? folder : "");
    return access(path, R_OK) == 0;
}

static const char *cpu_checkpoint;
static double cpu_losses[STEPS];

static void run_cpu_job(void)
{
    static const struct sync_case alone = {"alone", NULL, 0, {"--sync", "local", "--seed", "5"}};

    cpu_checkpoint = support_path("cpu.safetensors");
    run_sync_case(&alone, 1, "cpu", cpu_checkpoint, cpu_losses);
    ck_assert_double_lt(cpu_losses[STEPS - 1], cpu_losses[0] - 0.01); /* the loss decreases */
}

START_TEST(test_same_run_on_all_grids)
{
    const struct sync_case *sync_case = &sync_cases[_i];
    const char *save = support_path("gpu.safetensors");

    if (sync_case->backend && strcmp(sync_case->backend, "nccl") == 0 && !has_nccl()) {
        (void)printf("skipped: no emulated NCCL in this build\n");
        return;
    }
    for (size_t i = 0; i < sizeof(rank_counts) / sizeof(rank_counts[0]); i++) {
        double losses[STEPS];
        double losses_gap = 0, distance;

        run_sync_case(sync_case, rank_counts[i], "cuda", save, losses);
        for (size_t k = 0; k < STEPS; k++)
            losses_gap = fmax(losses_gap, fabs(losses[k] - cpu_losses[k]) / cpu_losses[k]);
        distance = job_checkpoint_distance(cpu_checkpoint, save);
        (void)printf("%s, %u: losses differ by %.2g, parameters by %.2g\n", sync_case->name,
                     rank_counts[i], losses_gap, distance);
        ck_assert_msg(losses_gap < 1e-6, "%s, %u: losses: %g", sync_case->name, rank_counts[i],
                      losses_gap);
        ck_assert_msg(distance < 1e-5, "%s, %u: parameters: %g", sync_case->name, rank_counts[i],
                      distance);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cuda_grid", 120, UNCHECKED_FIXTURE(run_cpu_job, NULL),
                       LOOP_TEST(test_same_run_on_all_grids, 0, SYNC_CASES));
}
