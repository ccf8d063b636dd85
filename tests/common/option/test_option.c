/*
 * The option table: priorities and origins of the four sources, every kind with its errors, the
 * texts of --help, --print-config (read back as YAML) and JSON (read back with jansson), and the
 * nearest name against a recursive model.
 */
#include "common/option/option.h"

#include "common/base/memory.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct settings {
    int64_t batch_size;
    int64_t seed;
    double rate;
    uint64_t bucket;
    bool nesterov;
    bool overlap;
    char optimizer[OPTION_TEXT_MAX];
    char run_dir[OPTION_TEXT_MAX];
};

static const struct option_spec specs[] = {
    {.help = "Training:"},
    {.name = "batch-size",
     .env = "SPARRING_TEST_BATCH",
     .kind = OPTION_INT,
     .offset = offsetof(struct settings, batch_size),
     .default_text = "64",
     .min = 1,
     .max = 1e6,
     .help = "Samples per rank and step."},
    {.name = "seed",
     .env = "SPARRING_TEST_SEED_OPTION",
     .kind = OPTION_INT,
     .offset = offsetof(struct settings, seed),
     .help = "Seed of everything that is random."},
    {.name = "learning-rate",
     .kind = OPTION_DOUBLE,
     .offset = offsetof(struct settings, rate),
     .default_text = "0.1",
     .min = 0,
     .max = HUGE_VAL,
     .metavar = "RATE",
     .help = "Step size."},
    {.name = "bucket",
     .kind = OPTION_BYTES,
     .offset = offsetof(struct settings, bucket),
     .default_text = "25M",
     .min = 4096,
     .max = 1e12,
     .help =
         "Bytes of a bucket; a long explanation follows so that the text has to be wrapped over "
         "several lines of the help, which must stay within eighty columns."},
    {.name = "nesterov",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct settings, nesterov),
     .default_text = "false",
     .help = "Nesterov's momentum."},
    {.name = "overlap",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct settings, overlap),
     .default_text = "true",
     .help = "Communicate during backward."},
    {.help = "Files:"},
    {.name = "update-rule",
     .env = "SPARRING_TEST_UPDATE_RULE",
     .kind = OPTION_CHOICE,
     .alias_of = "optimizer"},
    {.name = "optimizer",
     .env = "SPARRING_TEST_OPTIMIZER",
     .kind = OPTION_CHOICE,
     .offset = offsetof(struct settings, optimizer),
     .default_text = "sgd",
     .choices = "sgd|adam|adamw",
     .metavar = "NAME",
     .help = "Update rule."},
    {.name = "run-dir",
     .env = "SPARRING_TEST_RUN_DIR",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct settings, run_dir),
     .metavar = "DIR",
     .help = "Folder of this run's records."},
    {0},
};

static const struct option_set set = {.program = "sparring-test",
                                      .summary = "A program that exists for its options.",
                                      .usage = "[OPTION]... -- PROGRAM ARG...",
                                      .tables = {{specs, 0}}};

static struct settings got;
static struct option_result result;
static struct error err;

static void reset(void)
{
    option_result_release(&result);
    got = (struct settings){0};
    err = (struct error){0};
}

/* Parse the words, split at blanks. */
static enum status parse(const char *words)
{
    static char copy[512];
    char *argv[32] = {copy};
    int argc = 1;
    char *rest = copy;
    char *word;

    reset();
    (void)snprintf(copy, sizeof(copy), "%s", words);
    while ((word = strtok_r(rest, " ", &rest)) != NULL)
        argv[argc++] = word;
    return option_parse(&set, argc, argv, &got, &result, &err);
}

static enum status parse_with_file(const char *yaml, const char *words)
{
    const char *path = support_write("run.yaml", yaml, strlen(yaml));
    char line[512];

    (void)snprintf(line, sizeof(line), "--config %s %s", path, words);
    return parse(line);
}

static void check_origin(const char *name, const char *ending)
{
    const char *text = option_origin_text(&set, &result, name);
    size_t length = strlen(text);

    ck_assert_uint_ge(length, strlen(ending));
    ck_assert_str_eq(text + length - strlen(ending), ending);
}

START_TEST(defaults)
{
    assert_ok(parse(""));
    ck_assert_int_eq(got.batch_size, 64);
    ck_assert_int_eq(got.seed, 0);
    ck_assert_double_eq(got.rate, 0.1);
    ck_assert_uint_eq(got.bucket, 25u << 20);
    ck_assert(!got.nesterov && got.overlap);
    ck_assert_str_eq(got.optimizer, "sgd");
    ck_assert_str_eq(got.run_dir, "");
    ck_assert(!option_given(&set, &result, "batch-size"));
    ck_assert(!option_given(&set, &result, "seed"));
    check_origin("batch-size", "default");
    ck_assert(!result.exit_now && !result.print_config);
    ck_assert_int_eq(result.first_positional, 1);
}
END_TEST

