/*
 * `sparring report` from the command line: options after arguments, wrong arguments, unwritable
 * folders, a full disk.
 */
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/option/arguments.h"
#include "experiments/report/report.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/command.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct error err;

/* Run report_main with stdout and stderr in files; their texts stay readable until the next call.
 */
static char *output;
static char *errors;

static int run_report(char *first, char *second, char *third)
{
    char name[] = "report";
    char *argv[] = {name, first, second, third, NULL};

    return command_run(report_main, argv, &output, &errors);
}

static void release_output(void)
{
    free(output);
    free(errors);
    output = errors = NULL;
}

static void assert_has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "'%s' lacks '%s'", text, part);
}

static char *mutable_word(const char *text)
{
    static char words[16][4096];
    static unsigned next;
    char *copy = words[next++ % 16];

    (void)snprintf(copy, sizeof(words[0]), "%s", text);
    return copy;
}

START_TEST(test_report_into_its_own_folder)
{
    char *folder = mutable_word(synthetic_experiment("m", 6));

    ck_assert_int_eq(run_report(folder, NULL, NULL), 0);
    assert_has(output, "On this host, over loopback: ring all-reduce has 1.42x");
    assert_has(output, "/m/report.html\n");
    ck_assert_int_eq(access(support_path("m/report.html"), R_OK), 0);
    for (const char *line = output; *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 80 || strncmp(line, "report: ", 8) == 0, "'%s'", line);
    release_output();
}
END_TEST

static void write_design(const char *folder, const char *ranks)
{
    struct design design = design_default();

    design.blocks = 6;
    design.pairs[0] = (struct design_pair){{"ring", "ps-1"}};
    design.pair_count = 1;
    (void)snprintf(design.sweep, sizeof(design.sweep), "%s", "Of %n & more");
    (void)snprintf(design.axes[0].name, sizeof(design.axes[0].name), "nproc");
    (void)snprintf(design.axes[0].value, sizeof(design.axes[0].value), "%s", ranks);
    design.axis_count = 1;
    assert_ok(file_make_folder(folder, &err));
    assert_ok(design_write(folder, &design, &err));
}

/* Two cells with runs, and one that was stopped before its first. */
START_TEST(test_sweep)
{
    char *sweep = mutable_word(support_path("sweep"));
    char *page;
    size_t size;

    write_design(synthetic_experiment("sweep/cells/nproc=4", 6), "4");
    write_design(synthetic_experiment("sweep/cells/nproc=16", 6), "16");
    write_design(support_path("sweep/cells/nproc=64"), "64");
    ck_assert_int_eq(run_report(sweep, NULL, NULL), 0);
    assert_has(output, "nproc=4: ring all-reduce 1.42 (");
    assert_has(output, "nproc=64: too few blocks: ring, ps-1\n");
    ck_assert(strstr(output, "nproc=4:") < strstr(output, "nproc=16:"));
    assert_has(output, "/sweep/index.html\n");
    assert_ok(file_read(support_path("sweep/index.html"), 1 << 22, &page, &size, &err));
    assert_has(page, "<h1>Of %n &amp; more</h1>");
    assert_has(page, "<h3>Throughput over nproc</h3>");
    assert_has(page, "linear scaling");
    assert_has(page, ">efficiency<");
    assert_has(page, ">100 %<"); /* with the fewest ranks */
    assert_has(page, ">25 %<");  /* as fast with four times as many */
    assert_has(page, "href=\"cells/nproc=16/report.html\"");
    ck_assert_ptr_null(strstr(page, "href=\"cells/nproc=64"));
    free(page);
    ck_assert_int_eq(access(support_path("sweep/cells/nproc=16/report.html"), R_OK), 0);
    ck_assert_int_eq(run_report(sweep, mutable_word("--price"), mutable_word("3")), 2);
    assert_has(errors, "is a sweep, whose report goes there");
    (void)support_write("sweep/cells/nproc=64/design.json", "{}", 2);
    ck_assert_int_eq(run_report(sweep, NULL, NULL), 3);
    assert_has(errors, "sweep/cells/nproc=64/design.json:1:");
    release_output();
}
END_TEST

START_TEST(test_options_after_arguments)
{
    char *folder = mutable_word(synthetic_experiment("m", 3));
    char *out = mutable_word(support_path("elsewhere/deep"));

    ck_assert_int_eq(run_report(folder, mutable_word("--out"), out), 0);
    ck_assert_int_eq(access(support_path("elsewhere/deep/report.json"), R_OK), 0);
    release_output();
}
END_TEST

START_TEST(test_wrong_arguments)
{
    ck_assert_int_eq(run_report(NULL, NULL, NULL), 2);
    assert_has(errors, "no run directory given");
    ck_assert_int_eq(run_report(mutable_word("--oot"), mutable_word("x"), NULL), 2);
    assert_has(errors, "did you mean");
    ck_assert_int_ne(run_report(mutable_word("/nowhere/at/all"), NULL, NULL), 0);
    assert_has(errors, "/nowhere/at/all");
    ck_assert_int_eq(run_report(mutable_word("--help"), NULL, NULL), 0);
    assert_has(output, "--out");
    ck_assert_int_eq(run_report(mutable_word("--out=x"), mutable_word("--print-config"), NULL), 0);
    assert_has(output, "out: x       # --out\n");
    release_output();
}
END_TEST

