/*
 * `sparring bench allreduce`: small runs as a user starts them, ranks and parents that die, and the
 * arithmetic between a record and a row.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/parse.h"
#include "experiments/bench/bench_allreduce.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#define WAIT_MS        60000
#define TEST_TIMEOUT_S 120

static double number(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);

    ck_assert_msg(json_is_number(value), "no number '%s'", name);
    return json_number_value(value);
}

/* ---- runs ---- */

static void check_row(const json_t *row, const char *backend, double ranks)
{
    double time_us = number(row, "time_us");

    ck_assert_pstr_eq(json_string_value(json_object_get(row, "backend")), backend);
    ck_assert_double_gt(time_us, 0);
    ck_assert_double_le(number(row, "time_us_min"), time_us);
    ck_assert_double_ge(number(row, "time_us_max"), time_us);
    ck_assert_double_eq_tol(number(row, "algbw") * time_us, number(row, "bytes") * 1e-3,
                            1e-6 * number(row, "bytes"));
    if (strcmp(backend, "ring") != 0)
        return;
    ck_assert_double_eq_tol(number(row, "busbw") / number(row, "algbw"), 2 * (ranks - 1) / ranks,
                            1e-6);
    ck_assert(number(row, "wrong") == 0);
}

START_TEST(a_small_run_gives_rows_and_a_file)
{
    static const char *const names[] = {"ring", "ceiling-tcp", "ceiling-memcpy"};
    const char *order = _i == 0 ? "fast" : "reproducible";
    const char *file = support_path("allreduce.json");
    const char *output =
        process_run(0, WAIT_MS, NULL,
                    ARGS(support_program("sparring"), "bench", "allreduce", "--backend", "ring",
                         "--nproc", "3", "--min-bytes", "4K", "--max-bytes", "70000", "--rounds",
                         "3", "--iterations", "5", "--order", order, "--json", file));
    json_t *report = json_load_file(file, 0, NULL);
    const json_t *rows = json_object_get(report, "rows");

    ck_assert_ptr_nonnull(strstr(output, "# Out of bounds values : 0 OK"));
    ck_assert_ptr_nonnull(strstr(output, "Avg bus bandwidth"));
    ck_assert_uint_eq(json_array_size(rows), 3 * 3); /* 4, 16 and 64 KiB */
    for (size_t i = 0; i < 9; i++) {
        check_row(json_array_get(rows, i), names[i % 3], 3);
        ck_assert(number(json_array_get(rows, i), "bytes") == 4096 << (2 * (i / 3)));
    }
    json_decref(report);
}
END_TEST

START_TEST(gloo_takes_turns_with_the_ring)
{
    const char *output;

    if (!collective_backends()[1])
        return; /* not in this build */
    output = process_run(0, WAIT_MS, NULL,
                         ARGS(support_program("sparring"), "bench", "allreduce", "--min-bytes",
                              "64K", "--max-bytes", "64K", "--rounds", "2", "--ceiling=false"));
    ck_assert_ptr_nonnull(strstr(output, "ring\n"));
    ck_assert_ptr_nonnull(strstr(output, "gloo\n"));
    ck_assert_ptr_null(strstr(output, "ceiling"));
}
END_TEST

START_TEST(bad_words_are_refused)
{
    static const char *const bad[][3] = {
        {"--backend", "rong", "no backend 'rong'"},
        {"--backend", ",", "names no backend"},
        {"--min-bytes", "4098", "multiple of 4"},
        {"--max-bytes", "1K", "at most --max-bytes"},
        {"--iterations", "some", "neither auto nor a number"},
        {"--nproc", "1", "nproc"},
        {"--as-rank", "1", "as-rank"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const char *output = process_run(
            2, WAIT_MS, NULL,
            ARGS(support_program("sparring"), "bench", "allreduce", bad[i][0], bad[i][1]));

        ck_assert_msg(strstr(output, bad[i][2]) != NULL, "%s", output);
    }
}
END_TEST

/* ---- deaths ---- */

static pid_t parent_of(const char *pid)
{
    char path[64];
    char line[512] = "";
    const char *after;
    FILE *f;
    long parent = 0;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    f = fopen(path, "re");
    if (!f)
        return 0; /* ended meanwhile */
    if (fgets(line, sizeof(line), f)) {
        after = strrchr(line, ')'); /* the command may hold anything */
        if (after)
            parent = strtol(after + 4, NULL, 10); /* ") S 123" */
    }
    (void)fclose(f);
    return (pid_t)parent;
}

/* The children of a process, `wanted` of them. */
static void find_children(pid_t parent, pid_t *children, size_t wanted)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry;
    size_t found = 0;

    ck_assert_ptr_nonnull(processes);
    while (found < wanted && (entry = readdir(processes)) != NULL) {
        uint64_t pid;

        if (parse_uint64(entry->d_name, &pid) && parent_of(entry->d_name) == parent)
            children[found++] = (pid_t)pid;
    }
    (void)closedir(processes);
    ck_assert_uint_eq(found, wanted);
}

