/*
 * test_fault: invariants when a client, server or process ends while calls are open: every call
 * still ends exactly once with a useful text, and every payload is released.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 20000
#define CHUNK_BYTES (1 << 20)

static struct error err;
static uint8_t chunk[CHUNK_BYTES];

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
    rpc_client_close(client); /* some calls are pending, some messages in flight, some queued */
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
    assert_fails(echo_ask(client, ECHO_UNARY, DEADLINE_MS, &err), STATUS_UNAVAILABLE,
                 "the server is draining");
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

static int port_pipe[2]; /* the parent sends the child its port */

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
    ck_assert_uint_eq(echo.ends, 0); /* a killed client is not a half-close */
    echo_wait(&echo, &echo.released, echo.sent);
    echo_close(&echo, 0);
    ck_assert_uint_eq(echo.released, echo.sent);
    (void)close(fd);
}
END_TEST

/* ------------------------------------------------------------------ everything at once */

struct chaos {
    uint16_t port;
    unsigned seed;
    atomic_uint sent, released;
    atomic_bool stop;
};

static unsigned chaos_random_below(struct chaos *c, unsigned limit)
{
    c->seed = c->seed * 1664525 + 1013904223;
    return (c->seed >> 8) % limit;
}

static void stream_once(struct chaos *c, struct rpc_client *client)
{
    static const char *const paths[] = {ECHO_STREAM, ECHO_HOLD, ECHO_FAIL, ECHO_ADD, "/x.Y/Z"};
    int64_t deadline = clock_deadline_ns(1 + chaos_random_below(c, 200));
    struct rpc_call *call;
    struct seen seen;
    struct error failure;
    unsigned messages = chaos_random_below(c, 20);

    seen_init(&seen);
    ck_assert_int_eq(rpc_client_call(client, paths[chaos_random_below(c, 5)], deadline,
                                     &seen_handler, &seen, &call, &failure),
                     STATUS_OK);
    rpc_call_receive(call);
    for (unsigned i = 0; i < messages; i++) {
        struct rpc_payload payload = {chunk, chaos_random_below(c, 100000), count_release,
                                      &c->released};

        (void)atomic_fetch_add(&c->sent, 1);
        (void)rpc_call_send(call, NULL, 0, &payload);
        if (chaos_random_below(c, 40) == 0)
            rpc_call_cancel(call);
    }
    if (chaos_random_below(c, 2))
        rpc_call_send_done(call);
    if (chaos_random_below(c, 4) == 0)
        rpc_call_cancel(call);
    seen_wait_closed(&seen); /* by its deadline */
    ck_assert_uint_eq(seen.closed, 1);
    rpc_call_unref(call);
}

static void *run_chaos(void *user)
{
    struct chaos *c = user;

    while (!atomic_load(&c->stop)) {
        struct rpc_client *client = client_open(c->port);
        unsigned calls = 1 + chaos_random_below(c, 10);

        for (unsigned i = 0; i < calls; i++)
            stream_once(c, client);
        rpc_client_close(client);
    }
    return NULL;
}

START_TEST(all_call_kinds_while_the_server_restarts)
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
    return SUPPORT_RUN(
        "rpc_fault", 60, TEST(server_closes_with_held_calls), TEST(client_closes_with_held_calls),
        TEST(draining_refuses_new_calls_and_keeps_old_ones), TEST(server_killed_in_mid_stream),
        TEST(client_killed_in_mid_stream), TEST(all_call_kinds_while_the_server_restarts));
}
