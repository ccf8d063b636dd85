/*
 * Parity with PyTorch: the five trajectories of DistributedDataParallel in tests/data/parity, in
 * every synchronisation mode and with every backend of the build.  Compared are the loss of every
 * step and rank, and the final weights.
 */
#include "common/collective/collective.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS_MAX       128
#define FIRST_TOLERANCE 1e-5
#define LOSS_TOLERANCE  1e-3
#define FINAL_TOLERANCE 1e-3

struct trajectory {
    const char *name;
    const char *model;
    const char *momentum, *weight_decay, *lr, *batch;
    unsigned ranks;
    const char *steps;
    int needs_mnist;
};

static const struct trajectory trajectories[] = {
    {"seed_w2", "linear:10-5-2", "0", "0", "0.001", "32", 2, "100", 0},
    {"linear10_w4", "linear:10-10", "0", "0.001", "0.01", "16", 4, "60", 0},
    {"mnist_mlp_w1", "mlp:784-128-10", "0.9", "0", "0.05", "32", 1, "60", 1},
    {"mnist_mlp_w2", "mlp:784-128-10", "0.9", "0", "0.05", "32", 2, "60", 1},
    {"mnist_mlp_w3", "mlp:784-128-10", "0.9", "0", "0.05", "32", 3, "60", 1},
};

/* Synchronisation cases with their trajectories: each backend runs both kinds of --reduce; shm and
 * ring run every trajectory. */
#define SEED_W2     0x01u
#define LINEAR10_W4 0x02u
#define MNIST_W2    0x08u
#define MNIST_W3    0x10u
#define ALL         0xffu

struct sync_case {
    const char *backend; /* NULL: parameter servers */
    const char *ps_update, *reduce, *init;
    unsigned servers;
    unsigned trajectories;
    const char *ps_transport; /* NULL: auto */
};

static const struct sync_case sync_cases[] = {
    {"shm", "server", "fast", "torch-fma", 0, ALL, NULL},
    {"shm", "server", "reproducible", "file", 0, ALL, NULL},
    {"ring", "server", "fast", "file", 0, ALL, NULL},
    {"ring", "server", "reproducible", "torch-fma", 0, ALL, NULL},
    {"hier", "server", "fast", "torch-fma", 0, LINEAR10_W4, NULL},
    {"hier", "server", "reproducible", "file", 0, MNIST_W3, NULL},
    {"grpc", "server", "fast", "torch-fma", 0, MNIST_W2, NULL},
    {"grpc", "server", "reproducible", "file", 0, LINEAR10_W4, NULL},
    {"gloo", "server", "fast", "file", 0, MNIST_W2, NULL},
    {"gloo", "server", "reproducible", "torch-fma", 0, SEED_W2, NULL},
    {"mpi", "server", "fast", "torch-fma", 0, SEED_W2, NULL},
    {"mpi", "server", "reproducible", "file", 0, MNIST_W3, NULL},
    {"nccl", "server", "fast", "file", 0, LINEAR10_W4 | MNIST_W2, NULL},
    {NULL, "server", "fast", "torch-fma", 1, ALL, "grpc"},
    {NULL, "server", "reproducible", "file", 2, ALL, "shm"},
    {NULL, "worker", "fast", "file", 2, ALL, "grpc"},
    {NULL, "worker", "fast", "torch-fma", 1, MNIST_W3, "shm"},
};

/* nccl runs on emulated GPUs (tests/support/cuda_emulator), since it needs one per rank. */
static bool is_in_build(const char *backend)
{
    if (strcmp(backend, "nccl") == 0)
        return getenv("SPARRING_CUDA_MODULE") != NULL;
    for (const char *const *name = collective_backends(); *name; name++)
        if (strcmp(*name, backend) == 0)
            return true;
    return false;
}

static const char *data_file(const struct trajectory *t, const char *suffix)
{
    char name[128];

    (void)snprintf(name, sizeof(name), "tests/data/parity/%s%s", t->name, suffix);
    return support_source(name);
}

