/*
 * The programs: the page of `sparring watch` over HTTP while runs go on and die, what it refuses,
 * in a real browser with a thousand cells; and `sparring status`.
 */
#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/base/strbuf.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_MS 20000
#define CELLS   1000

static struct error err;
static struct process page;
static char url[64];
static struct strbuf received = STRBUF_INIT;

static void teardown(void)
{
    strbuf_release(&received);
}

/* A plan of `cells` cells with a mode and one repeat each, and one run that goes on: its path. */
static const char *write_sweep(size_t cells)
{
    struct synthetic_run run = synthetic_ring("out/cells/rate=0/runs/ring-0");
    struct strbuf plan = STRBUF_INIT;
    const char *path;

    run.outcome = "";
    run.title = "A sweep <&>: rate=0";
    path = synthetic_write(&run);
    synthetic_remove(path, "summary.json");
    strbuf_add(&plan, "{\"repeats\":1,\"cells\":{");
    for (size_t i = 0; i < cells; i++)
        strbuf_addf(&plan, "%s\"rate=%zu\":{\"ring\":[]}", i > 0 ? "," : "", i);
    strbuf_add(&plan, "}}");
    (void)support_write("out/plan.json", plan.text, plan.length);
    (void)support_write("out/cells/rate=0/report.html", "<p>a report", 11);
    strbuf_release(&plan);
    return path;
}

static void start_page(const char *folder)
{
    const char *text;

    process_start(&page, NULL,
                  ARGS(support_program("sparring"), "watch", folder, "--listen", "127.0.0.1:0"));
    process_wait_output(&page, "/\n", WAIT_MS);
    text = strstr(process_output(&page), "http://127.0.0.1:");
    ck_assert_ptr_nonnull(text);
    (void)snprintf(url, sizeof(url), "%.*s", (int)strcspn(text, "\n"), text);
}

static void end_page(void)
{
    process_signal(&page, SIGTERM);
    ck_assert_int_eq(process_wait(&page, WAIT_MS), 0);
}

/* Send a request; `words` is its first line's beginning: "GET /". */
static int request(const char *words, const char *host)
{
    struct endpoint e;
    char text[512];
    int fd = -1;
    const int64_t deadline_ns = clock_deadline_ns(WAIT_MS);

    (void)snprintf(text, sizeof(text), "%.*s", (int)strcspn(url + 7, "/"), url + 7);
    assert_ok(endpoint_parse(text, "the page", &e, &err));
    assert_ok(net_connect(&e, deadline_ns, &fd, &err));
    (void)snprintf(text, sizeof(text), "%s HTTP/1.0\r\nHost: %s\r\n\r\n", words, host);
    assert_ok(net_send_all(fd, text, strlen(text), deadline_ns, &err));
    return fd;
}

/* Receive until a text is there, or, with NULL, until the end. */
static void receive(int fd, const char *text)
{
    const int64_t deadline_ns = clock_deadline_ns(WAIT_MS);

    while (!text || !strstr(received.text, text)) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        char buffer[1 << 16];
        ssize_t size;

        ck_assert_msg(poll(&readable, 1, clock_left_ms(deadline_ns)) == 1, "no '%s' in %.2000s",
                      text ? text : "end", received.text);
        size = recv(fd, buffer, sizeof(buffer), 0);
        if (size <= 0)
            break;
        strbuf_add_bytes(&received, buffer, (size_t)size);
    }
    ck_assert_msg(!text || strstr(received.text, text), "no '%s' in %.2000s", text, received.text);
}

static const char *get(const char *words, const char *host)
{
    int fd = request(words, host);

    strbuf_reset(&received);
    receive(fd, NULL);
    (void)close(fd);
    return received.text;
}

/* The next event of a stream; the caller drops it. */
static json_t *next_event(int fd)
{
    json_t *event;
    char *data, *end;

    receive(fd, "data: ");
    receive(fd, "}\n\n");
    data = strstr(received.text, "data: ") + strlen("data: ");
    end = strstr(data, "\n\n");
    ck_assert_ptr_nonnull(end);
    event = json_loadb(data, (size_t)(end - data), 0, NULL);
    ck_assert_ptr_nonnull(event);
    strbuf_reset(&received);
    return event;
}

static const json_t *at(const json_t *array, size_t index)
{
    return json_array_get(array, index);
}

static const json_t *of(const json_t *object, const char *name)
{
    return json_object_get(object, name);
}

