/*
 * experiments/bundle: the folder that it makes, moved, runs an experiment and its report on a host
 * with glibc alone; it refuses unsuitable folders and glibc versions.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS      100000
#define NO_ROOT_HERE 77 /* bare_host: no namespaces for this user */

static const char experiment[] =
    "title: a bundle's match\n"
    "nproc: 2\n"
    "repeats: 1\n"
    "verdict: none\n"
    "deadline: 60\n"
    "options: {model: mlp:784-16-10, data: digits, samples: 640, steps: 20, batch-size: "
    "16, evaluate: never}\n"
    "modes:\n"
    "  - {name: shm, options: {sync: allreduce, backend: shm}}\n"
    "  - {name: ring, options: {sync: allreduce, backend: ring}}\n"
    "  - {name: ps, servers: 1, options: {sync: ps}}\n"
    "  - {name: ps-grpc, servers: 1, options: {sync: ps, ps-transport: "
    "grpc}}\n";

/* The build folder that holds SPARRING_BIN. */
static const char *build_folder(void)
{
    char *path = strdup(support_program(".."));

    ck_assert_ptr_nonnull(path);
    return path;
}

static bool has_file(const char *folder, const char *name)
{
    char path[1024];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, R_OK) == 0;
}

/* Run the experiment in a bare root where one can be made, else with an empty environment. */
static void run_experiment(const char *bundle)
{
    const char *bare = support_source("tests/experiments/bundle/bare_host");
    char program[600];
    char file[600];
    char out[600];
    struct process p;
    int code;

    process_start(&p, NULL,
                  ARGS(bare, bundle, "/bundle/bin/sparring", "compare", "/bundle/match.yaml",
                       "--out", "/bundle/match"));
    code = process_wait(&p, WAIT_MS);
    if (code != NO_ROOT_HERE) {
        ck_assert_msg(code == 0, "exit code %d: %s", code, process_output(&p));
        return;
    }
    (void)printf("skipped: a root of its own: this user may make none; the environment is empty\n");
    (void)snprintf(program, sizeof(program), "%s/bin/sparring", bundle);
    (void)snprintf(file, sizeof(file), "%s/match.yaml", bundle);
    (void)snprintf(out, sizeof(out), "%s/match", bundle);
    (void)process_run(0, WAIT_MS, NULL,
                      ARGS("/usr/bin/env", "-i", program, "compare", file, "--out", out));
}

START_TEST(test_a_moved_bundle_needs_glibc_alone)
{
    const char *made = support_path("made");
    const char *moved = support_path("moved");
    const char *output =
        process_run(0, WAIT_MS, NULL,
                    ARGS(support_source("experiments/bundle"), made, "--build", build_folder()));
    FILE *file;
    char path[600];

    ck_assert_ptr_nonnull(strstr(output, "libgrpc.so"));
    ck_assert_ptr_nonnull(strstr(output, "left to the host, glibc: ld-linux"));
    ck_assert_ptr_nonnull(strstr(output, "needs glibc 2."));
    ck_assert(has_file(made, "Containerfile"));
    ck_assert(has_file(made, "share/sparring/sparring.protoset"));
    ck_assert(has_file(made, "share/sparring/experiments/stragglers.delays"));
    ck_assert(has_file(made, "share/sparring/experiments/peers/torch_train.py"));
    ck_assert_int_eq(rename(made, moved), 0);
    (void)snprintf(path, sizeof(path), "%s/match.yaml", moved);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(experiment, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    run_experiment(moved);
    ck_assert(has_file(moved, "match/report.json"));
    ck_assert(process_shell(
        "[ $(grep -l '\"status\": *\"ok\"' '%s'/match/runs/*/summary.json | wc -l) -eq 4 ]",
        moved));
}
END_TEST

START_TEST(test_what_is_refused)
{
    const char *program = support_source("experiments/bundle");
    const char *full = support_path("full");
    const char *prefix = support_path("prefix"); /* where an installation is */
    const char *output;

    ck_assert(process_shell("mkdir '%s' && touch '%s/thesis.tex'", full, full));
    output = process_run(1, WAIT_MS, NULL, ARGS(program, full, "--build", build_folder()));
    ck_assert_ptr_nonnull(strstr(output, "neither empty nor a bundle"));
    ck_assert(has_file(full, "thesis.tex"));
    ck_assert(process_shell("mkdir -p '%s'/bin '%s'/share/doc && touch '%s'/bin/sparring "
                            "'%s'/share/doc/theirs",
                            prefix, prefix, prefix, prefix));
    output = process_run(1, WAIT_MS, NULL, ARGS(program, prefix, "--build", build_folder()));
    ck_assert_ptr_nonnull(strstr(output, "neither empty nor a bundle"));
    ck_assert(has_file(prefix, "bin/sparring") && has_file(prefix, "share/doc/theirs"));
    output = process_run(
        1, WAIT_MS, NULL,
        ARGS("/usr/bin/env", "-C", support_folder(), program, "full", "--build", build_folder()));
    ck_assert_msg(strstr(output, full) && strstr(output, "neither empty"),
                  "a relative folder is not the caller's: %s", output);
    output = process_run(
        1, WAIT_MS, NULL,
        ARGS(program, support_path("old"), "--build", build_folder(), "--glibc", "2.17"));
    ck_assert_ptr_nonnull(strstr(output, "glibc 2.17 does not do for"));
    ck_assert_ptr_nonnull(strstr(output, "bin/sparring-worker (2.3"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program));
    ck_assert_ptr_nonnull(strstr(output, "which folder"));
    output = process_run(1, WAIT_MS, NULL, ARGS(program, support_path("x"), "--build", full));
    ck_assert_ptr_nonnull(strstr(output, "is no build folder"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("bundle", 200, TEST(test_a_moved_bundle_needs_glibc_alone),
                       TEST(test_what_is_refused));
}
