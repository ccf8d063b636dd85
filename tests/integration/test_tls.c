/*
 * Whole jobs under mutual TLS: store and parameter server require a certificate of every worker and
 * reject a worker without one; listening in plaintext on other addresses than loopback is refused.
 * With the files of experiments/make-certificates also a token, and certificates bound to ranks.
 */
#include "tests/integration/job.h"
#include "tests/support/certificate.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL                                                                                      \
    "--model", "mlp:16-8-4", "--data", "random:512,16,4", "--batch-size", "8", "--steps", "20"

static void start_server(struct process *server, char *address, size_t size)
{
    const char *port_file = support_path("port");
    struct error err = {0};
    char *text;
    size_t length;

    process_start(server, NULL,
                  ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0", "--port-file",
                       port_file, "--tls-ca", certificate_file("ca", "pem"), "--tls-cert",
                       certificate_file("node", "pem"), "--tls-key",
                       certificate_file("node", "key")));
    process_wait_output(server, "serving on", 40000);
    assert_ok(file_read(port_file, 64, &text, &length, &err));
    (void)snprintf(address, size, "127.0.0.1:%.*s", (int)strcspn(text, "\n"), text);
    free(text);
}

START_TEST(test_job_under_tls)
{
    struct process server;
    struct job job = {.ranks = 2};
    char address[64];
    json_t *summary;

    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make("node", "ca", "subjectAltName=IP:127.0.0.1");
    start_server(&server, address, sizeof(address));
    job.worker = ARGS(SMALL, "--sync", "ps", "--servers", address, "--tls-ca",
                      certificate_file("ca", "pem"), "--tls-cert", certificate_file("node", "pem"),
                      "--tls-key", certificate_file("node", "key"));
    summary = job_summary(job_run(&job, 0));
    ck_assert_str_eq(json_string_value(json_object_get(summary, "status")), "ok");
    json_decref(summary);

    (void)process_run(4, 40000, NULL,
                      ARGS(support_program("sparring-worker"), SMALL, "--sync", "ps", "--servers",
                           address, "--timeout-ms", "4000"));
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, 40000), 0);
}
END_TEST

/* Use certificate `name` and the token of experiments/make-certificates in all later processes. */
static void use_certificate(const char *name)
{
    char path[600];

    (void)snprintf(path, sizeof(path), "%s/ca.pem", support_path("certs"));
    ck_assert_int_eq(setenv("SPARRING_TLS_CA", path, 1), 0);
    (void)snprintf(path, sizeof(path), "%s/%s.pem", support_path("certs"), name);
    ck_assert_int_eq(setenv("SPARRING_TLS_CERT", path, 1), 0);
    (void)snprintf(path, sizeof(path), "%s/%s.key", support_path("certs"), name);
    ck_assert_int_eq(setenv("SPARRING_TLS_KEY", path, 1), 0);
    (void)snprintf(path, sizeof(path), "%s/token", support_path("certs"));
    ck_assert_int_eq(setenv("SPARRING_TOKEN_FILE", path, 1), 0);
    ck_assert_int_eq(setenv("SPARRING_BIND_RANKS", "true", 1), 0);
}

static const char *make_certificates(int wanted, const char *const *words)
{
    const char *argv[16] = {support_source("experiments/make-certificates"), support_path("certs")};

    for (size_t i = 0; words[i]; i++)
        argv[i + 2] = words[i];
    return process_run(wanted, 60000, NULL, argv);
}

/* With the certificate and the token in use: the ring over gRPC is encrypted; over TCP it is not,
 * and rank 0 says so. */
static void check_allreduce(void)
{
    static const char *const transports[] = {"grpc", "tcp"};

    for (size_t i = 0; i < 2; i++) {
        struct job job = {.ranks = 2};
        const char *folder;
        json_t *summary;

        job.worker = ARGS(SMALL, "--backend", "ring", "--transport", transports[i]);
        folder = job_run(&job, 0);
        summary = job_summary(folder);
        ck_assert_str_eq(json_string_value(json_object_get(summary, "status")), "ok");
        ck_assert_int_eq(strstr(job_output(), "travel in plaintext over ring") != NULL, i == 1);
        json_decref(summary);
    }
}

START_TEST(test_job_with_token_and_ranks)
{
    struct job job = {.ranks = 2, .servers = 1, .worker = ARGS(SMALL, "--sync", "ps")};
    const char *other = support_write("other", "another-token-than-theirs", 25);
    struct process server;
    char address[64];
    json_t *summary;

    if (!certificate_can_make())
        return;
    (void)make_certificates(0, ARGS("node", "--host", "127.0.0.1", "--ranks", "0-1"));
    use_certificate("node");
    summary = job_summary(job_run(&job, 0));
    ck_assert_str_eq(json_string_value(json_object_get(summary, "status")), "ok");
    json_decref(summary);
    check_allreduce();

    certificate_make_authority("ca"); /* for start_server */
    certificate_make("node", "ca", "subjectAltName=IP:127.0.0.1");
    start_server(&server, address, sizeof(address));
    ck_assert_ptr_nonnull(
        strstr(process_run(3, 60000, NULL,
                           ARGS(support_program("sparring-worker"), SMALL, "--sync", "ps",
                                "--servers", address, "--tls-ca", certificate_file("ca", "pem"),
                                "--tls-cert", certificate_file("node", "pem"), "--tls-key",
                                certificate_file("node", "key"))),
               "rank 0 is not for the peer"));
    ck_assert_ptr_nonnull(strstr(
        process_run(3, 60000, NULL,
                    ARGS(support_program("sparring-worker"), SMALL, "--sync", "ps", "--servers",
                         address, "--token-file", other, "--tls-ca", certificate_file("ca", "pem"),
                         "--tls-cert", certificate_file("node", "pem"), "--tls-key",
                         certificate_file("node", "key"))),
        "this server wants its bearer token"));
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, 60000), 0);
}
END_TEST

START_TEST(test_bad_arguments_for_certificates)
{
    if (!certificate_can_make())
        return;
    ck_assert_ptr_nonnull(strstr(make_certificates(2, ARGS("node")), "needs a --host or --ranks"));
    ck_assert_ptr_nonnull(strstr(make_certificates(2, ARGS("node", "--ranks", "3-1")), "is empty"));
    ck_assert_ptr_nonnull(
        strstr(make_certificates(2, ARGS("node", "--host", "a,URI:sparring:rank/0")),
               "neither a name nor an address"));
    ck_assert_ptr_nonnull(
        strstr(make_certificates(2, ARGS("../node", "--ranks", "1")), "cannot be the name"));
    ck_assert_ptr_nonnull(
        strstr(make_certificates(2, ARGS("ca", "--ranks", "1")), "cannot be the name"));
    ck_assert_ptr_nonnull(
        strstr(make_certificates(2, ARGS("node", "--rank", "1")), "unknown option"));
}
END_TEST

START_TEST(test_plaintext_stays_on_loopback)
{
    const char *output = process_run(
        2, 40000, NULL, ARGS(support_program("sparring-server"), "--listen", "0.0.0.0:0"));

    ck_assert_ptr_nonnull(strstr(output, "--insecure"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("tls", 120, TEST(test_job_under_tls), TEST(test_job_with_token_and_ranks),
                       TEST(test_bad_arguments_for_certificates),
                       TEST(test_plaintext_stays_on_loopback));
}
