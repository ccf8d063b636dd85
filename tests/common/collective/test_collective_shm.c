/*
 * The shm backend beside the conformance suite, what it alone has to show: registered memory,
 * every way an operation can go, driven by polling alone, and nothing left behind.
 *
 * Ranks that are threads map one arena at different addresses, so ThreadSanitizer does not see the
 * order between them: under it these tests prove what surrounds the arena (groups, mesh, tickets,
 * regions of the heap).  What the flags order is shown by the values that come out.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/base/net.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 5

/* ---- where buffers lie ---- */

#define REGION_BYTES ((size_t)12 << 20)

/* A rank's region, and a heap of the same size for what is not registered. */
struct places {
    struct shared_memory region;
    unsigned char *heap;
};

static struct places open_places(struct collective *group)
{
    struct error err = {0};
    struct places p = {.region = SHARED_MEMORY_NONE, .heap = calloc(1, REGION_BYTES)};

    ck_assert_ptr_nonnull(p.heap);
    assert_ok(shared_memory_open(REGION_BYTES, "test", &p.region, &err));
    assert_ok(collective_register(group, &p.region, &err));
    return p;
}

static void close_places(struct places *p)
{
    free(p->heap);
    shared_memory_release(&p->region);
}

static int32_t value_of(unsigned rank, size_t i)
{
    return (int32_t)((unsigned)i * 7 + rank * 1000003u + (unsigned)(i >> 9));
}

static int32_t sum_of(unsigned size, size_t i)
{
    int32_t sum = 0;

    for (unsigned r = 0; r < size; r++)
        sum += value_of(r, i);
    return sum;
}

/* The sums of `count` elements from input to output, once; elements around the output stay. */
static void check_sum(struct collective *group, int32_t *input, int32_t *output, size_t count)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = DTYPE_INT32,
                                   .input = input,
                                   .output = output,
                                   .count = count};
    unsigned rank = collective_rank(group);
    struct error err = {0};
    size_t wrong = 0;

    output[-1] = output[count] = 77;
    for (size_t i = 0; i < count; i++)
        input[i] = value_of(rank, i);
    assert_ok(collective_run(group, &args, &err));
    for (size_t i = 0; i < count; i++) {
        wrong += output[i] != sum_of(collective_world_size(group), i);
        wrong += input != output && input[i] != value_of(rank, i);
    }
    ck_assert_msg(wrong == 0, "%zu of %zu wrong", wrong, count);
    ck_assert_int_eq(output[-1], 77);
    ck_assert_int_eq(output[count], 77);
}

static const size_t sum_counts[] = {0, 1, 3, 4, 5, 67, 8191, 8192, 8193, 131071, 131072, 524309};

/* Registered on all ranks at offsets of their own, on some ranks, and on none. */
static void places_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct places p = open_places(group);

    (void)size;
    (void)argument;
    for (size_t k = 0; k < sizeof(sum_counts) / sizeof(sum_counts[0]); k++) {
        size_t count = sum_counts[k];
        int32_t *inside = (int32_t *)p.region.base + 1 + rank * 13;
        int32_t *outside = (int32_t *)(void *)p.heap + 3;

        check_sum(group, inside, inside, count);
        check_sum(group, inside, inside + count + 2 + rank, count);
        check_sum(group, outside, outside, count);
        check_sum(group, rank == 0 ? outside : inside, rank == 0 ? outside : inside, count);
        check_sum(group, inside, outside, count);
        check_sum(group, outside, inside, count);
    }
    close_places(&p);
}

START_TEST(buffers_lie_anywhere)
{
    for (unsigned n = 2; n <= RANKS; n++)
        world_run("shm", n, places_body, NULL);
}
END_TEST