START_TEST(command_line_forms)
{
    assert_ok(parse("--batch-size 8 --seed=-3 --learning_rate=1e-2 --bucket 64KiB --nesterov "
                    "--overlap=no --optimizer adamw --run-dir=a=b"));
    ck_assert_int_eq(got.batch_size, 8);
    ck_assert_int_eq(got.seed, -3);
    ck_assert_double_eq(got.rate, 0.01);
    ck_assert_uint_eq(got.bucket, 65536);
    ck_assert(got.nesterov && !got.overlap);
    ck_assert_str_eq(got.optimizer, "adamw");
    ck_assert_str_eq(got.run_dir, "a=b");
    check_origin("learning_rate", "--learning-rate");
    ck_assert(option_given(&set, &result, "nesterov"));
    assert_ok(parse("--seed -7 --batch_size 3 --batch-size 4"));
    ck_assert_int_eq(got.seed, -7);
    ck_assert_int_eq(got.batch_size, 4);
    assert_ok(parse("--run-dir="));
    ck_assert(option_given(&set, &result, "run-dir"));
}
END_TEST

START_TEST(positionals)
{
    assert_ok(parse("--seed 1 prog --seed 2"));
    ck_assert_int_eq(result.first_positional, 3);
    ck_assert_int_eq(got.seed, 1);
    assert_ok(parse("--seed 1 -- --seed 2"));
    ck_assert_int_eq(result.first_positional, 4);
    ck_assert_int_eq(got.seed, 1);
    assert_ok(parse("--seed 1 --"));
    ck_assert_int_eq(result.first_positional, 4);
    assert_ok(parse("- --seed 2"));
    ck_assert_int_eq(result.first_positional, 1);
}
END_TEST

START_TEST(priorities)
{
    ck_assert_int_eq(setenv("SPARRING_TEST_BATCH", "20", 1), 0);
    ck_assert_int_eq(setenv("SPARRING_TEST_SEED_OPTION", "21", 1), 0);
    ck_assert_int_eq(setenv("SPARRING_TEST_RUN_DIR", "", 1), 0);
    assert_ok(parse_with_file("batch-size: 10\nseed: 11\n\nlearning_rate: 0.5\nrun-dir: \"x y\"\n",
                              "--seed 31"));
    ck_assert_int_eq(got.seed, 31);
    check_origin("seed", "--seed");
    ck_assert_int_eq(got.batch_size, 20);
    check_origin("batch-size", "SPARRING_TEST_BATCH");
    ck_assert_double_eq(got.rate, 0.5);
    check_origin("learning-rate", "run.yaml:4");
    ck_assert_str_eq(got.run_dir, "x y"); /* the variable is empty, which counts as not set */
    check_origin("run-dir", "run.yaml:5");
    check_origin("optimizer", "default");
}
END_TEST

/* An earlier name works wherever the option does; of both variables the newer one counts. help_text
 * and the others that list options do not have it. */
START_TEST(aliases)
{
    assert_ok(parse_with_file("update-rule: adam\n", ""));
    ck_assert_str_eq(got.optimizer, "adam");
    check_origin("optimizer", "run.yaml:1");
    assert_fails(parse_with_file("update-rule: adam\noptimizer: sgd\n", ""), STATUS_CONFIG,
                 "option 'optimizer' is given twice");
    ck_assert_int_eq(setenv("SPARRING_TEST_UPDATE_RULE", "adam", 1), 0);
    assert_ok(parse(""));
    ck_assert_str_eq(got.optimizer, "adam");
    check_origin("optimizer", "SPARRING_TEST_UPDATE_RULE");
    ck_assert_int_eq(setenv("SPARRING_TEST_OPTIMIZER", "sgd", 1), 0);
    assert_ok(parse(""));
    ck_assert_str_eq(got.optimizer, "sgd");
    assert_ok(parse("--update_rule=adamw"));
    ck_assert_str_eq(got.optimizer, "adamw");
    check_origin("optimizer", "--optimizer");
    assert_fails(parse("--update-rule rmsprop"), STATUS_INVALID, "optimizer");
    assert_fails(parse("--update-rul adam"), STATUS_INVALID, "'--update-rul'; ");
}
END_TEST

