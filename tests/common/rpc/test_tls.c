/*
 * test_tls: mutual TLS with certificates made here by the openssl command (skipped without it): the
 * round trip, every rejected connection with its error text, and the optional bearer token.
 */
#include "tests/common/rpc/rpc_support.h"
#include "tests/support/certificate.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_MS 20000
#define REFUSAL_MS  5000 /* time-out within which a handshake must fail */

static struct error err;

static struct rpc_security security_of(const char *authority, const char *name)
{
    return (struct rpc_security){.ca_file = certificate_file(authority, "pem"),
                                 .cert_file = certificate_file(name, "pem"),
                                 .key_file = certificate_file(name, "key")};
}

static void open_tls(struct echo *echo, const char *name)
{
    echo_open_with(echo, &(struct rpc_server_config){.listen = {"127.0.0.1", 0},
                                                     .listen_origin = "the test",
                                                     .security = security_of("ca", name)});
}

/* One unary call with that security. */
static enum status ask_for(const char *path, uint16_t port, const struct rpc_security *security,
                           int64_t timeout_ms)
{
    struct rpc_client_config config = {.target = {"127.0.0.1", port}, .security = *security};
    struct rpc_client *client;
    enum status status;

    assert_ok(rpc_client_open(&config, &client, &err));
    status = echo_ask(client, path, timeout_ms, &err);
    rpc_client_close(client);
    return status;
}

static enum status call_unary(uint16_t port, const struct rpc_security *security,
                              int64_t timeout_ms)
{
    return ask_for(ECHO_UNARY, port, security, timeout_ms);
}

START_TEST(round_trip)
{
    static uint8_t data[1 << 20];
    struct rpc_security security;
    struct rpc_client_config config;
    struct rpc_client *client;
    struct rpc_call *call;
    struct seen seen;
    struct echo echo;

    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1");
    certificate_make("worker", "ca", "subjectAltName=DNS:worker");
    open_tls(&echo, "server");
    security = security_of("ca", "worker");
    assert_ok(call_unary(rpc_server_port(echo.server), &security, DEADLINE_MS));
    config = (struct rpc_client_config){.target = {"127.0.0.1", rpc_server_port(echo.server)},
                                        .security = security};
    assert_ok(rpc_client_open(&config, &client, &err));
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_STREAM, clock_deadline_ns(DEADLINE_MS), &seen_handler,
                              &seen, &call, &err));
    rpc_call_receive(call);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(
            rpc_call_send(call, NULL, 0, &(struct rpc_payload){data, sizeof(data), NULL, NULL}),
            STATUS_OK);
    rpc_call_send_done(call);
    seen_wait_closed(&seen);
    ck_assert_msg(seen.result.status == STATUS_OK, "%s", seen.result.text);
    ck_assert_uint_eq(seen.payload_bytes, 4 * sizeof(data));
    rpc_call_unref(call);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(untrusted_peers_are_rejected)
{
    struct rpc_security security = {0};
    struct echo echo;

    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make_authority("other");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1");
    certificate_make("elsewhere", "ca", "subjectAltName=DNS:elsewhere.invalid");
    certificate_make("worker", "ca", "subjectAltName=DNS:worker");
    certificate_make("stranger", "other", "subjectAltName=DNS:worker");
    open_tls(&echo, "server");
    assert_fails(call_unary(rpc_server_port(echo.server), &security, REFUSAL_MS),
                 STATUS_UNREACHABLE, "cannot reach 127.0.0.1"); /* plaintext */
    security = security_of("other", "worker"); /* the client does not trust the server */
    assert_fails(call_unary(rpc_server_port(echo.server), &security, REFUSAL_MS),
                 STATUS_UNREACHABLE, "cannot reach 127.0.0.1");
    ck_assert_msg(strstr(err.text, "andshake"), "%s", err.text);
    security = security_of("ca", "stranger"); /* the server does not trust the client */
    ck_assert_int_ne(call_unary(rpc_server_port(echo.server), &security, REFUSAL_MS), STATUS_OK);
    security = security_of("ca", "worker");
    assert_ok(call_unary(rpc_server_port(echo.server), &security, DEADLINE_MS));
    echo_close(&echo, DEADLINE_MS);
    ck_assert_uint_eq(echo.closed, 1);
    open_tls(&echo, "elsewhere"); /* trusted, but issued for another host */
    assert_fails(call_unary(rpc_server_port(echo.server), &security, REFUSAL_MS),
                 STATUS_UNREACHABLE, "cannot reach 127.0.0.1");
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(files_are_checked)
{
    struct rpc_server_config config = {.listen = {"127.0.0.1", 0}, .listen_origin = "the test"};
    struct echo echo;

    config.security = (struct rpc_security){.cert_file = "a.pem", .key_file = ""};
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID,
                 "TLS needs three files; missing: certificate authority key");
    config.security = (struct rpc_security){
        .ca_file = support_path("none.pem"), .cert_file = "a.pem", .key_file = "a.key"};
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_NOT_FOUND, "none.pem");
    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1");
    config.security = security_of("ca", "server");
    config.security.key_file = certificate_file("ca", "key"); /* another key */
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID, "do not work together");
    config.security = security_of("ca", "server");
    config.security.ca_file = support_write("rubbish.pem", "rubbish", 7);
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID, "rubbish.pem");
    config.security = security_of("ca", "server");
    config.listen = (struct endpoint){"0.0.0.0", 0}; /* TLS may leave the host */
    echo_open_with(&echo, &config);
    echo_close(&echo, 0);
}
END_TEST

