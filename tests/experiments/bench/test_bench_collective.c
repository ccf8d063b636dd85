/*
 * `sparring bench all_reduce` and the other collectives: small runs from the command line, runs in
 * namespaces, runs with corrupted results, and the values that make every result exact.  Killed
 * ranks and parents: test_bench_deaths.c.
 */
#include "tests/experiments/bench/backends.h"
#include "tests/support/certificate.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "experiments/bench/sweep.h"
#include "experiments/bench/sweep_values.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS        200000 /* longest wait for a process */
#define TEST_TIMEOUT_S 240

static double number_of(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);

    ck_assert_msg(json_is_number(value), "no number '%s'", name);
    return json_number_value(value);
}

static void check_row(const json_t *row, const char *backend, double factor)
{
    double time_us = number_of(row, "time_us");

    ck_assert_pstr_eq(json_string_value(json_object_get(row, "backend")), backend);
    ck_assert_double_gt(time_us, 0);
    ck_assert_double_le(number_of(row, "time_us_min"), time_us);
    ck_assert_double_ge(number_of(row, "time_us_max"), time_us);
    ck_assert_double_eq_tol(number_of(row, "algbw") * time_us, number_of(row, "bytes") * 1e-3,
                            1e-6 * number_of(row, "bytes"));
    if (strncmp(backend, "ceiling", 7) == 0)
        return;
    ck_assert_double_eq_tol(number_of(row, "busbw") / number_of(row, "algbw"), factor, 1e-6);
    ck_assert(number_of(row, "wrong") == 0);
}

/* Rows of one backend and placement, in their order. */
static size_t check_rows(const json_t *report, const char *backend, const char *placement,
                         double factor)
{
    const json_t *rows = json_object_get(report, "rows");
    size_t found = 0;

    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);

        if (strcmp(json_string_value(json_object_get(row, "backend")), backend) != 0 ||
            strcmp(json_string_value(json_object_get(row, "placement")), placement) != 0)
            continue;
        check_row(row, backend, factor);
        found++;
    }
    return found;
}

/* ---- runs ---- */

START_TEST(a_small_run_gives_rows_and_a_file)
{
    static const char *const ceilings[] = {"ceiling-shm", "ceiling-tcp", "ceiling-memcpy"};
    const char *order = _i == 0 ? "fast" : "reproducible";
    const char *file = support_path("allreduce.json");
    const char *output = process_run(
        0, WAIT_MS, NULL,
        ARGS(support_program("sparring"), "bench", _i == 0 ? "allreduce" : "all_reduce",
             "--backend", "ring", "--nproc", "3", "--min-bytes", "4K", "--max-bytes", "70000",
             "--rounds", "3", "--iterations", "5", "--order", order, "--json", file));
    json_t *report = json_load_file(file, 0, NULL);

    ck_assert_ptr_nonnull(strstr(output, "# Out of bounds values : 0 OK"));
    ck_assert_ptr_nonnull(strstr(output, "Avg bus bandwidth"));
    ck_assert_uint_eq(check_rows(report, "ring", "out_of_place", 4.0 / 3), 3); /* 4, 16, 64 KiB */
    ck_assert_uint_eq(check_rows(report, "ring", "in_place", 4.0 / 3), 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(check_rows(report, ceilings[i], "out_of_place", 0), 3);
        ck_assert_uint_eq(check_rows(report, ceilings[i], "in_place", 0), 0);
    }
    json_decref(report);
}
END_TEST

