/*
 * `sparring bench ps` from the command line, small: real servers, real workers, the table, the JSON
 * file; and wrong results are detected.
 */
#include "common/base/clock.h"
#include "common/base/net.h"
#include "experiments/bench/bench_ps.h"
#include "tests/support/certificate.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_MS 200000

static double number_of(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);

    ck_assert_msg(json_is_number(value), "no number '%s'", name);
    return json_number_value(value);
}

static bool row_has(const json_t *row, const char *name, const char *value)
{
    const char *text = json_string_value(json_object_get(row, name));

    return text && strcmp(text, value) == 0;
}

/* The row of that kind and transport; fails the test when there is none. */
static const json_t *row_of(const json_t *report, const char *kind, const char *transport)
{
    const json_t *rows = json_object_get(report, "rows");

    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);

        if (row_has(row, "kind", kind) && row_has(row, "transport", transport))
            return row;
    }
    ck_abort_msg("no row of %s over %s", kind, transport);
}

/* Run "bench ps" with these arguments; returns the report. */
static json_t *run_bench_ps(const char *const *words, const char **ret_output)
{
    const char *file = support_path("ps.json");
    const char *all[40] = {support_program("sparring"), "bench", "ps", "--json", file};
    json_t *report;

    for (size_t i = 0; words[i]; i++)
        all[5 + i] = words[i];
    *ret_output = process_run(0, WAIT_MS, NULL, all);
    report = json_load_file(file, 0, NULL);
    ck_assert_ptr_nonnull(report);
    ck_assert(row_has(report, "bench", "ps"));
    return report;
}

static void check_lines(const char *output)
{
    for (const char *line = output; *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 80, "more than 80 columns: %.100s", line);
}

static void check_row(const json_t *row)
{
    double seconds = number_of(row, "seconds");

    ck_assert(row_has(row, "network", "loopback"));
    ck_assert(number_of(row, "workers") == 2 && number_of(row, "servers") == 2);
    ck_assert(number_of(row, "connections") == 4 * number_of(row, "connections_per_pair"));
    ck_assert(number_of(row, "bytes") == 300000);
    ck_assert(number_of(row, "wrong") == 0 && number_of(row, "rounds") == 4);
    ck_assert(number_of(row, "iterations") == 13); /* 4 MiB a turn */
    ck_assert_double_gt(seconds, 0);
    ck_assert_double_le(number_of(row, "seconds_min"), seconds);
    /* Two workers, both directions. */
    ck_assert_double_eq_tol(number_of(row, "gb_per_s") * seconds, 2 * 2 * 300000 * 1e-9, 1e-9);
    ck_assert_double_gt(number_of(row, "server_cpu_ns_per_byte"), 0);
    ck_assert_double_gt(number_of(row, "server_peak_rss_bytes"), 1 << 20);
}

START_TEST(test_a_small_run)
{
    static const char *const kinds[] = {"exchange", "grpc-echo", "grpc-sum",
                                        "socket",   "replica",   "state"};
    const char *output;
    json_t *report = run_bench_ps(ARGS("--workers", "2", "--servers", "2", "--bytes", "300000",
                                       "--partition-bytes", "64K", "--rounds", "4", "--warmup", "1",
                                       "--transport", "tcp,unix", "--kinds",
                                       "exchange,grpc-echo,grpc-sum,socket,replica,state"),
                                  &output);

    check_lines(output);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        check_row(row_of(report, kinds[i], "tcp"));
        check_row(row_of(report, kinds[i], "unix"));
    }
    ck_assert_ptr_nonnull(strstr(output, "times the speed of grpc-echo"));
    ck_assert_double_gt(number_of(row_of(report, "ratio", "unix"), "speed_ratio"), 0);
    json_decref(report);
}
END_TEST

