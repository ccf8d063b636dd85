/*
 * checkpoint: saved data reads back, the folder keeps the newest and `latest` names a whole one, a
 * full disk leaves both unchanged, and invalid facts fail field by field.
 */
#include "common/base/file.h"
#include "common/base/strbuf.h"
#include "common/checkpoint/checkpoint.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct error err;

static struct tensor_view views[] = {
    {.name = "fc1.weight", .dims = 2, .shape = {2, 3}, .count = 6, .offset = 2},
    {.name = "fc1.bias", .dims = 1, .shape = {2}, .count = 2, .offset = 0},
};
static const struct tensor_table table = {.views = views, .length = 2, .capacity = 2, .count = 8};

static const struct checkpoint_facts example = {
    .version = "1.2.3",
    .model = "mlp:3-2",
    .data = "random:64,3,2",
    .rest = "pad",
    .sync = "allreduce",
    .optimizer = "adamw",
    .precision = "fp16",
    .overflowed = 3,
    .growth_tracker = 1999,
    .loss_scale = 32768,
    .step = 12,
    .optimizer_step = 24,
    .epoch = 3,
    .position = 16,
    .parts = 2,
    .samples = 64,
    .world_size = 2,
    .batch_size = 8,
    .accumulate_steps = 1,
    .seed = 4294967295u,
    .shuffle = 1,
    .learning_rate = 0.1,
    .momentum = 1.0 / 3,
    .dampening = -0.5,
    .weight_decay = 1e-300,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .epsilon = 5e-324,
};

static void save_checkpoint(const char *folder, size_t keep, uint64_t step, float value)
{
    float params[8], moments[8];
    const struct safetensors_part parts[] = {{"", &table, params},
                                             {"optimizer.exp_avg.", &table, moments}};
    struct checkpoint_facts facts = example;
    uint64_t bytes = 0;

    for (size_t i = 0; i < 8; i++) {
        params[i] = value + (float)i;
        moments[i] = -params[i];
    }
    facts.step = step;
    assert_ok(checkpoint_save(folder, keep, NULL, &facts, parts, 2, &bytes, &err));
    ck_assert_uint_gt(bytes, 2 * sizeof(params));
}

static void check_checkpoint(const char *path, uint64_t step, float value)
{
    float params[8], moments[8];
    const struct safetensors_part parts[] = {{"", &table, params},
                                             {"optimizer.exp_avg.", &table, moments}};
    char file[CHECKPOINT_PATH_MAX];
    struct safetensors s;
    struct checkpoint_facts facts, wanted = example;

    wanted.step = step;
    assert_ok(checkpoint_find(path, file, &err));
    assert_ok(safetensors_read(file, 1 << 20, &s, &err));
    assert_ok(checkpoint_read_facts(&s, &facts, &err));
    ck_assert_mem_eq(&facts, &wanted, sizeof(facts));
    assert_ok(safetensors_load_parts(&s, parts, 2, NULL, &err));
    for (size_t i = 0; i < 8; i++)
        ck_assert(params[i] == value + (float)i && moments[i] == -params[i]);
    assert_fails(safetensors_load_parts(&s, parts, 1, NULL, &err), STATUS_MISMATCH,
                 "'optimizer.exp_avg.fc1.bias' is not in the model");
    assert_ok(safetensors_load_parts(&s, parts, 1, CHECKPOINT_OPTIMIZER, &err));
    safetensors_release(&s);
}

static size_t count_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t count = 0;
    const struct dirent *entry;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    (void)closedir(dir);
    return count;
}

static const char *path_in(const char *folder, const char *name)
{
    static char path[4096];

    assert_ok(file_join(path, sizeof(path), folder, name, &err));
    return path;
}

START_TEST(test_round_trip)
{
    const char *folder = support_path("new/deep");
    char path[CHECKPOINT_PATH_MAX];

    assert_fails(checkpoint_find(folder, path, &err), STATUS_NOT_FOUND, folder);
    save_checkpoint(folder, 3, 12, 1);
    check_checkpoint(folder, 12, 1);
    check_checkpoint(path_in(folder, "step-000012.safetensors"), 12, 1);
    ck_assert_uint_eq(count_entries(folder), 2);
}
END_TEST

