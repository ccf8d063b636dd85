/*
 * Where the shm backend has to say what went wrong: ranks that disagree, that leave, that share no
 * memory, and that are killed, which leaves nothing behind.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/base/net.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- disagreement ---- */

static void count_mismatch_body(struct collective *group, unsigned rank, unsigned size,
                                void *argument)
{
    float *data = calloc(100000, sizeof(float));
    size_t count = *(const size_t *)argument;
    struct error err = {0};
    enum status status =
        collective_all_reduce(group, data, rank == 1 ? count + 1 : count, REDUCE_FAST, &err);

    (void)size;
    ck_assert_int_eq(status, STATUS_MISMATCH);
    ck_assert_int_eq(collective_fault(group, NULL), FAULT_DESYNC);
    /* As this rank saw it, or as one that saw it earlier says. */
    ck_assert_msg(strstr(err.text, "rank 1"), "'%s'", err.text);
    ck_assert_msg(strstr(err.text, " of 5001 ") || strstr(err.text, " of 60001 "), "'%s'",
                  err.text);
    ck_assert_msg(strstr(err.text, " of 5000 ") || strstr(err.text, " of 60000 "), "'%s'",
                  err.text);
    free(data);
}

START_TEST(a_mismatch_names_both_sides)
{
    size_t counts[] = {5000, 60000};

    world_run("shm", 2, count_mismatch_body, &counts[_i]);
    world_run("shm", 3, count_mismatch_body, &counts[_i]);
}
END_TEST

static void type_mismatch_body(struct collective *group, unsigned rank, unsigned size,
                               void *argument)
{
    int64_t value = 1;
    struct error err = {0};
    struct collective_args args = {.call = rank == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                                   .dtype = rank == 0 ? DTYPE_FLOAT64 : DTYPE_INT64,
                                   .input = &value,
                                   .output = &value,
                                   .count = 1,
                                   .root = 1 - rank};
    enum status status = collective_run(group, &args, &err);

    (void)size;
    (void)argument;
    if (rank == 1) { /* the sender of a short message may be done before */
        ck_assert_int_eq(status, STATUS_MISMATCH);
        ck_assert_msg(strstr(err.text, "send #1 of 1 float64"), "'%s'", err.text);
        ck_assert_msg(strstr(err.text, "recv #1 of 1 int64"), "'%s'", err.text);
    }
}

START_TEST(a_mismatched_message_names_both_sides)
{
    world_run("shm", 2, type_mismatch_body, NULL);
}
END_TEST

/* Rank 1 leaves after the first operation; the others have more to do. */
static void early_end_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    float data[10] = {0};
    struct error err = {0};

    (void)size;
    (void)argument;
    assert_ok(collective_all_reduce(group, data, 10, REDUCE_FAST, &err));
    if (rank == 1)
        return;
    ck_assert_int_ne(collective_all_reduce(group, data, 10, REDUCE_FAST, &err), STATUS_OK);
    ck_assert_msg(strstr(err.text, "rank 1"), "'%s'", err.text);
    ck_assert_int_eq(collective_fault(group, NULL), FAULT_FINISHED);
}

START_TEST(an_early_end_is_seen)
{
    world_run("shm", 2, early_end_body, NULL);
}
END_TEST

/* Ranks that cannot share memory do not even try. */
static void *other_host(void *argument)
{
    unsigned rank = *(unsigned *)argument;
    struct error err = {0};
    struct store *store = world_store(rank, 2, &err);
    struct collective_config config = {.backend = "shm",
                                       .name = "hosts",
                                       .rank = rank,
                                       .world_size = 2,
                                       .store = store,
                                       .host_id = rank == 0 ? "here" : "there",
                                       .timeout_ms = 20000};
    struct collective *group = NULL;

    ck_assert_ptr_nonnull(store);
    assert_fails(collective_open(&config, &group, &err), STATUS_CONFIG, "'there'");
    store_close(store, 0);
    return NULL;
}

