/*
 * The store over gRPC: the suite of all stores, and the faults of a served one: no listener, rank 0
 * starts late, is killed or stopped, the port is taken, and malformed calls.
 */
#include "tests/common/store/store_suite.h"
#include "tests/support/lateness.h"

#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/store/store_ops.h"
#include "common/wire/wire.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *fresh_url(void)
{
    return "tcp://127.0.0.1:0";
}

static const struct store_kind grpc_kind = {"grpc", fresh_url};

/* Listen on a free port of loopback. */
static int listen_on_any_port(uint16_t *ret_port)
{
    struct error err = {0};
    struct endpoint own = {.host = "127.0.0.1", .port = support_port()};
    int fd = -1;

    assert_ok(net_listen(&own, "test", &fd, ret_port, &err));
    return fd;
}

/* ---- opening */

START_TEST(connect_without_a_listener_fails)
{
    struct error err = {0};
    struct store *store = NULL;
    const int64_t start_ns = clock_now_ns();
    char url[64];

    (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%u", support_port());
    assert_fails(try_open(url, "", 1, 2, 4000, &store, &err), STATUS_UNREACHABLE,
                 "rank 0, which serves it, is missing");
    check_waited(start_ns, 4000);
    ck_assert_ptr_nonnull(strstr(err.text, url));
    check_says_waited(err.text, 4000);
    ck_assert_ptr_null(store);
}
END_TEST

struct opening {
    pthread_t thread;
    char url[64];
    struct store *store;
    enum status status;
    struct error err;
    bool missing;
};

static void *open_rank_1(void *user)
{
    struct opening *o = user;

    o->status = try_open(o->url, "job", 1, 2, 20000, &o->store, &o->err);
    return NULL;
}

START_TEST(rank_0_starts_late)
{
    struct opening o = {0};
    struct store *host;
    uint16_t port;
    int fd = listen_on_any_port(&port); /* a listener that never replies, until rank 0 starts */
    int peer = -1;
    struct error err = {0};

    (void)snprintf(o.url, sizeof(o.url), "tcp://127.0.0.1:%u", port);
    ck_assert_int_eq(pthread_create(&o.thread, NULL, open_rank_1, &o), 0);
    assert_ok(net_accept(fd, clock_deadline_ns(20000), &peer, &err)); /* it has tried */
    (void)close(peer);
    (void)close(fd);
    host = open_rank(o.url, "job", 0, 2, 20000);
    (void)pthread_join(o.thread, NULL);
    ck_assert_msg(o.status == STATUS_OK, "%s", o.err.text);
    store_close(o.store, 0);
    store_close(host, 5000);
}
END_TEST

START_TEST(taken_port_names_holder_and_origin)
{
    struct error err = {0};
    struct store *store = NULL;
    uint16_t port;
    int fd = listen_on_any_port(&port);
    const struct launch_env launch = {.world_size = 2,
                                      .master_addr = "127.0.0.1",
                                      .master_port = port,
                                      .master_port_origin = "MASTER_PORT"};
    const struct store_config config = {.init_method = "env://", .launch = &launch};
    char holder[64];

    (void)snprintf(holder, sizeof(holder), "pid %ld", (long)getpid());
    assert_fails(store_open(&config, &store, &err), STATUS_IO, holder);
    ck_assert_ptr_nonnull(strstr(err.text, "MASTER_PORT"));
    ck_assert_ptr_null(store);
    (void)close(fd);
}
END_TEST

/* torchrun listens on MASTER_PORT itself: the store uses the next port, and its origin states it.
 */
START_TEST(next_port_under_torchrun)
{
    struct error err = {0};
    struct store *host = NULL;
    struct store *other = NULL;
    enum status status = STATUS_IO;
    char url[64];

    for (int attempt = 0; attempt < 20 && status == STATUS_IO; attempt++) { /* a free next port */
        uint16_t port;
        int fd = listen_on_any_port(&port);
        struct launch_env launch = {.world_size = 2,
                                    .master_addr = "127.0.0.1",
                                    .master_port = port,
                                    .master_port_origin = "MASTER_PORT",
                                    .agent_store = true};
        struct store_config config = {
            .init_method = "env://", .launch = &launch, .timeout_ms = 10000};

        (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%u", port + 1);
        status = store_open(&config, &host, &err);
        if (status == STATUS_OK) {
            launch.rank = 1;
            config.timeout_ms = 4000; /* of opening, too */
            assert_ok(store_open(&config, &other, &err));
        }
        (void)close(fd);
    }
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    ck_assert_str_eq(store_address(host), url);
    assert_fails(store_rendezvous(other, &err), STATUS_TIMEOUT, "MASTER_PORT + 1");
    store_close(other, 0);
    store_close(host, 5000);
}
END_TEST

START_TEST(plaintext_stays_on_loopback)
{
    struct error err = {0};
    struct store *store = NULL;
    const struct launch_env launch = {.world_size = 1};
    struct store_config config = {
        .init_method = "tcp://0.0.0.0:0", .launch = &launch, .timeout_ms = 10000};

    assert_fails(store_open(&config, &store, &err), STATUS_INVALID, "--insecure");
    config.security.insecure = true;
    assert_ok(store_open(&config, &store, &err));
    store_close(store, 1000);
}
END_TEST

/* ---- the end of rank 0 */

/* A process that serves as rank 0 until it is killed; *ret_url is where. */
static pid_t start_host(char *url, size_t size)
{
    int fds[2];
    pid_t child;
    ssize_t got;

    ck_assert_int_eq(pipe(fds), 0);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        struct store *store = open_rank(fresh_url(), "job", 0, 2, 20000);
        const char *address = store_address(store);

        if (write(fds[1], address, strlen(address)) < 0)
            _exit(1);
        for (;;)
            (void)pause();
    }
    got = read(fds[0], url, size - 1);
    ck_assert_int_gt(got, 0);
    url[got] = '\0';
    (void)close(fds[0]);
    (void)close(fds[1]);
    return child;
}

static void kill_host(pid_t child)
{
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

struct getting {
    pthread_t thread;
    struct store *store;
    enum status status;
    struct error err;
};

static void *get_never(void *user)
{
    struct getting *g = user;
    char *value = NULL;
    size_t size;

    g->status = store_get(g->store, "never", 30000, &value, &size, &g->err);
    return NULL;
}

START_TEST(killed_host_is_named_at_once)
{
    struct error err = {0};
    char url[128];
    pid_t host = start_host(url, sizeof(url));
    struct getting g = {0};
    int64_t start_ns;

    g.store = open_rank(url, "job", 1, 2, 20000);
    ck_assert_int_eq(pthread_create(&g.thread, NULL, get_never, &g), 0);
    ck_assert(!store_find_failure(g.store, 2000, &err)); /* by now the other call is held, too */
    kill_host(host);
    start_ns = clock_now_ns();
    (void)pthread_join(g.thread, NULL);
    check_waited(start_ns, 0);
    ck_assert_int_eq(g.status, STATUS_PEER_LOST);
    ck_assert_ptr_nonnull(strstr(g.err.text, "lost the store of rank 0 at "));
    ck_assert_ptr_nonnull(strstr(g.err.text, url));
    start_ns = clock_now_ns();
    ck_assert(store_find_failure(g.store, 20000, &err));
    ck_assert_int_eq(err.status, STATUS_PEER_LOST);
    ck_assert_ptr_nonnull(strstr(err.text, "rank 0 is lost: "));
    ck_assert_ptr_nonnull(strstr(err.text, "the connection broke before"));
    store_close(g.store, 60000); /* only rank 0 uses the time-out */
    ck_assert_int_lt((clock_now_ns() - start_ns) / 1000000, 10000);
}
END_TEST

/* No call is open when the host is killed: the next call detects it at once, without waiting for
 * the host to come back.  This is how a job ends when rank 0 was killed. */
START_TEST(killed_host_between_calls)
{
    char url[128];
    pid_t host = start_host(url, sizeof(url));
    struct store *store = open_rank(url, "job", 1, 2, 20000);
    struct lateness lateness;
    int64_t start_ns, took_ns;

    kill_host(host);
    lateness_begin(&lateness);
    start_ns = clock_now_ns();
    store_report_failure(store, 1, "rank 0 is dead");
    store_close(store, 60000);
    took_ns = clock_now_ns() - start_ns;
    ck_assert_int_lt(took_ns,
                     lateness_end_ns(&lateness) + INT64_C(1500000000)); /* a call has 2 s */
}
END_TEST

START_TEST(stopped_host_is_lost)
{
    struct error err = {0};
    char url[128];
    pid_t host = start_host(url, sizeof(url));
    struct store *store = open_rank(url, "job", 1, 2, 20000);
    char *value = NULL;
    size_t size;
    int64_t start_ns;

    ck_assert_int_eq(kill(host, SIGSTOP), 0);
    start_ns = clock_now_ns();
    assert_fails(store_get(store, "never", 200, &value, &size, &err), STATUS_PEER_LOST,
                 "lost the store of rank 0");
    check_waited(start_ns, 200);
    ck_assert_int_eq(kill(host, SIGCONT), 0);
    assert_fails(store_get(store, "never", 4000, &value, &size, &err), STATUS_TIMEOUT, "'never'");
    kill_host(host);
    store_close(store, 0);
}
END_TEST

/* Like the rendezvous' query for present ranks: no wait, but a late reply is accepted. */
static void *look_once(void *user)
{
    struct opening *l = user;
    const char *key = "never";

    l->status = l->store->ops->wait(l->store->impl, &key, 1, clock_now_ns(),
                                    clock_deadline_ns(60000), &l->missing, &l->err);
    return NULL;
}

/* Stopped for longer than the usual reply time-out. */
START_TEST(slow_reply_is_not_a_lost_host)
{
    const struct timespec away = {.tv_sec = 2, .tv_nsec = 500000000};
    char url[128];
    pid_t host = start_host(url, sizeof(url));
    struct opening l = {.store = open_rank(url, "job", 1, 2, 20000)};

    ck_assert_int_eq(kill(host, SIGSTOP), 0);
    ck_assert_int_eq(pthread_create(&l.thread, NULL, look_once, &l), 0);
    (void)nanosleep(&away, NULL);
    ck_assert_int_eq(kill(host, SIGCONT), 0);
    (void)pthread_join(l.thread, NULL);
    ck_assert_int_eq(l.status, STATUS_TIMEOUT);
    ck_assert(l.missing);
    kill_host(host);
    store_close(l.store, 0);
}
END_TEST

static void *meet(void *user)
{
    struct opening *m = user;

    m->status = store_rendezvous(m->store, &m->err);
    return NULL;
}

/* Ranks that wait look again every 2.5 s, and a call has 2 s. */
START_TEST(slow_host_is_not_lost_by_those_who_wait)
{
    char url[128], key[STORE_KEY_MAX + 1];
    pid_t host = start_host(url, sizeof(url));
    struct opening m = {.store = open_rank(url, "job", 1, 2, 12000)};
    struct store *other = open_rank(url, "job", 1, 2, 20000);
    struct error err = {0};
    bool missing;

    ck_assert_int_eq(pthread_create(&m.thread, NULL, meet, &m), 0);
    store_reserved_key(other, "rank/1", key);
    assert_ok(other->ops->wait(other->impl, &(const char *){key}, 1, clock_deadline_ns(20000), 0,
                               &missing, &err));
    (void)nanosleep(&(const struct timespec){.tv_sec = 1}, NULL); /* it has looked, and waits */
    ck_assert_int_eq(kill(host, SIGSTOP), 0);
    (void)nanosleep(&(const struct timespec){.tv_sec = 6}, NULL);
    ck_assert_int_eq(kill(host, SIGCONT), 0);
    (void)pthread_join(m.thread, NULL);
    ck_assert_msg(strstr(m.err.text, "rank 0 is missing") != NULL, "%s", m.err.text);
    kill_host(host);
    store_close(m.store, 0);
    store_close(other, 0);
}
END_TEST

/* ---- calls that no client of ours makes */

static struct rpc_client *connect_to(const char *url)
{
    struct error err = {0};
    struct rpc_client_config config = {.max_message_bytes = 1 << 20};
    struct rpc_client *client = NULL;

    assert_ok(endpoint_parse(url + strlen("tcp://"), "test", &config.target, &err));
    assert_ok(rpc_client_open(&config, &client, &err));
    return client;
}

static const char *const paths[] = {"/sparring.v1.Store/Set",  "/sparring.v1.Store/Get",
                                    "/sparring.v1.Store/Add",  "/sparring.v1.Store/Delete",
                                    "/sparring.v1.Store/Wait", "/sparring.v1.Store/CompareSet"};

START_TEST(malformed_requests_fail)
{
    struct error err = {0};
    struct job job;
    struct rpc_client *client;
    uint8_t bytes[64];

    open_job(&job, 1, 5000);
    client = connect_to(job.url);
    for (unsigned round = 0; round < 300; round++) {
        const size_t size = (size_t)(support_random() * sizeof(bytes));
        uint8_t *reply = NULL;
        size_t reply_size;

        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)(support_random() * 256);
        (void)rpc_client_unary(client, paths[round % 6], bytes, size, clock_deadline_ns(100),
                               &reply, &reply_size, &err); /* any status, but soon */
        free(reply);
    }
    assert_ok(store_set(job.stores[0], "still", "here", 4, &err));
    check_value(job.stores[0], "still", "here");
    rpc_client_close(client);
    close_job(&job);
}
END_TEST

START_TEST(limits_hold_on_the_wire)
{
    struct error err = {0};
    struct job job;
    struct rpc_client *client;
    char key[2000];
    struct store_request request = {.key = key};
    uint8_t *bytes = NULL;
    uint8_t *reply = NULL;
    size_t size;
    size_t reply_size;

    open_job(&job, 1, 5000);
    client = connect_to(job.url);
    memset(key, 'k', sizeof(key));
    key[1025] = '\0';
    assert_ok(wire_pack_store_request(&request, &bytes, &size, &err));
    assert_fails(rpc_client_unary(client, paths[0], bytes, size, clock_deadline_ns(5000), &reply,
                                  &reply_size, &err),
                 STATUS_INVALID, "1025 bytes");
    free(bytes);
    key[0] = '\0';
    assert_ok(wire_pack_store_request(&request, &bytes, &size, &err));
    assert_fails(rpc_client_unary(client, paths[2], bytes, size, clock_deadline_ns(5000), &reply,
                                  &reply_size, &err),
                 STATUS_INVALID, "empty");
    free(bytes);
    rpc_client_close(client);
    close_job(&job);
}
END_TEST

/* ---- waiters have no threads */

static unsigned count_threads(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned count = 0;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, "Threads:", 8) == 0)
            count = (unsigned)strtoul(line + 8, NULL, 10);
    (void)fclose(file);
    return count;
}