/* Each has its own row; the other kinds have one. */
START_TEST(test_compression)
{
    static const char *const names[] = {"none", "fp16", "bf16", "topk", "onebit"};
    const char *output;
    json_t *report = run_bench_ps(
        ARGS("--workers", "2", "--servers", "2", "--bytes", "300000", "--partition-bytes", "64K",
             "--rounds", "2", "--iterations", "3", "--transport", "tcp,shm", "--kinds",
             "exchange,grpc-echo", "--compression", "none,fp16,bf16,topk,onebit"),
        &output);
    const json_t *rows = json_object_get(report, "rows");
    size_t next = 0, others = 0;

    check_lines(output);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);

        if (row_has(row, "kind", "ratio"))
            continue;
        ck_assert(number_of(row, "wrong") == 0);
        if (row_has(row, "kind", "exchange") && row_has(row, "transport", "tcp"))
            ck_assert(row_has(row, "compression", names[next++]));
        else
            ck_assert(row_has(row, "compression", "none") && others++ < 2); /* grpc-echo, and shm */
    }
    ck_assert_uint_eq(next, 5);
    ck_assert_uint_eq(others, 2);
    ck_assert_ptr_nonnull(strstr(output, " ex+onebit "));
    ck_assert_ptr_nonnull(strstr(output, "# exchange+fp16 over tcp runs at"));
    json_decref(report);
}
END_TEST

/* Memory of a server: the shard twice, and 64 MiB for four connections. */
START_TEST(test_memory_of_a_server)
{
    const char *output;
    json_t *report = run_bench_ps(
        ARGS("--workers", "2", "--bytes", "32M", "--rounds", "3", "--warmup", "1"), &output);
    const json_t *row = row_of(report, "exchange", "tcp");

    ck_assert_double_ge(number_of(row, "server_peak_rss_bytes"), 2 * (32 << 20));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_double_le(number_of(row, "server_peak_rss_bytes"), 2 * (32 << 20) + (64 << 20));
#endif
    ck_assert_ptr_nonnull(strstr(output, "MiB"));
    json_decref(report);
}
END_TEST

/* Edge cases: one element, fewer pieces than servers, a last piece of one element, a world size
 * that is no power of two. */
START_TEST(test_odd_shapes)
{
    const char *output;
    json_t *report = run_bench_ps(ARGS("--workers", "1,3", "--servers", "1,3", "--bytes",
                                       "4,268,65540", "--partition-bytes", "64K", "--rounds", "1",
                                       "--warmup", "0", "--iterations", "2"),
                                  &output);
    const json_t *rows = json_object_get(report, "rows");
    size_t measured = 0;

    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);

        if (!row_has(row, "kind", "ratio"))
            measured += number_of(row, "wrong") == 0 && number_of(row, "seconds") > 0;
    }
    ck_assert_uint_eq(measured, (size_t)2 * 2 * 3 * 4);
    json_decref(report);
}
END_TEST

/* Several connections of a pair share its pieces; the last one is short, and some have none. */
START_TEST(test_connections)
{
    const char *output;
    json_t *report = run_bench_ps(ARGS("--workers", "2", "--servers", "2", "--bytes", "300000",
                                       "--partition-bytes", "64K", "--rounds", "4", "--warmup", "0",
                                       "--connections", "2", "--transport", "tcp,shm"),
                                  &output);

    check_lines(output);
    check_row(row_of(report, "exchange", "tcp"));
    check_row(row_of(report, "grpc-echo", "tcp"));
    check_row(row_of(report, "socket", "tcp"));
    check_row(row_of(report, "exchange", "shm"));
    ck_assert(number_of(row_of(report, "exchange", "shm"), "connections_per_pair") == 2);
    ck_assert_ptr_nonnull(strstr(output, "exchange over shm runs at"));
    json_decref(report);
}
END_TEST

