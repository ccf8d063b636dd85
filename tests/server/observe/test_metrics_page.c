/*
 * The metrics page over a real socket: HTTP, its limits, and the figures of a real service with a
 * job.
 */
#include "server/observe/metrics_page.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/net.h"
#include "server/observe/metrics_text.h"
#include "tests/server/observe/metrics_check.h"
#include "tests/server/service/raw_job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_MS 20000
#define GET     "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

static struct error err;
static struct metrics_page *page;
static struct strbuf response = STRBUF_INIT;
static unsigned pages;     /* written so far; by the page's thread, read after it */
static enum status result; /* of writing */

static enum status write_page(void *user, struct strbuf *out, struct error *e)
{
    ck_assert_ptr_eq(user, &pages);
    if (result != STATUS_OK)
        return error_set(e, result, "no figures today");
    strbuf_addf(out, "page %u\n", ++pages);
    return STATUS_OK;
}

static void open_page(unsigned connections, unsigned timeout_s)
{
    struct metrics_page_config config = {.listen = {.host = "127.0.0.1"},
                                         .origin = "test",
                                         .connections = connections,
                                         .timeout_s = timeout_s,
                                         .type = METRICS_TEXT_TYPE,
                                         .write = write_page,
                                         .user = &pages};

    assert_ok(metrics_page_open(&config, &page, &err));
    ck_assert_uint_ne(metrics_page_port(page), 0);
}

static int connect_to(uint16_t port)
{
    struct endpoint e = {.host = "127.0.0.1", .port = port};
    int fd;

    assert_ok(net_connect(&e, clock_deadline_ns(WAIT_MS), &fd, &err));
    return fd;
}

static void send_text(int fd, const char *text)
{
    assert_ok(net_send_all(fd, text, strlen(text), clock_deadline_ns(WAIT_MS), &err));
}

/* Read up to the end of the connection into `response`. */
static void read_to_end(int fd)
{
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);

    strbuf_reset(&response);
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char bytes[4096];
        ssize_t got;

        ck_assert_msg(poll(&p, 1, clock_left_ms(deadline_ns)) != 0, "no end after '%s'",
                      response.text);
        got = recv(fd, bytes, sizeof(bytes), 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got <= 0)
            break;
        strbuf_add_bytes(&response, bytes, (size_t)got);
    }
    (void)close(fd);
}

static void send_request(uint16_t port, const char *request)
{
    int fd = connect_to(port);

    send_text(fd, request);
    read_to_end(fd);
}

static void assert_response_begins(const char *wanted)
{
    ck_assert_msg(strncmp(response.text, wanted, strlen(wanted)) == 0, "'%s'", response.text);
}

static void assert_response_has(const char *wanted)
{
    ck_assert_msg(strstr(response.text, wanted) != NULL, "'%s' lacks '%s'", response.text, wanted);
}

static const char *body(void)
{
    const char *end = strstr(response.text, "\r\n\r\n");

    ck_assert_msg(end != NULL, "no header in '%s'", response.text);
    return end + 4;
}

/* ------------------------------------------------------------------ HTTP */