/* A checkpoint that could not be read again is not written: one element below the limit, the header
 * exceeds it. */
START_TEST(test_files_above_the_limit_are_not_written)
{
    const char *folder = support_path("large");
    size_t count = CHECKPOINT_BYTES_MAX / sizeof(float) - 1;
    struct tensor_view view = {.name = "w", .dims = 1, .shape = {count}, .count = count};
    const struct tensor_table large = {.views = &view, .length = 1, .capacity = 1, .count = count};
    float none = 0; /* never read */
    const struct safetensors_part part = {"", &large, &none};
    uint64_t bytes = 0;

    save_checkpoint(folder, 3, 5, 1);
    assert_fails(checkpoint_save(folder, 3, NULL, &example, &part, 1, &bytes, &err),
                 STATUS_UNSUPPORTED, "step-000012.safetensors' would have 1717");
    ck_assert_ptr_nonnull(strstr(err.text, "more than the 17179869184 that are read again"));
    ck_assert_uint_eq(bytes, 0);
    check_checkpoint(folder, 5, 1);
    ck_assert_uint_eq(count_entries(folder), 2);
}
END_TEST

/* Set a modification time as if it had been copied last. */
static void set_latest_mtime(const char *path)
{
    const struct timespec now_and_later[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = INT32_MAX}};

    ck_assert_int_eq(utimensat(AT_FDCWD, path, now_and_later, 0), 0);
}

/* The newest are those with the most updates, whenever they were written; checkpoints above a run
 * that was resumed at an earlier step are removed first.  Other files in the folder stay. */
START_TEST(test_the_newest_are_kept)
{
    const char *folder = support_path("keep");

    for (uint64_t step = 5; step <= 40; step += 5) {
        save_checkpoint(folder, 3, step, (float)step);
        check_checkpoint(folder, step, (float)step);
        set_latest_mtime(path_in(folder, step == 5 ? "step-000005.safetensors" : "latest"));
    }
    ck_assert_uint_eq(count_entries(folder), 3 + 1);
    check_checkpoint(path_in(folder, "step-000030.safetensors"), 30, 30);
    assert_ok(file_write_atomic(path_in(folder, "step-7.txt"), "x", 1, &err));
    assert_ok(file_write_atomic(path_in(folder, "step-000041.safetensors.tmp-77"), "x", 1, &err));
    assert_ok(file_write_atomic(path_in(folder, "latest.tmp-78"), "x", 1, &err));
    save_checkpoint(folder, 2, 31, 31);
    check_checkpoint(folder, 31, 31);
    check_checkpoint(path_in(folder, "step-000030.safetensors"), 30, 30);
    ck_assert_uint_eq(count_entries(folder), 2 + 1 + 1);
    save_checkpoint(folder, 0, 32, 32);
    save_checkpoint(folder, 0, 1000000, 33);
    check_checkpoint(path_in(folder, "step-1000000.safetensors"), 1000000, 33);
    ck_assert_uint_eq(count_entries(folder), 4 + 1 + 1);
    save_checkpoint(folder, 3, 33, 34);
    check_checkpoint(path_in(folder, "step-000031.safetensors"), 31, 31);
    check_checkpoint(path_in(folder, "step-000032.safetensors"), 32, 32);
    ck_assert_uint_eq(count_entries(folder), 3 + 1 + 1);
    save_checkpoint(folder, 0, 1000001, 35);
    save_checkpoint(folder, 0, 999999, 36);
    ck_assert_int_eq(unlink(path_in(folder, "latest")), 0);
    check_checkpoint(folder, 1000001, 35); /* as a number */
}
END_TEST