/* A run that would take minutes, in the middle of its measurements. */
static void start_long_run(struct process *p)
{
    static char folder[300];

    /* A parent that is killed cannot remove its folder: keep it in the test's. */
    (void)snprintf(folder, sizeof(folder), "TMPDIR=%s", support_folder());
    process_start(p, ARGS(folder),
                  ARGS(support_program("sparring"), "bench", "allreduce", "--backend", "ring",
                       "--nproc", "3", "--rounds", "1000", "--iterations", "1", "--min-bytes", "4K",
                       "--max-bytes", "256M", "--ceiling=false"));
    process_wait_output(p, "  ring\n", WAIT_MS);
}

START_TEST(a_dead_rank_fails_the_bench)
{
    struct process p;
    pid_t ranks[3];
    int code;

    start_long_run(&p);
    find_children(p.pid, ranks, 3);
    ck_assert_int_eq(kill(ranks[1], SIGKILL), 0);
    code = process_wait(&p, WAIT_MS);
    ck_assert_msg(code == 1, "%s", process_output(&p));
    ck_assert_msg(strstr(process_output(&p), "was killed by signal 9") ||
                      strstr(process_output(&p), "ended with exit code"),
                  "%s", process_output(&p));
}
END_TEST

START_TEST(ranks_die_with_their_parent)
{
    struct process p;
    pid_t ranks[3];
    struct pollfd ended[3];

    start_long_run(&p);
    find_children(p.pid, ranks, 3);
    for (size_t r = 0; r < 3; r++) {
        ended[r] = (struct pollfd){.fd = pidfd_open(ranks[r], 0), .events = POLLIN};
        ck_assert_int_ge(ended[r].fd, 0);
    }
    process_signal(&p, SIGKILL);
    (void)process_wait(&p, WAIT_MS);
    for (size_t r = 0; r < 3; r++) {
        ck_assert_int_eq(poll(&ended[r], 1, WAIT_MS), 1);
        (void)close(ended[r].fd);
    }
}
END_TEST

START_TEST(a_signal_stops_the_bench_in_order)
{
    struct process p;

    start_long_run(&p);
    process_signal(&p, SIGINT);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 6);
    ck_assert_ptr_nonnull(strstr(process_output(&p), "stopped by a signal"));
}
END_TEST

/* ---- figures ---- */

START_TEST(wrong_elements_are_counted)
{
    float data[1000];

    for (size_t i = 0; i < 1000; i++) {
        data[i] = 0;
        for (unsigned r = 0; r < 4; r++)
            data[i] += allreduce_value(r, i);
    }
    ck_assert_uint_eq(allreduce_count_wrong(data, 1000, 4), 0);
    data[0] += 1;
    data[500] = NAN;
    data[999] = nextafterf(data[999], 0);
    ck_assert_uint_eq(allreduce_count_wrong(data, 1000, 4), 3);
    ck_assert_uint_gt(allreduce_count_wrong(data, 1000, 3), 900);
}
END_TEST

START_TEST(wrong_elements_fail_the_bench)
{
    struct error err = {0};
    struct allreduce_options options = {.nproc = 4, .order = "fast", .rounds = 1};
    struct series_list list = {.series = {{SERIES_BACKEND, "ring"}}, .length = 1};
    struct allreduce_record record = {
        .bytes = 8, .iterations = 1, .rounds = 1, .seconds = {1, 1e-6, 1e-6, 1e-6}};
    struct allreduce_table table;

    allreduce_table_open(&table, &options, &list);
    allreduce_table_add(&table, &record);
    assert_ok(allreduce_table_close(&table, &err));
    allreduce_table_open(&table, &options, &list);
    record.wrong = 2;
    allreduce_table_add(&table, &record);
    assert_fails(allreduce_table_close(&table, &err), STATUS_DATA, "2 elements");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_allreduce");
    TCase *runs = tcase_create("runs");
    TCase *figures = tcase_create("figures");

    tcase_set_timeout(runs, TEST_TIMEOUT_S);
    tcase_add_loop_test(runs, a_small_run_gives_rows_and_a_file, 0, 2);
    tcase_add_test(runs, gloo_takes_turns_with_the_ring);
    tcase_add_test(runs, bad_words_are_refused);
    tcase_add_test(runs, a_dead_rank_fails_the_bench);
    tcase_add_test(runs, ranks_die_with_their_parent);
    tcase_add_test(runs, a_signal_stops_the_bench_in_order);
    suite_add_tcase(suite, runs);
    tcase_add_test(figures, wrong_elements_are_counted);
    tcase_add_test(figures, wrong_elements_fail_the_bench);
    suite_add_tcase(suite, figures);
    return support_run(suite);
}
