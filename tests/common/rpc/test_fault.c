/*
 * test_fault: what must hold when something is missing, late, full or dead: every call still ends
 * exactly once with words that help, and every payload comes back.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 20000
#define RUN_OUT_MS  4000 /* of a deadline that is to run out, after a look at the server */
#define CHUNK_BYTES (1 << 20)

static struct error err;
static uint8_t chunk[CHUNK_BYTES];

/* ------------------------------------------------------------------ reaching a server */

static enum status ask(struct rpc_client *client, int64_t timeout_ms)
{
    uint8_t request[130];
    size_t size = make_text(request, "x");
    uint8_t *reply = NULL;
    enum status status = rpc_client_unary(client, ECHO_UNARY, request, size,
                                          clock_deadline_ns(timeout_ms), &reply, &size, &err);

    free(reply);
    return status;
}

START_TEST(nobody_listens)
{
    struct rpc_client *client = client_open(1);
    int64_t before = clock_now_ns();

    assert_fails(ask(client, RUN_OUT_MS), STATUS_UNREACHABLE, "cannot reach 127.0.0.1:1 within");
    ck_assert_ptr_nonnull(strstr(err.text, "Connection refused"));
    ck_assert_int_ge(clock_now_ns() - before, (int64_t)RUN_OUT_MS * 1000000);
    ck_assert_int_lt(clock_now_ns() - before, (RUN_OUT_MS + INT64_C(10000)) * 1000000);
    rpc_client_close(client);
}
END_TEST

START_TEST(name_that_does_not_exist)
{
    struct rpc_client_config config = {.target = {"no-such-host.invalid", 4711}};
    struct rpc_client *client;

    assert_ok(rpc_client_open(&config, &client, &err));
    assert_fails(ask(client, 500), STATUS_UNREACHABLE,
                 "cannot reach no-such-host.invalid:4711 within");
    rpc_client_close(client);
}
END_TEST

static void *ask_in_thread(void *user)
{
    ck_assert_msg(ask(user, DEADLINE_MS) == STATUS_OK, "%s", err.text);
    return NULL;
}

START_TEST(server_that_comes_up_later)
{
    uint16_t port = support_port();
    struct rpc_client *client = client_open(port);
    struct rpc_server_config config = {.listen = {"127.0.0.1", port}, .listen_origin = "the test"};
    struct echo echo;
    pthread_t thread;

    assert_fails(ask(client, 150), STATUS_UNREACHABLE, "cannot reach");
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_in_thread, client), 0);
    echo_open_with(&echo, &config);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* Whose word a failure is: the server's own, or what became of the connection. */
static enum status ask_for(struct rpc_client *client, const char *path, int64_t deadline_ns,
                           bool *ret_by_peer)
{
    uint8_t request[130];
    size_t size = make_text(request, "x");
    uint8_t *reply = NULL;
    enum status status = rpc_client_unary_told(client, path, request, size, deadline_ns, &reply,
                                               &size, ret_by_peer, &err);

    free(reply);
    return status;
}

START_TEST(a_failure_says_whose_word_it_is)
{
    struct echo echo;
    struct rpc_client *client;
    enum status status;
    bool by_peer = true;

    echo_open(&echo, 1);
    client = client_open(rpc_server_port(echo.server));
    assert_ok(ask_for(client, ECHO_UNARY, clock_deadline_ns(DEADLINE_MS), &by_peer));
    ck_assert(!by_peer);
    assert_fails(ask_for(client, ECHO_FAIL, clock_deadline_ns(DEADLINE_MS), &by_peer),
                 STATUS_MISMATCH, "x");
    ck_assert(by_peer);
    assert_fails(ask_for(client, ECHO_HOLD, clock_deadline_ns(RUN_OUT_MS), &by_peer),
                 STATUS_TIMEOUT, "did not end within");
    ck_assert(!by_peer);
    echo_close(&echo, 0);
    /* The first call may still go out on the connection that ends: it is lost with it. */
    status = ask_for(client, ECHO_UNARY, clock_deadline_ns(500), &by_peer);
    ck_assert(status == STATUS_PEER_LOST || status == STATUS_UNREACHABLE);
    ck_assert(!by_peer);
    assert_fails(ask_for(client, ECHO_UNARY, clock_deadline_ns(500), &by_peer), STATUS_UNREACHABLE,
                 "cannot reach");
    ck_assert(!by_peer);
    rpc_client_close(client);
}
END_TEST

