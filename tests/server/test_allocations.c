/*
 * Nothing is allocated in a steady round, on either side: this program has its own malloc, which
 * counts by caller.  Allocations of gRPC (it reads into fresh slices, and each batch has a few) are
 * distinguished by the file of the caller, and printed.
 *
 * Storage that grows to the largest need so far (the list of a message's slices, nodes of waiting
 * messages) may still grow after the warm-up, so rounds are counted in windows: something that is
 * allocated in every round is in every window.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "experiments/bench/bench_ps.h"
#include "server/service/service.h"
#include "tests/support/process.h"
#include "tests/support/support.h"
#include "worker/sync/sync.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS     100000
#define WORKERS     2
#define ROUNDS      20 /* of a window */
#define ROUNDS_TEXT "20"
#define WINDOWS     15
#define COUNT       300000 /* float32, in 19 partitions */
#define PARTITION   "65536"
#define CALLERS_MAX 1024
#define LINE_SIZE   64

static struct error err;

/* ---- the allocator */

/* glibc's allocator, under the names that remain when malloc is replaced */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *memalign(size_t alignment, size_t size);

static struct caller {
    _Atomic(const void *) address;
    atomic_uint count;
} callers[CALLERS_MAX];
static atomic_bool counting;
static atomic_uint callers_lost; /* calls whose caller did not fit into the table */

static void count_caller(const void *address)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return;
    for (size_t i = 0; i < CALLERS_MAX; i++) {
        const void *none = NULL;

        if (atomic_load(&callers[i].address) == address ||
            atomic_compare_exchange_strong(&callers[i].address, &none, address) ||
            none == address) {
            (void)atomic_fetch_add(&callers[i].count, 1);
            return;
        }
    }
    (void)atomic_fetch_add(&callers_lost, 1);
}

