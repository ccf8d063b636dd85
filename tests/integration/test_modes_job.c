/*
 * The consistency modes of the parameter server from the command line: whole jobs, their records,
 * and the configurations that are refused before training.
 */
#include "common/base/file.h"
#include "common/base/host.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 40

static struct error err;

/* Three ranks and two servers; `mode` has up to four more options. */
static const char *run_mode_job(const char *const mode[4], const char *delays, const char *save,
                                int wanted)
{
    struct job job = {
        .ranks = 3,
        .servers = 2,
        .worker = ARGS("--model", "mlp:40-64-7", "--data", "random:960,40,7", "--batch-size", "16",
                       "--steps", "40", "--lr", "0.05", "--momentum", "0.9", "--seed", "3",
                       "--sync", "ps", "--partition-bytes", "4K", "--threads", "1", "--device",
                       job_device(), "--evaluate", "never", "--save", save, "--delay-schedule",
                       delays, mode[0], mode[1], mode[2], mode[3]),
    };

    return job_run(&job, wanted);
}

static const char *const consistency_modes[][4] = {
    {"--consistency", "bsp", "--reduce", "reproducible"},
    {"--consistency", "ssp", "--reduce", "reproducible"},
    {"--consistency", "ssp", "--staleness", "2"},
    {"--consistency", "asp", "--asp-lr", "staleness"},
    {"--consistency", "asp", "--delay-compensation", "0.1"},
};

/* Every rank makes all steps, delayed as the schedule says. */
START_TEST(test_every_rank_makes_all_steps)
{
    const char *delays = support_write("delays", "1 0- 20\n", 8);
    const char *folder = run_mode_job(consistency_modes[_i], delays, support_path("saved"), 0);
    char path[4096];
    char *text;
    size_t size;

    for (unsigned rank = 0; rank < 3; rank++) {
        ck_assert_int_eq(job_record_int(folder, rank, "end", "steps"), STEPS);
        ck_assert_int_eq(job_record_int(folder, rank, "end", "skipped_steps"), 0);
    }
    ck_assert_int_ge(job_record_int(folder, 1, "step", "compute_ns"), 20000000);
    (void)snprintf(path, sizeof(path), "%s/rank1.jsonl", folder);
    assert_ok(file_read(path, SIZE_MAX, &text, &size, &err));
    ck_assert_int_eq(strstr(text, "\"processor_wait\":") != NULL, host_processor_wait_ns() >= 0);
    free(text);
}
END_TEST

START_TEST(test_late_rank_skips_steps)
{
    static const char *const backup[4] = {"--consistency", "bsp", "--backup-workers", "1"};
    const char *delays = support_write("delays", "2 0- 60\n", 8);
    const char *folder = run_mode_job(backup, delays, support_path("saved"), 0);

    for (unsigned rank = 0; rank < 3; rank++)
        ck_assert_int_eq(job_record_int(folder, rank, "end", "steps") +
                             job_record_int(folder, rank, "end", "skipped_steps"),
                         STEPS);
    ck_assert_int_gt(job_record_int(folder, 2, "end", "skipped_steps"), 0);
}
END_TEST

START_TEST(test_ssp_0_saves_what_bsp_saves)
{
    const char *bsp = support_path("bsp.safetensors");
    const char *ssp = support_path("ssp.safetensors");

    (void)run_mode_job(consistency_modes[0], "", bsp, 0);
    (void)run_mode_job(consistency_modes[1], "", ssp, 0);
    ck_assert(job_same_tensors(bsp, ssp));
}
END_TEST

static const struct {
    const char *mode[4];
    const char *delays; /* NULL: path of a missing file; "": no schedule */
    const char *wanted;
    int code;
} refused[] = {
    {{"--consistency", "asp", "--ps-update", "worker"},
     "",
     "asp needs the optimizer on the server",
     2},
    {{"--consistency", "bsp", "--backup-workers", "3"}, "", "leave nobody to wait for", 2},
    {{"--consistency", "bsp", "--staleness", "1"}, "", "needs ssp, not bsp", 2},
    {{"--consistency", "asp", "--reduce", "reproducible"}, "", "asp takes what comes first", 2},
    {{"--consistency", "bsp", "--momentum", "0"}, "staleness 0 1 1", "has rules of staleness", 3},
    {{"--consistency", "asp", "--momentum", "0"}, "9 0 10", "delays:1: no such rank", 3},
    {{"--consistency", "asp", "--momentum", "0"}, NULL, "nowhere", 1},
};

START_TEST(test_refused)
{
    const char *text = refused[_i].delays;
    const char *delays = !text     ? support_path("nowhere")
                         : text[0] ? support_write("delays", text, strlen(text))
                                   : "";

    (void)run_mode_job(refused[_i].mode, delays, support_path("saved"), refused[_i].code);
    ck_assert_msg(strstr(job_output(), refused[_i].wanted) != NULL, "%s", job_output());
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("modes_job", 200,
                       LOOP_TEST(test_every_rank_makes_all_steps, 0,
                                 sizeof(consistency_modes) / sizeof(consistency_modes[0])),
                       TEST(test_late_rank_skips_steps), TEST(test_ssp_0_saves_what_bsp_saves),
                       LOOP_TEST(test_refused, 0, sizeof(refused) / sizeof(refused[0])));
}