struct held_ask {
    struct rpc_client *client;
    enum status status;
    bool by_peer;
};

static void *ask_held(void *user)
{
    struct held_ask *a = user;

    a->status = ask_for(a->client, ECHO_HOLD, clock_deadline_ns(DEADLINE_MS), &a->by_peer);
    return NULL;
}

/* From another thread, and the client is as good as before. */
START_TEST(what_is_under_way_is_cancelled)
{
    struct echo echo;
    struct held_ask a = {.by_peer = true};
    pthread_t thread;

    echo_open(&echo, 1);
    a.client = client_open(rpc_server_port(echo.server));
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_held, &a), 0);
    echo_wait(&echo, &echo.held, 1);
    rpc_client_cancel(a.client);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    assert_fails(a.status, STATUS_CANCELLED, "was cancelled");
    ck_assert(!a.by_peer);
    ck_assert_msg(ask(a.client, DEADLINE_MS) == STATUS_OK, "%s", err.text);
    rpc_client_close(a.client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* ------------------------------------------------------------------ binding */

START_TEST(second_server_on_a_port_names_the_holder)
{
    struct rpc_server_config config = {.listen = {"127.0.0.1", support_port()},
                                       .listen_origin = "--listen"};
    struct echo first;
    struct echo second;
    char holder[64];

    echo_open_with(&first, &config);
    assert_fails(echo_try_open(&second, &config, &err), STATUS_IO, "(from --listen)");
    (void)snprintf(holder, sizeof(holder), "in use by pid %d", (int)getpid());
    ck_assert_msg(strstr(err.text, holder), "'%s' lacks '%s'", err.text, holder);
    echo_close(&first, 0);
    echo_open_with(&second, &config); /* and free again */
    echo_close(&second, 0);
}
END_TEST

START_TEST(plaintext_stays_on_loopback)
{
    struct rpc_server_config config = {.listen = {"0.0.0.0", 0}, .listen_origin = "--listen"};
    struct echo echo;

    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID,
                 "refusing to listen on 0.0.0.0:0 (from --listen) without encryption");
    config.listen = (struct endpoint){"::", 0};
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID, "refusing to listen");
    config.security.insecure = true;
    config.listen = (struct endpoint){"0.0.0.0", 0};
    echo_open_with(&echo, &config);
    ck_assert_uint_ne(rpc_server_port(echo.server), 0);
    echo_close(&echo, 0);
    config = (struct rpc_server_config){.listen = {"localhost", 0}, .listen_origin = "--listen"};
    echo_open_with(&echo, &config);
    echo_close(&echo, 0);
}
END_TEST

START_TEST(bad_addresses_and_methods)
{
    struct rpc_server_config config = {.listen = {"no-such-host.invalid", 0},
                                       .listen_origin = "--listen"};
    const struct rpc_method twice[] = {{.path = "/a.B/C", .handler = &seen_handler},
                                       {.path = "/a.B/C", .handler = &seen_handler}};
    struct echo echo;
    struct rpc_server *server;

    assert_fails(echo_try_open(&echo, &config, &err), STATUS_INVALID,
                 "cannot listen on 'no-such-host.invalid' (from --listen)");
    config.listen = (struct endpoint){"192.0.2.1", 0}; /* nobody's address */
    config.security.insecure = true;
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_IO, "cannot listen on 192.0.2.1:0");
    config.listen = (struct endpoint){"127.0.0.1", 0};
    config.methods = twice;
    config.method_count = 2;
    assert_fails(rpc_server_open(&config, &server, &err), STATUS_INVALID,
                 "method '/a.B/C' is given twice");
    config.methods = &(const struct rpc_method){.path = "Check", .handler = &seen_handler};
    config.method_count = 1;
    assert_fails(rpc_server_open(&config, &server, &err), STATUS_INVALID, "'Check'");
}
END_TEST