void *malloc(size_t size)
{
    count_caller(__builtin_return_address(0));
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    count_caller(__builtin_return_address(0));
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    count_caller(__builtin_return_address(0));
    return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size)
{
    count_caller(__builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count_caller(__builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **ret, size_t alignment, size_t size)
{
    count_caller(__builtin_return_address(0));
    *ret = __libc_memalign(alignment, size);
    return *ret ? 0 : 12; /* ENOMEM */
}

struct window {
    unsigned ours, grpc;
    char where[512]; /* of ours */
};

static void begin_window(void)
{
    for (size_t i = 0; i < CALLERS_MAX; i++) {
        atomic_store(&callers[i].address, NULL);
        atomic_store(&callers[i].count, 0);
    }
    atomic_store(&callers_lost, 0);
    atomic_store(&counting, true);
}

/* Every caller outside gRPC and its libraries counts as ours. */
static bool is_grpc(const char *file)
{
    static const char *const names[] = {"/libgrpc", "/libgpr", "/libabsl",  "/libstdc++",
                                        "/libupb",  "/libssl", "/libcrypto"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strstr(file, names[i]))
            return true;
    return false;
}

static struct window end_window(void)
{
    struct window w = {.ours = 0};

    atomic_store(&counting, false);
    ck_assert_uint_eq(atomic_load(&callers_lost), 0);
    for (size_t i = 0; i < CALLERS_MAX && atomic_load(&callers[i].address); i++) {
        const void *address = atomic_load(&callers[i].address);
        unsigned count = atomic_load(&callers[i].count);
        Dl_info info = {.dli_fname = "?"};
        size_t used = strlen(w.where);

        if (dladdr(address, &info) != 0 && is_grpc(info.dli_fname)) {
            w.grpc += count;
            continue;
        }
        w.ours += count; /* the address in the form of addr2line */
        (void)snprintf(w.where + used, sizeof(w.where) - used, " %s+0x%tx (%u times)",
                       info.dli_fname, (const char *)address - (const char *)info.dli_fbase, count);
    }
    return w;
}

/* ---- workers in processes of their own */

struct peer {
    pid_t pid;
    int in, out;
};

/* A worker of bench ps: see bench_ps.h. */
static void start_peer(struct peer *p, unsigned rank, uint16_t port, enum ps_transport transport)
{
    posix_spawn_file_actions_t actions;
    char rank_text[16], bytes[32], address[64], transport_text[16];
    const char *words[] = {support_program("sparring"),
                           "bench",
                           "ps",
                           BENCH_PS_WORKER,
                           "0",
                           rank_text,
                           "2",
                           "1",
                           bytes,
                           PARTITION,
                           "100000",
                           transport_text,
                           "2", /* connections */
                           "0", /* no compression */
                           address,
                           "",
                           "",
                           "",
                           "",
                           NULL};
    char *argv[sizeof(words) / sizeof(words[0])];
    int in[2], out[2];

    (void)snprintf(rank_text, sizeof(rank_text), "%u", rank);
    (void)snprintf(transport_text, sizeof(transport_text), "%d", (int)transport);
    (void)snprintf(bytes, sizeof(bytes), "%zu", COUNT * sizeof(float));
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)port);
    memcpy(argv, words, sizeof(argv)); /* exec does not write to them */
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    (void)posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    ck_assert_int_eq(posix_spawn(&p->pid, argv[0], &actions, NULL, argv, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(in[0]);
    (void)close(out[1]);
    p->in = in[1];
    p->out = out[0];
}

/* Read the worker's next line.  Check's assertions allocate, so code that runs inside a window has
 * none. */
static bool read_line(const struct peer *p, char *line, size_t size)
{
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);

    for (size_t length = 0; length < size; length++) {
        struct pollfd wait = {.fd = p->out, .events = POLLIN};

        if (poll(&wait, 1, clock_left_ms(deadline_ns)) != 1 || read(p->out, line + length, 1) != 1)
            return false;
        if (line[length] == '\n') {
            line[length] = '\0';
            return true;
        }
    }
    return false;
}

static bool send_rounds(const struct peer *p)
{
    static const char text[] = ROUNDS_TEXT "\n";

    return write(p->in, text, sizeof(text) - 1) == (ssize_t)sizeof(text) - 1;
}

/* Read "SECONDS 0": no element was wrong. */
static bool read_result(const struct peer *p)
{
    char line[LINE_SIZE];
    const char *space;

    if (!read_line(p, line, sizeof(line)))
        return false;
    space = strchr(line, ' ');
    return space && strcmp(space, " 0") == 0;
}

static void wait_ready(const struct peer *p)
{
    char line[LINE_SIZE];

    ck_assert(read_line(p, line, sizeof(line)));
    ck_assert_str_eq(line, "ready");
}

static void stop_peer(struct peer *p)
{
    int state;

    (void)close(p->in);
    ck_assert_int_eq(waitpid(p->pid, &state, 0), p->pid);
    ck_assert_msg(WIFEXITED(state) && WEXITSTATUS(state) == 0, "the worker ended with %d", state);
    (void)close(p->out);
}

/* ---- windows */

/* Run rounds until a window has none of our allocations; fails the test when every window has
 * some.  over_grpc: gRPC must have some, else the counter does not work. */
static void find_window_without_allocations(const char *side, bool over_grpc,
                                            bool (*run_rounds)(void *user), void *user)
{
    struct window w = {.ours = 0};

    ck_assert(run_rounds(user)); /* warm-up */
    for (unsigned i = 0; i < WINDOWS; i++) {
        bool ok;

        begin_window();
        ok = run_rounds(user);
        w = end_window();
        ck_assert(ok);
        if (w.ours == 0) {
            (void)printf("%s: 0 allocations of ours, %.1f of gRPC's per round\n", side,
                         (double)w.grpc / ROUNDS);
            ck_assert(w.grpc > 0 || !over_grpc);
            return;
        }
    }
    ck_abort_msg("%s: %u allocations in %d rounds, called from%s", side, w.ours, ROUNDS, w.where);
}

static bool run_peer_rounds(void *user)
{
    const struct peer *peers = user;
    bool ok = true;

    for (unsigned i = 0; i < WORKERS; i++)
        ok = send_rounds(&peers[i]) && ok;
    for (unsigned i = 0; i < WORKERS; i++)
        ok = read_result(&peers[i]) && ok;
    return ok;
}

START_TEST(server_allocates_nothing)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .timeout_ms = WAIT_MS,
                                    .share_memory = true,
                                    .run_dir = _i == 0 ? NULL : support_folder(),
                                    .state_dir = _i == 3 ? support_path("state") : NULL};
    const char *const sides[] = {"server", "server with records",
                                 "server with records, over shared memory",
                                 "server with records and a journal"};
    struct service *service;
    struct peer peers[WORKERS];

    (void)signal(SIGPIPE, SIG_IGN);
    assert_ok(service_open(&config, &service, &err));
    for (unsigned i = 0; i < WORKERS; i++)
        start_peer(&peers[i], i, service_port(service), _i == 2 ? PS_SHM : PS_TCP);
    for (unsigned i = 0; i < WORKERS; i++)
        wait_ready(&peers[i]);
    find_window_without_allocations(sides[_i], _i != 2, run_peer_rounds, peers);
    for (unsigned i = 0; i < WORKERS; i++)
        stop_peer(&peers[i]);
    service_close(service);
}
END_TEST

/* ---- this process as a worker */

struct local_worker {
    struct sync *sync;
    const struct peer *peer;
    uint64_t step;
};

static bool run_worker_rounds(void *user)
{
    struct local_worker *local_worker = user;
    char line[LINE_SIZE];
    bool ok = send_rounds(local_worker->peer);

    for (unsigned i = 0; ok && i < ROUNDS; i++) {
        ok = sync_begin(local_worker->sync, local_worker->step++, &err) == STATUS_OK;
        sync_ready(local_worker->sync, COUNT / 2);
        sync_ready(local_worker->sync, COUNT);
        ok = sync_finish(local_worker->sync, &err) == STATUS_OK && ok;
    }
    /* The peer finds the result wrong, because our gradients are not those of bench ps. */
    return ok && read_line(local_worker->peer, line, sizeof(line));
}

