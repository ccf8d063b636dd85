/*
 * Waits: every place where a worker waits for others says so, and ends at once when it is asked to
 * stop.  All places at the same time, each with processes of its own; their times are printed.
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
#define WORDS_MAX   40
#define STOPPED     6                    /* exit code of a worker that was asked to stop */
#define PATIENCE_NS INT64_C(10000000000) /* of a step (stop.h) */
#define AT_ONCE_NS  INT64_C(1000000000)

struct place {
    const char *name;
    const char *says; /* its line, but for the seconds */
    const char *options[12];
    const char *store; /* "tcp", "file" or "env"; NULL: none */
    unsigned rank;     /* of the one that waits */
    bool has_other;    /* the other rank is there */
    bool has_server;
    int64_t within_ns;
};

static const struct place places[] = {
    {.name = "connect to rank 0",
     .says = "waiting for rank 0 at 127.0.0.1:",
     .store = "tcp",
     .rank = 1,
     .within_ns = AT_ONCE_NS},
    {.name = "rendezvous by tcp",
     .says = "(rank 1 is missing), ",
     .store = "tcp",
     .within_ns = AT_ONCE_NS},
    {.name = "rendezvous by env",
     .says = "(rank 1 is missing), ",
     .store = "env",
     .within_ns = AT_ONCE_NS},
    {.name = "rendezvous by file",
     .says = "(rank 0 is missing), ",
     .store = "file",
     .rank = 1,
     .within_ns = AT_ONCE_NS},
    {.name = "connect to a server",
     .says = "waiting for server 127.0.0.1:1 (connection refused), ",
     .options = {"--sync", "ps", "--servers", "127.0.0.1:1", "--steps", "9"},
     .within_ns = AT_ONCE_NS},
    {.name = "a server that is silent",
     .says = "(it accepts connections and does not speak gRPC), ",
     .options = {"--sync", "ps", "--steps", "9", "--servers", "SILENT"},
     .within_ns = AT_ONCE_NS},
    {.name = "join",
     .says = "(all 2 ranks must join it), ",
     .options = {"--sync", "ps", "--on-worker-loss", "wait", "--steps", "9", "--servers", "SERVER"},
     .store = "tcp",
     .has_server = true,
     .within_ns = AT_ONCE_NS},
    {.name = "the end",
     .says = "waiting for the other ranks to end, ",
     .store = "tcp",
     .options = {"--sync", "local", "--steps", "9", "--delay-schedule", "SLOW"},
     .has_other = true,
     .within_ns = AT_ONCE_NS},
    {.name = "a step",
     .says = NULL,
     .store = "tcp",
     .has_other = true,
     .options = {"--backend", "ring", "--steps", "9", "--delay-schedule", "SLOW"},
     .within_ns = PATIENCE_NS + AT_ONCE_NS},
};

#define PLACES (sizeof(places) / sizeof(places[0]))

static struct running {
    struct process worker, other, server;
    char url[600];
    char address[64];
} running[PLACES];

/* Accepts connections (its backlog does), and says nothing. */
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

static void start_server(struct running *r)
{
    (void)snprintf(r->address, sizeof(r->address), "127.0.0.1:%u", support_port());
    process_start(&r->server, NULL,
                  ARGS(support_program("sparring-server"), "--listen", r->address));
    process_wait_output(&r->server, "serving on ", JOB_TIMEOUT_MS);
}

static const char *option_word(const struct running *r, const char *word)
{
    static const char slow[] = "1 4 1000000\n"; /* rank 1 comes to step 4 and no further */

    if (strcmp(word, "SILENT") == 0)
        return silent_listener();
    if (strcmp(word, "SERVER") == 0)
        return r->address;
    if (strcmp(word, "SLOW") == 0)
        return support_write("slow.delays", slow, sizeof(slow) - 1);
    return word;
}