START_TEST(hosts_must_be_one)
{
    unsigned ranks[2] = {0, 1};
    pthread_t thread;
    struct error err = {0};

    store_close(world_store(0, 2, &err), 0); /* chooses the file before there are threads */
    ck_assert_int_eq(pthread_create(&thread, NULL, other_host, &ranks[1]), 0);
    (void)other_host(&ranks[0]);
    (void)pthread_join(thread, NULL);
}
END_TEST

/* ---- processes that are killed ---- */

/* What a rank has to say when it ends. */
struct job_report {
    enum status status;
    int64_t ended_ns;
    char text[2048];
};

struct job {
    pid_t pids[4];
    int ready[4];  /* a byte per operation that ended well; closed when the rank ends */
    int report[4]; /* struct job_report */
};

static void job_rank(const char *name, unsigned rank, unsigned size, size_t count, int ready,
                     int report_fd)
{
    struct error err = {0};
    struct job_report report = {0};
    struct store *store = world_store(rank, size, &err);
    struct collective *group = NULL;
    struct shared_memory region = SHARED_MEMORY_NONE;
    enum status status = shared_memory_open(count * sizeof(float), "test", &region, &err);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (status == STATUS_OK)
        status = world_open("shm", name, rank, size, store, 20000, &group, &err);
    if (status == STATUS_OK)
        status = collective_register(group, &region, &err);
    while (status == STATUS_OK) {
        status = collective_all_reduce(group, region.base, count, REDUCE_FAST, &err);
        if (status == STATUS_OK)
            (void)!send(ready, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    report.status = status;
    report.ended_ns = clock_now_ns();
    memcpy(report.text, err.text, sizeof(report.text));
    (void)net_send_all(report_fd, &report, sizeof(report), clock_deadline_ns(10000), NULL);
    collective_close(group);
    _exit(0);
}

static struct job start_job(const char *name, unsigned size, size_t count)
{
    struct error err = {0};
    struct job job;

    store_close(world_store(0, size, &err), 0); /* chooses the file before there are processes */
    for (unsigned r = 0; r < size; r++) {
        int ready[2];
        int report[2];

        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ready), 0);
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, report), 0);
        job.pids[r] = fork();
        ck_assert_int_ge(job.pids[r], 0);
        if (job.pids[r] == 0)
            job_rank(name, r, size, count, ready[1], report[1]);
        (void)close(ready[1]);
        (void)close(report[1]);
        job.ready[r] = ready[0];
        job.report[r] = report[0];
    }
    return job;
}

static void await_operations(const struct job *job, unsigned rank, int operations)
{
    struct error err = {0};
    char byte;

    for (; operations > 0; operations--)
        assert_ok(net_recv_all(job->ready[rank], &byte, 1, clock_deadline_ns(20000), &err));
}

static void end_job(const struct job *job, unsigned size)
{
    for (unsigned r = 0; r < size; r++) {
        (void)kill(job->pids[r], SIGKILL);
        (void)waitpid(job->pids[r], NULL, 0);
        (void)close(job->ready[r]);
        (void)close(job->report[r]);
    }
}

#define SOCKETS_MAX 256

/* The sockets that a process has open, by inode. */
static size_t list_sockets(pid_t pid, unsigned long *inodes, size_t length)
{
    char folder[64];
    struct dirent *entry;
    DIR *list;

    (void)snprintf(folder, sizeof(folder), "/proc/%ld/fd", (long)pid);
    list = opendir(folder);
    ck_assert_ptr_nonnull(list);
    while ((entry = readdir(list)) && length < SOCKETS_MAX) {
        char path[400];
        char link[64] = "";

        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (readlink(path, link, sizeof(link) - 1) > 0 &&
            sscanf(link, "socket:[%lu]", &inodes[length]) == 1)
            length++;
    }
    (void)closedir(list);
    return length;
}

static bool contains(const unsigned long *inodes, size_t length, unsigned long inode)
{
    for (size_t i = 0; i < length; i++)
        if (inodes[i] == inode)
            return true;
    return false;
}