START_TEST(test_malformed_run_is_reported)
{
    char *folder = mutable_word(synthetic_experiment("m", 3));

    synthetic_append(support_path("m/runs/ps-1-2"), "rank0.jsonl", "oops\n");
    ck_assert_int_eq(run_report(folder, NULL, NULL), 3);
    assert_has(errors, "/runs/ps-1-2/rank0.jsonl:65: not JSON");
    ck_assert_int_ne(access(support_path("m/report.html"), F_OK), 0);
    release_output();
}
END_TEST

START_TEST(test_unwritable_folder)
{
    char *folder = mutable_word(synthetic_experiment("m", 3));
    char *out = mutable_word(support_write("file", "x", 1));

    ck_assert_int_eq(run_report(folder, mutable_word("--out"), out), 1);
    assert_has(errors, "/file/report.md");
    (void)strncat(out, "/below", 8);
    ck_assert_int_eq(run_report(folder, mutable_word("--out"), out), 1);
    assert_has(errors, "cannot make folder");
    ck_assert_int_eq(run_report(folder, mutable_word("--out"), mutable_word("/proc/sparring")), 1);
    assert_has(errors, "/proc/sparring");
    release_output();
}
END_TEST

static unsigned count_files(const char *folder)
{
    DIR *stream = opendir(folder);
    const struct dirent *entry;
    unsigned count = 0;

    ck_assert_ptr_nonnull(stream);
    while ((entry = readdir(stream)) != NULL)
        count += entry->d_name[0] != '.';
    ck_assert_int_eq(closedir(stream), 0);
    return count;
}

/* A limit of 4 KiB per file simulates a full disk: the write stops half way.  Check writes files,
 * too, so the limit is set for the one call only. */
START_TEST(test_full_disk)
{
    struct report report = {0};
    struct rlimit before;
    struct rlimit limit;
    const char *path = synthetic_experiment("m", 3);
    const char *out = support_path("out");
    char problem[512];
    enum status status;

    assert_ok(report_read(&report, &path, 1, &err));
    ck_assert_int_eq(setenv("PATH", "", 1), 0);
    ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){4096, before.rlim_max};
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    status = report_write(&report, out, "c", problem, sizeof(problem), &err);
    (void)setrlimit(RLIMIT_FSIZE, &before);
    assert_fails(status, STATUS_NO_SPACE, "cannot write '");
    assert_has(err.text, "/out/report.");
    ck_assert_uint_le(count_files(out), 1); /* whole ones only, no temporary */
    ck_assert_int_ne(access(support_path("out/report.html"), F_OK), 0);
    report_release(&report);
}
END_TEST

START_TEST(test_permuted_arguments)
{
    static const struct option_spec specs[] = {
        {.name = "out", .kind = OPTION_TEXT},
        {.name = "dry-run", .kind = OPTION_BOOL},
        {0},
    };
    static const struct option_set set = {.tables = {{specs, 0}}};
    char *argv[] = {mutable_word("report"), mutable_word("a"), mutable_word("--dry_run"),
                    mutable_word("b"), NULL};
    static char out[] = "--out";
    static char value[] = "V";
    static char dashes[] = "--";
    static char odd[] = "--c";
    char *more[] = {argv[0], argv[1], out, value, argv[2], argv[3], dashes, odd, NULL};
    static const char *const wanted[] = {"report", "--out", "V", "--dry_run",
                                         "--",     "a",     "b", "--c"};
    char **words = NULL;
    size_t count = 0;

    assert_ok(arguments_permute(&set, 8, more, &words, &err));
    for (; words[count]; count++)
        ck_assert_str_eq(words[count], wanted[count]);
    ck_assert_uint_eq(count, 8);
    free(words);
}
END_TEST

START_TEST(test_wrapping_and_shell_words)
{
    struct strbuf text = STRBUF_INIT;

    report_add_wrapped(&text,
                       "aaaaaaaaa aaaaaaaaa aaaaaaaaa aaaaaaaaa aaaaaaaaa aaaaaaaaa "
                       "aaaaaaaaa aaaaaaaaa b c",
                       0);
    ck_assert_str_eq(text.text, "aaaaaaaaa aaaaaaaaa aaaaaaaaa aaaaaaaaa aaaaaaaaa aaaaaaaaa "
                                "aaaaaaaaa aaaaaaaaa\nb c\n");
    strbuf_reset(&text);
    report_add_wrapped(&text, "a\n b", 2);
    ck_assert_str_eq(text.text, "  a b\n");
    strbuf_reset(&text);
    strbuf_add_shell_word(&text, "plain-1.2/x");
    strbuf_add_shell_word(&text, "it's $HOME");
    strbuf_add_shell_word(&text, "");
    ck_assert_str_eq(text.text, "plain-1.2/x'it'\\''s $HOME'''");
    strbuf_release(&text);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report command", 100, TEST(test_report_into_its_own_folder),
                       TEST(test_sweep), TEST(test_options_after_arguments),
                       TEST(test_wrong_arguments), TEST(test_malformed_run_is_reported),
                       TEST(test_unwritable_folder), TEST(test_full_disk),
                       TEST(test_permuted_arguments), TEST(test_wrapping_and_shell_words));
}
