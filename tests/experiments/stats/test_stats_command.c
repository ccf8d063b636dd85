/*
 * `sparring stats` against a real service: its output, and its failures.
 */
#include "tests/server/service/raw_job.h"
#include "tests/support/certificate.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/wire/wire_stats.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WAIT_MS 60000

static struct error err;

static const char *service_address(void)
{
    static char text[64];

    (void)snprintf(text, sizeof(text), "127.0.0.1:%u", service_port(service));
    return text;
}

static json_t *parse_json(const char *text)
{
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);

    ck_assert_msg(root != NULL, "%s in '%s'", error.text, text);
    return root;
}

static json_int_t json_int_member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    ck_assert_msg(json_is_integer(value), "no number '%s'", key);
    return json_integer_value(value);
}

START_TEST(test_a_job)
{
    const char *program = support_program("sparring");
    json_t *root, *job, *workers_shown;

    open_service(20000, NULL);
    root = parse_json(
        process_run(0, WAIT_MS, NULL, ARGS(program, "stats", "--server", service_address())));
    ck_assert_ptr_null(json_object_get(root, "job"));
    json_decref(root);
    start_job();
    play_round(1);
    root = parse_json(
        process_run(0, WAIT_MS, NULL, ARGS(program, "stats", "--server", service_address())));
    ck_assert_str_eq(json_string_value(json_object_get(root, "version")), SPARRING_VERSION);
    ck_assert(json_is_false(json_object_get(root, "draining")));
    ck_assert_int_eq(json_int_member(json_object_get(root, "counters"), "rounds"), 1);
    ck_assert_int_eq(json_int_member(json_object_get(root, "counters"), "pushes"),
                     2 * RAW_PARTITIONS);
    job = json_object_get(root, "job");
    ck_assert_str_eq(json_string_value(json_object_get(job, "state")), "running");
    ck_assert_int_eq(json_int_member(job, "world_size"), 2);
    workers_shown = json_object_get(job, "workers");
    ck_assert_uint_eq(json_array_size(workers_shown), 2);
    ck_assert_int_eq(json_int_member(json_array_get(workers_shown, 1), "rank"), 1);
    ck_assert(json_is_true(json_object_get(json_array_get(workers_shown, 1), "connected")));
    json_decref(root);
    close_service();
}
END_TEST

START_TEST(test_failures)
{
    const char *program = support_program("sparring");
    char gone[64];

    open_service(20000, NULL);
    (void)snprintf(gone, sizeof(gone), "%s", service_address());
    close_service();
    ck_assert_ptr_nonnull(
        strstr(process_run(4, WAIT_MS, NULL,
                           ARGS(program, "stats", "--server", gone, "--timeout-ms", "500")),
               "cannot reach"));
    ck_assert_ptr_nonnull(
        strstr(process_run(3, WAIT_MS, NULL, ARGS(program, "stats", "--server", "nowhere")),
               "--server: 'nowhere' is not"));
    ck_assert_ptr_nonnull(strstr(process_run(2, WAIT_MS, NULL, ARGS(program, "stats", "word")),
                                 "unexpected word 'word'"));
}
END_TEST

/* A server that requires a certificate and a token: the client has both, one, or none. */
START_TEST(test_a_server_behind_tls)
{
    static const char token[] = "a-token-of-some-letters";
    const char *program = support_program("sparring"), *token_file;
    char ca[1024], cert[1024], key[1024];
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 1,
                                    .timeout_ms = 20000};
    json_t *root;

    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make("node", "ca", "subjectAltName=IP:127.0.0.1");
    (void)snprintf(ca, sizeof(ca), "%s", certificate_file("ca", "pem"));
    (void)snprintf(cert, sizeof(cert), "%s", certificate_file("node", "pem"));
    (void)snprintf(key, sizeof(key), "%s", certificate_file("node", "key"));
    token_file = support_write("token", token, sizeof(token) - 1);
    ck_assert_int_eq(chmod(token_file, 0600), 0); /* otherwise a warning precedes the JSON */
    config.security = (struct rpc_security){
        .ca_file = ca, .cert_file = cert, .key_file = key, .token_file = token_file};
    assert_ok(service_open(&config, &service, &err));
    root = parse_json(
        process_run(0, WAIT_MS, NULL,
                    ARGS(program, "stats", "--server", service_address(), "--tls-ca", ca,
                         "--tls-cert", cert, "--tls-key", key, "--token-file", token_file)));
    ck_assert_str_eq(json_string_value(json_object_get(root, "version")), SPARRING_VERSION);
    json_decref(root);
    ck_assert_ptr_nonnull(
        strstr(process_run(3, WAIT_MS, NULL,
                           ARGS(program, "stats", "--server", service_address(), "--tls-ca", ca,
                                "--tls-cert", cert, "--tls-key", key)),
               "--token-file"));
    ck_assert_ptr_null(strstr(
        process_run(4, WAIT_MS, NULL,
                    ARGS(program, "stats", "--server", service_address(), "--timeout-ms", "2000")),
        "version"));
    service_close(service);
}
END_TEST

/* ------------------------------------------------------------------ any bytes */

START_TEST(test_hostile_replies)
{
    struct strbuf out = STRBUF_INIT;
    /* cpu_seconds (field 4) is NaN; version (1) holds a quote and a line end; field 99 is unknown.
     */
    static const uint8_t odd[] = {0x0a, 3, '"', '\n', '\\', 0x21, 0,    0,   0,
                                  0,    0, 0,   0xf8, 0x7f, 0x98, 0x06, 0x05};
    static const uint8_t bad_text[] = {0x0a, 1, 0xff};
    static const uint8_t cut[] = {0x0a, 5, 'a'};
    json_t *root;

    assert_ok(wire_stats_to_json(odd, sizeof(odd), &out, &err));
    root = parse_json(out.text);
    ck_assert_str_eq(json_string_value(json_object_get(root, "version")), "\"\n\\");
    ck_assert(json_is_null(json_object_get(root, "cpu_seconds")));
    ck_assert_uint_eq(json_array_size(json_object_get(root, "methods")), 0);
    json_decref(root);
    strbuf_reset(&out);
    assert_fails(wire_stats_to_json(bad_text, sizeof(bad_text), &out, &err), STATUS_DATA,
                 "'version'");
    assert_fails(wire_stats_to_json(cut, sizeof(cut), &out, &err), STATUS_DATA, "StatsReply");
    ck_assert_uint_eq(out.length, 0);
    strbuf_release(&out);
}
END_TEST

START_TEST(test_random_replies)
{
    uint8_t bytes[256];

    for (unsigned round = 0; round < 20000; round++) {
        struct strbuf out = STRBUF_INIT;
        size_t size = (size_t)(support_random() * sizeof(bytes));

        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)(support_random() * 256);
        if (size > 2) { /* often a job: its length and a field */
            bytes[0] = 13 << 3 | 2;
            bytes[1] = (uint8_t)(size < 130 ? size - 2 : 127);
        }
        if (wire_stats_to_json(bytes, size, &out, NULL) == STATUS_OK)
            json_decref(parse_json(out.text));
        strbuf_release(&out);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("stats_command", 120, TEST(test_a_job), TEST(test_failures),
                       TEST(test_a_server_behind_tls), TEST(test_hostile_replies),
                       TEST(test_random_replies));
}
