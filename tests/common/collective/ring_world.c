/*
 * Worlds for tests.  Assertions may fail on any thread: Check's process ends with the message.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/base/net.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_MS 20000

/* Made once by the parent: a child process has another folder, and must know the port. */
static char init_method[512];
static pthread_once_t chosen = PTHREAD_ONCE_INIT;

static void choose_file_once(void)
{
    if (init_method[0] == '\0')
        (void)snprintf(init_method, sizeof(init_method), "file://%s/store", support_folder());
}

static void choose_file(void)
{
    (void)pthread_once(&chosen, choose_file_once);
}

void world_use_grpc(void)
{
    struct endpoint e = {.host = "127.0.0.1", .port = 0};
    struct error err = {0};
    int fd;

    assert_ok(net_listen(&e, "test", &fd, &e.port, &err)); /* a free port, free again at once */
    (void)close(fd);
    (void)snprintf(init_method, sizeof(init_method), "tcp://127.0.0.1:%u", (unsigned)e.port);
}

struct store *world_store(unsigned rank, unsigned size, struct error *err)
{
    struct launch_env launch = {.rank = rank, .world_size = size};
    struct store_config config = {
        .init_method = init_method, .launch = &launch, .group = "", .timeout_ms = TIMEOUT_MS};
    struct store *store = NULL;

    choose_file();
    if (store_open(&config, &store, err) != STATUS_OK)
        return NULL;
    return store;
}

enum status world_open(const char *backend, const char *name, unsigned rank, unsigned size,
                       struct store *store, int64_t timeout_ms, struct collective **ret_group,
                       struct error *err)
{
    struct collective_config config = {.backend = backend,
                                       .name = name,
                                       .rank = rank,
                                       .world_size = size,
                                       .store = store,
                                       .timeout_ms = timeout_ms};

    return collective_open(&config, ret_group, err);
}

/* ---- threads ---- */

struct world_thread {
    pthread_t thread;
    const char *backend;
    const char *name;
    unsigned rank;
    unsigned size;
    world_body *body;
    void *argument;
};

static void *run_rank(void *argument)
{
    struct world_thread *t = argument;
    struct error err = {0};
    struct collective *group = NULL;
    struct store *store = world_store(t->rank, t->size, &err);

    ck_assert_msg(store != NULL, "%s", err.text);
    assert_ok(world_open(t->backend, t->name, t->rank, t->size, store, TIMEOUT_MS, &group, &err));
    t->body(group, t->rank, t->size, t->argument);
    collective_close(group);
    store_close(store, 0);
    return NULL;
}

bool world_on_threads(const char *backend)
{
    if (strcmp(backend, "mpi") == 0 || strcmp(backend, "nccl") == 0)
        return false;
#ifdef __SANITIZE_THREAD__
    if (strcmp(backend, "grpc") == 0 || strcmp(backend, "gloo") == 0)
        return false;
#endif
    return true;
}

void world_run(const char *backend, unsigned size, world_body *body, void *argument)
{
    static unsigned worlds;
    struct world_thread threads[WORLD_RANKS_MAX];
    char name[32];

    ck_assert_uint_le(size, WORLD_RANKS_MAX);
    choose_file();
    (void)snprintf(name, sizeof(name), "world%u", worlds++);
    for (unsigned r = 0; r < size; r++) {
        threads[r] = (struct world_thread){.backend = backend,
                                           .name = name,
                                           .rank = r,
                                           .size = size,
                                           .body = body,
                                           .argument = argument};
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL, run_rank, &threads[r]), 0);
    }
    for (unsigned r = 0; r < size; r++)
        (void)pthread_join(threads[r].thread, NULL);
}

/* ---- processes ---- */

struct child {
    unsigned rank;
    unsigned size;
    size_t count;
    int64_t timeout_ms;
    int ready_fd;
};

/* All-reduce until a call fails; the report is complete before anything is closed. */
static void child_loop(const struct child *c, int report_fd)
{
    struct error err = {0};
    struct world_report report = {0};
    struct store *store = world_store(c->rank, c->size, &err);
    struct collective *group = NULL;
    enum status status = store ? STATUS_OK : err.status;
    float *data = calloc(c->count, sizeof(float));

    if (status == STATUS_OK)
        status = world_open("ring", "job", c->rank, c->size, store, c->timeout_ms, &group, &err);
    while (status == STATUS_OK && data) {
        status = collective_all_reduce(group, data, c->count, REDUCE_FAST, &err);
        if (status == STATUS_OK)
            (void)!write(c->ready_fd, "x", 1);
    }
    report.status = status;
    report.ended_ns = clock_now_ns();
    memcpy(report.text, err.text, sizeof(report.text));
    (void)net_send_all(report_fd, &report, sizeof(report), clock_deadline_ns(10000), NULL);
    free(data);
    collective_close(group);
    store_close(store, 3000); /* rank 0 may be the host of the others' store */
}

static void child_main(const struct child *c, int report_fd)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    child_loop(c, report_fd);
    _exit(0);
}

void world_start(unsigned size, size_t count, int64_t timeout_ms, struct world_process *processes)
{
    choose_file();
    for (unsigned r = 0; r < size; r++) {
        int ready[2];
        int report[2];
        pid_t pid;

        /* The parent never reads all "ready" bytes: a full socket must not stop the child. */
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ready), 0);
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, report), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            struct child c = {.rank = r,
                              .size = size,
                              .count = count,
                              .timeout_ms = timeout_ms,
                              .ready_fd = ready[1]};

            child_main(&c, report[1]);
        }
        (void)close(ready[1]);
        (void)close(report[1]);
        processes[r] =
            (struct world_process){.pid = pid, .ready_fd = ready[0], .report_fd = report[0]};
    }
}

void world_await(const struct world_process *process, unsigned operations)
{
    struct error err = {0};
    char byte;

    for (; operations > 0; operations--)
        assert_ok(net_recv_all(process->ready_fd, &byte, 1, clock_deadline_ns(20000), &err));
}

struct world_report world_report_of(const struct world_process *process, int64_t wait_ms)
{
    struct error err = {0};
    struct world_report report = {0};

    assert_ok(net_recv_all(process->report_fd, &report, sizeof(report), clock_deadline_ns(wait_ms),
                           &err));
    return report;
}

void world_end(const struct world_process *processes, unsigned size)
{
    for (unsigned r = 0; r < size; r++) {
        (void)kill(processes[r].pid, SIGKILL);
        (void)waitpid(processes[r].pid, NULL, 0);
        (void)close(processes[r].ready_fd);
        (void)close(processes[r].report_fd);
    }
}