/* ------------------------------------------------------------------ many calls, one end */

#define HELD 100

START_TEST(server_closes_with_held_calls)
{
    static struct seen seen[HELD];
    struct rpc_call *calls[HELD];
    struct rpc_client *client;
    struct echo echo;
    int64_t before;

    echo_open(&echo, 3);
    client = client_open(rpc_server_port(echo.server));
    for (size_t i = 0; i < HELD; i++) {
        seen_init(&seen[i]);
        assert_ok(rpc_client_call(client, ECHO_HOLD, INT64_MAX, &seen_handler, &seen[i], &calls[i],
                                  &err));
        rpc_call_receive(calls[i]);
    }
    echo_wait(&echo, &echo.held, HELD);
    before = clock_now_ns();
    echo_close(&echo, 100);
    ck_assert_int_lt(clock_now_ns() - before, (int64_t)DEADLINE_MS * 1000000);
    ck_assert_uint_eq(echo.closed, HELD);
    ck_assert_uint_eq(echo.cancelled, HELD);
    for (size_t i = 0; i < HELD; i++) {
        seen_wait_closed(&seen[i]);
        ck_assert_int_eq(seen[i].result.status, STATUS_PEER_LOST);
        rpc_call_unref(calls[i]);
    }
    rpc_client_close(client);
    for (size_t i = 0; i < HELD; i++)
        ck_assert_uint_eq(seen[i].closed, 1);
}
END_TEST

START_TEST(client_closes_with_held_calls)
{
    static struct seen seen[HELD];
    struct rpc_call *calls[HELD];
    struct rpc_client *client;
    struct echo echo;
    atomic_uint released = 0;

    echo_open(&echo, 2);
    client = client_open(rpc_server_port(echo.server));
    for (size_t i = 0; i < HELD; i++) {
        struct rpc_payload payload = {chunk, sizeof(chunk), count_release, &released};

        seen_init(&seen[i]);
        assert_ok(rpc_client_call(client, ECHO_HOLD, INT64_MAX, &seen_handler, &seen[i], &calls[i],
                                  &err));
        ck_assert_int_eq(rpc_call_send(calls[i], NULL, 0, &payload), STATUS_OK);
        ck_assert_int_eq(rpc_call_send(calls[i], NULL, 0, &payload), STATUS_OK);
    }
    rpc_client_close(client); /* some calls are held, some messages under way, some queued */
    for (size_t i = 0; i < HELD; i++) {
        ck_assert_uint_eq(seen[i].closed, 1);
        ck_assert_int_eq(seen[i].result.status, STATUS_CANCELLED);
        rpc_call_unref(calls[i]);
    }
    wait_for_count(&released, 2 * HELD);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(draining_refuses_new_calls_and_keeps_old_ones)
{
    struct rpc_client *client;
    struct rpc_call *call;
    struct seen seen;
    struct echo echo;

    echo_open(&echo, 2);
    client = client_open(rpc_server_port(echo.server));
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_STREAM, clock_deadline_ns(DEADLINE_MS), &seen_handler,
                              &seen, &call, &err));
    rpc_call_receive(call);
    ck_assert_int_eq(rpc_call_send(call, NULL, 0, &(struct rpc_payload){chunk, 8, NULL, NULL}),
                     STATUS_OK);
    seen_wait_messages(&seen, 1);
    rpc_server_drain(echo.server);
    assert_fails(ask(client, DEADLINE_MS), STATUS_UNAVAILABLE, "the server is draining");
    ck_assert_int_eq(rpc_call_send(call, NULL, 0, &(struct rpc_payload){chunk, 8, NULL, NULL}),
                     STATUS_OK);
    rpc_call_send_done(call);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_OK);
    ck_assert_uint_eq(seen.messages, 2);
    rpc_call_unref(call);
    rpc_client_close(client);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* ------------------------------------------------------------------ kill -9 in mid-stream */