/* A full disk, simulated by a file size limit. */
START_TEST(test_a_full_disk)
{
    const char *folder = support_path("full");
    float params[8] = {0};
    const struct safetensors_part part = {"", &table, params};
    struct checkpoint_facts facts = example;
    struct rlimit limit;
    rlim_t before;

    save_checkpoint(folder, 1, 5, 5);
    facts.step = 6;
    ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    before = limit.rlim_cur;
    limit.rlim_cur = 64;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_fails(checkpoint_save(folder, 1, NULL, &facts, &part, 1, NULL, &err), STATUS_NO_SPACE,
                 "step-000006.safetensors");
    limit.rlim_cur = before;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_checkpoint(folder, 5, 5);
    ck_assert_uint_eq(count_entries(folder), 2);
}
END_TEST

/* A writer that crashed before its first `latest`; and the file that the run started from. */
START_TEST(test_without_latest_and_with_a_kept_path)
{
    const char *folder = support_path("without-latest");
    char path[CHECKPOINT_PATH_MAX];
    const struct safetensors_part part = {"", &table, (float[8]){0}};
    struct checkpoint_facts facts = example;

    save_checkpoint(folder, 0, 7, 1);
    save_checkpoint(folder, 0, 9, 2);
    assert_ok(file_write_atomic(path_in(folder, "step-000011.safetensors.tmp-5"), "x", 1, &err));
    ck_assert_int_eq(unlink(path_in(folder, "latest")), 0);
    assert_ok(checkpoint_find(folder, path, &err));
    ck_assert_str_eq(path, path_in(folder, "step-000009.safetensors"));
    facts.step = 12;
    assert_ok(checkpoint_save(folder, 1, path_in(folder, "step-000007.safetensors"), &facts, &part,
                              1, NULL, &err));
    ck_assert_int_eq(access(path_in(folder, "step-000007.safetensors"), F_OK), 0);
    ck_assert_int_ne(access(path_in(folder, "step-000009.safetensors"), F_OK), 0);
    ck_assert_int_eq(access(path_in(folder, "step-000012.safetensors"), F_OK), 0);
}
END_TEST

START_TEST(test_hostile_latest)
{
    static const char *const texts[] = {
        "",           "../step-000001.safetensors", "/etc/passwd",     "step-.safetensors",
        "step-1.txt", "step-1x.safetensors",        "step-1.tmp-1234", "steps-000001.safetensors"};
    const char *folder = support_path("hostile");
    char path[CHECKPOINT_PATH_MAX];

    save_checkpoint(folder, 3, 1, 1);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_ok(file_write_atomic(path_in(folder, "latest"), texts[i], strlen(texts[i]), &err));
        assert_fails(checkpoint_find(folder, path, &err), STATUS_DATA, path_in(folder, "latest"));
    }
    assert_ok(file_write_atomic(path_in(folder, "latest"), "step-000001.safetensors", 23, &err));
    check_checkpoint(folder, 1, 1);
}
END_TEST

/* The metadata of a file from before `precision` and its fields existed. */
static enum status read_with(const char *field, const char *value, struct checkpoint_facts *ret)
{
    static const char *const whole[][2] = {
        {"format", "sparring-checkpoint-1"},
        {"version", "1"},
        {"model", "mlp:3-2"},
        {"optimizer", "sgd"},
        {"data", "digits"},
        {"rest", "pad"},
        {"sync", "ps"},
        {"step", "1"},
        {"optimizer_step", "1"},
        {"epoch", "0"},
        {"position", "8"},
        {"parts", "2"},
        {"world_size", "2"},
        {"samples", "64"},
        {"batch_size", "8"},
        {"accumulate_steps", "1"},
        {"seed", "0"},
        {"shuffle", "1"},
        {"nesterov", "0"},
        {"learning_rate", "0.1"},
        {"momentum", "0"},
        {"dampening", "0"},
        {"weight_decay", "0"},
        {"beta1", "0.9"},
        {"beta2", "0.999"},
        {"epsilon", "1e-8"},
        {"layer_drop", "0"},
    };
    struct strbuf text = STRBUF_INIT;
    unsigned char file[4096] = {0};
    bool known = false;
    struct safetensors s;
    enum status status;

