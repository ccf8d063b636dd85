/*
 * The settings derived from the options of the consistency modes, the combinations that are refused
 * before any rank waits for another, and the weights of servers.
 */
#include "worker/options/options.h"

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 40

static struct error err;

/* Parse the options of a minimal parameter-server job followed by `text`, and derive its
 * consistency. */
static enum status read_options(const char *text, unsigned world_size, struct consistency *ret)
{
    static struct worker_options options;
    static struct option_result origins[128];
    char line[1024];
    char *words[WORDS_MAX];
    char *rest = NULL;
    int count = 0;
    enum status status;

    ck_assert_uint_le(option_count(&worker_option_set), sizeof(origins) / sizeof(origins[0]));
    (void)snprintf(line, sizeof(line),
                   "worker --model linear:4-2 --steps 3 --sync ps --servers 127.0.0.1:1 %s", text);
    for (char *word = strtok_r(line, " ", &rest); word && count < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    status = option_parse(&worker_option_set, count, words, &options, origins, &err);
    if (status == STATUS_OK)
        status = worker_options_check(&options, &err);
    return status == STATUS_OK ? worker_options_consistency(&options, world_size, ret, &err)
                               : status;
}

static const struct {
    const char *text;
    struct consistency wanted;
} good[] = {
    {"", {.mode = CONSISTENCY_BSP}},
    {"--ps-update worker --reduce reproducible", {.mode = CONSISTENCY_BSP}},
    {"--backup-workers 3", {.mode = CONSISTENCY_BSP, .backup = 3}},
    {"--consistency ssp --reduce reproducible", {.mode = CONSISTENCY_SSP}},
    {"--consistency ssp --staleness 7", {.mode = CONSISTENCY_SSP, .staleness = 7}},
    {"--consistency asp", {.mode = CONSISTENCY_ASP}},
    {"--consistency asp --asp-lr staleness --delay-compensation 0.5",
     {.mode = CONSISTENCY_ASP, .lr_by_staleness = true, .delay_compensation = 0.5}},
    {"--sync allreduce --consistency asp --ps-update worker", {.mode = CONSISTENCY_ASP}},
    {"--on-rank-loss wait", {.mode = CONSISTENCY_BSP}},
    {"--on-rank-loss shrink --ps-update worker", {.mode = CONSISTENCY_BSP}},
};

START_TEST(test_good)
{
    struct consistency got = {0};

    assert_ok(read_options(good[_i].text, 4, &got));
    ck_assert_int_eq(got.mode, good[_i].wanted.mode);
    ck_assert_uint_eq(got.staleness, good[_i].wanted.staleness);
    ck_assert_uint_eq(got.backup, good[_i].wanted.backup);
    ck_assert_int_eq(got.lr_by_staleness, good[_i].wanted.lr_by_staleness);
    ck_assert(got.delay_compensation == good[_i].wanted.delay_compensation);
}
END_TEST

static const struct {
    const char *text, *wanted;
} bad[] = {
    {"--consistency esp", "esp"},
    {"--resume auto", "--resume auto needs --checkpoint-dir"},
    {"--resume auto --checkpoint-dir d --on-rank-loss wait", "name the same checkpoint"},
    {"--resume . --on-rank-loss wait", "is a folder"},
    {"--checkpoint-every 5", "--checkpoint-every needs --checkpoint-dir"},
    {"--resume a.safetensors --init b.safetensors", "--resume and --init exclude each other"},
    {"--staleness 1", "a staleness bound of 1 needs ssp, not bsp"},
    {"--consistency asp --staleness 1", "needs ssp, not asp"},
    {"--consistency ssp --staleness 1000001", "staleness"},
    {"--consistency ssp --staleness -1", "staleness"},
    {"--backup-workers 4", "4 backup workers among 4 ranks leave nobody to wait for"},
    {"--consistency asp --backup-workers 1", "1 backup workers need bsp, not asp"},
    {"--consistency ssp --backup-workers 1", "1 backup workers need bsp, not ssp"},
    {"--asp-lr staleness", "needs asp, not bsp"},
    {"--consistency ssp --delay-compensation 0.1", "delay compensation needs asp, not ssp"},
    {"--consistency asp --delay-compensation nan", "delay-compensation"},
    {"--consistency asp --ps-update worker", "asp needs the optimizer on the server"},
    {"--consistency ssp --ps-update worker", "ssp needs the optimizer on the server"},
    {"--backup-workers 1 --ps-update worker", "with backup workers needs the optimizer on the"},
    {"--consistency asp --reduce reproducible", "asp takes what comes first"},
    {"--consistency ssp --staleness 2 --reduce reproducible", "ssp with a staleness bound takes"},
    {"--backup-workers 1 --reduce reproducible", "bsp with backup workers takes what comes first"},
    {"--on-rank-loss wait --ps-update worker", "--on-rank-loss wait needs --ps-update server"},
    {"--on-rank-loss wait --sync allreduce", "--on-rank-loss wait needs --sync ps"},
    {"--on-rank-loss wait --sync local", "needs --sync allreduce or --sync ps"},
    {"--on-rank-loss shrink --sync allreduce --backend mpi", "not with --backend mpi"},
    {"--on-rank-loss ignore", "on-rank-loss"},
    {"--on-worker-loss ignore", "on-rank-loss"}, /* its earlier name */
    {"--comm-hook fp16 --sync dataparallel", "--comm-hook: not with --sync dataparallel"},
    {"--sync allreduce --comm-hook powersgd --weighting samples",
     "--comm-hook powersgd: not with --weighting samples"},
    {"--sync allreduce --comm-hook powersgd --uneven join --join-divide active",
     "--comm-hook powersgd: not with --weighting samples"},
    {"--weighting samples --sync dataparallel", "--weighting samples: not with"},
    {"--reconnect-ms -1", "reconnect-ms"},
};

START_TEST(test_bad)
{
    struct consistency got;

    assert_fails(read_options(bad[_i].text, 4, &got), STATUS_INVALID, bad[_i].wanted);
}
END_TEST

/* Parse --server-weights `text` for a job with three servers. */
static enum status read_weights(const char *text, uint32_t **ret)
{
    char value[64];
    static struct worker_options options;
    struct option_result result = {0};
    char line[][24] = {"worker", "--sync", "ps", "--servers", "a:1,b:2,c:3", "--server-weights"};
    char *words[] = {line[0], line[1], line[2], line[3], line[4], line[5], value};
    enum status status;

