/*
 * Worlds that break.  A child never asserts: what it finds goes into its report.
 */
#include "tests/common/collective/chaos/chaos_world.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/net.h"
#include "common/collective/collective_ops.h"
#include "common/store/store.h"
#include "tests/common/collective/chaos/slow_thread.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVENT_MS 60000 /* for what must come; a test that waits so long fails */

static bool use_grpc;

void chaos_use_grpc(void)
{
    use_grpc = true;
}

/* ---- the child ---- */

struct child {
    struct chaos_config config;
    unsigned rank;
    int ready_fd, report_fd;
    char init_method[512];
    float *data;
    struct collective *group;
    struct chaos_report report;
};

static void say(const struct child *c, char what)
{
    (void)!write(c->ready_fd, &what, 1);
}

static bool enter_namespace(const char *name)
{
    char path[128];
    int fd;
    bool entered;

    (void)snprintf(path, sizeof(path), "/var/run/netns/%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    entered = setns(fd, CLONE_NEWNET) == 0;
    (void)close(fd);
    return entered;
}

static enum status open_store(const struct child *c, struct store **ret, struct error *err)
{
    struct launch_env launch = {.rank = c->rank, .world_size = c->config.size};
    struct store_config config = {
        .init_method = c->init_method, .launch = &launch, .group = "", .timeout_ms = EVENT_MS};

    return store_open(&config, ret, err);
}

static enum status open_group(struct child *c, struct store *store, struct error *err)
{
    struct collective_config config = {
        .backend = c->config.backend,
        .transport = c->config.transport,
        .name = "group",
        .rank = c->rank,
        .world_size = c->config.size,
        .store = store,
        .interface_host = c->config.addresses ? c->config.addresses[c->rank] : NULL,
        .timeout_ms = c->config.timeout_ms,
        .heartbeat_timeout_ms = c->config.heartbeat_timeout_ms};

    return collective_open(&config, &c->group, err);
}

static void change(struct collective_args *args, enum chaos_role role)
{
    switch (role) {
    case CHAOS_OTHER_COUNT:
        args->count++;
        break;
    case CHAOS_OTHER_TYPE:
        args->dtype = DTYPE_FLOAT64;
        args->count /= 2;
        break;
    case CHAOS_OTHER_OP:
        args->op = REDUCE_MAX;
        break;
    case CHAOS_OTHER_CALL:
        args->call = COLLECTIVE_BROADCAST;
        args->op = REDUCE_SUM;
        break;
    default:
        break;
    }
}

/* A group of the same ranks in a generation of its own: it must not meet the others'. */
static enum status open_second(struct child *c, bool victim, struct error *err)
{
    struct collective *second = NULL;
    enum status status = collective_open_like(c->group, c->group->ops, "second", victim ? 7 : 6,
                                              c->group->members, c->config.size, &second, err);

    collective_close(second);
    return status;
}

/* Slow from before its begin, because it must not end, until its time-out.  A library's call is all
 * of the operation and may take a while longer (collective_blocking.c). */
static enum status work_slowly(struct child *c, const struct collective_args *args,
                               struct error *err)
{
    int64_t slow_ms = (c->group->ops->blocking ? 2 : 1) * c->config.timeout_ms;
    enum status status = slow_thread_begin(clock_deadline_ns(slow_ms), err);

    return status == STATUS_OK ? collective_run(c->group, args, err) : status;
}

static enum status work_once(struct child *c, unsigned number, struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .input = c->data,
                                   .output = c->data,
                                   .count = c->config.count,
                                   .bucket = 1,
                                   .buckets = 2};
    bool victim = c->rank == c->config.victim && number == c->config.at;

    if (number == c->config.at && c->config.role == CHAOS_OTHER_GENERATION)
        return open_second(c, victim, err);
    if (victim && c->config.role == CHAOS_SKIP) {
        args.call = COLLECTIVE_BARRIER;
        args.count = 0;
        return collective_run(c->group, &args, err);
    }
    if (victim && c->config.role == CHAOS_SLOW)
        return work_slowly(c, &args, err);
    if (victim)
        change(&args, c->config.role);
    return collective_run(c->group, &args, err);
}

static void hold(const struct child *c)
{
    say(c, 'h');
    for (;;)
        (void)pause();
}

static enum status work(struct child *c, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned number = 1; status == STATUS_OK; number++) {
        bool victim = c->rank == c->config.victim && number == c->config.at;
        bool second = c->rank == c->config.second_victim && number == c->config.at &&
                      c->config.second_victim != c->config.victim;

        if ((victim && c->config.role == CHAOS_HOLD) || second)
            hold(c);
        if ((victim && c->config.role == CHAOS_LEAVE) ||
            (c->config.close_after > 0 && number > c->config.close_after)) {
            say(c, 'c');
            collective_close(c->group);
            c->group = NULL;
            return STATUS_OK;
        }
        if (c->rank == c->config.late_rank && number == c->config.at)
            (void)poll(NULL, 0, (int)c->config.late_ms);
        status = work_once(c, number, err);
        if (status == STATUS_OK)
            say(c, 'x');
    }
    return status;
}

