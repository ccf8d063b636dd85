/*
 * Whole jobs on a GPU, by default the emulated one (tests/support/cuda_emulator): in every
 * synchronisation mode the result equals that of the CPU; a checkpoint moves between devices;
 * 16-bit precision loses little accuracy; insufficient memory and a missing module are reported in
 * one line.
 */
#include "common/checkpoint/checkpoint.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 32

static const struct network {
    const char *model, *data;
    const char *optimizer, *lr, *momentum;
    int64_t parameters;
} networks[] = {
    {"mlp-bn:24-32-17-5", "random:192,24,5", "sgd", "0.05", "0.9",
     24 * 32 + 32 + 32 * 2 + 32 * 17 + 17 + 17 * 2 + 17 * 5 + 5},
    {"gpt:1,2,16,8,24", "random-tokens:192,8,24", "adamw", "0.001", "0",
     24 * 16 + 8 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16},
};

#define NETWORKS (sizeof(networks) / sizeof(networks[0]))

static const struct sync_case {
    const char *name, *backend;
    unsigned ranks, servers;
    const char *options[5];
} sync_cases[] = {
    {"local", NULL, 1, 0, {"--sync", "local"}},
    {"all-reduce, shm", "shm", 2, 0, {"--sync", "allreduce"}},
    {"all-reduce, ring", "ring", 4, 0, {"--sync", "allreduce"}},
    {"all-reduce, alone", "ring", 1, 0, {"--sync", "allreduce"}},
    {"all-reduce, nccl", "nccl", 2, 0, {"--sync", "allreduce"}},
    {"all-reduce, nccl", "nccl", 4, 0, {"--sync", "allreduce"}},
    {"all-reduce, nccl, alone", "nccl", 1, 0, {"--sync", "allreduce"}},
    {"servers", NULL, 2, 2, {"--sync", "ps", "--ps-update", "server"}},
    {"servers, update on the worker", NULL, 4, 1, {"--sync", "ps", "--ps-update", "worker"}},
    {"two devices", NULL, 1, 0, {"--sync", "dataparallel", "--devices", "2"}},
};

#define SYNC_CASES (int)(sizeof(sync_cases) / sizeof(sync_cases[0]))

static const char *run_network(const struct sync_case *sync_case, const struct network *n,
                               const char *device, const char *save, const char *const more[10])
{
    struct job job = {
        .backend = sync_case->backend,
        .ranks = sync_case->ranks,
        .servers = sync_case->servers,
        .worker =
            ARGS("--model", n->model, "--data", n->data, "--optimizer", n->optimizer, "--lr", n->lr,
                 "--momentum", n->momentum, "--seed", "5", "--batch-size", "12", "--bucket-cap-mb",
                 "0.004", "--partition-bytes", "4K", "--threads", "1", "--evaluate", "never",
                 "--device", device, "--save", save, sync_case->options[0], sync_case->options[1],
                 sync_case->options[2] ? sync_case->options[2] : "--seed",
                 sync_case->options[3] ? sync_case->options[3] : "5", more[0], more[1], more[2],
                 more[3], more[4], more[5], more[6], more[7], more[8], more[9]),
    };

    return job_run(&job, 0);
}

/* Largest relative difference of the losses of rank 0 in two runs of `steps` steps. */
static double largest_loss_gap(const char *run_dir, const char *other, size_t steps)
{
    double a[STEPS_MAX];
    double b[STEPS_MAX];
    double largest = 0;

    ck_assert_uint_eq(job_losses(run_dir, 0, a, STEPS_MAX), steps);
    ck_assert_uint_eq(job_losses(other, 0, b, STEPS_MAX), steps);
    for (size_t i = 0; i < steps; i++) {
        ck_assert(isfinite(a[i]) && isfinite(b[i]));
        largest = fmax(largest, fabs(a[i] - b[i]) / fabs(b[i]));
    }
    return largest;
}

START_TEST(test_gpu_equals_cpu)
{
    static const char *const steps[10] = {"--steps", "8"};
    const struct sync_case *sync_case = &sync_cases[_i];
    const char *cpu = support_path("cpu.safetensors");
    const char *gpu = support_path("gpu.safetensors");

    for (size_t i = 0; i < NETWORKS; i++) {
        const struct network *n = &networks[i];
        char on_cpu[4096];
        const char *on_gpu;
        double losses;
        double distance;

        (void)snprintf(on_cpu, sizeof(on_cpu), "%s", run_network(sync_case, n, "cpu", cpu, steps));
        on_gpu = run_network(sync_case, n, "cuda", gpu, steps);
        losses = largest_loss_gap(on_gpu, on_cpu, 8);
        distance = job_checkpoint_distance(cpu, gpu);
        (void)printf("%s, %s: losses differ by %.2g, parameters by %.2g\n", sync_case->name,
                     n->model, losses, distance);
        ck_assert_msg(losses < 1e-5, "%s, %s: losses: %g", sync_case->name, n->model, losses);
        ck_assert_msg(distance < 1e-5, "%s, %s: parameters: %g", sync_case->name, n->model,
                      distance);
        ck_assert_int_eq(job_record_int(on_cpu, 0, "end", "peak_device_bytes"), 0);
        ck_assert_int_ge(job_record_int(on_gpu, sync_case->ranks - 1, "end", "peak_device_bytes"),
                         2 * 4 * n->parameters);
    }
}
END_TEST