static void compare_losses(const struct trajectory *t, const char *run_dir)
{
    json_t *wanted = json_load_file(data_file(t, ".json"), 0, NULL);
    const json_t *rank_losses = json_object_get(wanted, "losses");

    ck_assert_uint_eq(json_array_size(rank_losses), t->ranks);
    for (unsigned rank = 0; rank < t->ranks; rank++) {
        const json_t *expected = json_array_get(rank_losses, rank);
        double losses[STEPS_MAX];
        size_t steps = job_losses(run_dir, rank, losses, STEPS_MAX);

        ck_assert_uint_eq(steps, json_array_size(expected));
        for (size_t i = 0; i < steps; i++) {
            double loss = json_real_value(json_array_get(expected, i));
            double tolerance = i == 0 ? FIRST_TOLERANCE : LOSS_TOLERANCE;

            ck_assert_msg(fabs(losses[i] - loss) <= tolerance,
                          "%s rank %u step %zu: loss %.9g, PyTorch has %.9g", t->name, rank, i,
                          losses[i], loss);
        }
    }
    json_decref(wanted);
}

/* Two ranks per simulated host, so that both levels of hier are used. */
static const char *const two_ranks_per_host[] = {
    "/bin/sh", "-c", "SPARRING_HOSTID=host$((RANK / 2)) exec \"$@\"", "sh", NULL};

/* Shared memory does not work with GPU memory. */
static const char *ps_transport(const struct sync_case *sync_case)
{
    return sync_case->ps_transport && strcmp(job_device(), "cpu") == 0 ? sync_case->ps_transport
                                                                       : "auto";
}

static void run_trajectory(const struct trajectory *t, const struct sync_case *sync_case,
                           const char *data, const char *samples)
{
    const char *save = support_path("final.safetensors");
    bool from_file = strcmp(sync_case->init, "file") == 0;
    const char *name = sync_case->backend ? sync_case->backend : "ps";
    struct job job = {
        .ranks = t->ranks,
        .servers = sync_case->servers,
        .backend = sync_case->backend,
        .wrapper = strcmp(name, "hier") == 0 ? two_ranks_per_host : NULL,
        .worker =
            ARGS("--model", t->model, "--data", data, "--samples", samples, "--batch-size",
                 t->batch, "--steps", t->steps, "--lr", t->lr, "--momentum", t->momentum,
                 "--weight-decay", t->weight_decay, "--seed", "0", "--init",
                 from_file ? data_file(t, ".init.safetensors") : sync_case->init, "--sync",
                 sync_case->backend ? "allreduce" : "ps", "--ps-update", sync_case->ps_update,
                 "--reduce", sync_case->reduce, "--ps-transport", ps_transport(sync_case),
                 "--threads", "1", "--device", job_device(), "--evaluate", "never", "--save", save),
    };
    const char *run_dir = job_run(&job, 0);
    double distance;

    compare_losses(t, run_dir);
    distance = job_checkpoint_distance(save, data_file(t, ".final.safetensors"));
    ck_assert_msg(distance <= FINAL_TOLERANCE, "%s, %s: final weights differ by %g", t->name, name,
                  distance);
    (void)printf("%s %s/%s/%s init %s: final weights within %.2g\n", t->name, name,
                 sync_case->ps_update, sync_case->reduce, sync_case->init, distance);
    (void)unlink(save);
}

START_TEST(test_trajectory)
{
    const struct trajectory *t = &trajectories[_i];
    const char *mnist = t->needs_mnist ? support_data(t->name) : "";
    char data[4096];

    if (!mnist)
        return;
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1); /* in a container the tests may be root */
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    if (t->needs_mnist)
        (void)snprintf(data, sizeof(data), "mnist:%s/mnist", mnist);
    else
        (void)snprintf(data, sizeof(data), "%s", data_file(t, ".data.safetensors"));
    for (size_t i = 0; i < sizeof(sync_cases) / sizeof(sync_cases[0]); i++) {
        const struct sync_case *sync_case = &sync_cases[i];

        if (!(sync_case->trajectories & (1u << _i)))
            continue;
        if (sync_case->backend && !is_in_build(sync_case->backend))
            (void)printf("%s %s: skipped: not in this build\n", t->name, sync_case->backend);
        else
            run_trajectory(t, sync_case, data, t->needs_mnist ? "8192" : "0");
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "parity", 280,
        LOOP_TEST(test_trajectory, 0, sizeof(trajectories) / sizeof(trajectories[0])));
}