    strbuf_add(&text, "{\"__metadata__\":{\"more\":\"is allowed\"");
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        bool other = strcmp(whole[i][0], field) == 0;

        known = known || other;
        if (other && !value)
            continue;
        strbuf_addf(&text, ",\"%s\":", whole[i][0]);
        strbuf_add_json(&text, other ? value : whole[i][1]);
    }
    if (!known && value)
        strbuf_addf(&text, ",\"%s\":\"%s\"", field, value);
    strbuf_add(&text, "}}");
    ck_assert_uint_lt(8 + text.length, sizeof(file));
    for (unsigned i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)text.length >> (8 * i));
    memcpy(file + 8, text.text, text.length);
    assert_ok(safetensors_parse("hostile.st", file, 8 + text.length, &s, &err));
    status = checkpoint_read_facts(&s, ret, &err);
    safetensors_release(&s);
    strbuf_release(&text);
    return status;
}

static const char *const refused[][2] = {
    {"format", NULL},
    {"format", "pt"},
    {"step", NULL},
    {"step", ""},
    {"step", "-1"},
    {"step", "1.5"},
    {"step", "99999999999999999999999"},
    {"optimizer_step", "18446744073709551615"},
    {"position", "65"},
    {"parts", "0"},
    {"parts", "4294967296"},
    {"samples", "0"},
    {"batch_size", "0"},
    {"shuffle", "2"},
    {"learning_rate", "nan"},
    {"learning_rate", "inf"},
    {"epsilon", "x"},
    {"rest", "a rest of more than thirty-one bytes"},
    {"model", NULL},
    {"precision", "more than thirty-one bytes of precision"},
    {"overflowed", "-1"},
    {"growth_tracker", "4294967296"},
    {"loss_scale", "0.5"},
    {"loss_scale", "1e39"},
    {"loss_scale", "nan"},
};

START_TEST(test_hostile_facts)
{
    struct checkpoint_facts facts;

    assert_ok(read_with("none", NULL, &facts));
    ck_assert_str_eq(facts.precision, "float32");
    ck_assert(facts.loss_scale == 1 && facts.overflowed == 0 && facts.growth_tracker == 0);
    assert_fails(read_with(refused[_i][0], refused[_i][1], &facts), STATUS_DATA, "'hostile.st'");
    ck_assert_ptr_nonnull(strstr(err.text, refused[_i][0]));
}
END_TEST

START_TEST(test_differences)
{
    struct checkpoint_facts now = example;
    struct strbuf text = STRBUF_INIT;

    now.step = 99;
    now.learning_rate = 0.2;
    now.batch_size = 16;
    now.seed = 1;
    (void)snprintf(now.model, sizeof(now.model), "linear:3-2");
    ck_assert_uint_eq(checkpoint_list_differences(&example, &now, CHECKPOINT_MUST_AGREE, &text), 1);
    ck_assert_uint_eq(checkpoint_list_differences(&example, &now, CHECKPOINT_WITHIN_EPOCH, &text),
                      1);
    ck_assert_uint_eq(checkpoint_list_differences(&example, &now, CHECKPOINT_MAY_DIFFER, &text), 2);
    ck_assert_str_eq(text.text, ", model is linear:3-2 (was mlp:3-2), seed is 1 (was 4294967295), "
                                "batch_size is 16 (was 8), learning_rate is 0.2 (was 0.1)");
    strbuf_release(&text);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("checkpoint", 60, TEST(test_round_trip),
                       TEST(test_files_above_the_limit_are_not_written),
                       TEST(test_the_newest_are_kept), TEST(test_a_full_disk),
                       TEST(test_without_latest_and_with_a_kept_path), TEST(test_hostile_latest),
                       LOOP_TEST(test_hostile_facts, 0, sizeof(refused) / sizeof(refused[0])),
                       TEST(test_differences));
}
