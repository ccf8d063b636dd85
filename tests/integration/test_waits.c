/*
 * Waits: whenever a worker waits for other processes it prints a line that says for which, and a
 * signal ends it within a limit.  All cases run concurrently, each with its own processes; the
 * times are printed.
 */
#include "common/base/clock.h"
#include "tests/integration/job.h"
#include "tests/support/lateness.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define JOB                                                                                        \
    "--model", "linear:10-5-2", "--data", "random:1000,10,2", "--evaluate", "never",               \
        "--heartbeat-timeout-ms", "300000"
#define ARGUMENTS_MAX 40
#define STOPPED       6                    /* exit code of a worker ended by a signal */
#define STEP_STOP_NS  INT64_C(10000000000) /* for a worker in a step (stop.h) */
#define STOP_LIMIT_NS INT64_C(1000000000)

struct wait_case {
    const char *name;
    const char *expected_line; /* part of the line that it prints; NULL: none is awaited */
    const char *options[12];
    const char *store; /* "tcp", "file" or "env"; NULL: none */
    unsigned rank;     /* of the waiting worker */
    bool has_other;    /* the other rank has started, too */
    bool has_server;
    int64_t within_ns;
};

static const struct wait_case wait_cases[] = {
    {.name = "connect to rank 0",
     .expected_line = "waiting for rank 0 at 127.0.0.1:",
     .store = "tcp",
     .rank = 1,
     .within_ns = STOP_LIMIT_NS},
    {.name = "rendezvous by tcp",
     .expected_line = "(rank 1 is missing), ",
     .store = "tcp",
     .within_ns = STOP_LIMIT_NS},
    {.name = "rendezvous by env",
     .expected_line = "(rank 1 is missing), ",
     .store = "env",
     .within_ns = STOP_LIMIT_NS},
    {.name = "rendezvous by file",
     .expected_line = "(rank 0 is missing), ",
     .store = "file",
     .rank = 1,
     .within_ns = STOP_LIMIT_NS},
    {.name = "connect to a server",
     .expected_line = "waiting for server 127.0.0.1:1 (connection refused), ",
     .options = {"--sync", "ps", "--servers", "127.0.0.1:1", "--steps", "9"},
     .within_ns = STOP_LIMIT_NS},
    {.name = "a server that is silent",
     .expected_line = "(it accepts connections and does not speak gRPC), ",
     .options = {"--sync", "ps", "--steps", "9", "--servers", "SILENT"},
     .within_ns = STOP_LIMIT_NS},
    {.name = "join",
     .expected_line = "(all 2 ranks must join it), ",
     .options = {"--sync", "ps", "--on-rank-loss", "wait", "--steps", "9", "--servers", "SERVER"},
     .store = "tcp",
     .has_server = true,
     .within_ns = STOP_LIMIT_NS},
    {.name = "the end",
     .expected_line = "waiting for the other ranks to end, ",
     .store = "tcp",
     .options = {"--sync", "local", "--steps", "9", "--delay-schedule", "SLOW"},
     .has_other = true,
     .within_ns = STOP_LIMIT_NS},
    {.name = "a step",
     .expected_line = NULL,
     .store = "tcp",
     .has_other = true,
     .options = {"--backend", "ring", "--steps", "9", "--delay-schedule", "SLOW"},
     .within_ns = STEP_STOP_NS + STOP_LIMIT_NS},
    {.name = "a step through a server",
     .expected_line = NULL,
     .store = "tcp",
     .has_other = true,
     .has_server = true,
     .options = {"--sync", "ps", "--servers", "SERVER", "--steps", "9", "--delay-schedule", "SLOW"},
     .within_ns = STEP_STOP_NS + STOP_LIMIT_NS},
};

#define WAIT_CASES (sizeof(wait_cases) / sizeof(wait_cases[0]))

static struct case_processes {
    struct process worker, other, server;
    char url[600];
    char address[64];
} case_processes[WAIT_CASES];

/* Address of a listener that accepts connections (in its backlog) and never sends. */
static const char *silent_listener(void)
{
    static char text[32];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(fd, 64), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(address.sin_port));
    return text;
}

static void start_server(struct case_processes *r)
{
    (void)snprintf(r->address, sizeof(r->address), "127.0.0.1:%u", support_port());
    process_start(&r->server, NULL,
                  ARGS(support_program("sparring-server"), "--listen", r->address));
    process_wait_output(&r->server, "serving on ", JOB_TIMEOUT_MS);
}

static const char *replace_placeholder(const struct case_processes *r, const char *word)
{
    static const char slow[] = "1 4 1000000\n"; /* rank 1 stays in step 4 */

    if (strcmp(word, "SILENT") == 0)
        return silent_listener();
    if (strcmp(word, "SERVER") == 0)
        return r->address;
    if (strcmp(word, "SLOW") == 0)
        return support_write("slow.delays", slow, sizeof(slow) - 1);
    return word;
}

