/*
 * Connections per neighbour: how many a ring between hosts measures for itself, and that every
 * number carries the right bytes.  Where one connection carries little, several must be chosen: the
 * kernel paces each of the ring's sockets (SO_MAX_PACING_RATE), which the sendmsg of this program
 * asks for.  Ranks are threads that say they are on different hosts; or processes in network
 * namespaces with one link of 200 Mbit/s between them, which may go down while it is measured
 * (needs root; says so when it is skipped).
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/collective/ring/ring.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX    3
#define TIMEOUT_MS   60000
#define COUNT        300007 /* elements: some stripes for each of four connections */
#define PACE         8000000u
#define TRIES        6
#define LARGE_BYTES  4096 /* less is a header, or a small message */
#define TEST_SECONDS 150

/* ---- the ring's sendmsg ---- */

static atomic_uint pace;         /* bytes per second of every connection; 0: as it is */
static atomic_int cut_at = -1;   /* this process cuts its link when it sends on another one: */
static atomic_int first_fd = -1; /* than this, the first that carried much */

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    unsigned rate = atomic_load(&pace);
    size_t bytes = 0;
    int none = -1;

    if (rate > 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
    for (size_t i = 0; i < message->msg_iovlen; i++)
        bytes += message->msg_iov[i].iov_len;
    if (bytes >= LARGE_BYTES && atomic_load(&cut_at) >= 0 &&
        !atomic_compare_exchange_strong(&first_fd, &none, fd) && none != fd) {
        atomic_store(&cut_at, -1);
        if (!process_shell("ip link set eth0 down"))
            abort();
    }
    return (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
}

/* ---- the ring's setsockopt ---- */

static atomic_uint waits_for_many; /* SO_RCVLOWAT above 1, set so often */

int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    if (level == SOL_SOCKET && name == SO_RCVLOWAT && *(const int *)value > 1)
        atomic_fetch_add(&waits_for_many, 1);
    return (int)syscall(SYS_setsockopt, fd, level, name, value, length);
}

/* ---- a rank ---- */

struct place {
    unsigned rank, size;
    unsigned streams;
    const char *name; /* of the group */
    const char *store;
    const char *host, *address;
    int64_t timeout_ms;
};

static enum status open_rank(const struct place *p, struct store **ret_store,
                             struct collective **ret_group, struct error *err)
{
    struct launch_env launch = {.rank = p->rank, .world_size = p->size};
    struct store_config at = {
        .init_method = p->store, .launch = &launch, .group = "", .timeout_ms = TIMEOUT_MS};
    struct collective_config config = {.backend = "ring",
                                       .name = p->name,
                                       .rank = p->rank,
                                       .world_size = p->size,
                                       .interface_host = p->address,
                                       .host_id = p->host,
                                       .timeout_ms = p->timeout_ms,
                                       .heartbeat_timeout_ms = p->timeout_ms / 2,
                                       .streams = p->streams};
    enum status status = store_open(&at, ret_store, err);

    if (status != STATUS_OK)
        return status;
    config.store = *ret_store;
    return collective_open(&config, ret_group, err);
}

static void close_rank(struct store *store, struct collective *group)
{
    collective_close(group);
    store_close(store, 0);
}

/* Sums that are whole numbers, large and small, and a pass to the right. */
static enum status use_group(struct collective *group, unsigned rank, unsigned size,
                             struct error *err)
{
    static const size_t counts[] = {1, 1000, COUNT};
    float *data = malloc(COUNT * sizeof(float));
    enum status status = data ? STATUS_OK : STATUS_NO_MEMORY;

    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]) && status == STATUS_OK; k++) {
        for (size_t i = 0; i < counts[k]; i++)
            data[i] = (float)(i % 1000 + rank);
        status = collective_all_reduce(group, data, counts[k], REDUCE_FAST, err);
        for (size_t i = 0; i < counts[k] && status == STATUS_OK; i++) {
            unsigned wanted = (unsigned)(i % 1000) * size + size * (size - 1) / 2;

            if ((unsigned)data[i] != wanted)
                status = error_set(err, STATUS_DATA, "element %zu of %zu is %g, not %u", i,
                                   counts[k], (double)data[i], wanted);
        }
        if (status == STATUS_OK)
            status = collective_broadcast(group, data, counts[k] * sizeof(float), 0, err);
    }
    free(data);
    return status;
}

