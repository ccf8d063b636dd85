/*
 * The real sparring-server: options, the port file, SIGTERM while idle, between rounds and during
 * one, health, and a port that is in use.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/parse.h"
#include "tests/server/service/raw_job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 20000

static struct error err;

/* Start a server on a free port with a run directory; connect the workers. */
static void start_server(struct process *p, const char *timeout_ms)
{
    const char *port_file = support_path("port"), *run_dir = support_path("run");
    char *text;
    size_t size;
    uint64_t port;

    process_start(p, NULL,
                  ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0", "--port-file",
                       port_file, "--run-dir", run_dir, "--timeout-ms", timeout_ms));
    process_wait_output(p, "serving on 127.0.0.1:", WAIT_MS);
    assert_ok(file_read(port_file, 64, &text, &size, &err));
    text[strcspn(text, "\n")] = '\0';
    ck_assert(parse_uint64(text, &port));
    free(text);
    for (unsigned i = 0; i < 3; i++)
        raw_open(&workers[i], (uint16_t)port, i);
}

static void check_records(const char *part)
{
    char path[1024], *text;
    size_t size;

    assert_ok(file_join(path, sizeof(path), support_path("run"), "server0.jsonl", &err));
    assert_ok(file_read(path, 1 << 20, &text, &size, &err));
    ck_assert_msg(strstr(text, part) != NULL, "'%s' lacks '%s'", text, part);
    free(text);
}

START_TEST(test_help_and_bad_arguments)
{
    const char *program = support_program("sparring-server");
    const char *output = process_run(0, WAIT_MS, NULL, ARGS(program, "--help"));

    ck_assert_ptr_nonnull(strstr(output, "--listen"));
    ck_assert_ptr_nonnull(strstr(output, "127.0.0.1:5757"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program, "--timeout-mss", "5"));
    ck_assert_ptr_nonnull(strstr(output, "timeout-ms"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program, "word"));
    ck_assert_ptr_nonnull(strstr(output, "unexpected word 'word'"));
    output = process_run(3, WAIT_MS, NULL, ARGS(program, "--listen", "nowhere"));
    ck_assert_ptr_nonnull(strstr(output, "--listen: 'nowhere' is not host:port"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program, "--listen", "0.0.0.0:0"));
    ck_assert_ptr_nonnull(strstr(output, "insecure"));
}
END_TEST

START_TEST(test_a_port_that_is_taken)
{
    struct process p;
    char listen[64], *text;
    const char *output;
    size_t size;

    start_server(&p, "20000");
    assert_ok(file_read(support_path("port"), 64, &text, &size, &err));
    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%.*s", (int)strcspn(text, "\n"), text);
    free(text);
    output =
        process_run(1, WAIT_MS, NULL, ARGS(support_program("sparring-server"), "--listen", listen));
    ck_assert_ptr_nonnull(strstr(output, listen));
    ck_assert_ptr_nonnull(strstr(output, "--listen"));
    ck_assert_ptr_nonnull(strstr(output, "sparring-server"));
    process_signal(&p, SIGTERM);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
    close_workers();
}
END_TEST

START_TEST(test_stop_between_jobs)
{
    struct process p;

    start_server(&p, "20000");
    check_still_serves();
    check_still_serves();
    process_signal(&p, _i == 0 ? SIGTERM : SIGINT);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
    check_records("\"status\":\"ok\"");
    close_workers();
}
END_TEST

/* grpc.health.v1 Check of the whole server: SERVING is 1, NOT_SERVING is 2. */
static enum status check_health(struct raw_worker *w, uint8_t *ret_serving)
{
    uint8_t *reply = NULL;
    size_t size = 0;
    enum status status =
        rpc_client_unary(w->client, "/grpc.health.v1.Health/Check", (const uint8_t *)"", 0,
                         clock_deadline_ns(WAIT_MS), &reply, &size, &err);

    *ret_serving = status == STATUS_OK && size == 2 ? reply[1] : 0;
    free(reply);
    return status;
}

START_TEST(test_stop_in_the_middle_of_a_round)
{
    struct process p;
    uint8_t serving;
    float first;

    start_server(&p, "20000");
    start_job();
    play_round(1);
    raw_send_valid(&workers[0], CHUNK_PUSH, 0, 2, 1);
    raw_send_valid(&workers[1], CHUNK_PUSH, 0, 2, 1);
    (void)raw_take(&workers[0], &first); /* the round has begun */
    assert_ok(check_health(&workers[2], &serving));
    ck_assert_uint_eq(serving, 1);
    process_signal(&p, SIGTERM);
    do /* the job continues, and health reports that the server is stopping */
        assert_ok(check_health(&workers[2], &serving));
    while (serving != 2);
    for (uint32_t part = 1; part < RAW_PARTITIONS; part++)
        for (unsigned i = 0; i < 2; i++)
            raw_send_valid(&workers[i], CHUNK_PUSH, part, 2, 1);
    for (uint32_t part = 1; part < RAW_PARTITIONS; part++) {
        (void)raw_take(&workers[0], &first);
        ck_assert(first == 2.0f);
    }
    check_result("notified", raw_wait_closed(&workers[1].stream), STATUS_UNAVAILABLE,
                 "the parameter server is stopping (2 rounds were complete)");
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
    check_records("\"rounds\":2");
    check_records("\"status\":\"unavailable\"");
    close_workers();
}
END_TEST

START_TEST(test_stop_abandons_a_round)
{
    struct process p;

    start_server(&p, "4000"); /* also bounds the joins */
    start_job();
    raw_send_valid(&workers[0], CHUNK_PUSH, 0, 1, 1);
    process_signal(&p, SIGTERM);
    ck_assert_int_ne(raw_wait_closed(&workers[0].stream).status, STATUS_OK);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
    close_workers();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("program", 60, TEST(test_help_and_bad_arguments),
                       TEST(test_a_port_that_is_taken), LOOP_TEST(test_stop_between_jobs, 0, 2),
                       TEST(test_stop_in_the_middle_of_a_round), TEST(test_stop_abandons_a_round));
}