START_TEST(test_events)
{
    const char *run = write_sweep(3);
    json_t *event;
    int fd;

    start_page(support_path("out"));
    fd = request("GET /events", "localhost:1");
    event = next_event(fd);
    ck_assert_str_eq(json_string_value(of(event, "title")), "A sweep <&>");
    ck_assert_uint_eq(json_array_size(of(event, "cells")), 3);
    ck_assert_uint_eq(json_array_size(of(event, "runs")), 1);
    ck_assert_int_eq(json_integer_value(of(of(event, "totals"), "planned")), 3);
    ck_assert_int_eq(json_integer_value(of(of(event, "totals"), "running")), 1);
    json_decref(event);

    synthetic_append(
        run, "rank0.jsonl",
        "{\"kind\":\"step\",\"step\":776,\"loss\":0.5,\"samples\":8,\"step_ns\":1000}\n");
    event = next_event(fd);
    ck_assert_uint_eq(json_array_size(of(event, "cells")), 1); /* what has changed */
    ck_assert_int_eq(json_integer_value(of(at(of(event, "runs"), 0), "steps")), 777);
    json_decref(event);

    synthetic_replace(run, "attempt.json",
                      "{\"title\":\"t\",\"mode\":\"ring\",\"label\":\"ring\",\"mode_index\":0,"
                      "\"repeat\":0,\"order\":0,\"seed\":1,\"seconds\":2,\"outcome\":"
                      "\"killed by signal 9\",\"command\":\"\"}");
    event = next_event(fd);
    ck_assert_int_eq(json_integer_value(of(of(event, "totals"), "failed")), 1);
    ck_assert(json_number_value(of(of(event, "totals"), "seconds_left")) == 4);
    ck_assert_str_eq(
        json_string_value(of(at(of(at(of(event, "cells"), 0), "failures"), 0), "reason")),
        "killed by signal 9");
    json_decref(event);
    end_page(); /* with a stream that is open */
    (void)close(fd);
}
END_TEST

START_TEST(test_requests)
{
    static const struct {
        const char *words, *host, *wanted;
    } requests[] = {
        {"GET /", "localhost", "200 OK"},
        {"GET /watch.js", "127.0.0.1:80", "text/javascript"},
        {"GET /style.css", "[::1]:80", "text/css"},
        {"GET /cells/rate%3D0/report.html", "localhost", "<p>a report"},
        {"GET /cells/rate=1/report.html", "localhost", "404"}, /* not there yet */
        {"GET /index.html", "localhost", "404"},
        {"GET /plan.json", "localhost", "404"},
        {"GET /cells/rate=0/runs/ring-0/rank0.jsonl", "localhost", "404"},
        {"GET /cells/rate=0/../../plan.json", "localhost", "404"},
        {"GET /../../etc/passwd", "localhost", "404"},
        {"GET /", "evil.example", "403"},
        {"GET /", "localhost.evil.example", "403"},
        {"POST /", "localhost", "405"},
    };

    (void)write_sweep(2);
    start_page(support_path("out"));
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
        ck_assert_msg(strstr(get(requests[i].words, requests[i].host), requests[i].wanted),
                      "%s: %s", requests[i].words, received.text);
    end_page();
}
END_TEST

START_TEST(test_refusals)
{
    const char *sparring = support_program("sparring"), *printed;

    (void)write_sweep(1);
    printed = process_run(PROCESS_FAILS, WAIT_MS, NULL,
                          ARGS(sparring, "watch", support_path("out"), "--listen", "0.0.0.0:0"));
    ck_assert_msg(strstr(printed, "on loopback only, not on '0.0.0.0:0'"), "%s", printed);
    printed =
        process_run(PROCESS_FAILS, WAIT_MS, NULL, ARGS(sparring, "watch", support_path("nowhere")));
    ck_assert_msg(strstr(printed, "is neither a run directory nor a folder of compare"), "%s",
                  printed);
    printed = process_run(PROCESS_FAILS, WAIT_MS, NULL, ARGS(sparring, "status"));
    ck_assert_msg(strstr(printed, "name one run directory or folder"), "%s", printed);
}
END_TEST

/* It is drawn again when a run ends, and ends with the last one. */
START_TEST(test_status)
{
    const char *run = write_sweep(1), *sparring = support_program("sparring"), *printed;
    struct process p;

    printed = process_run(0, WAIT_MS, NULL, ARGS(sparring, "status", support_path("out")));
    ck_assert_msg(strstr(printed, "0 of 1 runs, 0 failed"), "%s", printed);
    process_start(&p, NULL, ARGS(sparring, "status", support_path("out"), "--watch"));
    process_wait_output(&p, "0 of 1 runs", WAIT_MS);
    synthetic_replace(run, "attempt.json", "{\"mode\":\"ring\",\"outcome\":\"exit code 3\"}");
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 1);
    ck_assert_msg(strstr(process_output(&p), "1 of 1 runs, 1 failed"), "%s", process_output(&p));
}
END_TEST

/* While runs die. */
START_TEST(test_browser)
{
    const char *run = write_sweep(CELLS), *printed;
    struct process browser;

    if (!process_shell("command -v chromium >/dev/null")) {
        support_skip_package("chromium");
        return;
    }
    start_page(support_path("out"));
    process_start(
        &browser, NULL,
        ARGS(support_python(), support_source("tests/experiments/report/browser.py"), url));
    synthetic_replace(run, "attempt.json", "{\"mode\":\"ring\",\"outcome\":\"exit code 3\"}");
    ck_assert_int_eq(process_wait(&browser, 6 * WAIT_MS), 0);
    printed = process_output(&browser);
    ck_assert_msg(strstr(printed, "1 pages, 3 widths, 2 themes: 0 problems"), "%s", printed);
    end_page();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("watch", 180, CHECKED_FIXTURE(NULL, teardown), TEST(test_events),
                       TEST(test_requests), TEST(test_refusals), TEST(test_status),
                       TEST(test_browser));
}