static const struct {
    const char *words;
    const char *text;
} bad_words[] = {
    {"--batchsize 3", "unknown option '--batchsize', did you mean '--batch-size'?"},
    {"--batch_sise=3", "unknown option '--batch_sise', did you mean '--batch-size'?"},
    {"--confg x", "did you mean '--config'?"},
    {"--zzz", "unknown option '--zzz'; 'sparring-test --help' lists the options"},
    {"--=3", "unknown option '--'"},
    {"-x", "unknown option '-x'"},
    {"--seed", "option '--seed' needs a value"},
    {"--run-dir --seed 3", "option '--run-dir' needs a value, but '--seed' follows"},
    {"--seed=", "--seed: '' is not a whole number"},
    {"--seed 3x", "--seed: '3x' is not a whole number"},
    {"--seed 99999999999999999999", "--seed: '99999999999999999999' is not a whole number"},
    {"--batch-size 0", "--batch-size: '0' is out of range, allowed is 1 to 1000000"},
    {"--batch-size 1000001", "allowed is 1 to 1000000"},
    {"--learning-rate -1", "--learning-rate: '-1' is too small, at least 0 is needed"},
    {"--learning-rate nan", "'nan' is not a number"},
    {"--bucket 4X", "--bucket: '4X' is not a size"},
    {"--bucket -1", "'-1' is not a size"},
    {"--bucket 1K", "out of range, allowed is 4096 to 1000000000000"},
    {"--nesterov=maybe", "--nesterov: 'maybe' is neither true nor false"},
    {"--optimizer sgdd", "--optimizer: 'sgdd' is not one of sgd, adam or adamw"},
    {"--optimizer=", "'' is not one of"},
    {"--optimizer sgd|adam", "is not one of"},
    {"--print-config=7", "--print-config: '7' is neither"},
};

START_TEST(bad_command_line)
{
    assert_fails(parse(bad_words[_i].words), STATUS_INVALID, bad_words[_i].text);
    ck_assert_ptr_null(result.origin);
}
END_TEST

START_TEST(text_too_long)
{
    char word[OPTION_TEXT_MAX + 32];
    char *argv[] = {word, word};

    memset(word, 'a', sizeof(word));
    memcpy(word, "--run-dir=", 10);
    word[10 + OPTION_TEXT_MAX] = '\0';
    reset();
    assert_fails(option_parse(&set, 2, argv, &got, &result, &err), STATUS_INVALID,
                 "--run-dir: a text of 1024 bytes is too long, the limit is 1023");
    word[10 + OPTION_TEXT_MAX - 1] = '\0';
    assert_ok(option_parse(&set, 2, argv, &got, &result, &err));
    ck_assert_uint_eq(strlen(got.run_dir), OPTION_TEXT_MAX - 1);
}
END_TEST

static const struct {
    const char *yaml;
    const char *text;
} bad_files[] = {
    {"\nseed: 1\n\n\n\n\nbatchsize: 3\n",
     "run.yaml:7: unknown option 'batchsize', did you mean 'batch-size'?"},
    {"seed: 1\nbatch-size: 0\n", "run.yaml:2: batch-size: '0' is out of range"},
    {"seed: x\n", "run.yaml:1: seed: 'x' is not a whole number"},
    {"batch-size: 2\nbatch_size: 3\n", "run.yaml:2: option 'batch-size' is given twice"},
    {"seed: [1, 2]\n", "run.yaml:1: option 'seed' takes one value"},
    {"seed: {a: 2}\n", "run.yaml:1: option 'seed' takes one value"},
    {"config: other.yaml\n", "run.yaml:1: unknown option 'config'"},
    {"a: {b: 1}\n", "run.yaml:1: unknown option 'a'"},
    {"seed: 1\n  bad\n indent: 2\n", "run.yaml:3: "},
    {"just text\n", "run.yaml:1: the file must be a mapping"},
};

START_TEST(bad_file)
{
    assert_fails(parse_with_file(bad_files[_i].yaml, "--seed 5"), STATUS_CONFIG,
                 bad_files[_i].text);
}
END_TEST

START_TEST(missing_file)
{
    assert_fails(parse("--config /nonexistent/x.yaml"), STATUS_NOT_FOUND, "/nonexistent/x.yaml");
}
END_TEST

START_TEST(bad_environment)
{
    ck_assert_int_eq(setenv("SPARRING_TEST_BATCH", "many", 1), 0);
    assert_fails(parse("--batch-size 3"), STATUS_CONFIG,
                 "SPARRING_TEST_BATCH: 'many' is not a whole number");
}
END_TEST