/* More regions than the group has room for: an error, and the group goes on. */
static void many_regions_body(struct collective *group, unsigned rank, unsigned size,
                              void *argument)
{
    struct shared_memory regions[17];
    struct error err = {0};
    enum status status = STATUS_OK;
    size_t count = 0;

    (void)rank;
    (void)size;
    (void)argument;
    for (; count < 17 && status == STATUS_OK; count++) {
        assert_ok(shared_memory_open(1 << 20, "test", &regions[count], &err));
        status = collective_register(group, &regions[count], &err);
    }
    ck_assert_uint_eq(count, 17);
    assert_fails(status, STATUS_INVALID, "registered regions");
    check_sum(group, (int32_t *)regions[15].base + 1, (int32_t *)regions[15].base + 1, 100000);
    check_sum(group, (int32_t *)regions[16].base + 1, (int32_t *)regions[16].base + 1, 100000);
    for (size_t i = 0; i < count; i++)
        shared_memory_release(&regions[i]);
}

START_TEST(regions_have_a_limit)
{
    world_run("shm", 3, many_regions_body, NULL);
}
END_TEST

/* ---- driven by polling alone ---- */

static void poll_to_the_end(struct collective *group, const struct collective_args *args)
{
    struct collective_work *work;
    struct error err = {0};
    bool done = false;

    assert_ok(collective_start(group, args, &work, &err));
    while (!done) {
        collective_poll(work, &done);
        if (!done)
            (void)sched_yield();
    }
    assert_ok(collective_wait(work, 0, &err));
}

static void polls_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct places p = open_places(group);

    (void)argument;
    for (size_t k = 0; k < 2 * sizeof(sum_counts) / sizeof(sum_counts[0]); k++) {
        size_t count = sum_counts[k / 2];
        int32_t *data = (k % 2 ? (int32_t *)p.region.base : (int32_t *)(void *)p.heap) + 1;
        struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                       .dtype = DTYPE_INT32,
                                       .input = data,
                                       .output = data,
                                       .count = count};
        struct collective_args broadcast = args;
        size_t wrong = 0;

        for (size_t i = 0; i < count; i++)
            data[i] = value_of(rank, i);
        poll_to_the_end(group, &args);
        broadcast.call = COLLECTIVE_BROADCAST;
        broadcast.root = size - 1;
        for (size_t i = 0; i < count; i++) {
            wrong += data[i] != sum_of(size, i);
            data[i] = value_of(rank, i);
        }
        poll_to_the_end(group, &broadcast);
        for (size_t i = 0; i < count; i++)
            wrong += data[i] != value_of(size - 1, i);
        ck_assert_uint_eq(wrong, 0);
    }
    close_places(&p);
}

START_TEST(polling_is_enough)
{
    for (unsigned n = 2; n <= 4; n++)
        world_run("shm", n, polls_body, NULL);
}
END_TEST

/* A poll while the others are not there comes back at once, however often. */
static void early_poll_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    pthread_barrier_t *polled = argument;
    struct collective_args args = {.call = COLLECTIVE_BARRIER};
    struct collective_work *work;
    struct error err = {0};
    bool done = true;

    (void)size;
    if (rank == 0) {
        assert_ok(collective_start(group, &args, &work, &err));
        for (int i = 0; i < 1000; i++) {
            collective_poll(work, &done);
            ck_assert(!done);
        }
        assert_fails(collective_wait(work, clock_now_ns() + 1000000, &err), STATUS_TIMEOUT,
                     "has not ended yet");
        (void)pthread_barrier_wait(polled);
        assert_ok(collective_wait(work, INT64_MAX, &err));
        return;
    }
    (void)pthread_barrier_wait(polled);
    assert_ok(collective_barrier(group, &err));
}

START_TEST(a_poll_never_blocks)
{
    pthread_barrier_t polled;

    (void)pthread_barrier_init(&polled, NULL, 2);
    world_run("shm", 2, early_poll_body, &polled);
    (void)pthread_barrier_destroy(&polled);
}
END_TEST

/* ---- messages ---- */