/* Those of the inodes that are still Unix sockets of this host, and not of this process. */
static unsigned count_alive(const unsigned long *inodes, size_t length)
{
    unsigned long ours[SOCKETS_MAX];
    size_t our_length = list_sockets(getpid(), ours, 0);
    FILE *table = fopen("/proc/net/unix", "r");
    unsigned long inode;
    unsigned alive = 0;
    char line[512];

    ck_assert_ptr_nonnull(table);
    while (fgets(line, sizeof(line), table))
        if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &inode) == 1 &&
            contains(inodes, length, inode) && !contains(ours, our_length, inode))
            alive++;
    (void)fclose(table);
    return alive;
}

/* Names in the file system: there never are any. */
static unsigned count_names(void)
{
    DIR *list = opendir("/dev/shm");
    struct dirent *entry;
    unsigned count = 0;

    while (list && (entry = readdir(list)))
        count += strstr(entry->d_name, "sparring") != NULL;
    if (list)
        (void)closedir(list);
    return count;
}

/* Small operations, and ones that take the better part of their time in memory. */
static const size_t job_counts[] = {67, (size_t)4 << 20};

START_TEST(a_killed_rank_is_named)
{
    struct job job = start_job("killed", 3, job_counts[_i]);
    int64_t killed_ns;

    await_operations(&job, 0, 3);
    killed_ns = clock_now_ns();
    (void)kill(job.pids[1], SIGKILL);
    for (unsigned r = 0; r < 3; r += 2) {
        struct error err = {0};
        struct job_report report;

        assert_ok(
            net_recv_all(job.report[r], &report, sizeof(report), clock_deadline_ns(20000), &err));
        ck_assert_int_ne(report.status, STATUS_OK);
        ck_assert_int_ne(report.status, STATUS_TIMEOUT);
        ck_assert_msg(strstr(report.text, "rank 1"), "rank %u: '%s'", r, report.text);
        ck_assert_int_ge(report.ended_ns, killed_ns);
    }
    end_job(&job, 3);
}
END_TEST

/* Killed in the middle of everything, a job leaves nothing, and the next one is not disturbed. */
START_TEST(killed_jobs_leave_nothing)
{
    for (unsigned round = 0; round < 3; round++) {
        struct job job = start_job(round % 2 ? "odd" : "even", 3, job_counts[_i]);
        unsigned long inodes[SOCKETS_MAX];
        size_t length = 0;

        await_operations(&job, round, 2);
        for (unsigned r = 0; r < 3; r++)
            length = list_sockets(job.pids[r], inodes, length);
        ck_assert_uint_ge(count_alive(inodes, length), 6); /* each rank's to the two others */
        for (unsigned r = 0; r < 3; r++)
            (void)kill(job.pids[r], SIGKILL);
        end_job(&job, 3);
        ck_assert_uint_eq(count_alive(inodes, length), 0);
        ck_assert_uint_eq(count_names(), 0);
        (void)unlink(support_path("store")); /* a new job has a new store */
    }
}
END_TEST

START_TEST(two_jobs_on_one_host)
{
    struct job one = start_job("one", 2, job_counts[1]);
    struct job two = start_job("two", 2, job_counts[0]);

    await_operations(&one, 0, 10);
    await_operations(&two, 1, 10);
    (void)kill(one.pids[0], SIGKILL);
    await_operations(&two, 0, 1000);
    end_job(&one, 2);
    end_job(&two, 2);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("collective_shm_faults", 240, LOOP_TEST(a_mismatch_names_both_sides, 0, 2),
                       TEST(a_mismatched_message_names_both_sides), TEST(an_early_end_is_seen),
                       TEST(hosts_must_be_one), LOOP_TEST(a_killed_rank_is_named, 0, 2),
                       LOOP_TEST(killed_jobs_leave_nothing, 0, 2), TEST(two_jobs_on_one_host));
}