START_TEST(help_text)
{
    struct strbuf out = STRBUF_INIT;

    option_help(&set, &out);
    ck_assert(strbuf_ok(&out));
    ck_assert(strncmp(out.text, "Usage: sparring-test [OPTION]... -- PROGRAM ARG...\n", 51) == 0);
    for (const char *line = out.text; *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 80, "longer than 80: %.100s", line);
    ck_assert_ptr_nonnull(strstr(out.text, "\nTraining:\n  --batch-size N            Samples per"));
    ck_assert_ptr_nonnull(strstr(out.text, "(default: 64)"));
    ck_assert_ptr_nonnull(strstr(out.text, "[SPARRING_TEST_BATCH]"));
    ck_assert_ptr_nonnull(strstr(out.text, "One of sgd, adam or adamw."));
    ck_assert_ptr_nonnull(strstr(out.text, "\nCommon:\n  --config FILE"));
    strbuf_release(&out);
}
END_TEST

/* Run the parser in a child with stdout in a file; return that text. */
static const char *stdout_of(const char *words)
{
    static char text[8192];
    const char *path = support_path("stdout");
    pid_t pid = fork();
    int status;
    FILE *file;
    size_t size;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        enum status parsed;

        if (!freopen(path, "w", stdout))
            _exit(9);
        parsed = parse(words);
        _exit(parsed == STATUS_OK && result.exit_now ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size = fread(text, 1, sizeof(text) - 1, file);
    text[size] = '\0';
    (void)fclose(file);
    return text;
}

START_TEST(help_and_version_on_stdout)
{
    ck_assert_str_eq(stdout_of("--version"), "sparring-test " SPARRING_VERSION "\n");
    ck_assert(strncmp(stdout_of("--help --zzz"), "Usage: sparring-test", 20) == 0);
    ck_assert(strncmp(stdout_of("-h"), "Usage: sparring-test", 20) == 0);
}
END_TEST

START_TEST(full_stdout)
{
    reset();
    ck_assert_ptr_nonnull(freopen("/dev/full", "w", stdout));
    assert_fails(parse("--help"), STATUS_IO, "standard output");
}
END_TEST

START_TEST(config_example)
{
    struct strbuf out = STRBUF_INIT;

    assert_ok(parse("--batch-size 8 --run-dir x --print-config"));
    ck_assert(result.print_config);
    option_print_config(&set, &got, &result, &out);
    ck_assert_str_eq(out.text, "batch-size: 8        # --batch-size\n"
                               "# seed:              # not set\n"
                               "learning-rate: 0.1   # default\n"
                               "bucket: 25MiB        # default\n"
                               "nesterov: false      # default\n"
                               "overlap: true        # default\n"
                               "optimizer: sgd       # default\n"
                               "run-dir: x           # --run-dir\n");
    strbuf_release(&out);
}
END_TEST

static int64_t random_int(int64_t below)
{
    return (int64_t)(support_random() * (double)below);
}

static void random_text(char *text, size_t length)
{
    static const char letters[] = "ab 0:#'\"\\-{}[]&*!|>%@`,?~\t=.\xc3\xa9";

    for (size_t i = 0; i < length; i++)
        text[i] = letters[random_int(29)];
    text[length] = '\0';
}

/* What --print-config writes, --config reads back to the same struct. */
START_TEST(config_round_trip)
{
    for (int round = 0; round < 200; round++) {
        struct settings before;
        struct strbuf out = STRBUF_INIT;
        char text[24];

        assert_ok(parse("--seed 1 --run-dir x --nesterov"));
        got.batch_size = 1 + random_int(1000000);
        got.seed = random_int(INT64_MAX) - INT64_MAX / 2;
        got.rate = ldexp(support_random(), (int)random_int(80) - 40);
        got.bucket = 4096 + (uint64_t)random_int(1 << 30);
        got.overlap = random_int(2) == 1;
        random_text(text, (size_t)random_int(20));
        (void)snprintf(got.run_dir, sizeof(got.run_dir), "%s\xc3\xa9", text);
        if (strstr(text, "\xa9") || strstr(text, "\xc3"))
            (void)snprintf(got.run_dir, sizeof(got.run_dir), "plain"); /* half a character */
        before = got;
        option_print_config(&set, &got, &result, &out);
        assert_ok(parse_with_file(out.text, ""));
        ck_assert_int_eq(got.batch_size, before.batch_size);
        ck_assert_int_eq(got.seed, before.seed);
        ck_assert(got.rate >= before.rate && got.rate <= before.rate);
        ck_assert_uint_eq(got.bucket, before.bucket);
        ck_assert(got.nesterov && got.overlap == before.overlap);
        ck_assert_str_eq(got.run_dir, before.run_dir);
        strbuf_release(&out);
    }
}
END_TEST

START_TEST(json_text)
{
    struct strbuf out = STRBUF_INIT;
    json_t *root;
    const char *origin;

    assert_ok(parse("--batch-size 8 --run-dir a\"b"));
    option_json(&set, &got, &result, &out);
    root = json_loads(out.text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_uint_eq(json_object_size(root), 8);
    ck_assert_int_eq(
        json_integer_value(json_object_get(json_object_get(root, "batch-size"), "value")), 8);
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(root, "bucket"), "value")),
                     25 << 20);
    ck_assert(json_is_null(json_object_get(json_object_get(root, "seed"), "value")));
    ck_assert(json_is_true(json_object_get(json_object_get(root, "overlap"), "value")));
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(root, "run-dir"), "value")),
                     "a\"b");
    origin = json_string_value(json_object_get(json_object_get(root, "batch-size"), "origin"));
    ck_assert_str_eq(origin, "--batch-size");
    json_decref(root);
    strbuf_release(&out);
}
END_TEST