/* ------------------------------------------------------------------ the token */

#define TOKEN "a-token.of_32~characters+and/more"

/* A server that requires the token; the client's security, still without one. */
static struct rpc_security open_with_token(struct echo *echo)
{
    struct rpc_server_config config = {.listen = {"127.0.0.1", 0}, .listen_origin = "the test"};

    certificate_make_authority("ca");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1");
    config.security = security_of("ca", "server");
    config.security.token_file = support_write("token", TOKEN "\n", strlen(TOKEN) + 1);
    log_set_level(LOG_QUIET); /* it would log refusals */
    echo_open_with(echo, &config);
    return security_of("ca", "server");
}

START_TEST(valid_token_is_accepted)
{
    static const char *const wrong[] = {
        "a-token.of_32~characters+and/mor",   /* a prefix */
        "a-token.of_32~characters+and/more=", /* and more */
        "A-token.of_32~characters+and/more",  /* a letter's case */
        "another-token-of-the-same-length!"}; /* (its last byte is replaced below) */
    struct rpc_security security;
    struct echo echo;
    uint16_t port;

    if (!certificate_can_make())
        return;
    security = open_with_token(&echo);
    port = rpc_server_port(echo.server);
    assert_fails(call_unary(port, &security, DEADLINE_MS), STATUS_UNAUTHENTICATED, "--token-file");
    assert_fails(ask_for("/test.v1.Echo/Nothing", port, &security, DEADLINE_MS),
                 STATUS_UNAUTHENTICATED, "--token-file");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[64];

        (void)snprintf(text, sizeof(text), "%s", wrong[i]);
        text[strcspn(text, "!")] = i == 3 ? 'x' : '\0';
        security.token_file = support_write("wrong", text, strlen(text));
        assert_fails(call_unary(port, &security, DEADLINE_MS), STATUS_UNAUTHENTICATED,
                     "--token-file");
    }
    security.token_file = NULL;
    assert_ok(ask_for("/grpc.health.v1.Health/Check", port, &security,
                      DEADLINE_MS));   /* health checks need no token */
    ck_assert_uint_eq(echo.closed, 0); /* no handler has received any of them */
    security.token_file = support_path("token");
    assert_ok(call_unary(port, &security, DEADLINE_MS));
    assert_fails(ask_for("/test.v1.Echo/Nothing", port, &security, DEADLINE_MS), STATUS_UNSUPPORTED,
                 "no method");
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* Messages of a client without the token are never read. */
START_TEST(messages_without_the_token_are_not_read)
{
    static uint8_t data[4 << 20];
    struct rpc_security security;
    struct rpc_client_config config;
    struct rpc_client *client;
    struct rpc_call *call;
    struct seen seen;
    struct echo echo;

    if (!certificate_can_make())
        return;
    security = open_with_token(&echo);
    config = (struct rpc_client_config){.target = {"127.0.0.1", rpc_server_port(echo.server)},
                                        .security = security};
    assert_ok(rpc_client_open(&config, &client, &err));
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_STREAM, clock_deadline_ns(DEADLINE_MS), &seen_handler,
                              &seen, &call, &err));
    rpc_call_receive(call);
    for (int i = 0; i < 8; i++) /* the refusal may be here already */
        (void)rpc_call_send(call, NULL, 0, &(struct rpc_payload){data, sizeof(data), NULL, NULL});
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_UNAUTHENTICATED);
    ck_assert_uint_eq(seen.messages, 0);
    rpc_call_unref(call);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
    ck_assert_uint_eq(echo.closed, 0);
    ck_assert_uint_eq(echo.sent, 0);
}
END_TEST

