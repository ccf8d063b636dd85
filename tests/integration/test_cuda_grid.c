/*
 * The same run with different numbers of processes on GPUs and ways of synchronisation: 1, 2 and 4
 * workers with parameter servers, whose update runs on the servers or on the workers, and 1, 2 and
 * 4 ranks of each all-reduce.  The global batch is the same, so each update is of the same samples.
 *
 * What must hold: the loss of each update, the mean of all ranks', and the parameters at the end
 * are those of one process on the CPU, but for the order of sums.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STEPS 12
#define BATCH 24 /* of all ranks */

static const struct way {
    const char *name, *backend;
    unsigned servers;
    const char *words[4];
} ways[] = {
    {"servers update", NULL, 2, {"--sync", "ps", "--ps-update", "server"}},
    {"workers update", NULL, 2, {"--sync", "ps", "--ps-update", "worker"}},
    {"ring", "ring", 0, {"--sync", "allreduce", "--seed", "5"}},
    {"shm", "shm", 0, {"--sync", "allreduce", "--seed", "5"}},
    {"nccl", "nccl", 0, {"--sync", "allreduce", "--seed", "5"}},
};

#define WAYS (int)(sizeof(ways) / sizeof(ways[0]))

static const unsigned ranks_of[] = {1, 2, 4};

/* Means over all ranks into losses[STEPS]. */
static void run_way(const struct way *way, unsigned ranks, const char *device, const char *save,
                    double *losses)
{
    char batch[16];
    struct job job = {.backend = way->backend, .ranks = ranks, .servers = way->servers};
    const char *run_dir;

    (void)snprintf(batch, sizeof(batch), "%u", BATCH / ranks);
    job.worker = ARGS("--model", "mlp:24-32-17-5", "--data", "random:192,24,5", "--optimizer",
                      "adamw", "--lr", "0.02", "--seed", "5", "--steps", "12", "--batch-size",
                      batch, "--bucket-cap-mb", "0.004", "--partition-bytes", "4K", "--threads",
                      "1", "--evaluate", "never", "--device", device, "--save", save, way->words[0],
                      way->words[1], way->words[2], way->words[3]);
    run_dir = job_run(&job, 0);
    memset(losses, 0, STEPS * sizeof(*losses));
    for (unsigned rank = 0; rank < ranks; rank++) {
        double one[STEPS + 1];

        ck_assert_uint_eq(job_losses(run_dir, rank, one, STEPS + 1), STEPS);
        for (size_t i = 0; i < STEPS; i++)
            losses[i] += one[i] / ranks;
    }
}

/* Only the emulated nccl: it allows more ranks than GPUs. */
static bool has_nccl(void)
{
    const char *folder = getenv("LD_LIBRARY_PATH");
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/libnccl.so.2", folder ? folder : "");
    return access(path, R_OK) == 0;
}

static const char *on_the_cpu;
static double wanted[STEPS];

static void run_on_the_cpu(void)
{
    static const struct way alone = {"alone", NULL, 0, {"--sync", "local", "--seed", "5"}};

    on_the_cpu = support_path("cpu.safetensors");
    run_way(&alone, 1, "cpu", on_the_cpu, wanted);
    ck_assert_double_lt(wanted[STEPS - 1], wanted[0] - 0.01); /* it learns something */
}

START_TEST(test_same_run_on_all_grids)
{
    const struct way *way = &ways[_i];
    const char *save = support_path("gpu.safetensors");

    if (way->backend && strcmp(way->backend, "nccl") == 0 && !has_nccl()) {
        (void)printf("skipped: no emulated NCCL in this build\n");
        return;
    }
    for (size_t i = 0; i < sizeof(ranks_of) / sizeof(ranks_of[0]); i++) {
        double losses[STEPS];
        double differ = 0, distance;

        run_way(way, ranks_of[i], "cuda", save, losses);
        for (size_t k = 0; k < STEPS; k++)
            differ = fmax(differ, fabs(losses[k] - wanted[k]) / wanted[k]);
        distance = job_checkpoint_distance(on_the_cpu, save);
        (void)printf("%s, %u: losses differ by %.2g, parameters by %.2g\n", way->name, ranks_of[i],
                     differ, distance);
        ck_assert_msg(differ < 1e-6, "%s, %u: losses: %g", way->name, ranks_of[i], differ);
        ck_assert_msg(distance < 1e-5, "%s, %u: parameters: %g", way->name, ranks_of[i], distance);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_grid");
    TCase *cases = tcase_create("grid");

    tcase_set_timeout(cases, 120);
    tcase_add_unchecked_fixture(cases, run_on_the_cpu, NULL);
    tcase_add_loop_test(cases, test_same_run_on_all_grids, 0, WAYS);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