/* Everybody sends to everybody, in one go: pieces, references and nothing at all. */
static void messages_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    static const size_t counts[] = {0, 1, 16384, 16385, 100003, 300007};
    struct places p = open_places(group);
    int32_t *input[2] = {(int32_t *)p.region.base, (int32_t *)(void *)p.heap};
    int32_t *output = (int32_t *)(void *)(p.heap + REGION_BYTES / 4);
    struct error err = {0};

    (void)argument;
    for (size_t k = 0; k < 2 * sizeof(counts) / sizeof(counts[0]); k++) {
        size_t count = counts[k / 2];
        struct collective_work *works[2 * WORLD_RANKS_MAX];
        size_t started = 0;
        size_t wrong = 0;

        for (size_t i = 0; i < count; i++)
            input[k % 2][i] = value_of(rank, i);
        for (unsigned r = 0; r < size; r++) {
            struct collective_args args = {.call = COLLECTIVE_SEND,
                                           .dtype = DTYPE_INT32,
                                           .input = input[k % 2],
                                           .count = count,
                                           .root = r};

            if (r == rank)
                continue;
            assert_ok(collective_start(group, &args, &works[started++], &err));
            args.call = COLLECTIVE_RECV;
            args.output = output + r * count;
            assert_ok(collective_start(group, &args, &works[started++], &err));
        }
        for (size_t i = 0; i < started; i++)
            assert_ok(collective_wait(works[i], INT64_MAX, &err));
        for (unsigned r = 0; r < size; r++)
            for (size_t i = 0; r != rank && i < count; i++)
                wrong += output[r * count + i] != value_of(r, i);
        ck_assert_uint_eq(wrong, 0);
    }
    close_places(&p);
}

START_TEST(all_send_to_all)
{
    for (unsigned n = 2; n <= 4; n++)
        world_run("shm", n, messages_body, NULL);
}
END_TEST

/* Many short messages go ahead of their receiver, and the next ones wait for room. */
static void row_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct error err = {0};

    (void)size;
    (void)argument;
    for (int32_t i = 0; i < 1000; i++) {
        int32_t value = i;
        struct collective_args args = {.call = rank == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                                       .dtype = DTYPE_INT32,
                                       .input = &value,
                                       .output = &value,
                                       .count = 1,
                                       .root = 1 - rank};

        value = rank == 0 ? i : -1;
        assert_ok(collective_run(group, &args, &err));
        ck_assert_int_eq(value, i);
    }
}

START_TEST(messages_keep_their_order)
{
    world_run("shm", 2, row_body, NULL);
}
END_TEST

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
    if (rank == 1)
        ck_assert_ptr_nonnull(strstr(err.text, "this rank 1"));
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

struct job {
    pid_t pids[4];
    int ready[4];  /* a byte per operation that ended well; closed when the rank ends */
    int report[4]; /* struct world_report */
};

static void job_rank(const char *name, unsigned rank, unsigned size, size_t count, int ready,
                     int report_fd)
{
    struct error err = {0};
    struct world_report report = {0};
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
        struct world_report report;

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
    Suite *suite = suite_create("collective_shm");
    TCase *tests = tcase_create("collective_shm");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, buffers_lie_anywhere);
    tcase_add_test(tests, regions_have_a_limit);
    tcase_add_test(tests, polling_is_enough);
    tcase_add_test(tests, a_poll_never_blocks);
    tcase_add_test(tests, all_send_to_all);
    tcase_add_test(tests, messages_keep_their_order);
    tcase_add_loop_test(tests, a_mismatch_names_both_sides, 0, 2);
    tcase_add_test(tests, a_mismatched_message_names_both_sides);
    tcase_add_test(tests, an_early_end_is_seen);
    tcase_add_test(tests, hosts_must_be_one);
    tcase_add_loop_test(tests, a_killed_rank_is_named, 0, 2);
    tcase_add_loop_test(tests, killed_jobs_leave_nothing, 0, 2);
    tcase_add_test(tests, two_jobs_on_one_host);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