/* One process, whose optimizer state is on the device, and all-reduce, where it is not. */
START_TEST(test_checkpoints_change_devices)
{
    const struct sync_case *sync_case = &sync_cases[_i];
    const struct network *n = &networks[_i];
    const char *folder = support_path("checkpoints");
    const char *whole = support_path("whole.safetensors");
    const char *parts = support_path("parts.safetensors");
    char until[16];
    double distance;

    (void)run_network(sync_case, n, "cpu", whole, (const char *const[10]){"--steps", "15"});
    for (int part = 1; part <= 3; part++) {
        (void)snprintf(until, sizeof(until), "%d", part * 5);
        (void)run_network(sync_case, n, part == 2 ? "cuda" : "cpu", parts,
                          (const char *const[10]){"--steps", until, "--checkpoint-dir", folder,
                                                  part > 1 ? "--resume" : NULL, folder});
    }
    distance = job_checkpoint_distance(whole, parts);
    (void)printf("cpu, cuda, cpu, %s, %s: parameters differ by %.2g\n", sync_case->name, n->model,
                 distance);
    ck_assert_msg(distance < 1e-5, "%s, %s: %g", sync_case->name, n->model, distance);
}
END_TEST

/* With and without CUDA graphs the result has the same bits. */
START_TEST(test_graph_launches_equal_calls)
{
    const struct network *n = &networks[_i];
    const char *launches = support_path("launches.safetensors");
    const char *calls = support_path("calls.safetensors");
    static const char *const on[10] = {"--steps", "20", "--cuda-graph=on"};
    static const char *const off[10] = {"--steps", "20", "--cuda-graph=off"};
    char launched[4096];
    const char *called;

    (void)snprintf(launched, sizeof(launched), "%s",
                   run_network(&sync_cases[0], n, "cuda", launches, on));
    called = run_network(&sync_cases[0], n, "cuda", calls, off);
    ck_assert(largest_loss_gap(launched, called, 20) <= 0.0);
    ck_assert(job_checkpoint_distance(launches, calls) <= 0.0);
    /* 192 samples in batches of 12: all batches have the same size */
    ck_assert_int_eq(job_record_int(launched, 0, "end", "graph_launches"), 19);
    ck_assert_int_eq(job_record_int(called, 0, "end", "graph_launches"), 0);
}
END_TEST

/* A loss that is not finite ends the run; the last checkpoint is from before that step. */
START_TEST(test_no_checkpoint_after_non_finite_loss)
{
    const char *folder = support_path("kept");
    const char *output =
        process_run(PROCESS_FAILS, 60000, NULL,
                    ARGS(support_program("sparring-worker"), "--model", "mlp:24-32-5", "--data",
                         "random:192,24,5", "--steps", "20", "--sync", "local", "--device", "cuda",
                         "--lr", "1000000", "--threads", "1", "--checkpoint-dir", folder,
                         "--checkpoint-every", "1", "--run-dir", support_path("lost")));
    const char *line = strstr(output, "the loss of rank 0 is ");
    char path[CHECKPOINT_PATH_MAX];
    struct checkpoint_facts facts;
    struct safetensors file;
    struct error err;
    const char *at = line;
    unsigned step = 0;

    ck_assert_msg(line != NULL, "%s", output);
    while (at > output && at[-1] != '\n')
        at--;
    at = strstr(at, "step ");
    ck_assert_msg(at && sscanf(at, "step %u:", &step) == 1 && step > 0, "%s", output);
    assert_ok(checkpoint_find(folder, path, &err));
    assert_ok(safetensors_read(path, 1 << 20, &file, &err));
    assert_ok(checkpoint_read_facts(&file, &facts, &err));
    safetensors_release(&file);
    ck_assert_uint_eq(facts.step, step);
}
END_TEST