/* Gone between the agreement on who is left and the group of those, or while that opens. */
static void desert(const struct child *c)
{
    const struct itimerval timer = {.it_value.tv_usec = c->config.desert_us};
    unsigned members[CHAOS_RANKS_MAX];
    unsigned count = c->group->world_size;
    struct shared_memory memory = SHARED_MEMORY_NONE;
    struct collective *shrunk = NULL;

    memcpy(members, c->group->members, count * sizeof(*members));
    if (collective_find_survivors(c->group, c->group->generation, members, &count, NULL) !=
        STATUS_OK)
        return;
    if (timer.it_value.tv_usec == 0)
        (void)raise(SIGKILL);
    (void)signal(SIGALRM, SIG_DFL); /* ends the process */
    (void)setitimer(ITIMER_REAL, &timer, NULL);
    if (collective_open_like(c->group, c->group->ops, c->group->name, c->group->generation + 1,
                             members, count, &shrunk, NULL) == STATUS_OK &&
        shared_memory_open(4096, "test", &memory, NULL) == STATUS_OK)
        (void)collective_register(shrunk, &memory, NULL);
    for (;;)
        (void)pause();
}

/* A smaller group with registered memory that has made three operations. */
static enum status regroup(struct child *c, const struct shared_memory *memory, int64_t failed_ns,
                           struct error *err)
{
    enum status status = collective_shrink(&c->group, err);

    if (status == STATUS_OK)
        status = collective_register(c->group, memory, err);
    for (unsigned n = 0; n < 3 && status == STATUS_OK; n++) {
        c->data[0] = 1;
        status = collective_all_reduce(c->group, c->data, c->config.count, REDUCE_FAST, err);
        if (n == 0)
            c->report.resume_seconds = (double)(clock_now_ns() - failed_ns) * 1e-9;
    }
    return status;
}

static void shrink(struct child *c, int64_t failed_ns)
{
    struct shared_memory memory = SHARED_MEMORY_NONE;
    struct error err = {0};

    c->report.shrink_status = shared_memory_open(4096, "test", &memory, &err);
    if (c->report.shrink_status == STATUS_OK)
        do
            c->report.shrink_status = regroup(c, &memory, failed_ns, &err);
        while (c->report.shrink_status != STATUS_OK && c->group &&
               fault_is_loss(collective_fault(c->group, NULL)));
    (void)snprintf(c->report.shrink_text, sizeof(c->report.shrink_text), "%.500s", err.text);
    if (c->report.shrink_status != STATUS_OK)
        return;
    c->report.shrunk_size = collective_world_size(c->group);
    c->report.generation = collective_generation(c->group);
    if (c->data[0] > (float)c->report.shrunk_size + 0.5f ||
        c->data[0] < (float)c->report.shrunk_size - 0.5f)
        c->report.shrink_status = STATUS_DATA;
}

static void child_body(struct child *c)
{
    struct error err = {0};
    struct store *store = NULL;
    unsigned culprit = 0;

    c->report.culprit = -1;
    c->data = calloc(c->config.count + 1, sizeof(float));
    c->report.status = open_store(c, &store, &err);
    if (c->report.status == STATUS_OK && c->config.namespaces &&
        !enter_namespace(c->config.namespaces[c->rank]))
        c->report.status = error_set(&err, STATUS_IO, "cannot enter the network namespace");
    if (c->report.status == STATUS_OK)
        c->report.status = open_group(c, store, &err);
    if (c->report.status == STATUS_OK)
        c->report.status = work(c, &err);
    c->report.ended_ns = clock_now_ns();
    if (c->group && c->report.status != STATUS_OK) {
        c->report.fault = collective_fault(c->group, &culprit);
        c->report.culprit = c->report.fault == FAULT_NONE ? -1 : (int)culprit;
        if (c->config.has_deserter && c->config.deserter == c->rank)
            desert(c);
        else if (c->config.shrink)
            shrink(c, c->report.ended_ns);
    }
    memcpy(c->report.text, err.text, sizeof(c->report.text));
    (void)net_send_all(c->report_fd, &c->report, sizeof(c->report), clock_deadline_ns(EVENT_MS),
                       NULL);
    while (c->config.stays)
        (void)pause();
    collective_close(c->group);
    store_close(store, 0);
    free(c->data);
}

/* ---- the parent ---- */

static void choose_store(char *text, size_t size)
{
    static unsigned stores; /* a job that was killed leaves its own behind */

    if (!use_grpc) {
        (void)snprintf(text, size, "file://%s/store%u", support_folder(), stores++);
        return;
    }
    (void)snprintf(text, size, "tcp://127.0.0.1:%u", (unsigned)support_port());
}

