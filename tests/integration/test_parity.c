/*
 * The five trajectories of PyTorch DistributedDataParallel in tests/data/parity, through every way
 * of synchronising: the loss of every step and rank, and the final weights.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
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

struct way {
    const char *sync, *ps_update, *reduce;
    unsigned servers;
};

static const struct way ways[] = {
    {"allreduce", "server", "fast", 0},
    {"allreduce", "server", "reproducible", 0},
    {"ps", "server", "fast", 1},
    {"ps", "worker", "fast", 2},
};

static const char *data_file(const struct trajectory *t, const char *suffix)
{
    char name[128];

    (void)snprintf(name, sizeof(name), "tests/data/parity/%s%s", t->name, suffix);
    return support_source(name);
}

static void compare_losses(const struct trajectory *t, const char *run_dir)
{
    json_t *wanted = json_load_file(data_file(t, ".json"), 0, NULL);
    const json_t *all = json_object_get(wanted, "losses");

    ck_assert_uint_eq(json_array_size(all), t->ranks);
    for (unsigned rank = 0; rank < t->ranks; rank++) {
        const json_t *expected = json_array_get(all, rank);
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

static void run_one(const struct trajectory *t, const struct way *way, const char *init,
                    const char *data, const char *samples)
{
    const char *save = support_path("final.safetensors");
    struct job job = {
        .ranks = t->ranks,
        .servers = way->servers,
        .worker =
            ARGS("--model", t->model, "--data", data, "--samples", samples, "--batch-size",
                 t->batch, "--steps", t->steps, "--lr", t->lr, "--momentum", t->momentum,
                 "--weight-decay", t->weight_decay, "--seed", "0", "--init", init, "--sync",
                 way->sync, "--ps-update", way->ps_update, "--reduce", way->reduce, "--threads",
                 "1", "--device", job_device(), "--evaluate", "never", "--save", save),
    };
    const char *run_dir = job_run(&job, 0);
    double distance;

    compare_losses(t, run_dir);
    distance = job_checkpoint_distance(save, data_file(t, ".final.safetensors"));
    ck_assert_msg(distance <= FINAL_TOLERANCE, "%s: final weights differ by %g", t->name, distance);
    (void)printf("%s %s/%s/%s init %s: final weights within %.2g\n", t->name, way->sync,
                 way->ps_update, way->reduce, init[0] == '/' || init[0] == '.' ? "file" : init,
                 distance);
    (void)unlink(save);
}

START_TEST(test_trajectory)
{
    const struct trajectory *t = &trajectories[_i];
    const char *mnist = t->needs_mnist ? support_data(t->name) : "";
    char data[4096];

    if (!mnist)
        return;
    if (t->needs_mnist)
        (void)snprintf(data, sizeof(data), "mnist:%s/mnist", mnist);
    else
        (void)snprintf(data, sizeof(data), "%s", data_file(t, ".data.safetensors"));
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        const char *samples = t->needs_mnist ? "8192" : "0";

        run_one(t, &ways[i], "torch-fma", data, samples);
        run_one(t, &ways[i], data_file(t, ".init.safetensors"), data, samples);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parity");
    TCase *cases = tcase_create("trajectories");

    tcase_set_timeout(cases, 280);
    tcase_add_loop_test(cases, test_trajectory, 0,
                        (int)(sizeof(trajectories) / sizeof(trajectories[0])));
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
