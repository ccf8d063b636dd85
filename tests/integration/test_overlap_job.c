/*
 * --overlap-forward, from the command line: parameters and losses are the same with and without it,
 * the record of each step counts the bytes of that step, and the parts of a step's time do not
 * exceed the step.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#define RANKS    2
#define STEPS    48 /* 3 epochs of 1024 samples in batches of 2 x 32 */
#define ELEMENTS 50890

static const char *run_overlap_job(const char *overlap, const char *const options[4],
                                   const char *save)
{
    struct job job = {
        .ranks = RANKS,
        .servers = 2,
        .worker = ARGS("--model", "mlp:784-64-10", "--data", "digits", "--samples", "1024",
                       "--epochs", "3", "--batch-size", "32", "--lr", "0.1", "--momentum", "0.9",
                       "--seed", "3", "--sync", "ps", "--partition-bytes", "16K", "--threads", "1",
                       "--device", "cpu", "--evaluate", "epoch", "--save", save, overlap,
                       options[0], options[1], options[2], options[3]),
    };

    return job_run(&job, 0);
}

/* The records of all steps: in order, with the bytes of one step and consistent times. */
static void check_step_records(const char *folder, unsigned rank, size_t steps)
{
    char path[4096];
    char line[4096];
    FILE *file;
    size_t count = 0;

    (void)snprintf(path, sizeof(path), "%s/rank%u.jsonl", folder, rank);
    file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file)) {
        json_t *record = json_loads(line, 0, NULL);
        json_int_t step, compute, exposed, input, optimizer;

        ck_assert_ptr_nonnull(record);
        if (strcmp(json_string_value(json_object_get(record, "kind")), "step") == 0) {
            ck_assert_int_eq(json_unpack(record, "{s:I,s:I,s:I,s:I,s:I}", "step_ns", &step,
                                         "compute_ns", &compute, "exposed_comm_ns", &exposed,
                                         "input_ns", &input, "optimizer_ns", &optimizer),
                             0);
            ck_assert_int_eq(json_integer_value(json_object_get(record, "step")), (intmax_t)count);
            count++;
            ck_assert_int_eq(json_integer_value(json_object_get(record, "tx_payload_bytes")),
                             4 * ELEMENTS);
            ck_assert_int_eq(json_integer_value(json_object_get(record, "rx_payload_bytes")),
                             4 * ELEMENTS);
            ck_assert_int_gt(compute, 0);
            ck_assert_int_ge(exposed, 0);
            ck_assert_int_le(compute + exposed + input + optimizer, step);
        }
        json_decref(record);
    }
    ck_assert_uint_eq(count, steps);
    (void)fclose(file);
}

static const struct {
    const char *options[4];
    size_t steps;
} cases[] = {
    {{"--reduce", "reproducible", "--accumulate-steps", "1"}, STEPS},
    {{"--optimizer", "adamw", "--accumulate-steps", "4"}, STEPS / 4},
    {{"--reduce", "reproducible", "--on-rank-loss", "wait"}, STEPS},
    {{"--consistency", "ssp", "--staleness", "0"}, STEPS},
    {{"--reduce", "reproducible", "--ps-update", "worker"}, STEPS}, /* does not overlap */
};

START_TEST(test_same_parameters)
{
    static const char *const options[2] = {"--overlap-forward=false", "--overlap-forward=true"};
    const char *saved[2] = {support_path("off.safetensors"), support_path("on.safetensors")};
    double losses[2][STEPS], accuracies[2];

    for (unsigned on = 0; on < 2; on++) {
        const char *folder = run_overlap_job(options[on], cases[_i].options, saved[on]);
        json_t *summary = job_summary(folder);

        for (unsigned rank = 0; rank < RANKS; rank++)
            check_step_records(folder, rank, cases[_i].steps);
        ck_assert_uint_eq(job_losses(folder, 1, losses[on], STEPS), cases[_i].steps);
        accuracies[on] = json_number_value(json_object_get(summary, "test_accuracy"));
        json_decref(summary);
    }
    ck_assert(job_same_tensors(saved[0], saved[1]));
    ck_assert_mem_eq(losses[0], losses[1], cases[_i].steps * sizeof(double));
    ck_assert_mem_eq(&accuracies[0], &accuracies[1], sizeof(double));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("overlap_job", 250,
                       LOOP_TEST(test_same_parameters, 0, sizeof(cases) / sizeof(cases[0])));
}
