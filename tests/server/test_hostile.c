/*
 * The real sparring-server under attack while a job runs: hostile.py sends invalid and excessive
 * traffic, and two ranks train without a pause and check every sum. hostile.py checks the reply to
 * each attack; this test checks that the job is not affected, that the server's memory stays
 * bounded, that it serves a stock client afterwards and ends normally.
 */
#include "common/base/file.h"
#include "common/base/parse.h"
#include "tests/server/service/raw_job.h"
#include "tests/support/certificate.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WAIT_MS        60000
#define ATTACK_MS      400000
#define ROUND_PAUSE_MS 2 /* between two rounds, because the machine may have only two cores */
#define TOKEN          "the-token-of-this-test\n"

/* Limit of the growth of the server, in MiB; the attacks send more than that to refused calls.
 * AddressSanitizer keeps freed memory for a while. */
#ifdef __SANITIZE_ADDRESS__
#define MEMORY_MIB "2048"
#else
#define MEMORY_MIB "256"
#endif

static struct error err;
static struct process server;
static char port[8];

static bool has_stock_client(void)
{
    struct process probe;

    process_start(&probe, NULL, ARGS(support_python(), "-c", "import grpc"));
    if (process_wait(&probe, WAIT_MS) == 0)
        return true;
    support_skip_package("python3-grpcio");
    return false;
}

/* `limit`: of open files; "": the system's. */
static void start_server(const char *limit, const char *const *options)
{
    const char *argv[32] = {"sh",
                            "-c",
                            "[ -z \"$0\" ] || ulimit -n \"$0\"; exec \"$@\"",
                            limit,
                            support_program("sparring-server"),
                            "--listen",
                            "127.0.0.1:0",
                            "--port-file",
                            support_path("port"),
                            "--timeout-ms",
                            "300000"};
    size_t count = 11;
    char *text;
    size_t size;

    for (; *options; options++)
        argv[count++] = *options;
    process_start(&server, NULL, argv);
    process_wait_output(&server, "serving on 127.0.0.1:", WAIT_MS);
    assert_ok(file_read(support_path("port"), sizeof(port) - 1, &text, &size, &err));
    (void)snprintf(port, sizeof(port), "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
}

static void open_workers(const struct rpc_security *security)
{
    uint64_t number;

    ck_assert(parse_uint64(port, &number));
    for (unsigned i = 0; i < 2; i++)
        raw_open_with(&workers[i], (uint16_t)number, i, &security[i]);
}

static void stop_server(void)
{
    process_signal(&server, SIGTERM);
    ck_assert_msg(process_wait(&server, WAIT_MS) == 0, "%s", process_output(&server));
}

/* Run rounds while the script runs; returns their number. */
static uint64_t run_rounds_during(struct process *attack)
{
    struct pollfd end = {.fd = attack->pidfd, .events = POLLIN};
    uint64_t round = 0;

    while (poll(&end, 1, ROUND_PAUSE_MS) == 0)
        play_round(++round % 1000000); /* sums stay exact in float32 */
    return round;
}

static void run_attack_during_job(const char *mode, const char *folder)
{
    struct process attack;
    char pid[16];
    uint64_t rounds;
    int code;

    (void)snprintf(pid, sizeof(pid), "%d", (int)server.pid);
    start_job();
    process_start(&attack, NULL,
                  ARGS(support_python(), support_source("tests/server/hostile.py"), mode, port, pid,
                       MEMORY_MIB, folder));
    rounds = run_rounds_during(&attack);
    code = process_wait(&attack, ATTACK_MS);
    ck_assert_msg(code == 0, "exit code %d:\n%s\nthe server:\n%s", code, process_output(&attack),
                  process_output(&server));
    (void)printf("%s%llu rounds meanwhile\n", process_output(&attack), (unsigned long long)rounds);
    ck_assert_uint_gt(rounds, 10);
    end_job();
    for (unsigned i = 0; i < 2; i++)
        raw_close(&workers[i]);
}

static void run_stock_client_job(const char *folder)
{
    const char *output = process_run(
        0, ATTACK_MS, NULL,
        ARGS(support_python(), support_source("tests/server/hostile.py"), "job", port, folder));

    ck_assert_ptr_nonnull(strstr(output, "a good job"));
}

START_TEST(test_open_server)
{
    if (!has_stock_client())
        return;
    start_server("", ARGS("--threads", "2"));
    open_workers((const struct rpc_security[2]){{0}, {0}});
    run_attack_during_job("open", NULL);
    run_stock_client_job(NULL);
    stop_server();
}
END_TEST

/* Four times as many connections as the server can have at once. */
START_TEST(test_few_descriptors)
{
    if (!has_stock_client())
        return;
    start_server("1000", ARGS("--threads", "2"));
    open_workers((const struct rpc_security[2]){{0}, {0}});
    run_attack_during_job("many", NULL);
    ck_assert_ptr_nonnull(strstr(process_output(&server), "connections without a call"));
    run_stock_client_job(NULL);
    stop_server();
}
END_TEST

static struct rpc_security security_of(const char *name)
{
    return (struct rpc_security){.ca_file = certificate_file("ca", "pem"),
                                 .cert_file = certificate_file(name, "pem"),
                                 .key_file = certificate_file(name, "key"),
                                 .token_file = support_path("token")};
}

START_TEST(test_closed_server)
{
    if (!has_stock_client() || !certificate_can_make())
        return;
    ck_assert_int_eq(chmod(support_write("token", TOKEN, strlen(TOKEN)), 0600), 0);
    certificate_make_authority("ca");
    certificate_make_authority("other");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1");
    certificate_make("rank0", "ca", "subjectAltName=URI:sparring:rank/0");
    certificate_make("rank1", "ca", "subjectAltName=URI:sparring:rank/1");
    certificate_make("nobody", "ca", "subjectAltName=DNS:rank-0");
    certificate_make("stranger", "other", "subjectAltName=URI:sparring:rank/0");
    start_server("",
                 ARGS("--threads", "2", "--bind-ranks", "--tls-ca", certificate_file("ca", "pem"),
                      "--tls-cert", certificate_file("server", "pem"), "--tls-key",
                      certificate_file("server", "key"), "--token-file", support_path("token")));
    open_workers((const struct rpc_security[2]){security_of("rank0"), security_of("rank1")});
    run_attack_during_job("closed", support_folder());
    run_stock_client_job(support_folder());
    ck_assert_ptr_null(strstr(process_output(&server), "the-token-of"));
    stop_server();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("hostile", 500, TEST(test_open_server), TEST(test_few_descriptors),
                       TEST(test_closed_server));
}
