/*
 * Init methods: the schemes, and PyTorch's errors for malformed ones.
 */
#include "common/store/init_method.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

static const struct launch_env launch = {.rank = 1,
                                         .world_size = 2,
                                         .master_addr = "node7",
                                         .master_addr_origin = "MASTER_ADDR",
                                         .master_port = 4711,
                                         .master_port_origin = "MASTER_PORT"};

START_TEST(env)
{
    struct error err = {0};
    struct launch_env agent = launch;
    struct init_method method;

    assert_ok(init_method_parse("env://", &launch, &method, &err));
    ck_assert(!method.is_file);
    ck_assert_str_eq(method.endpoint.host, "node7");
    ck_assert_uint_eq(method.endpoint.port, 4711);
    ck_assert_str_eq(method.origin, "MASTER_ADDR and MASTER_PORT");
    agent.agent_store = true;
    assert_ok(init_method_parse("env://", &agent, &method, &err));
    ck_assert_uint_eq(method.endpoint.port, 4712);
    ck_assert_str_eq(method.origin, "MASTER_ADDR and MASTER_PORT + 1, as torchrun listens on it");
    agent.master_port = 65535;
    assert_fails(init_method_parse("env://", &agent, &method, &err), STATUS_CONFIG, "65535");
    assert_fails(init_method_parse("env://x", &launch, &method, &err), STATUS_CONFIG, "env://x");
}
END_TEST

START_TEST(tcp)
{
    struct error err = {0};
    struct launch_env first = launch;
    struct init_method method;

    assert_ok(init_method_parse("tcp://10.0.0.1:80", &launch, &method, &err));
    ck_assert_str_eq(method.endpoint.host, "10.0.0.1");
    ck_assert_uint_eq(method.endpoint.port, 80);
    ck_assert_str_eq(method.origin, "--init-method");
    assert_ok(init_method_parse("tcp://[::1]:80", &launch, &method, &err));
    ck_assert_str_eq(method.endpoint.host, "::1");
    assert_fails(init_method_parse("tcp://h:0", &launch, &method, &err), STATUS_CONFIG, "port 0");
    first.rank = 0;
    assert_ok(init_method_parse("tcp://h:0", &first, &method, &err));
}
END_TEST

START_TEST(unix_socket)
{
    struct error err = {0};
    struct init_method method;

    assert_ok(init_method_parse("unix:///run/store", &launch, &method, &err));
    ck_assert(!method.is_file);
    ck_assert_str_eq(endpoint_unix_path(&method.endpoint), "/run/store");
    ck_assert_str_eq(method.origin, "--init-method");
    assert_ok(init_method_parse("unix:/run/store", &launch, &method, &err));
    ck_assert_str_eq(endpoint_unix_path(&method.endpoint), "/run/store");
}
END_TEST

static const char *const bad[][2] = {
    {"unix:///run/", "names a folder"},
    {"unix://run", "the path must be absolute"},
    {"unix:run", "is none of env://"},
    {"tcp://host", "port number missing"},
    {"tcp://host:", "port number missing"},
    {"tcp://[::1]", "port number missing"},
    {"tcp://", "port number missing"},
    {"tcp://host:x", "no port between"},
    {"tcp://host:65536", "no port between"},
    {"tcp://:80", "no host"},
    {"tcp://host:80?rank=0&world_size=2", "not from the URL"},
    {"file://relative/path", "must be absolute"},
    {"file://", "must be absolute"},
    {"file:///", "names a folder"},
    {"file:///tmp/", "names a folder"},
    {"file:///dev/null/store", "'/dev/null' is not a folder"},
    {"", "none of env://"},
    {"tcp:host:80", "none of env://"},
    {"http://host:80", "none of env://"},
    {"/path", "none of env://"},
    {"ENV://", "none of env://"},
};

START_TEST(malformed_urls_fail)
{
    struct error err = {0};
    struct init_method method;

    assert_fails(init_method_parse(bad[_i][0], &launch, &method, &err), STATUS_CONFIG, bad[_i][1]);
}
END_TEST

START_TEST(file)
{
    struct error err = {0};
    struct init_method method;
    const char *path = support_path("store");
    char text[5000];

    (void)snprintf(text, sizeof(text), "file://%s", path);
    assert_ok(init_method_parse(text, &launch, &method, &err));
    ck_assert(method.is_file);
    ck_assert_str_eq(method.path, path);
    assert_ok(init_method_parse("file:///store", &launch, &method, &err));
    ck_assert_str_eq(method.path, "/store");
    (void)snprintf(text, sizeof(text), "file://%s/none/store", path);
    assert_fails(init_method_parse(text, &launch, &method, &err), STATUS_NOT_FOUND, "store/none'");
    memset(text + 8, 'x', sizeof(text) - 9);
    text[sizeof(text) - 1] = '\0';
    assert_fails(init_method_parse(text, &launch, &method, &err), STATUS_CONFIG, "4095 allowed");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("init_method", 0, TEST(env), TEST(tcp), TEST(unix_socket),
                       LOOP_TEST(malformed_urls_fail, 0, sizeof(bad) / sizeof(*bad)), TEST(file));
}