START_TEST(test_under_tls)
{
    const char *output;
    json_t *report;

    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make("node", "ca", "subjectAltName=IP:127.0.0.1,DNS:localhost");
    report = run_bench_ps(ARGS("--bytes", "1M", "--rounds", "2", "--tls", "yes", "--transport",
                               "tcp,unix", "--tls-ca", certificate_file("ca", "pem"), "--tls-cert",
                               certificate_file("node", "pem"), "--tls-key",
                               certificate_file("node", "key")),
                          &output);
    ck_assert(number_of(row_of(report, "exchange", "tcp"), "tls") == 1);
    ck_assert(number_of(row_of(report, "grpc-echo", "unix"), "wrong") == 0);
    ck_assert_ptr_null(strstr(output, "socket")); /* plain sockets have no TLS */
    json_decref(report);
}
END_TEST

/* ---- peers ---- */

START_TEST(test_pytorch)
{
    const char *output;
    json_t *report =
        run_bench_ps(ARGS("--bytes", "1M", "--workers", "2", "--servers", "2", "--rounds", "2",
                          "--iterations", "1", "--transport", "tcp,shm", "--kinds",
                          "exchange,torch-rpc", "--timeout-ms", "150000"),
                     &output);
    const json_t *tcp = row_of(report, "torch-rpc", "tcp");
    const char *note = json_string_value(json_object_get(tcp, "not_measured"));

    if (note) {
        (void)printf("test_pytorch: skipped: %s\n", note);
        ck_assert_ptr_nonnull(strstr(note, "PyTorch"));
    } else {
        ck_assert(number_of(tcp, "wrong") == 0);
        ck_assert(number_of(row_of(report, "torch-rpc", "shm"), "wrong") == 0);
        ck_assert_ptr_nonnull(strstr(output, "times the speed of torch-rpc"));
    }
    json_decref(report);
}
END_TEST

START_TEST(test_no_pytorch)
{
    const char *script = support_write("no-torch", "#!/bin/sh\necho unavailable no torch\n", 35);
    const char *const pythons[] = {script, "/nonexistent/python"};
    const char *const notes[] = {"no torch", "cannot start '/nonexistent/python'"};

    ck_assert_int_eq(chmod(script, 0700), 0);
    for (size_t i = 0; i < 2; i++) {
        const char *output;
        json_t *report = run_bench_ps(ARGS("--bytes", "4K", "--rounds", "1", "--kinds",
                                           "exchange,torch-rpc", "--python", pythons[i]),
                                      &output);
        const json_t *row = row_of(report, "torch-rpc", "tcp");

        ck_assert_ptr_nonnull(strstr(output, "not measured: "));
        ck_assert_ptr_nonnull(
            strstr(json_string_value(json_object_get(row, "not_measured")), notes[i]));
        ck_assert(number_of(row_of(report, "exchange", "tcp"), "wrong") == 0);
        json_decref(report);
    }
}
END_TEST

/* A peer that dies ends the run cleanly, even when other processes are not started yet. */
START_TEST(test_a_peer_that_dies)
{
    const char *script = support_write("dies", "#!/bin/sh\nexit 1\n", 17);
    const char *output;

    ck_assert_int_eq(chmod(script, 0700), 0);
    output = process_run(1, WAIT_MS, NULL,
                         ARGS(support_program("sparring"), "bench", "ps", "--bytes", "4K",
                              "--rounds", "1", "--transport", "tcp,shm", "--kinds",
                              "exchange,torch-rpc", "--python", script));
    ck_assert_msg(strstr(output, "a worker ended early") != NULL, "%s", output);
}
END_TEST

/* ---- wrong results are detected ---- */

#define ECHO_BYTES 4096
#define ECHO_COUNT (ECHO_BYTES / sizeof(float))

/* Echoes of two pieces: with one element changed, or in the wrong order. */
static void change_element(float *values)
{
    values[777] += 1;
}

static void swap_halves(float *values)
{
    float first[ECHO_COUNT / 2];

    memcpy(first, values, sizeof(first));
    memcpy(values, values + ECHO_COUNT / 2, sizeof(first));
    memcpy(values + ECHO_COUNT / 2, first, sizeof(first));
}

static const struct {
    void (*corrupt)(float *values);
    const char *per_iteration, *of_three;
} corruptions[] = {{change_element, " 1\n", " 3\n"}, {swap_halves, " 1024\n", " 3072\n"}};