/* A Unix socket needs no TLS for the token: no other user can listen there. */
START_TEST(token_over_a_unix_socket)
{
    struct rpc_security security = {0};
    struct rpc_client_config client_config = {0};
    struct rpc_server_config config = {.listen_origin = "the test"};
    struct rpc_client *client;
    struct echo echo;
    uint8_t request[130], *reply = NULL;
    size_t size = make_text(request, "text"), reply_size;

    security.token_file = support_write("token", TOKEN, strlen(TOKEN));
    log_set_level(LOG_QUIET);
    (void)snprintf(config.listen.host, sizeof(config.listen.host), "unix:%s",
                   support_path("socket"));
    config.security = security;
    echo_open_with(&echo, &config);
    client_config.target = config.listen;
    for (int with_token = 0; with_token < 2; with_token++) {
        enum status status;

        if (with_token)
            client_config.security = security;
        assert_ok(rpc_client_open(&client_config, &client, &err));
        status = rpc_client_unary(client, ECHO_UNARY, request, size, clock_deadline_ns(DEADLINE_MS),
                                  &reply, &reply_size, &err);
        ck_assert_int_eq(status, with_token ? STATUS_OK : STATUS_UNAUTHENTICATED);
        rpc_client_close(client);
    }
    free(reply);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* No token is sent or expected in plaintext, and none appears in an error. */
START_TEST(token_files_are_checked)
{
    static const struct {
        const char *content, *text;
    } bad[] = {{"", "has 0 characters (allowed: 16 to 512)"},
               {"too-short\n", "has 9 characters (allowed: 16 to 512)"},
               {"two words are no token\n", "a byte at position 3 that no token has"},
               {"0123456789abcdef\n0123456789abcdef\n", "a byte at position 16 that no token has"}};
    struct rpc_server_config config = {.listen = {"127.0.0.1", 0}, .listen_origin = "the test"};
    struct rpc_client_config client_config = {.target = {"127.0.0.1", 1}};
    struct rpc_client *client;
    struct echo echo;
    char long_token[600];

    config.security.token_file = support_write("token", TOKEN, strlen(TOKEN));
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID,
                 "goes only over TLS or a Unix socket");
    client_config.security = config.security;
    assert_fails(rpc_client_open(&client_config, &client, &err), STATUS_INVALID,
                 "goes only over TLS or a Unix socket");
    if (!certificate_can_make())
        return;
    certificate_make_authority("ca");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1");
    config.security = security_of("ca", "server");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        config.security.token_file = support_write("token", bad[i].content, strlen(bad[i].content));
        assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID, bad[i].text);
        ck_assert_ptr_nonnull(strstr(err.text, config.security.token_file));
        ck_assert(bad[i].content[0] == '\0' || strstr(err.text, bad[i].content) == NULL);
    }
    memset(long_token, 'x', sizeof(long_token));
    config.security.token_file = support_write("token", long_token, sizeof(long_token));
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID, "has 600 characters");
    config.security.token_file = support_path("nowhere");
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_NOT_FOUND, "nowhere");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_tls", 100, TEST(round_trip), TEST(untrusted_peers_are_rejected),
                       TEST(files_are_checked), TEST(valid_token_is_accepted),
                       TEST(messages_without_the_token_are_not_read),
                       TEST(token_over_a_unix_socket), TEST(token_files_are_checked));
}