struct held {
    atomic_uint reply_count;
    atomic_uint refused;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned closed; /* under lock */
};

static void held_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct held *held = user;

    if (!message)
        return;
    (void)atomic_fetch_add(&held->reply_count, 1);
    rpc_call_receive(call);
}

static void held_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct held *held = user;

    (void)call;
    if (result->status != STATUS_OK)
        (void)atomic_fetch_add(&held->refused, 1);
    (void)pthread_mutex_lock(&held->lock);
    held->closed++;
    (void)pthread_cond_signal(&held->changed);
    (void)pthread_mutex_unlock(&held->lock);
}

static void await_closed(struct held *held, unsigned wanted)
{
    (void)pthread_mutex_lock(&held->lock);
    while (held->closed < wanted)
        (void)pthread_cond_wait(&held->changed, &held->lock);
    (void)pthread_mutex_unlock(&held->lock);
}

enum { held_calls = 100 };

/* Start `held_calls` calls of Get that the store must hold. */
static void hold_calls(struct rpc_client *client, struct rpc_call **calls, struct held *held,
                       int64_t timeout_ms)
{
    static const struct rpc_handler handler = {NULL, held_message, held_closed};
    static char key[] = "job/key";
    const struct store_request request = {.key = key, .timeout_ms = timeout_ms};
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size;

    assert_ok(wire_pack_store_request(&request, &bytes, &size, &err));
    for (unsigned i = 0; i < held_calls; i++) {
        assert_ok(rpc_client_call(client, paths[1], clock_deadline_ns(60000), &handler, held,
                                  &calls[i], &err));
        ck_assert_int_eq(rpc_call_send(calls[i], bytes, size, NULL), STATUS_OK);
        rpc_call_send_done(calls[i]);
        rpc_call_receive(calls[i]);
    }
    free(bytes);
}