static void start_worker(struct case_processes *r, const struct wait_case *p, unsigned rank,
                         struct process *process)
{
    const char *arguments[ARGUMENTS_MAX] = {support_program("sparring-worker"), JOB};
    const char *variables[4] = {NULL};
    size_t n = 0;

    while (arguments[n])
        n++;
    for (size_t i = 0; i < 12 && p->options[i]; i++)
        arguments[n++] = replace_placeholder(r, p->options[i]);
    if (!p->options[0]) {
        arguments[n++] = "--steps";
        arguments[n++] = "9";
    }
    if (p->store && strcmp(p->store, "env") == 0) {
        variables[0] = "MASTER_ADDR=127.0.0.1";
        variables[1] = r->url;
    } else if (p->store) {
        arguments[n++] = "--init-method";
        arguments[n++] = r->url;
    }
    if (p->store) {
        arguments[n++] = "--world-size";
        arguments[n++] = "2";
        arguments[n++] = "--rank";
        arguments[n++] = rank ? "1" : "0";
    }
    process_start(process, variables, arguments);
}

static void start_case(struct case_processes *r, const struct wait_case *p)
{
    if (p->store && strcmp(p->store, "file") == 0)
        (void)snprintf(r->url, sizeof(r->url), "file://%s", support_path("store"));
    else if (p->store)
        (void)snprintf(r->url, sizeof(r->url),
                       strcmp(p->store, "env") == 0 ? "MASTER_PORT=%u" : "tcp://127.0.0.1:%u",
                       support_port());
    if (p->has_server)
        start_server(r);
    if (p->has_other)
        start_worker(r, p, 1 - p->rank, &r->other);
    start_worker(r, p, p->rank, &r->worker);
}

/* Signal the waiting worker (SIGINT as from a terminal) and check exit code and time. */
static void stop_case(struct case_processes *r, const struct wait_case *p, bool is_sigint)
{
    struct lateness lateness;
    int64_t signal_ns, took_ns, late_ns;
    int code;

    lateness_begin(&lateness);
    signal_ns = clock_now_ns();
    process_signal(&r->worker, is_sigint ? SIGINT : SIGTERM);
    code = process_wait(&r->worker, JOB_TIMEOUT_MS);
    took_ns = clock_now_ns() - signal_ns;
    late_ns = lateness_end_ns(&lateness);
    (void)printf("%s: ended after %.2f s\n", p->name, (double)took_ns * 1e-9);
    ck_assert_msg(code == STOPPED, "%s: exit code %d: %s", p->name, code,
                  process_output(&r->worker));
    ck_assert_msg(took_ns <= p->within_ns + late_ns + LATENESS_TOLERANCE_MS * INT64_C(1000000),
                  "%s: ended after %.2f s on a host late by %.2f s: %s", p->name,
                  (double)took_ns * 1e-9, (double)late_ns * 1e-9, process_output(&r->worker));
}

START_TEST(test_signal_ends_waits)
{
    for (size_t i = 0; i < WAIT_CASES; i++)
        start_case(&case_processes[i], &wait_cases[i]);
    for (size_t i = 0; i < WAIT_CASES; i++)
        if (wait_cases[i].expected_line)
            process_wait_output(&case_processes[i].worker, wait_cases[i].expected_line,
                                JOB_TIMEOUT_MS);
        else /* prints no line so early; by now it waits in the step */
            process_wait_output(&case_processes[i].worker, "ranks: 2, ", JOB_TIMEOUT_MS);
    for (size_t i = 0; i < WAIT_CASES; i++)
        stop_case(&case_processes[i], &wait_cases[i], i % 2 == 1);
}
END_TEST

/* The address of rank 0 may come from a scheduler: the error names both sources. */
START_TEST(test_address_that_does_not_resolve)
{
    const char *output = process_run(PROCESS_FAILS, JOB_TIMEOUT_MS,
                                     ARGS("MASTER_ADDR=no.such.host.invalid", "MASTER_PORT=29500"),
                                     ARGS(support_program("sparring-worker"), JOB, "--steps", "9",
                                          "--rank", "0", "--world-size", "2"));

    ck_assert_msg(strstr(output, "cannot listen on 'no.such.host.invalid'") &&
                      strstr(output, "MASTER_ADDR and MASTER_PORT, or --init-method tcp://"),
                  "%s", output);
}
END_TEST

/* A successful job prints no line about a missing GPU or a signal. */
START_TEST(test_no_spurious_lines)
{
    const char *output = process_run(
        0, JOB_TIMEOUT_MS, NULL,
        ARGS(support_program("sparring"), "launch", "--nproc-per-node", "2", "--servers", "1", "--",
             support_program("sparring-worker"), "--sync", "ps", "--model", "linear:10-5-2",
             "--data", "random:1000,10,2", "--epochs", "1"));

    ck_assert_msg(!strstr(output, "NVIDIA") && !strstr(output, "Terminated"), "%s", output);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("waits", 200, TEST(test_signal_ends_waits),
                       TEST(test_address_that_does_not_resolve), TEST(test_no_spurious_lines));
}
