/*
 * `sparring export`: an archive of a sweep is checked elsewhere, and everything that was changed in
 * it is found.
 */
#include "common/base/file.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 120000

static const char sweep[] =
    "repeats: 1\n"
    "verdict: none\n"
    "deadline: 60\n"
    "axes: {batch-size: [8, 16]}\n"
    "options: {model: 'mlp:784-16-10', data: digits, samples: 320, steps: 8, threads: 1}\n"
    "modes:\n"
    "- {name: ring, options: {sync: allreduce, backend: ring}}\n"
    "- {name: control, options: {sync: local}}\n";

/* Run a shell script in the test's folder. */
static void run_shell(const char *script)
{
    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS("sh", "-euc", "cd \"$1\"; eval \"$2\"", "sh", support_folder(), script));
}

static const char *run_export(int code, const char *path, const char *out, const char *option)
{
    return process_run(code, TIMEOUT_MS, NULL,
                       ARGS(support_program("sparring"), "export", support_path(path), "--out",
                            support_path(out), option));
}

static void make_archive(void)
{
    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS(support_program("sparring"), "compare",
                           support_write("sweep.yaml", sweep, strlen(sweep)), "--out",
                           support_path("sweep")));
    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS(support_program("sparring"), "export", support_path("sweep")));
}

START_TEST(test_there_and_back)
{
    const char *printed;

    make_archive();
    run_shell("mv sweep there; mkdir elsewhere; mv sweep.tar.gz elsewhere");
    printed = process_run(0, TIMEOUT_MS, NULL,
                          ARGS(support_program("sparring"), "export", "--check",
                               support_path("elsewhere/sweep.tar.gz")));
    ck_assert_msg(strstr(printed, "as they were packed; the reports have the same figures"), "%s",
                  printed);
    run_shell("cd elsewhere/sweep; sha256sum --check --quiet SHA256SUMS; cp SHA256SUMS ../..");
    (void)run_export(0, "elsewhere/sweep", "again.tar.gz", NULL);
    run_shell("mkdir again; tar -xzf again.tar.gz -C again; diff SHA256SUMS again/SHA256SUMS; "
              "rm again/SHA256SUMS; diff -r there again");
}
END_TEST

#define SUM_AGAIN                                                                                  \
    "; find . -type f ! -name SHA256SUMS ! -name sums | xargs -d '\\n' sha256sum > sums; "         \
    "mv sums SHA256SUMS"

static const struct {
    const char *change; /* in the unpacked folder */
    const char *message;
} changes[] = {
    {"sed -i s/step/stop/ cells/*/runs/ring-0/rank0.jsonl", "a file is not what was packed"},
    {"rm cells/batch-size=8/report.csv", "a file is not what was packed"},
    {"echo more > more", "it has files without a sum"},
    {"ln -s /etc/passwd link", "./link is neither file nor folder"},
    {"echo '0000000000000000000000000000000000000000000000000000000000000000  /dev/zero' >> "
     "SHA256SUMS",
     "SHA256SUMS names a file outside the archive"},
    {"sed -i '1s|[.]/|./../../|' SHA256SUMS", "SHA256SUMS names a file outside the archive"},
    {"rm SHA256SUMS", "there is no SHA256SUMS in it"},
    {"sed -i s/ring/wing/ cells/*/report.csv" SUM_AGAIN,
     "the report that is made here has other figures"},
    {"find . -name '*.csv' -delete" SUM_AGAIN, "there is no report in it"},
};

START_TEST(test_changed)
{
    make_archive();
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        char script[2048];
        const char *printed;

        (void)snprintf(script, sizeof(script),
                       "rm -rf bad unpacked; mkdir bad; tar -xzf sweep.tar.gz -C bad; cd bad; %s; "
                       "cd ..; tar -czf bad.tar.gz -C bad .",
                       changes[i].change);
        run_shell(script);
        printed = run_export(3, "bad.tar.gz", "unpacked", "--check");
        ck_assert_msg(strstr(printed, changes[i].message), "%s", printed);
    }
}
END_TEST

START_TEST(test_refused)
{
    make_archive();
    run_shell("head -c 2000 sweep.tar.gz > short.tar.gz; mkdir empty taken");
    ck_assert_ptr_nonnull(
        strstr(run_export(3, "short.tar.gz", "unpacked", "--check"), "it is no whole archive"));
    ck_assert_ptr_nonnull(strstr(run_export(1, "empty", "x.tar.gz", NULL),
                                 "is not the folder of 'sparring compare'"));
    ck_assert_ptr_nonnull(
        strstr(run_export(1, "sweep.tar.gz", "taken", "--check"), "cannot make '"));
    ck_assert_ptr_nonnull(strstr(run_export(1, "none", "x.tar.gz", NULL), "none': No such"));
    ck_assert_ptr_nonnull(strstr(
        process_run(2, TIMEOUT_MS, NULL,
                    ARGS(support_program("sparring"), "export", "--check", support_path("sweep"))),
        "does not end in .tar.gz"));
}
END_TEST

/* What is in them: tests/experiments/export/read_events. */
START_TEST(test_tensorboard)
{
    const char *run = support_path("run"), *out = support_path("run/tensorboard");
    const char *printed;

    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS(support_program("sparring"), "launch", "--standalone",
                           "--nproc-per-node", "2", "--run-dir", run, "--", "sparring-worker",
                           "--model", "mlp:784-16-10", "--data", "digits", "--samples", "320",
                           "--batch-size", "16", "--epochs", "3", "--lr", "0.25", "--shuffle=false",
                           "--threads", "1"));
    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS(support_program("sparring"), "export", run, "--tensorboard"));
    (void)printf(
        "%s", process_run(0, TIMEOUT_MS, NULL,
                          ARGS(support_python(),
                               support_source("tests/experiments/export/read_events"), run, out)));
    printed = process_run(1, TIMEOUT_MS, NULL,
                          ARGS(support_program("sparring"), "export", run, "--tensorboard"));
    assert_contains(printed, "File exists");
    printed = process_run(
        1, TIMEOUT_MS, NULL,
        ARGS(support_program("sparring"), "export", run, "--tensorboard", "--out", "/dev/full/x"));
    assert_contains(printed, "/dev/full");
    (void)process_run(2, TIMEOUT_MS, NULL,
                      ARGS(support_program("sparring"), "export", run, "--tensorboard", "--check"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("export", 120, TEST(test_there_and_back), TEST(test_changed),
                       TEST(test_refused), TEST(test_tensorboard));
}