static size_t model_distance(const char *a, const char *b)
{
    size_t best;
    size_t other;

    if (*a == '\0' || *b == '\0')
        return strlen(a) + strlen(b);
    best = model_distance(a + 1, b + 1) + (*a != *b);
    other = model_distance(a + 1, b) + 1;
    best = other < best ? other : best;
    other = model_distance(a, b + 1) + 1;
    return other < best ? other : best;
}

START_TEST(nearest_model)
{
    for (int round = 0; round < 3000; round++) {
        char words[4][9];
        const char *names[3] = {words[1], words[2], words[3]};
        const char *expected = NULL;
        size_t limit;

        for (int w = 0; w < 4; w++) {
            size_t length = (size_t)random_int(7);

            for (size_t i = 0; i < length; i++)
                words[w][i] = (char)('a' + random_int(3));
            words[w][length] = '\0';
        }
        limit = (strlen(words[0]) + 1) / 3;
        for (int i = 0; i < 3 && *words[0]; i++) {
            size_t distance = model_distance(words[0], names[i]);

            if (distance < limit || (distance == limit && !expected)) {
                expected = names[i];
                limit = distance;
            }
        }
        ck_assert_ptr_eq(option_nearest(words[0], names, 3), expected);
    }
}
END_TEST

START_TEST(nearest_examples)
{
    static const char *const names[] = {"batch-size", "rank", "world-size", "x"};
    char long_word[200];

    memset(long_word, 'a', sizeof(long_word) - 1);
    long_word[sizeof(long_word) - 1] = '\0';
    ck_assert_str_eq(option_nearest("batch_siez", names, 4), "batch-size");
    ck_assert_str_eq(option_nearest("worldsize", names, 4), "world-size");
    ck_assert_str_eq(option_nearest("rnk", names, 4), "rank");
    ck_assert_ptr_null(option_nearest("ring", names, 4));
    ck_assert_ptr_null(option_nearest("", names, 4));
    ck_assert_ptr_null(option_nearest(long_word, names, 4));
    ck_assert_ptr_null(option_nearest("rank", names, 0));
}
END_TEST

/* Every allocation in turn fails: the error is clear and nothing leaks (under asan). */
START_TEST(no_memory)
{
    size_t n = 1;
    enum status status;

    do {
        (void)support_write("run.yaml", "seed: 1\nbatch-size: 2\n", 22);
        reset();
        {
            char name[] = "x";
            char flag[] = "--config";
            char path[512];
            char *argv[] = {name, flag, path};

            (void)snprintf(path, sizeof(path), "%s/run.yaml", support_folder());
            mem_fail_nth(n++);
            status = option_parse(&set, 3, argv, &got, &result, &err);
            mem_fail_nth(0);
        }
        ck_assert(status == STATUS_OK || status == STATUS_NO_MEMORY);
    } while (status != STATUS_OK && n < 100);
    ck_assert_uint_gt(n, 8);
    ck_assert_uint_lt(n, 100);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "option", 0, TEST(defaults), TEST(command_line_forms), TEST(positionals), TEST(priorities),
        TEST(aliases), LOOP_TEST(bad_command_line, 0, sizeof(bad_words) / sizeof(bad_words[0])),
        TEST(text_too_long), LOOP_TEST(bad_file, 0, sizeof(bad_files) / sizeof(bad_files[0])),
        TEST(missing_file), TEST(bad_environment), TEST(help_text),
        TEST(help_and_version_on_stdout), TEST(full_stdout), TEST(config_example),
        TEST(config_round_trip), TEST(json_text), TEST(nearest_model), TEST(nearest_examples),
        TEST(no_memory));
}