START_TEST(test_bfloat16_loss_is_close)
{
    static const char *const in_16_bits[10] = {"--steps", "8", "--precision", "bf16"};
    static const char *const in_32_bits[10] = {"--steps", "8"};
    const struct sync_case *sync_case = &sync_cases[_i];
    const struct network *n = &networks[_i];
    const char *save = support_path("saved.safetensors");
    char exact[4096];
    double losses;

    (void)snprintf(exact, sizeof(exact), "%s", run_network(sync_case, n, "cuda", save, in_32_bits));
    losses = largest_loss_gap(run_network(sync_case, n, "cuda", save, in_16_bits), exact, 8);
    (void)printf("%s, %s: losses in bf16 differ by %.2g\n", sync_case->name, n->model, losses);
    ck_assert_msg(losses < 0.02, "%s, %s: %g", sync_case->name, n->model, losses);
    ck_assert_msg(losses > 1e-6, "%s, %s: not in 16 bits", sync_case->name, n->model);
}
END_TEST

/* fp16 with overflowing updates: an interrupted and resumed run has the bits of one run. */
START_TEST(test_loss_scale_is_resumed)
{
    static const struct network n = {"mlp:24-32-16-5", "random:192,24,5", "adamw", "1", "0", 0};
    static const char *const in_one_go[10] = {"--steps", "24", "--precision", "fp16"};
    const struct sync_case *sync_case = &sync_cases[_i];
    const char *folder = support_path("checkpoints");
    const char *whole = support_path("whole.safetensors");
    const char *parts = support_path("parts.safetensors");
    const char *run_dir = run_network(sync_case, &n, "cuda", whole, in_one_go);
    int64_t overflows = job_record_int(run_dir, 0, "end", "overflowed_updates");

    (void)printf("%s: %jd overflowed updates\n", sync_case->name, (intmax_t)overflows);
    ck_assert_int_gt(overflows, 0);
    for (int until = 6; until <= 24; until += 6) {
        char steps[16];

        (void)snprintf(steps, sizeof(steps), "%d", until);
        run_dir =
            run_network(sync_case, &n, "cuda", parts,
                        (const char *const[10]){"--steps", steps, "--precision", "fp16",
                                                "--checkpoint-dir", folder, "--resume", "auto"});
    }
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "overflowed_updates"), overflows);
    ck_assert(job_checkpoint_distance(whole, parts) == 0);
}
END_TEST

static bool is_emulated(void)
{
    const char *module = getenv("SPARRING_CUDA_MODULE");

    return module && strstr(module, "emulated") != NULL;
}

static const char *run_refused(const char *model, const char *data, const char *const *extra)
{
    return process_run(PROCESS_FAILS, 60000, extra,
                       ARGS(support_program("sparring-worker"), "--model", model, "--data", data,
                            "--steps", "1", "--sync", "local", "--device", "cuda"));
}

START_TEST(test_too_little_memory)
{
    const char *output;
    const char *at;
    size_t asked = 0;
    size_t available = 0;
    size_t total = 0;

    if (!is_emulated())
        return; /* the memory of a real GPU cannot be limited */
    output = run_refused("mlp:2000-3000-5", "random:64,2000,5",
                         ARGS("SPARRING_EMULATED_BYTES=50000000"));
    at = strstr(output, " bytes of GPU memory, ");
    ck_assert_msg(at != NULL, "%s", output);
    while (at > output && at[-1] != ':')
        at--; /* the number follows the last colon */
    ck_assert_msg(sscanf(at, "%zu bytes of GPU memory, %zu of %zu are free: ", &asked, &available,
                         &total) == 3,
                  "%s", output);
    ck_assert_uint_eq(total, 50000000);
    ck_assert_uint_lt(available, total - ((size_t)32 << 20) + 1);
    ck_assert_uint_gt(asked, available);
    ck_assert_uint_ge(asked, (2000 * 3000 + 3000 + 3000 * 5 + 5) * sizeof(float));
    ck_assert_ptr_nonnull(strstr(output, "parameters"));
}
END_TEST

START_TEST(test_no_module)
{
    const char *output = run_refused("mlp:4-2", "random:64,4,2",
                                     ARGS("SPARRING_CUDA_MODULE=/nowhere/sparring_cuda.so"));
    const char *line =
        strstr(output, "device 'cuda': SPARRING_CUDA_MODULE: cannot find '/nowhere/sparring_cuda");

    ck_assert_msg(line != NULL, "%s", output);
    line = strchr(line, '\n');
    ck_assert_msg(line != NULL && line[1] == '\0', "more than one line: %s", output);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cuda_jobs", 120, LOOP_TEST(test_gpu_equals_cpu, 0, SYNC_CASES),
                       LOOP_TEST(test_checkpoints_change_devices, 0, 2),
                       LOOP_TEST(test_graph_launches_equal_calls, 0, 2),
                       TEST(test_no_checkpoint_after_non_finite_loss),
                       LOOP_TEST(test_bfloat16_loss_is_close, 0, 2),
                       LOOP_TEST(test_loss_scale_is_resumed, 0, 2), TEST(test_too_little_memory),
                       TEST(test_no_module));
}