static void start_rank(struct chaos_world *w, unsigned rank, const char *init_method)
{
    int ready[2];
    int report[2];
    pid_t pid;

    /* The parent never reads all "ready" bytes: a full socket must not stop the child. */
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ready), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, report), 0);
    (void)fflush(NULL);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct child c = {
            .config = w->config, .rank = rank, .ready_fd = ready[1], .report_fd = report[1]};

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGPIPE, SIG_IGN);
        log_open("chaos", (int)rank);
        (void)snprintf(c.init_method, sizeof(c.init_method), "%s", init_method);
        child_body(&c);
        _exit(0);
    }
    (void)close(ready[1]);
    (void)close(report[1]);
    w->ranks[rank] =
        (struct chaos_process){.pid = pid, .ready_fd = ready[0], .report_fd = report[0]};
}

void chaos_start(struct chaos_world *w, const struct chaos_config *config)
{
    char init_method[512];

    ck_assert_uint_le(config->size, CHAOS_RANKS_MAX);
    *w = (struct chaos_world){.config = *config};
    choose_store(init_method, sizeof(init_method));
    for (unsigned r = 0; r < config->size; r++)
        start_rank(w, r, init_method);
}

static char next_event(struct chaos_world *w, unsigned rank)
{
    struct error err = {0};
    char byte = '\0';

    if (net_recv_all(w->ranks[rank].ready_fd, &byte, 1, clock_deadline_ns(EVENT_MS), &err) !=
        STATUS_OK) {
        struct chaos_report report = chaos_report_of(w, rank, 1000);

        ck_abort_msg("rank %u of %s ended: %s", rank, w->config.backend, report.text);
    }
    return byte;
}

void chaos_await(struct chaos_world *w, unsigned rank, unsigned operations)
{
    while (operations > 0)
        operations -= next_event(w, rank) == 'x';
}

void chaos_await_hold(struct chaos_world *w, unsigned rank)
{
    while (next_event(w, rank) != 'h')
        ;
}

int64_t chaos_signal(struct chaos_world *w, unsigned rank, int number)
{
    int64_t now_ns = clock_now_ns();

    ck_assert_int_eq(kill(w->ranks[rank].pid, number), 0);
    return now_ns;
}

struct chaos_report chaos_report_of(struct chaos_world *w, unsigned rank, int64_t wait_ms)
{
    struct error err = {0};
    struct chaos_report report = {0};
    enum status status = net_recv_all(w->ranks[rank].report_fd, &report, sizeof(report),
                                      clock_deadline_ns(wait_ms), &err);

    ck_assert_msg(status == STATUS_OK, "%s, rank %u of %u: no report: %s", w->config.backend, rank,
                  w->config.size, err.text);
    return report;
}

void chaos_end(struct chaos_world *w)
{
    for (unsigned r = 0; r < w->config.size; r++) {
        (void)kill(w->ranks[r].pid, SIGKILL);
        (void)waitpid(w->ranks[r].pid, NULL, 0);
        (void)close(w->ranks[r].ready_fd);
        (void)close(w->ranks[r].report_fd);
    }
}

/* ---- which backends ---- */

/* Can a world of this size open and add up once?  Forked, like everything else. */
static bool can_run(const char *backend, unsigned size)
{
    struct chaos_world w;
    struct chaos_config config = {.backend = backend,
                                  .size = size,
                                  .count = 3,
                                  .timeout_ms = 10000,
                                  .victim = size,
                                  .second_victim = size,
                                  .close_after = 1};
    struct chaos_report report;

    chaos_start(&w, &config);
    report = chaos_report_of(&w, 0, EVENT_MS);
    chaos_end(&w);
    if (report.status != STATUS_OK) {
        support_check_nccl_skip(backend, report.text);
        (void)printf("skipped: %s with %u ranks: %s\n", backend, size, report.text);
    }
    return report.status == STATUS_OK;
}

static pid_t start_body(const char *backend, unsigned size,
                        void (*body)(const char *backend, const void *argument),
                        const void *argument)
{
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (can_run(backend, size))
        body(backend, argument);
    exit(EXIT_SUCCESS);
}

/* A body that failed has reported to Check, over the pipe that it has from this process. */
static bool await_body(pid_t *pids, size_t *count)
{
    int status = 0;
    pid_t pid = wait(&status);
    size_t i = 0;

    ck_assert_int_gt(pid, 0);
    while (i < *count && pids[i] != pid)
        i++;
    ck_assert_uint_lt(i, *count);
    pids[i] = pids[--*count];
    if (WIFSIGNALED(status))
        (void)printf("a world's parent ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

void chaos_each_backend(unsigned size, unsigned at_once,
                        void (*body)(const char *backend, const void *argument),
                        const void *argument)
{
    const char *wanted = getenv("SPARRING_TEST_BACKENDS");
    pid_t pids[16];
    size_t count = 0;
    bool is_well = true;

    ck_assert_uint_le(at_once, 16);
    for (const char *const *name = collective_backends(); *name; name++) {
        if (wanted && !strstr(wanted, *name))
            continue;
        if (count == at_once)
            is_well = await_body(pids, &count) && is_well;
        pids[count++] = start_body(*name, size, body, argument);
    }
    while (count > 0)
        is_well = await_body(pids, &count) && is_well;
    if (!is_well)
        exit(EXIT_FAILURE);
}