static unsigned streams_of(const struct collective *group)
{
    return ((const struct ring *)(const void *)group)->streams;
}

/* ---- threads ---- */

static char store_method[512];
static pthread_barrier_t all_open, all_counted;

struct thread {
    pthread_t thread;
    struct place place;
    unsigned chosen;
};

static void *thread_main(void *argument)
{
    struct thread *t = argument;
    struct error err = {0};
    struct store *store = NULL;
    struct collective *group = NULL;

    assert_ok(open_rank(&t->place, &store, &group, &err));
    t->chosen = streams_of(group);
    (void)pthread_barrier_wait(&all_open);
    (void)pthread_barrier_wait(&all_counted);
    assert_ok(use_group(group, t->place.rank, t->place.size, &err));
    close_rank(store, group);
    return NULL;
}

/* Descriptors of this process that are sockets. */
static size_t count_sockets(void)
{
    size_t count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        struct stat what;

        count += fstat(fd, &what) == 0 && S_ISSOCK(what.st_mode);
    }
    return count;
}

/* The number of connections that all ranks use; rank r says it is on hosts[r]. */
static unsigned run_threads(unsigned size, const char *const *hosts, unsigned streams,
                            size_t *ret_sockets)
{
    static unsigned worlds;
    struct thread threads[RANKS_MAX] = {0};
    char name[32];
    size_t before = count_sockets();

    (void)snprintf(store_method, sizeof(store_method), "file://%s/store", support_folder());
    (void)snprintf(name, sizeof(name), "streams%u", worlds++);
    ck_assert_int_eq(pthread_barrier_init(&all_open, NULL, size + 1), 0);
    ck_assert_int_eq(pthread_barrier_init(&all_counted, NULL, size + 1), 0);
    for (unsigned r = 0; r < size; r++) {
        threads[r].place = (struct place){.rank = r,
                                          .size = size,
                                          .streams = streams,
                                          .name = name,
                                          .store = store_method,
                                          .host = hosts[r],
                                          .timeout_ms = TIMEOUT_MS};
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]), 0);
    }
    (void)pthread_barrier_wait(&all_open);
    *ret_sockets = count_sockets() - before;
    (void)pthread_barrier_wait(&all_counted);
    for (unsigned r = 0; r < size; r++) {
        (void)pthread_join(threads[r].thread, NULL);
        ck_assert_uint_eq(threads[r].chosen, threads[0].chosen);
    }
    (void)pthread_barrier_destroy(&all_open);
    (void)pthread_barrier_destroy(&all_counted);
    return threads[0].chosen;
}

static const char *const apart[] = {"host a", "host b", "host c"};
static const char *const together[] = {"host a", "host a", "host a"};
static const char *const two_and_one[] = {"host a", "host a", "host b"};

START_TEST(one_host_has_one_connection)
{
    size_t tuned;
    size_t plain;

    ck_assert_uint_eq(run_threads((unsigned)_i, together, 0, &tuned), 1);
    ck_assert_uint_eq(run_threads((unsigned)_i, together, 1, &plain), 1);
    ck_assert_uint_eq(tuned, plain);
}
END_TEST

START_TEST(any_number_carries_the_same)
{
    size_t sockets;

    ck_assert_uint_eq(run_threads(2, together, (unsigned)_i, &sockets), (unsigned)_i);
    ck_assert_uint_eq(run_threads(3, apart, (unsigned)_i, &sockets), (unsigned)_i);
}
END_TEST