    (void)snprintf(value, sizeof(value), "%s", text);
    status = option_parse(&worker_option_set, 7, words, &options, &result, &err);
    option_result_release(&result);
    return status == STATUS_OK ? worker_options_server_weights(&options, ret, &err) : status;
}

START_TEST(test_weights)
{
    static const char *const refused[] = {"1,2",    "1,2,3,4",     "0,0,0",
                                          "1,2,x",  "1,2,",        "1,,3",
                                          "1,2,-3", "1,2,1048577", "1,2,99999999999999999999"};
    uint32_t *weights = NULL;

    assert_ok(read_weights("6,0,1048576", &weights));
    ck_assert_uint_eq(weights[0], 6);
    ck_assert_uint_eq(weights[1], 0);
    ck_assert_uint_eq(weights[2], 1048576);
    free(weights);
    assert_ok(read_weights("", &weights));
    ck_assert_ptr_null(weights);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        assert_fails(read_weights(refused[i], &weights), STATUS_INVALID, "--server-weights");
    ck_assert_ptr_null(weights);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("worker_options", 0, LOOP_TEST(test_good, 0, sizeof(good) / sizeof(good[0])),
                       LOOP_TEST(test_bad, 0, sizeof(bad) / sizeof(bad[0])), TEST(test_weights));
}