START_TEST(test_get_and_head)
{
    uint16_t port;

    open_page(0, 0);
    port = metrics_page_port(page);
    send_request(port, GET);
    assert_response_begins("HTTP/1.1 200 OK\r\n");
    assert_response_has("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    assert_response_has("\r\nContent-Length: 7\r\n");
    ck_assert_str_eq(body(), "page 1\n");
    send_request(port, "HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_response_begins("HTTP/1.1 200 OK\r\n");
    assert_response_has("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    assert_response_has("\r\nContent-Length: 7\r\n");
    ck_assert_str_eq(body(), "");
    send_request(port, "GET /metrics?name[]=x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_str_eq(body(), "page 3\n");
    send_request(port, "GET /metrics HTTP/1.0\r\n\r\n");
    ck_assert_str_eq(body(), "page 4\n");
    send_request(
        port,
        "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody");
    ck_assert_str_eq(body(), "page 5\n");
    metrics_page_close(page);
    strbuf_release(&response);
}
END_TEST

START_TEST(test_two_requests_on_one_connection)
{
    int fd;

    open_page(0, 0);
    fd = connect_to(metrics_page_port(page));
    send_text(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" GET);
    read_to_end(fd);
    assert_response_begins("HTTP/1.1 200 OK\r\n");
    assert_response_has("\r\n\r\npage 1\n");
    assert_response_has("\r\n\r\npage 2\n");
    metrics_page_close(page);
    strbuf_release(&response);
}
END_TEST

START_TEST(test_refused_requests)
{
    static const struct {
        const char *request, *first_line, *header, *text;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404 Not Found\r\n",
         "Content-Length: 39\r\n", "not found; the metrics are at /metrics\n"},
        {"GET /metrics/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
         "HTTP/1.1 404 Not Found\r\n", "", "not found"},
        {"GET /../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
         "HTTP/1.1 404 Not Found\r\n", "", "not found"},
        {"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nxx",
         "HTTP/1.1 405 Method Not Allowed\r\n", "\r\nAllow: GET, HEAD\r\n", "only GET and HEAD"},
        {"DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
         "HTTP/1.1 405 Method Not Allowed\r\n", "\r\nAllow: GET, HEAD\r\n", "only GET and HEAD"},
        {"OPTIONS /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
         "HTTP/1.1 405 Method Not Allowed\r\n", "\r\nAllow: GET, HEAD\r\n", "only GET and HEAD"},
    };

    open_page(0, 0);
    send_request(metrics_page_port(page), cases[_i].request);
    assert_response_begins(cases[_i].first_line);
    assert_response_has(cases[_i].header);
    assert_response_has("\r\nContent-Type: text/plain; charset=utf-8\r\n");
    ck_assert_ptr_nonnull(strstr(body(), cases[_i].text));
    send_request(metrics_page_port(page), GET); /* and still serves */
    ck_assert_str_eq(body(), "page 1\n");
    metrics_page_close(page);
    strbuf_release(&response);
}
END_TEST

START_TEST(test_write_failure)
{
    open_page(0, 0);
    result = STATUS_NO_MEMORY;
    send_request(metrics_page_port(page), GET);
    assert_response_begins("HTTP/1.1 500 Internal Server Error\r\n");
    ck_assert_str_eq(body(), "no figures today\n");
    metrics_page_close(page);
    strbuf_release(&response);
}
END_TEST

/* ------------------------------------------------------------------ bounds */

START_TEST(test_connections_are_bounded)
{
    struct pollfd third;
    int idle[2], fd;

    open_page(2, 600);
    for (int i = 0; i < 2; i++) {
        idle[i] = connect_to(metrics_page_port(page));
        send_text(idle[i], "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        third = (struct pollfd){.fd = idle[i], .events = POLLIN};
        ck_assert_int_eq(poll(&third, 1, WAIT_MS), 1); /* accepted, and kept open */
    }
    fd = connect_to(metrics_page_port(page)); /* accepted by the kernel only */
    send_text(fd, GET);
    third = (struct pollfd){.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&third, 1, 200), 0);
    (void)close(idle[0]);
    read_to_end(fd);
    ck_assert_str_eq(body(), "page 3\n");
    (void)close(idle[1]);
    metrics_page_close(page);
    strbuf_release(&response);
}
END_TEST

START_TEST(test_silent_connections_are_closed)
{
    int fds[2];

    open_page(2, 1);
    for (int i = 0; i < 2; i++) {
        fds[i] = connect_to(metrics_page_port(page));
        send_text(fds[i], i ? "GET /metrics HTTP/1.1\r\nHo" : ""); /* then idle */
    }
    send_request(metrics_page_port(page), GET); /* waits until one of them is closed */
    ck_assert_str_eq(body(), "page 1\n");
    for (int i = 0; i < 2; i++)
        read_to_end(fds[i]);
    metrics_page_close(page);
    strbuf_release(&response);
}
END_TEST

/* Any bytes: the connection ends, and the page still serves. */
START_TEST(test_garbage)
{
    char bytes[70000];

    open_page(0, 1);
    for (unsigned round = 0; round < 8; round++) {
        int fd = connect_to(metrics_page_port(page));

        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (char)(round == 0 ? 'a' : (int)(support_random() * 256));
        if (round % 2 == 1) { /* a header without an end */
            for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (char)(bytes[i] == '\n' ? 'a' : bytes[i]);
            memcpy(bytes, "GET /metrics HTTP/1.1\r\nX: ", 26);
        }
        /* The page may close the connection during the send. */
        (void)net_send_all(fd, bytes, sizeof(bytes), clock_deadline_ns(WAIT_MS), &err);
        read_to_end(fd);
        ck_assert_ptr_null(strstr(response.text, "page "));
    }
    send_request(metrics_page_port(page), GET);
    ck_assert_str_eq(body(), "page 1\n");
    metrics_page_close(page);
    strbuf_release(&response);
}
END_TEST

START_TEST(test_addresses)
{
    struct metrics_page_config config = {
        .listen = {.host = "0.0.0.0"}, .origin = "--metrics-listen", .write = write_page};
    struct metrics_page *other = NULL;

    assert_fails(metrics_page_open(&config, &other, &err), STATUS_INVALID,
                 "refusing to show metrics on 0.0.0.0:0 (from --metrics-listen)");
    (void)snprintf(config.listen.host, sizeof(config.listen.host), "unix:/tmp/page");
    assert_fails(metrics_page_open(&config, &other, &err), STATUS_INVALID,
                 "--metrics-listen: 'unix:/tmp/page' is not host:port");
    (void)snprintf(config.listen.host, sizeof(config.listen.host), "0.0.0.0");
    config.insecure = true;
    assert_ok(metrics_page_open(&config, &other, &err));
    metrics_page_close(other);
    open_page(0, 0);
    config.listen = (struct endpoint){.host = "127.0.0.1", .port = metrics_page_port(page)};
    assert_fails(metrics_page_open(&config, &other, &err), STATUS_EXISTS,
                 "(--metrics-listen): the port is taken by pid");
    metrics_page_close(page);
    metrics_page_close(NULL);
}
END_TEST

/* ------------------------------------------------------------------ a real service */

static void open_service_with_page(void)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = WAIT_MS,
                                    .show_metrics = true,
                                    .metrics_listen = {.host = "127.0.0.1"},
                                    .metrics_listen_origin = "test"};

    log_set_level(LOG_QUIET);
    assert_ok(service_open(&config, &service, &err));
    for (unsigned i = 0; i < 3; i++)
        raw_open(&workers[i], service_port(service), i);
}

START_TEST(test_page_of_a_job)
{
    double shard_bytes = RAW_COUNT * sizeof(float);

    open_service_with_page();
    start_job();
    play_round(1);
    play_round(2);
    send_request(service_metrics_port(service), GET);
    (void)metrics_check(body());
    ck_assert(metrics_value(body(), "sparring_server_rounds_total") == 2);
    ck_assert(metrics_value(body(), "sparring_server_rx_payload_bytes_total") == 4 * shard_bytes);
    ck_assert(metrics_value(body(), "sparring_server_tx_payload_bytes_total") == 4 * shard_bytes);
    ck_assert(metrics_value(body(), "sparring_server_job_info{job=\"raw\",state=\"running\",mode="
                                    "\"bsp\",role=\"single\",peer=\"\","
                                    "server=\"0\",servers=\"1\"}") == 1);
    ck_assert(metrics_value(body(), "sparring_server_worker_lag_rounds{rank=\"1\"}") == 0);
    ck_assert(metrics_value(body(), "sparring_server_calls_open{method=\"sparring.v1."
                                    "ParameterServer/Exchange\"}") == 2);
    end_job();
    do
        send_request(service_metrics_port(service), GET);
    while (strstr(body(), "job_info"));
    (void)metrics_check(body());
    ck_assert(metrics_value(body(), "sparring_server_jobs_total{result=\"ok\"}") == 1);
    ck_assert(metrics_value(body(), "sparring_server_rounds_total") == 2);
    close_service();
    strbuf_release(&response);
}
END_TEST

static void *close_the_service(void *user)
{
    service_close(user);
    return NULL;
}

START_TEST(test_the_page_while_the_server_drains)
{
    uint16_t port;
    pthread_t closer;

    open_service_with_page();
    port = service_metrics_port(service);
    start_job();
    raw_send_valid(&workers[0], CHUNK_PUSH, 0, 1, 1);
    do
        send_request(port, GET);
    while (metrics_value(body(), "sparring_server_pushes_total") == 0);
    ck_assert(metrics_value(body(), "sparring_server_draining") == 0);
    ck_assert_int_eq(pthread_create(&closer, NULL, close_the_service, service), 0);
    do
        send_request(port, GET);
    while (metrics_value(body(), "sparring_server_draining") == 0);
    ck_assert(metrics_value(body(), "sparring_server_job_waiting_pushes") == 1);
    close_workers(); /* the round cannot end, so the service ends the job */
    ck_assert_int_eq(pthread_join(closer, NULL), 0);
    strbuf_release(&response);
}
END_TEST

START_TEST(test_the_program)
{
    const char *program = support_program("sparring-server");
    struct process p;
    const char *url;

    ck_assert_ptr_nonnull(strstr(
        process_run(2, WAIT_MS, NULL,
                    ARGS(program, "--listen", "127.0.0.1:0", "--metrics-listen", "0.0.0.0:0")),
        "refusing to show metrics on 0.0.0.0:0 (from --metrics-listen)"));
    ck_assert_ptr_nonnull(
        strstr(process_run(3, WAIT_MS, NULL, ARGS(program, "--metrics-listen", "nowhere")),
               "--metrics-listen: 'nowhere' is not host:port"));
    process_start(&p, NULL,
                  ARGS(program, "--listen", "127.0.0.1:0", "--metrics-listen", "localhost:0"));
    process_wait_output(&p, "/metrics\n", WAIT_MS);
    url = strstr(process_output(&p), "metrics on http://localhost:");
    ck_assert_ptr_nonnull(url);
    send_request((uint16_t)strtoul(url + strlen("metrics on http://localhost:"), NULL, 10), GET);
    (void)metrics_check(body());
    process_signal(&p, SIGTERM);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
    strbuf_release(&response);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("metrics_page", 120, TEST(test_get_and_head),
                       TEST(test_two_requests_on_one_connection),
                       LOOP_TEST(test_refused_requests, 0, 6), TEST(test_write_failure),
                       TEST(test_connections_are_bounded), TEST(test_silent_connections_are_closed),
                       TEST(test_garbage), TEST(test_addresses), TEST(test_page_of_a_job),
                       TEST(test_the_page_while_the_server_drains), TEST(test_the_program));
}