/* On a slow link the bytes that come would wait for those that are still to come. */
START_TEST(only_within_a_host_many_bytes_are_awaited)
{
    size_t sockets;

    ck_assert_uint_eq(run_threads(3, apart, 1, &sockets), 1);
    ck_assert_uint_eq(atomic_load(&waits_for_many), 0);
    ck_assert_uint_eq(run_threads(3, together, 1, &sockets), 1);
    ck_assert_uint_gt(atomic_load(&waits_for_many), 0);
}
END_TEST

/* What is chosen is for the network to say; the rest must be closed. */
START_TEST(hosts_measure_and_close_the_rest)
{
    size_t tuned;
    size_t plain;
    unsigned chosen = run_threads(2, apart, 0, &tuned);

    ck_assert(chosen == 1 || chosen == 2 || chosen == 4);
    ck_assert_uint_eq(run_threads(2, apart, chosen, &plain), chosen);
    ck_assert_uint_eq(tuned, plain);
}
END_TEST

START_TEST(neighbours_of_one_host_take_part)
{
    size_t sockets;
    unsigned chosen = run_threads(3, two_and_one, 0, &sockets);

    ck_assert(chosen == 1 || chosen == 2 || chosen == 4);
}
END_TEST

/* Four carry four times as much as one; a machine with other work may hide that now and then. */
START_TEST(several_where_each_carries_little)
{
    unsigned chosen = 1;
    size_t sockets;

    atomic_store(&pace, PACE);
    for (unsigned i = 0; i < TRIES && chosen == 1; i++)
        chosen = run_threads((unsigned)_i, apart, 0, &sockets);
    ck_assert_uint_gt(chosen, 1);
}
END_TEST

/* ---- namespaces ---- */

/* The result of a process, in memory that it shares with the test. */
struct report {
    enum status status;
    unsigned chosen;
    int64_t opened_ms;
    char text[1024];
};

struct namespace_rank {
    pid_t pid;
    int to_child[2], to_parent[2];
    struct report *report;
};

/* Our end of the link: an address, and the limit on what is sent. */
static bool set_up_link(unsigned rank)
{
    return process_shell(
        "ip link set lo up && ip addr add 10.98.0.%u/24 dev eth0 && ip link set eth0 up && "
        "tc qdisc add dev eth0 root handle 1: htb default 1 && "
        "tc class add dev eth0 parent 1: classid 1:1 htb rate 200mbit quantum 65536",
        rank + 1);
}

static void process_body(const struct place *p, bool cuts, struct report *report)
{
    struct error err = {0};
    struct store *store = NULL;
    struct collective *group = NULL;
    int64_t start_ns = clock_now_ns();

    if (cuts)
        atomic_store(&cut_at, 1);
    report->status = open_rank(p, &store, &group, &err);
    report->opened_ms = (clock_now_ns() - start_ns) / 1000000;
    if (report->status == STATUS_OK) {
        report->chosen = streams_of(group);
        report->status = use_group(group, p->rank, p->size, &err);
    }
    (void)snprintf(report->text, sizeof(report->text), "%.1000s", err.text);
    close_rank(store, group);
}

/* In a namespace of its own; says so, waits for its end of the link, runs. */
static void process_main(struct namespace_rank *self, struct place *p, bool cuts)
{
    char address[32];
    char byte = 'x';

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWNET) != 0)
        byte = '-';
    (void)!write(self->to_parent[1], &byte, 1);
    if (byte == '-' || read(self->to_child[0], &byte, 1) != 1)
        _exit(1);
    byte = set_up_link(p->rank) ? 'x' : '-';
    (void)!write(self->to_parent[1], &byte, 1);
    if (byte == '-' || read(self->to_child[0], &byte, 1) != 1)
        _exit(1);
    (void)snprintf(address, sizeof(address), "10.98.0.%u", p->rank + 1);
    p->address = p->host = address;
    process_body(p, cuts, self->report);
    _exit(0);
}