/* A child that runs `body` with the write end of a pipe; forked before gRPC starts here. */
static pid_t start_child(void (*body)(int pipe_fd), int *ret_pipe)
{
    int fds[2];
    pid_t child;

    ck_assert_int_eq(pipe(fds), 0);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)close(fds[0]);
        body(fds[1]);
        _exit(0);
    }
    (void)close(fds[1]);
    *ret_pipe = fds[0];
    return child;
}

static void kill_child(pid_t child)
{
    int status;

    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
}

static void serve_until_killed(int pipe_fd)
{
    struct echo echo;
    uint16_t port;

    echo_open(&echo, 1);
    port = rpc_server_port(echo.server);
    if (write(pipe_fd, &port, sizeof(port)) == sizeof(port))
        (void)pause();
}

START_TEST(server_killed_in_mid_stream)
{
    enum { MESSAGES = 200 };
    struct rpc_client *client;
    struct rpc_call *call;
    struct seen seen;
    atomic_uint released = 0;
    uint16_t port = 0;
    int fd;
    pid_t child = start_child(serve_until_killed, &fd);

    ck_assert_int_eq(read(fd, &port, sizeof(port)), sizeof(port));
    client = client_open(port);
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_STREAM, INT64_MAX, &seen_handler, &seen, &call, &err));
    rpc_call_receive(call);
    for (int i = 0; i < MESSAGES; i++)
        (void)rpc_call_send(call, NULL, 0,
                            &(struct rpc_payload){chunk, sizeof(chunk), count_release, &released});
    seen_wait_messages(&seen, 5);
    kill_child(child);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_PEER_LOST);
    ck_assert_msg(strstr(seen.result.text, "the connection to 127.0.0.1:"), "%s", seen.result.text);
    ck_assert_uint_eq(seen.ends, 0);
    wait_for_count(&released, MESSAGES);
    rpc_call_unref(call);
    rpc_client_close(client);
    ck_assert_uint_eq(seen.closed, 1);
    (void)close(fd);
}
END_TEST

static int port_pipe[2]; /* the parent tells the child its port */

static void stream_until_killed(int pipe_fd)
{
    struct rpc_client *client;
    struct rpc_call *call;
    struct seen seen;
    uint16_t port = 0;

    (void)pipe_fd;
    ck_assert_int_eq(read(port_pipe[0], &port, sizeof(port)), sizeof(port));
    client = client_open(port);
    seen_init(&seen);
    assert_ok(rpc_client_call(client, ECHO_STREAM, INT64_MAX, &seen_handler, &seen, &call, &err));
    rpc_call_receive(call);
    for (unsigned sent = 0;; sent++) {
        if (sent > 8)
            seen_wait_messages(&seen, sent - 8);
        (void)rpc_call_send(call, NULL, 0, &(struct rpc_payload){chunk, sizeof(chunk), NULL, NULL});
    }
}

START_TEST(client_killed_in_mid_stream)
{
    struct echo echo;
    uint16_t port;
    int fd;
    pid_t child;

    ck_assert_int_eq(pipe(port_pipe), 0);
    child = start_child(stream_until_killed, &fd);
    echo_open(&echo, 2);
    port = rpc_server_port(echo.server);
    ck_assert_int_eq(write(port_pipe[1], &port, sizeof(port)), sizeof(port));
    echo_wait(&echo, &echo.sent, 20);
    kill_child(child);
    echo_wait(&echo, &echo.closed, 1);
    ck_assert_uint_eq(echo.closed, 1);
    ck_assert_uint_eq(echo.cancelled, 1);
    ck_assert_uint_eq(echo.ends, 0); /* a death is not a half-close */
    echo_wait(&echo, &echo.released, echo.sent);
    echo_close(&echo, 0);
    ck_assert_uint_eq(echo.released, echo.sent);
    (void)close(fd);
}
END_TEST