struct wrong_server {
    int listener;
    void (*corrupt)(float *values);
};

static void *serve_wrong(void *user)
{
    const struct wrong_server *server = user;
    float values[ECHO_COUNT];
    int fd = -1;

    ck_assert_int_eq(net_accept(server->listener, clock_deadline_ns(WAIT_MS), &fd, NULL),
                     STATUS_OK);
    while (net_recv_all(fd, values, sizeof(values), INT64_MAX, NULL) == STATUS_OK) {
        server->corrupt(values);
        ck_assert_int_eq(net_send_all(fd, values, sizeof(values), INT64_MAX, NULL), STATUS_OK);
    }
    (void)close(fd);
    return NULL;
}

START_TEST(test_wrong_elements_are_counted)
{
    struct error err = {0};
    struct endpoint any = {.host = "127.0.0.1"};
    char command[4096];
    const char *output;
    struct wrong_server server = {.corrupt = corruptions[_i].corrupt};
    uint16_t port;
    pthread_t thread;

    assert_ok(net_listen(&any, "test", &server.listener, &port, &err));
    ck_assert_int_eq(pthread_create(&thread, NULL, serve_wrong, &server), 0);
    (void)snprintf(
        command, sizeof(command),
        "printf '3\\n1\\n' | %s bench ps %s %d 0 1 1 %d %d 60000 0 1 0 127.0.0.1:%u '' '' '' ''",
        support_program("sparring"), BENCH_PS_WORKER, PS_SOCKET, ECHO_BYTES, ECHO_BYTES / 2,
        (unsigned)port);
    output = process_run(0, WAIT_MS, NULL, ARGS("sh", "-c", command));
    ck_assert_ptr_eq(strstr(output, "ready\n"), output);
    ck_assert_msg(strstr(output, corruptions[_i].of_three) &&
                      strstr(output, corruptions[_i].per_iteration),
                  "%s", output);
    (void)pthread_join(thread, NULL);
    (void)close(server.listener);
}
END_TEST

static const struct {
    const char *words[3];
    const char *text;
} bad[] = {
    {{"--bytes", "4098"}, "multiples of 4"},
    {{"--bytes", "0"}, "--bytes: '0' is no number from 4"},
    {{"--workers", "0"}, "--workers: '0' is no number from 1 to 64"},
    {{"--workers", "1,x"}, "--workers: 'x' is no number"},
    {{"--connections", "17"}, "--connections: '17' is no number from 1 to 16"},
    {{"--servers", ","}, "--servers is empty"},
    {{"--transport", "udp"}, "--transport: 'udp' is none of tcp ... shm"},
    {{"--kinds", "exchange,grpc"}, "--kinds: 'grpc' is none of"},
    {{"--compression", "rows"}, "--compression: 'rows' is none of none ... onebit"},
    {{"--tls", "yes"}, "--tls yes needs --tls-ca"},
    {{"--as-worker", "1"}, "for bench ps itself"},
    {{"--as-server", "1"}, "for bench ps itself"},
};

START_TEST(test_bad_options)
{
    const char *output = process_run(
        2, WAIT_MS, NULL,
        ARGS(support_program("sparring"), "bench", "ps", bad[_i].words[0], bad[_i].words[1]));

    ck_assert_msg(strstr(output, bad[_i].text) != NULL, "'%s' lacks '%s'", output, bad[_i].text);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "bench_ps", 300, TEST(test_a_small_run), TEST(test_compression),
        TEST(test_memory_of_a_server), TEST(test_odd_shapes), TEST(test_connections),
        TEST(test_under_tls), TEST(test_pytorch), TEST(test_no_pytorch),
        TEST(test_a_peer_that_dies),
        LOOP_TEST(test_wrong_elements_are_counted, 0, sizeof(corruptions) / sizeof(corruptions[0])),
        LOOP_TEST(test_bad_options, 0, sizeof(bad) / sizeof(bad[0])));
}