static void start_process(struct namespace_rank *process, struct place *p, bool cuts)
{
    process->report = mmap(NULL, sizeof(*process->report), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(process->report != MAP_FAILED);
    process->report->status = STATUS_INVALID;
    ck_assert_int_eq(pipe(process->to_child), 0);
    ck_assert_int_eq(pipe(process->to_parent), 0);
    process->pid = fork();
    ck_assert_int_ge(process->pid, 0);
    if (process->pid == 0)
        process_main(process, p, cuts);
}

/* Both have said that they are ready. */
static bool are_ready(const struct namespace_rank *processes)
{
    char said[2] = {0};

    for (unsigned r = 0; r < 2; r++)
        if (read(processes[r].to_parent[0], &said[r], 1) != 1)
            return false;
    return said[0] == 'x' && said[1] == 'x';
}

static void go_on(const struct namespace_rank *processes)
{
    for (unsigned r = 0; r < 2; r++)
        ck_assert_int_eq(write(processes[r].to_child[1], "x", 1), 1);
}

/* Two ranks with a link between them; false, and why is printed, when there can be none. */
static bool run_processes(const char *name, int64_t timeout_ms, bool cuts, struct report *reports)
{
    struct namespace_rank processes[2];
    struct place places[2];
    bool ready;

    (void)snprintf(store_method, sizeof(store_method), "file://%s/store", support_folder());
    for (unsigned r = 0; r < 2; r++) {
        places[r] = (struct place){
            .rank = r, .size = 2, .name = name, .store = store_method, .timeout_ms = timeout_ms};
        start_process(&processes[r], &places[r], cuts && r == 1);
    }
    ready = are_ready(processes) &&
            process_shell("ip link add eth0 netns %ld type veth peer name eth0 netns %ld",
                          (long)processes[0].pid, (long)processes[1].pid);
    if (ready) {
        go_on(processes);
        ready = are_ready(processes);
    }
    if (ready)
        go_on(processes);
    else
        (void)printf("skipped: links between network namespaces need root, 'ip' and 'tc'\n");
    for (unsigned r = 0; r < 2; r++) {
        if (!ready)
            (void)kill(processes[r].pid, SIGKILL);
        (void)waitpid(processes[r].pid, NULL, 0);
        reports[r] = *processes[r].report;
    }
    return ready;
}

/* One link is the limit, whatever the number; both ranks choose alike. */
START_TEST(a_shared_link)
{
    struct report reports[2];

    if (!run_processes("link", TIMEOUT_MS, false, reports))
        return;
    for (unsigned r = 0; r < 2; r++) {
        ck_assert_msg(reports[r].status == STATUS_OK, "rank %u: %s", r, reports[r].text);
        (void)printf("rank %u opened in %lld ms: %u connections per neighbour\n", r,
                     (long long)reports[r].opened_ms, reports[r].chosen);
    }
    ck_assert_uint_eq(reports[0].chosen, reports[1].chosen);
    ck_assert_uint_ge(reports[0].chosen, 1);
}
END_TEST

/* The second connection begins to carry something, and the link goes down. */
START_TEST(a_link_that_goes_down_meanwhile)
{
    struct report reports[2];

    if (!run_processes("cut", 8000, true, reports))
        return;
    for (unsigned r = 0; r < 2; r++) {
        (void)printf("rank %u: %s after %lld ms\n", r, reports[r].text,
                     (long long)reports[r].opened_ms);
        ck_assert_msg(reports[r].status == STATUS_TIMEOUT || reports[r].status == STATUS_PEER_LOST,
                      "rank %u: %s: %s", r, status_name(reports[r].status), reports[r].text);
        ck_assert_msg(strstr(reports[r].text, "first exchange") != NULL, "%s", reports[r].text);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "ring_streams", TEST_SECONDS, LOOP_TEST(one_host_has_one_connection, 2, 4),
        LOOP_TEST(any_number_carries_the_same, 1, 6),
        TEST(only_within_a_host_many_bytes_are_awaited), TEST(hosts_measure_and_close_the_rest),
        TEST(neighbours_of_one_host_take_part), LOOP_TEST(several_where_each_carries_little, 2, 4),
        TEST(a_shared_link), TEST(a_link_that_goes_down_meanwhile));
}