/* The members that scripts for nccl-tests read. */
START_TEST(the_file_has_the_keys_of_nccl_tests)
{
    static const char *const keys[] = {"version",      "start_time", "args",    "env",
                                       "nccl_version", "config",     "devices", "results"};
    static const char *const config_keys[] = {
        "nthreads",     "ngpus",      "minimum_bytes",         "maximum_bytes", "step_factor",
        "warmup_iters", "iterations", "aggregated_iterations", "validation",    "graph"};
    const char *file = support_path("gather.json");
    json_t *report;
    const json_t *result;
    const json_t *times;

    (void)process_run(0, WAIT_MS, NULL,
                      ARGS(support_program("sparring"), "bench", "all_gather", "--backend", "ring",
                           "-b", "4K", "-e4K", "-n", "5", "--rounds", "3", "-I", "-J", file));
    report = json_load_file(file, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(report);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        ck_assert_msg(json_object_get(report, keys[i]) != NULL, "no %s", keys[i]);
    for (size_t i = 0; i < sizeof(config_keys) / sizeof(config_keys[0]); i++)
        ck_assert_msg(json_object_get(json_object_get(report, "config"), config_keys[i]) != NULL,
                      "no %s in config", config_keys[i]);
    ck_assert_uint_eq(json_array_size(json_object_get(report, "devices")), 2);
    result = json_array_get(json_object_get(report, "results"), 0);
    ck_assert(number_of(result, "size") == 4096 && number_of(result, "count") == 512);
    ck_assert_double_gt(number_of(json_object_get(result, "in_place"), "bus_bw"), 0);
    ck_assert_pstr_eq(
        json_string_value(json_object_get(json_object_get(result, "out_of_place"), "nwrong")), "0");
    result = json_object_get(result, "out_of_place_per_iter");
    times = json_object_get(result, "times_us");
    ck_assert_uint_eq(json_array_size(times), 3 * 5);
    ck_assert_double_eq_tol(json_number_value(json_array_get(times, 14)),
                            number_of(result, "max_us"), 1e-3 * number_of(result, "max_us"));
    ck_assert_double_le(number_of(result, "min_us"), number_of(result, "p50_us"));
    ck_assert_double_le(number_of(result, "p50_us"), number_of(result, "p99_us"));
    json_decref(report);
}
END_TEST

START_TEST(gloo_takes_turns_with_the_ring)
{
    const char *output;

    if (!bench_has_backend("gloo"))
        return;
    output = process_run(0, WAIT_MS, NULL,
                         ARGS(support_program("sparring"), "bench", "allreduce", "--backend",
                              "ring,gloo", "--min-bytes", "64K", "--max-bytes", "64K", "--rounds",
                              "2", "--ceiling=false"));
    ck_assert_ptr_nonnull(strstr(output, "ring\n"));
    ck_assert_ptr_nonnull(strstr(output, "gloo\n"));
    ck_assert_ptr_null(strstr(output, "ceiling"));
}
END_TEST

START_TEST(the_ring_over_grpc_takes_tls)
{
    const char *cert, *output;

    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make("node", "ca", "subjectAltName=IP:127.0.0.1");
    for (int missing = 0; missing < 2; missing++) {
        cert = missing ? support_path("none.pem") : certificate_file("node", "pem");
        output = process_run(missing ? 1 : 0, WAIT_MS, NULL,
                             ARGS(support_program("sparring"), "bench", "all_reduce", "--backend",
                                  "grpc", "--nproc", "2", "--min-bytes", "4K", "--max-bytes", "4K",
                                  "--rounds", "2", "--ceiling=false", "--tls-ca",
                                  certificate_file("ca", "pem"), "--tls-cert", cert, "--tls-key",
                                  certificate_file("node", "key")));
        ck_assert_msg(strstr(output, missing ? cert : "grpc") != NULL, "%s", output);
    }
}
END_TEST

/* Every collective, type, operation and root, with more ranks than cores, beside the page. */
START_TEST(collectives_are_right)
{
    static const char *const calls[] = {"all_reduce", "all_gather", "reduce_scatter",
                                        "broadcast",  "reduce",     "gather",
                                        "scatter",    "all_to_all", "sendrecv"};
    const char *output =
        process_run(0, WAIT_MS, NULL,
                    ARGS(support_program("sparring"), "bench", calls[_i], "--backend", "shm,ring",
                         "-g", "3", "-b", "4", "-e", "40000", "-f", "100", "-d", "all", "-o", "all",
                         "-r", "all", "-n", "2", "-w", "0", "--rounds", "1", "--ceiling=false",
                         "-u", "1", "-m", "2", _i % 2 == 0 ? "--fresh" : "--fresh=false"));

    ck_assert_ptr_nonnull(strstr(output, "# Out of bounds values : 0 OK"));
    ck_assert_ptr_nonnull(strstr(output, "shm\n"));
    ck_assert_ptr_nonnull(strstr(output, "ring\n"));
}
END_TEST

/* Open MPI leaks memory in plug-ins that are unloaded when the leaks are listed. */
static const char *const mpi_leaks[] = {"ASAN_OPTIONS=detect_leaks=0", NULL};

START_TEST(mpirun_starts_the_ranks)
{
    const char *output;

    if (!bench_has_backend("mpi"))
        return;
    output = process_run(0, WAIT_MS, mpi_leaks,
                         ARGS(support_program("sparring"), "bench", "all_reduce", "--backend",
                              "mpi,ring", "-g", "3", "-b", "4K", "-e", "4K", "-n", "3", "--rounds",
                              "2"));
    ck_assert_ptr_nonnull(strstr(output, "mpi\n"));
    ck_assert_ptr_nonnull(strstr(output, "ring\n"));
    ck_assert_ptr_nonnull(strstr(output, "ceiling-shm\n"));
    ck_assert_ptr_nonnull(strstr(output, "# Out of bounds values : 0 OK"));
    output = process_run(2, WAIT_MS, NULL,
                         ARGS(support_program("sparring"), "bench", "all_reduce", "--backend",
                              "mpi", "--netns", "2"));
    ck_assert_ptr_nonnull(strstr(output, "mpi cannot be measured between network namespaces"));
}
END_TEST

START_TEST(bad_options_are_refused)
{
    static const char *const bad[][3] = {
        {"--backend", "rong", "no backend 'rong'"},
        {"--backend", ",", "names no backend"},
        {"--max-bytes", "1K", "at most --max-bytes"},
        {"--iterations", "some", "neither auto nor a number"},
        {"--nproc", "1", "nproc"},
        {"--as-rank", "1", "as-rank"},
        {"-d", "float8", "no element type"},
        {"-d", "uint8", "never reduced"},
        {"-o", "median", "no reduction"},
        {"-G", "1", "for GPUs"},
        {"-b", NULL, "'-b' needs a value"},
        {"--rate", "1gbit", "--netns"},
        {"--netns", "3", "2 to --nproc"},
        {"-q", "1", "unknown option '-q'"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const char *output = process_run(
            2, WAIT_MS, NULL,
            ARGS(support_program("sparring"), "bench", "allreduce", bad[i][0], bad[i][1]));

        ck_assert_msg(strstr(output, bad[i][2]) != NULL, "%s", output);
    }
    ck_assert_ptr_nonnull(strstr(
        process_run(2, WAIT_MS, NULL,
                    ARGS(support_program("sparring"), "bench", "broadcast", "-r", "2", "-g", "2")),
        "neither all nor a rank of 2"));
}
END_TEST

/* ---- namespaces ---- */

START_TEST(namespaces_carry_the_ranks)
{
    struct process p;
    const char *output;
    int code;

    process_start(&p, NULL,
                  ARGS(support_program("sparring"), "bench", "all_reduce", "--backend", "ring",
                       "--netns", _i == 0 ? "2" : "3", "-g", _i == 0 ? "2" : "3", "--rate",
                       "500mbit", "--network-check", "warn", "-b", "64K", "-e", "64K", "--rounds",
                       "1", "-n", "2"));
    code = process_wait(&p, WAIT_MS);
    output = process_output(&p);
    if (code == 2 && strstr(output, "emulated hosts take root")) {
        (void)printf("skipped: %s", strstr(output, "emulated hosts take root"));
        return;
    }
    ck_assert_msg(code == 0, "%s", output);
    ck_assert_ptr_nonnull(strstr(output, "hosts, emulated: rate 500mbit"));
    ck_assert_ptr_nonnull(strstr(output, "link%"));
    ck_assert_ptr_nonnull(strstr(output, "# Out of bounds values : 0 OK"));
}
END_TEST

/* ---- figures ---- */

/* For functions that take argv and do not write. */
static char *const *mutable(const char *const *words)
{
    union {
        const char *const *from;
        char *const *to;
    } w = {.from = words};

    return w.to;
}

static float reduce_two(enum reduce_op op, float a, float b)
{
    switch (op) {
    case REDUCE_PROD:
        return a * b;
    case REDUCE_MIN:
        return fminf(a, b);
    case REDUCE_MAX:
        return fmaxf(a, b);
    default:
        return a + b;
    }
}

/* One element reduced along a chain of ranks, rounded to bfloat16 at every hop. */
static void check_chain(const struct sweep_values *v, size_t i, bool ascending)
{
    uint16_t rounded = 0;
    float all = 0;

    for (unsigned hop = 0; hop < v->world_size; hop++) {
        unsigned rank = ascending ? hop : v->world_size - 1 - hop;
        float mine = (float)sweep_value(v, rank, i);

        if (v->op == REDUCE_AVG)
            mine *= 1 / (float)v->world_size;
        if (v->op == REDUCE_PREMUL_SUM)
            mine *= (float)sweep_factor(rank);
        all = hop == 0 ? mine : reduce_two(v->op, all, mine);
        cast_from_float32(DTYPE_BFLOAT16, &rounded, &all, 1);
        cast_to_float32(DTYPE_BFLOAT16, &all, &rounded, 1);
    }
    ck_assert_uint_eq(sweep_values_wrong(v, &rounded, v->world_size, i, 1), 0);
}

/* The tables against reductions computed here, with every operation and odd numbers of ranks. */
START_TEST(values_are_exact_in_any_order)
{
    static const unsigned worlds[] = {2, 3, 7, 16, 64};
    struct error err = {0};

    for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++)
        for (unsigned op = 0; op < REDUCE_OP_COUNT; op++) {
            struct sweep_values v;

            assert_ok(sweep_values_open(&v, DTYPE_BFLOAT16, (enum reduce_op)op, worlds[w], &err));
            for (size_t i = 0; i < VALUES_PERIOD; i++) {
                check_chain(&v, i, true);
                check_chain(&v, i, false);
            }
            sweep_values_release(&v);
        }
}
END_TEST

START_TEST(wrong_elements_are_counted)
{
    struct error err = {0};
    struct sweep_values v;
    float data[3000];

    assert_ok(sweep_values_open(&v, DTYPE_FLOAT32, REDUCE_SUM, 4, &err));
    sweep_values_fill(&v, data, 4, 77, 3000);
    ck_assert_uint_eq(sweep_values_wrong(&v, data, 4, 77, 3000), 0);
    data[0] += 1;
    data[1500] = NAN;
    data[2999] = nextafterf(data[2999], 0);
    ck_assert_uint_eq(sweep_values_wrong(&v, data, 4, 77, 3000), 3);
    ck_assert_uint_gt(sweep_values_wrong(&v, data, 4, 78, 3000), 2900);
    ck_assert_uint_gt(sweep_values_wrong(&v, data, 4, 77 + 4096, 3000), 2900);
    ck_assert_uint_gt(sweep_values_wrong(&v, data, 3, 77, 3000), 2900);
    sweep_values_release(&v);
}
END_TEST

/* Used by the rank processes of the next test, which run this program again. */
static void corrupt(void *output, size_t bytes)
{
    if (bytes > 0)
        ((unsigned char *)output)[bytes / 2] ^= 0x10;
}

static void add_table_row(void *context, const struct sweep_result *result, const double *times)
{
    sweep_table_add(context, result, times);
}

START_TEST(wrong_elements_fail_the_bench)
{
    struct error err = {0};
    struct option_set set = {.program = "test", .tables = SWEEP_TABLES, .usage = ""};
    const char *const words[] = {
        "test",           "--backend=ring", "--nproc=3",       "--min-bytes=4K", "--rounds=1",
        "--max-bytes=4K", "--iterations=2", "--ceiling=false", "--check=2",      NULL};
    struct sweep_options options = {0};
    struct option_result origins = {0};
    struct strbuf config = STRBUF_INIT;
    struct sweep sweep;
    struct sweep_table table;

    assert_ok(option_parse(&set, 9, mutable(words), &options, &origins, &err));
    option_print_config(&set, &options, &origins, &config);
    assert_ok(sweep_plan(COLLECTIVE_ALL_REDUCE, &options, &sweep, &err));
    sweep_table_open(&table, &options, &sweep);
    assert_ok(sweep_run(&sweep, &options, &config, add_table_row, &table, &err));
    /* One element, on three ranks, twice, in two placements. */
    assert_fails(sweep_table_close(&table, mutable(words), &err), STATUS_DATA, "12 elements");
    sweep_table_release(&table);
    strbuf_release(&config);
    option_result_release(&origins);
}
END_TEST

START_TEST(options_of_nccl_tests_are_translated)
{
    struct error err = {0};
    const char *const words[] = {
        "all_reduce", "-b", "8", "--maxbytes=1M", "-f2", "--iters", "20", "-I", "-c", "0", "-T",
        "5",          "-I", "0", "--nproc",       "4",   NULL};
    static const char *const wanted[] = {"all_reduce",
                                         "--min-bytes=8",
                                         "--max-bytes=1M",
                                         "--factor=2",
                                         "--iterations=20",
                                         "--per-iteration=true",
                                         "--check=0",
                                         "--timeout-ms=5000",
                                         "--per-iteration=false",
                                         "--nproc",
                                         "4"};
    char **ours = NULL;
    int count = 0;

    assert_ok(sweep_translate_options(16, mutable(words), &count, &ours, &err));
    ck_assert_int_eq(count, 11);
    for (int i = 0; i < count; i++)
        ck_assert_str_eq(ours[i], wanted[i]);
    ck_assert_ptr_null(ours[count]);
    free(ours);
}
END_TEST

START_TEST(sizes_follow_factor_or_step)
{
    struct sweep_options o = {.max_bytes = 100, .factor = 3};

    ck_assert_uint_eq(sweep_next_size(&o, 10), 30);
    ck_assert_uint_eq(sweep_next_size(&o, 30), 90);
    ck_assert_uint_eq(sweep_next_size(&o, 90), UINT64_MAX);
    ck_assert_uint_eq(sweep_next_size(&o, 0), UINT64_MAX);
    o.step_bytes = 45;
    ck_assert_uint_eq(sweep_next_size(&o, 10), 55);
    ck_assert_uint_eq(sweep_next_size(&o, 55), 100);
    ck_assert_uint_eq(sweep_next_size(&o, 100), UINT64_MAX);
}
END_TEST

int main(int argc, char **argv)
{
    /* sparring bench all_reduce --as-rank RANK FOLDER, of wrong_elements_fail_the_bench */
    if (argc == 6 && strcmp(argv[3], SWEEP_AS_RANK) == 0)
        return sweep_rank_main(COLLECTIVE_ALL_REDUCE, argc - 2, argv + 2, corrupt);
    return SUPPORT_RUN(
        "bench_collective", TEST_TIMEOUT_S, TEST_CASE("runs", TEST_TIMEOUT_S),
        LOOP_TEST(a_small_run_gives_rows_and_a_file, 0, 2),
        TEST(the_file_has_the_keys_of_nccl_tests), TEST(gloo_takes_turns_with_the_ring),
        TEST(the_ring_over_grpc_takes_tls), LOOP_TEST(collectives_are_right, 0, 9),
        TEST(mpirun_starts_the_ranks), LOOP_TEST(namespaces_carry_the_ranks, 0, 2),
        TEST(bad_options_are_refused), TEST(wrong_elements_fail_the_bench), TEST_CASE("figures", 0),
        TEST(values_are_exact_in_any_order), TEST(wrong_elements_are_counted),
        TEST(options_of_nccl_tests_are_translated), TEST(sizes_follow_factor_or_step));
}