START_TEST(worker_allocates_nothing)
{
    struct shared_memory memory = SHARED_MEMORY_NONE;
    const size_t count = COUNT;
    struct process server;
    struct peer peer;
    struct local_worker local_worker = {.peer = &peer};
    struct tensor_table table = {.count = 0};
    struct sync_config config = {.kind = "ps",
                                 .table = &table,
                                 .memory = &memory,
                                 .ps_transport = _i == 1 ? SYNC_TRANSPORT_SHM : SYNC_TRANSPORT_GRPC,
                                 .connections = 2,
                                 .priority = true,
                                 .world_size = 2,
                                 .timeout_ms = WAIT_MS,
                                 .order = REDUCE_FAST,
                                 .job = "bench",
                                 .servers_origin = "test",
                                 .partition_bytes = 65536,
                                 .optimizer = optimizer_defaults(OPTIMIZER_SGD)};
    const char *file = support_path("port");
    char *text, address[64];
    size_t size;
    int port;

    assert_ok(shared_memory_open(2 * COUNT * sizeof(float), "test", &memory, &err));
    config.params = memory.base;
    config.grads = config.params + COUNT;
    process_start(
        &server, NULL,
        ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0", "--port-file", file));
    process_wait_output(&server, "serving on", WAIT_MS);
    assert_ok(file_read(file, 64, &text, &size, &err));
    port = (int)strtol(text, NULL, 10);
    free(text);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    config.servers = address;
    start_peer(&peer, 1, (uint16_t)port, _i == 1 ? PS_SHM : PS_TCP);
    assert_ok(tensor_table_add(&table, "slab", 1, &count, &err));
    tensor_table_layout(&table);
    assert_ok(sync_open(&config, &local_worker.sync, &err));
    assert_ok(sync_start(local_worker.sync, &err));
    wait_ready(&peer);
    ck_assert_str_eq(sync_backend(local_worker.sync), _i == 1 ? "shm" : "grpc");
    find_window_without_allocations(_i == 1 ? "worker over shared memory" : "worker", _i != 1,
                                    run_worker_rounds, &local_worker);
    (void)close(peer.in);
    sync_close(local_worker.sync, NULL);
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, WAIT_MS), 0);
    tensor_table_release(&table);
    shared_memory_release(&memory);
}
END_TEST

/* ---- both sides in this process, with row selections */

static bool run_selected_rounds(void *user)
{
    struct local_worker *local_worker = user;
    bool ok = true;

    for (unsigned i = 0; ok && i < ROUNDS; i++) {
        ok = sync_begin(local_worker->sync, local_worker->step++, &err) == STATUS_OK;
        for (size_t row = local_worker->step % 7; row < COUNT / 16; row += 41)
            sync_select_range(local_worker->sync, row * 16, 16);
        sync_ready(local_worker->sync, COUNT);
        ok = ok && sync_finish(local_worker->sync, &err) == STATUS_OK;
    }
    return ok;
}

START_TEST(row_selections_allocate_nothing)
{
    static float params[COUNT], grads[COUNT];
    const size_t count = COUNT;
    struct service_config serve = {.listen = {.host = "127.0.0.1"},
                                   .listen_origin = "test",
                                   .threads = 2,
                                   .timeout_ms = WAIT_MS};
    struct service *service;
    struct local_worker local_worker = {0};
    struct tensor_table table = {.count = 0};
    char address[64];
    struct sync_config config = {.kind = "ps",
                                 .table = &table,
                                 .params = params,
                                 .grads = grads,
                                 .servers = address,
                                 .world_size = 1,
                                 .timeout_ms = WAIT_MS,
                                 .order = REDUCE_FAST,
                                 .manifest = "",
                                 .job = "row-selection",
                                 .servers_origin = "test",
                                 .partition_bytes = 65536,
                                 .update_on_server = true,
                                 .compression =
                                     compression_make(CODEC_NONE, CODEC_SELECTED_ROWS, 0),
                                 .optimizer = optimizer_defaults(OPTIMIZER_SGD)};

    assert_ok(service_open(&serve, &service, &err));
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", service_port(service));
    assert_ok(tensor_table_add(&table, "slab", 1, &count, &err));
    tensor_table_layout(&table);
    assert_ok(sync_open(&config, &local_worker.sync, &err));
    assert_ok(sync_start(local_worker.sync, &err));
    find_window_without_allocations("row selections, both sides", true, run_selected_rounds,
                                    &local_worker);
    ck_assert_uint_lt(sync_counters(local_worker.sync).rx_payload_bytes,
                      local_worker.step * COUNT * sizeof(float) / 10);
    sync_close(local_worker.sync, NULL);
    service_close(service);
    tensor_table_release(&table);
}
END_TEST

/* The counter itself: an allocation of this file counts as ours. */
START_TEST(allocations_are_counted)
{
    struct window w;
    void *volatile memory;

    begin_window();
    memory = malloc(100);
    w = end_window();
    free(memory);
    ck_assert_uint_eq(w.ours, 1);
    ck_assert_uint_eq(w.grpc, 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("allocations", 280, TEST(allocations_are_counted),
                       LOOP_TEST(server_allocates_nothing, 0, 4),
                       LOOP_TEST(worker_allocates_nothing, 0, 2),
                       TEST(row_selections_allocate_nothing));
}