static void unref_calls(struct rpc_call **calls)
{
    for (unsigned i = 0; i < held_calls; i++)
        rpc_call_unref(calls[i]);
}

START_TEST(hundred_waiters_need_no_threads)
{
    struct error err = {0};
    struct job job;
    struct rpc_client *client;
    struct rpc_call *calls[held_calls];
    struct held held = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    unsigned before;

    open_job(&job, 1, 20000);
    client = connect_to(job.url);
    assert_ok(store_set(job.stores[0], "other", "", 0, &err)); /* every thread has started */
    before = count_threads();
    hold_calls(client, calls, &held, 50000);
    ck_assert(!store_find_failure(job.stores[0], 200, &err));    /* a Get after all the others */
    ck_assert_uint_lt(count_threads(), before + held_calls / 4); /* gRPC may add a few */
    ck_assert_uint_eq(atomic_load(&held.reply_count), 0);
    assert_ok(store_set(job.stores[0], "key", "value", 5, &err));
    await_closed(&held, held_calls);
    ck_assert_uint_eq(atomic_load(&held.reply_count), held_calls);
    ck_assert_uint_eq(atomic_load(&held.refused), 0);
    unref_calls(calls);
    rpc_client_close(client);
    close_job(&job);
}
END_TEST

/* Some are cancelled, the others are pending when the store closes: all end. */
START_TEST(pending_calls_end_with_the_store)
{
    struct job job;
    struct rpc_client *client;
    struct rpc_call *calls[held_calls];
    struct held held = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    int64_t start_ns;

    open_job(&job, 1, 20000);
    client = connect_to(job.url);
    hold_calls(client, calls, &held, 50000);
    for (unsigned i = 0; i < held_calls / 2; i++)
        rpc_call_cancel(calls[i]);
    await_closed(&held, held_calls / 2);
    start_ns = clock_now_ns();
    close_job(&job);
    await_closed(&held, held_calls);
    check_waited(start_ns, 0);
    ck_assert_uint_eq(atomic_load(&held.refused), held_calls);
    unref_calls(calls);
    rpc_client_close(client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_grpc");
    TCase *cases = tcase_create("grpc");

    add_store_cases(suite, &grpc_kind);
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, connect_without_a_listener_fails);
    tcase_add_test(cases, rank_0_starts_late);
    tcase_add_test(cases, taken_port_names_holder_and_origin);
    tcase_add_test(cases, next_port_under_torchrun);
    tcase_add_test(cases, plaintext_stays_on_loopback);
    tcase_add_test(cases, killed_host_is_named_at_once);
    tcase_add_test(cases, killed_host_between_calls);
    tcase_add_test(cases, stopped_host_is_lost);
    tcase_add_test(cases, slow_host_is_not_lost_by_those_who_wait);
    tcase_add_test(cases, slow_reply_is_not_a_lost_host);
    tcase_add_test(cases, malformed_requests_fail);
    tcase_add_test(cases, limits_hold_on_the_wire);
    tcase_add_test(cases, hundred_waiters_need_no_threads);
    tcase_add_test(cases, pending_calls_end_with_the_store);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