/* ------------------------------------------------------------------ connections */

static unsigned count_in(const char *path, uint16_t port)
{
    FILE *table = fopen(path, "re");
    char line[512];
    char wanted[8];
    unsigned found = 0;

    ck_assert_ptr_nonnull(table);
    (void)snprintf(wanted, sizeof(wanted), ":%04X", port);
    while (fgets(line, sizeof(line), table)) {
        char remote[64];
        char state[8];

        if (sscanf(line, "%*s %*s %63s %7s", remote, state) == 2 && strcmp(state, "01") == 0 &&
            strcmp(remote + strcspn(remote, ":"), wanted) == 0)
            found++;
    }
    (void)fclose(table);
    return found;
}

/* Established TCP connections to `port`: the clients' ends.  Core's sockets are of either family.
 */
static unsigned count_connections(uint16_t port)
{
    return count_in("/proc/net/tcp", port) + count_in("/proc/net/tcp6", port);
}

START_TEST(each_client_has_its_own_connection)
{
    struct rpc_client *clients[4];
    struct echo echo;

    echo_open(&echo, 2);
    for (size_t i = 0; i < 4; i++) {
        clients[i] = client_open(rpc_server_port(echo.server));
        assert_ok(ask(clients[i], DEADLINE_MS));
        assert_ok(ask(clients[i], DEADLINE_MS));
        ck_assert_uint_eq(count_connections(rpc_server_port(echo.server)), i + 1);
    }
    for (size_t i = 0; i < 4; i++)
        rpc_client_close(clients[i]);
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

START_TEST(client_that_never_calls_and_server_that_is_never_called)
{
    struct echo echo;

    echo_open(&echo, 0);
    rpc_client_close(client_open(rpc_server_port(echo.server)));
    rpc_client_close(NULL);
    echo_close(&echo, DEADLINE_MS);
    rpc_server_close(NULL, 0);
    ck_assert_str_eq(rpc_library_version(), rpc_library_version());
}
END_TEST

START_TEST(failed_allocations_while_opening)
{
    struct rpc_server_config config = {
        .listen = {"127.0.0.1", 0}, .listen_origin = "the test", .threads = 2};
    struct rpc_client_config target = {.target = {"127.0.0.1", 1}};
    enum status status = STATUS_NO_MEMORY;
    size_t failed = 0;

    for (size_t n = 1; status != STATUS_OK; n++) {
        struct echo echo;

        mem_fail_nth(n);
        status = echo_try_open(&echo, &config, &err);
        mem_fail_nth(0);
        ck_assert(status == STATUS_OK || status == STATUS_NO_MEMORY);
        failed += status != STATUS_OK;
        if (status == STATUS_OK)
            echo_close(&echo, 0);
    }
    ck_assert_uint_gt(failed, 10);
    for (size_t n = 1; n <= 2; n++) {
        struct rpc_client *client = NULL;
        struct rpc_call *call;
        struct seen seen;

        mem_fail_nth(n);
        status = rpc_client_open(&target, &client, &err);
        ck_assert_int_eq(status, n == 1 ? STATUS_NO_MEMORY : STATUS_OK);
        if (status == STATUS_OK)
            assert_fails(
                rpc_client_call(client, ECHO_HOLD, INT64_MAX, &seen_handler, &seen, &call, &err),
                STATUS_NO_MEMORY, "call");
        mem_fail_nth(0);
        rpc_client_close(client);
    }
}
END_TEST

/* ------------------------------------------------------------------ everything at once */

struct chaos {
    uint16_t port;
    unsigned seed;
    atomic_uint sent, released;
    atomic_bool stop;
};

static unsigned draw(struct chaos *c, unsigned limit)
{
    c->seed = c->seed * 1664525 + 1013904223;
    return (c->seed >> 8) % limit;
}

static void stream_once(struct chaos *c, struct rpc_client *client)
{
    static const char *const paths[] = {ECHO_STREAM, ECHO_HOLD, ECHO_FAIL, ECHO_ADD, "/x.Y/Z"};
    int64_t deadline = clock_deadline_ns(1 + draw(c, 200));
    struct rpc_call *call;
    struct seen seen;
    struct error failure;
    unsigned messages = draw(c, 20);

    seen_init(&seen);
    ck_assert_int_eq(
        rpc_client_call(client, paths[draw(c, 5)], deadline, &seen_handler, &seen, &call, &failure),
        STATUS_OK);
    rpc_call_receive(call);
    for (unsigned i = 0; i < messages; i++) {
        struct rpc_payload payload = {chunk, draw(c, 100000), count_release, &c->released};

        (void)atomic_fetch_add(&c->sent, 1);
        (void)rpc_call_send(call, NULL, 0, &payload);
        if (draw(c, 40) == 0)
            rpc_call_cancel(call);
    }
    if (draw(c, 2))
        rpc_call_send_done(call);
    if (draw(c, 4) == 0)
        rpc_call_cancel(call);
    seen_wait_closed(&seen); /* the deadline sees to it */
    ck_assert_uint_eq(seen.closed, 1);
    rpc_call_unref(call);
}

static void *run_chaos(void *user)
{
    struct chaos *c = user;

    while (!atomic_load(&c->stop)) {
        struct rpc_client *client = client_open(c->port);
        unsigned calls = 1 + draw(c, 10);

        for (unsigned i = 0; i < calls; i++)
            stream_once(c, client);
        rpc_client_close(client);
    }
    return NULL;
}

START_TEST(calls_of_every_kind_while_the_server_comes_and_goes)
{
    enum { THREADS = 4 };
    struct rpc_server_config config = {
        .listen = {"127.0.0.1", support_port()}, .listen_origin = "the test", .threads = 2};
    static struct chaos chaos[THREADS];
    pthread_t threads[THREADS];
    static struct echo echoes[12];

    for (unsigned i = 0; i < THREADS; i++) {
        chaos[i].port = config.listen.port;
        chaos[i].seed = (unsigned)(support_random() * 1e9);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_chaos, &chaos[i]), 0);
    }
    for (size_t i = 0; i < sizeof(echoes) / sizeof(echoes[0]); i++) {
        echo_open_with(&echoes[i], &config);
        echo_wait(&echoes[i], &echoes[i].closed, 5);
        echo_close(&echoes[i], (int64_t)(support_random() * 20));
        echo_wait(&echoes[i], &echoes[i].released, echoes[i].sent);
    }
    for (unsigned i = 0; i < THREADS; i++)
        atomic_store(&chaos[i].stop, true);
    for (unsigned i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        wait_for_count(&chaos[i].released, atomic_load(&chaos[i].sent));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_fault");
    TCase *tests = tcase_create("fault");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, nobody_listens);
    tcase_add_test(tests, name_that_does_not_exist);
    tcase_add_test(tests, server_that_comes_up_later);
    tcase_add_test(tests, a_failure_says_whose_word_it_is);
    tcase_add_test(tests, what_is_under_way_is_cancelled);
    tcase_add_test(tests, second_server_on_a_port_names_the_holder);
    tcase_add_test(tests, plaintext_stays_on_loopback);
    tcase_add_test(tests, bad_addresses_and_methods);
    tcase_add_test(tests, server_closes_with_held_calls);
    tcase_add_test(tests, client_closes_with_held_calls);
    tcase_add_test(tests, draining_refuses_new_calls_and_keeps_old_ones);
    tcase_add_test(tests, server_killed_in_mid_stream);
    tcase_add_test(tests, client_killed_in_mid_stream);
    tcase_add_test(tests, each_client_has_its_own_connection);
    tcase_add_test(tests, failed_allocations_while_opening);
    tcase_add_test(tests, calls_of_every_kind_while_the_server_comes_and_goes);
    tcase_add_test(tests, client_that_never_calls_and_server_that_is_never_called);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