static void start_worker(struct running *r, const struct place *p, unsigned rank,
                         struct process *process)
{
    const char *words[WORDS_MAX] = {support_program("sparring-worker"), JOB};
    const char *variables[4] = {NULL};
    size_t n = 0;

    while (words[n])
        n++;
    for (size_t i = 0; i < 12 && p->options[i]; i++)
        words[n++] = option_word(r, p->options[i]);
    if (!p->options[0]) {
        words[n++] = "--steps";
        words[n++] = "9";
    }
    if (p->store && strcmp(p->store, "env") == 0) {
        variables[0] = "MASTER_ADDR=127.0.0.1";
        variables[1] = r->url;
    } else if (p->store) {
        words[n++] = "--init-method";
        words[n++] = r->url;
    }
    if (p->store) {
        words[n++] = "--world-size";
        words[n++] = "2";
        words[n++] = "--rank";
        words[n++] = rank ? "1" : "0";
    }
    process_start(process, variables, words);
}

static void start(struct running *r, const struct place *p)
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

/* Every second place is asked as a terminal does it. */
static void stop(struct running *r, const struct place *p, bool by_terminal)
{
    struct lateness lateness;
    int64_t struck_ns, took_ns, late_ns;
    int code;

    lateness_begin(&lateness);
    struck_ns = clock_now_ns();
    process_signal(&r->worker, by_terminal ? SIGINT : SIGTERM);
    code = process_wait(&r->worker, JOB_TIMEOUT_MS);
    took_ns = clock_now_ns() - struck_ns;
    late_ns = lateness_end_ns(&lateness);
    (void)printf("%s: ended after %.2f s\n", p->name, (double)took_ns * 1e-9);
    ck_assert_msg(code == STOPPED, "%s: exit code %d: %s", p->name, code,
                  process_output(&r->worker));
    ck_assert_msg(took_ns <= p->within_ns + late_ns + LATENESS_ROOM_MS * INT64_C(1000000),
                  "%s: ended after %.2f s on a host late by %.2f s: %s", p->name,
                  (double)took_ns * 1e-9, (double)late_ns * 1e-9, process_output(&r->worker));
}

START_TEST(test_stops)
{
    for (size_t i = 0; i < PLACES; i++)
        start(&running[i], &places[i]);
    for (size_t i = 0; i < PLACES; i++)
        if (places[i].says)
            process_wait_output(&running[i].worker, places[i].says, JOB_TIMEOUT_MS);
        else /* its warnings come later: it waits since the others' lines came */
            process_wait_output(&running[i].worker, "ranks: 2, ", JOB_TIMEOUT_MS);
    for (size_t i = 0; i < PLACES; i++)
        stop(&running[i], &places[i], i % 2 == 1);
}
END_TEST

/* A second signal does not wait for anything.  Which of two is the second, the kernel decides where
 * both are pending. */
START_TEST(test_second_signal)
{
    struct running *r = &running[0];
    const struct place *p = &places[PLACES - 1];
    int code;

    start(r, p);
    process_wait_output(&r->worker, "ranks: 2, ", JOB_TIMEOUT_MS);
    process_signal(&r->worker, SIGTERM);
    process_signal(&r->worker, SIGINT);
    code = process_wait(&r->worker, JOB_TIMEOUT_MS);
    ck_assert_msg(code == 128 + SIGINT || code == 128 + SIGTERM, "exit code %d", code);
}
END_TEST

/* Where rank 0 listens may come from a scheduler. */
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

/* Nothing that ends well frightens: no line of a missing GPU, none of a signal. */
START_TEST(test_quiet_end)
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
    Suite *suite = suite_create("waits");
    TCase *cases = tcase_create("waits");

    tcase_set_timeout(cases, 200);
    tcase_add_test(cases, test_stops);
    tcase_add_test(cases, test_second_signal);
    tcase_add_test(cases, test_address_that_does_not_resolve);
    tcase_add_test(cases, test_quiet_end);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
