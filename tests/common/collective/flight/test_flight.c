/*
 * The flight recorder: what is written is read back, the ring keeps the newest, a killed writer's
 * file shows where it was, a living writer's entries are whole, and damage is an error or a gap.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/collective/flight/flight_layout.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct error err;

static struct flight *open_flight(const char *path, size_t entries)
{
    struct flight_config config = {.path = path, .rank = 2, .world_size = 4, .entries = entries};
    struct flight *f;

    assert_ok(flight_open(&config, &f, &err));
    return f;
}

/* An operation all of whose numbers follow from one. */
static struct flight_entry make_entry(uint64_t n)
{
    struct flight_entry e = {
        .signature = {.call = COLLECTIVE_ALL_REDUCE,
                      .dtype = DTYPE_FLOAT16,
                      .op = REDUCE_MAX,
                      .order = REDUCE_REPRODUCIBLE,
                      .group = n,
                      .generation = (uint32_t)n,
                      .sequence = n,
                      .count = n,
                      .root = (uint32_t)n},
        .queued_ns = clock_now_ns(),
        .step = n,
        .bucket = (int32_t)n,
        .buckets = (int32_t)n,
    };

    (void)snprintf(e.group, sizeof(e.group), "group %ju", (uintmax_t)n);
    return e;
}

static void check_entry(const struct flight_entry *e)
{
    struct flight_entry wanted = make_entry(e->index);

    ck_assert(signature_equal(&e->signature, &wanted.signature));
    ck_assert_str_eq(e->group, wanted.group);
    ck_assert_uint_eq(e->step, wanted.step);
    ck_assert_int_eq(e->bucket, wanted.bucket);
    ck_assert_int_eq(e->buckets, wanted.buckets);
}

START_TEST(test_states_and_header)
{
    const char *path = support_path("flight.bin");
    int64_t before_ns = clock_now_ns();
    double before = clock_wall_seconds();
    struct flight *f = open_flight(path, 0);
    struct flight_log log;
    struct stat info;
    size_t entry_indices[4];

    for (uint64_t n = 1; n <= 4; n++) {
        struct flight_entry e = make_entry(n);

        entry_indices[n - 1] = flight_queue(f, &e);
    }
    for (unsigned i = 1; i < 4; i++)
        flight_start(f, entry_indices[i], clock_now_ns());
    flight_progress(f, entry_indices[1], 100, 1000);
    flight_end(f, entry_indices[2], true, 1000, 1000, clock_now_ns());
    flight_end(f, entry_indices[3], false, 7, 1000, clock_now_ns());
    flight_fail(f, FAULT_DEAD, 3, "rank 3 is dead\x1b[31m");
    flight_fail(f, FAULT_STALLED, 1, "a later reason");
    assert_ok(flight_read(path, &log, &err)); /* while it is open */
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0600);
    ck_assert_uint_eq(log.rank, 2);
    ck_assert_uint_eq(log.world_size, 4);
    ck_assert_int_eq(log.pid, getpid());
    ck_assert_int_eq(log.fault, FAULT_DEAD);
    ck_assert_int_eq(log.culprit, 3);
    ck_assert_str_eq(log.reason, "rank 3 is dead?[31m");
    ck_assert_uint_eq(log.recorded, 4);
    ck_assert_uint_eq(log.length, 4);
    ck_assert_uint_eq(log.damaged, 0);
    ck_assert_double_ge(flight_wall(&log, before_ns), before - 0.01);
    for (size_t i = 0; i < 4; i++) {
        const enum flight_state states[] = {FLIGHT_QUEUED, FLIGHT_RUNNING, FLIGHT_DONE,
                                            FLIGHT_FAILED};
        const uint64_t done[] = {0, 100, 1000, 7};
        const struct flight_entry *e = &log.entries[i];

        ck_assert_uint_eq(e->index, i + 1);
        check_entry(e);
        ck_assert_int_eq(e->state, states[i]);
        ck_assert_uint_eq(e->done_bytes, done[i]);
        ck_assert_uint_eq(e->total_bytes, i == 0 ? 0 : 1000);
        ck_assert_int_ge(e->queued_ns, before_ns);
        ck_assert(i == 0 ? e->started_ns == 0 : e->started_ns >= e->queued_ns);
        ck_assert(i < 2 ? e->ended_ns == 0 : e->ended_ns >= e->started_ns);
    }
    flight_log_release(&log);
    flight_close(f);
}
END_TEST

START_TEST(test_ring_keeps_the_newest)
{
    const char *path = support_path("flight.bin");
    struct flight *f = open_flight(path, 10);
    struct flight_log log;
    size_t first = 0;

    for (uint64_t n = 1; n <= 37; n++) {
        struct flight_entry e = make_entry(n);
        size_t entry_index = flight_queue(f, &e);

        first = n == 1 ? entry_index : first;
        flight_start(f, entry_index, clock_now_ns());
        flight_end(f, entry_index, true, n, n, clock_now_ns());
    }
    flight_start(f, first, clock_now_ns()); /* its cell is another's by now */
    flight_progress(f, first, 99, 99);
    flight_end(f, first, false, 99, 99, clock_now_ns());
    flight_close(f);
    assert_ok(flight_read(path, &log, &err));
    ck_assert_uint_eq(log.recorded, 37);
    ck_assert_uint_eq(log.length, 10);
    for (size_t i = 0; i < 10; i++) {
        ck_assert_uint_eq(log.entries[i].index, 28 + i);
        ck_assert_int_eq(log.entries[i].state, FLIGHT_DONE);
        ck_assert_uint_eq(log.entries[i].done_bytes, 28 + i);
        check_entry(&log.entries[i]);
    }
    flight_log_release(&log);
}
END_TEST

/* A process that records without end, until it is killed wherever it happens to be. */
static pid_t start_recording(const char *path, size_t entries)
{
    int ready[2];
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct flight *f;

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        f = open_flight(path, entries);
        for (uint64_t n = 1;; n++) {
            struct flight_entry e = make_entry(n);
            size_t entry_index = flight_queue(f, &e);

            flight_start(f, entry_index, clock_now_ns());
            flight_progress(f, entry_index, n / 2, n);
            flight_end(f, entry_index, true, n, n, clock_now_ns());
            if (n == 100)
                (void)!write(ready[1], "x", 1);
        }
    }
    (void)close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    return pid;
}

static void check_moving_log(const struct flight_log *log, size_t entries)
{
    ck_assert_uint_eq(log->damaged, 0);
    ck_assert_uint_le(log->length, entries);
    for (size_t i = 0; i < log->length; i++) {
        const struct flight_entry *e = &log->entries[i];

        check_entry(e);
        if (e->state == FLIGHT_DONE)
            ck_assert_uint_eq(e->done_bytes, e->index);
    }
}

START_TEST(test_killed_writer)
{
    const char *path = support_path("flight.bin");
    struct flight_log log;

    for (int i = 0; i < 50; i++) {
        pid_t pid = start_recording(path, 8);

        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        assert_ok(flight_read(path, &log, &err));
        ck_assert_int_eq(log.pid, pid);
        check_moving_log(&log, 8);
        /* Killed while it changed hands, one cell may be empty; the newest is the last of all. */
        ck_assert_uint_ge(log.length, 7);
        ck_assert_uint_ge(log.entries[log.length - 1].index, log.recorded - 1);
        for (size_t k = 0; k + 1 < log.length; k++)
            ck_assert_int_eq(log.entries[k].state, FLIGHT_DONE);
        flight_log_release(&log);
    }
}
END_TEST

START_TEST(test_reader_beside_writer)
{
    const char *path = support_path("flight.bin");
    pid_t pid = start_recording(path, 8);
    uint64_t last = 0;

    for (int i = 0; i < 2000; i++) {
        struct flight_log log;

        assert_ok(flight_read(path, &log, &err));
        check_moving_log(&log, 8);
        ck_assert_uint_ge(log.recorded, last);
        last = log.recorded;
        flight_log_release(&log);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}
END_TEST

#define WRITERS    4
#define OPERATIONS 20000

static void *record(void *argument)
{
    struct flight *f = argument;

    for (uint64_t n = 0; n < OPERATIONS; n++) {
        struct flight_entry e = make_entry(7);
        size_t entry_index = flight_queue(f, &e);

        flight_start(f, entry_index, clock_now_ns());
        flight_progress(f, entry_index, entry_index, entry_index);
        flight_end(f, entry_index, true, entry_index, entry_index, clock_now_ns());
    }
    return NULL;
}

START_TEST(test_groups_share_a_recorder)
{
    const char *path = support_path("flight.bin");
    struct flight *f = open_flight(path, 4 * WRITERS); /* small, so that they meet in cells */
    struct flight_log log;
    pthread_t threads[WRITERS];

    for (unsigned i = 0; i < WRITERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, record, f), 0);
    for (unsigned i = 0; i < WRITERS; i++)
        (void)pthread_join(threads[i], NULL);
    assert_ok(flight_read(path, &log, &err));
    ck_assert_uint_eq(log.recorded, WRITERS * OPERATIONS);
    ck_assert_uint_eq(log.damaged, 0);
    for (size_t i = 0; i < log.length; i++)
        ck_assert_str_eq(log.entries[i].group, "group 7");
    flight_log_release(&log);
    flight_close(f);
}
END_TEST

static void check_damage(const char *bytes, size_t size, const char *part)
{
    struct flight_log log;

    assert_fails(flight_read(support_write("damaged.bin", bytes, size), &log, &err), STATUS_DATA,
                 part);
}

START_TEST(test_damaged_files)
{
    const char *path = support_path("flight.bin");
    struct flight *f = open_flight(path, 4);
    struct flight_entry e = make_entry(1);
    struct flight_log log;
    uint64_t word;
    char *bytes;
    size_t size;

    (void)flight_queue(f, &e);
    flight_close(f);
    assert_ok(file_read(path, 1 << 20, &bytes, &size, &err));
    check_damage(bytes, 0, "no flight recorder's file");
    check_damage(bytes, 100, "no flight recorder's file");
    check_damage(bytes, size - 1, "is cut off");
    word = 1000;
    memcpy(bytes + FLIGHT_HEADER_BYTES + 8 * FLIGHT_INDEX, &word, 8); /* cannot be in this cell */
    assert_ok(flight_read(support_write("damaged.bin", bytes, size), &log, &err));
    ck_assert_uint_eq(log.length, 0);
    ck_assert_uint_eq(log.damaged, 1);
    flight_log_release(&log);
    bytes[offsetof(struct flight_header, entries) + 7] = 1;
    check_damage(bytes, size, "entries");
    bytes[offsetof(struct flight_header, version)]++;
    check_damage(bytes, size, "version 2");
    bytes[offsetof(struct flight_header, byte_order)]++;
    check_damage(bytes, size, "byte order");
    bytes[0] = 'x';
    check_damage(bytes, size, "no flight recorder's file");
    assert_fails(flight_read(support_path("none"), &log, &err), STATUS_NOT_FOUND, "none");
    free(bytes);
}
END_TEST

START_TEST(test_open_errors)
{
    struct flight_config config = {.path = "/proc/no/such/flight.bin"};
    struct flight *f;

    assert_fails(flight_open(&config, &f, &err), STATUS_NOT_FOUND, "/proc/no/such/flight.bin");
    config = (struct flight_config){.entries = (size_t)1 << 40};
    assert_fails(flight_open(&config, &f, &err), STATUS_INVALID, "at most");
    flight_close(open_flight(NULL, 0));
    flight_close(NULL);
}
END_TEST

static void record_operations(struct collective *group, unsigned rank, unsigned size,
                              void *argument)
{
    float data[100] = {0};
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .input = data,
                                   .output = data,
                                   .count = 100,
                                   .bucket = 2,
                                   .buckets = 5,
                                   .step = 17};

    (void)rank;
    (void)size;
    (void)argument;
    assert_ok(collective_run(group, &args, &err));
    assert_ok(collective_barrier(group, &err));
}

/* What the core records of a group's operations. */
START_TEST(test_group_records)
{
    const char *path = support_path("flight.bin");
    struct flight *f = open_flight(path, 0);
    struct collective_config config = {
        .backend = "ring", .name = "alone", .world_size = 1, .flight = f, .timeout_ms = 5000};
    struct collective *group;
    struct flight_log log;

    assert_ok(collective_open(&config, &group, &err));
    record_operations(group, 0, 1, NULL);
    collective_close(group);
    flight_close(f);
    assert_ok(flight_read(path, &log, &err));
    ck_assert_uint_eq(log.length, 2);
    ck_assert_str_eq(log.entries[0].group, "alone");
    ck_assert_int_eq(log.entries[0].signature.call, COLLECTIVE_ALL_REDUCE);
    ck_assert_uint_eq(log.entries[0].signature.count, 100);
    ck_assert_uint_eq(log.entries[0].step, 17);
    ck_assert_int_eq(log.entries[0].bucket, 2);
    ck_assert_int_eq(log.entries[0].buckets, 5);
    ck_assert_int_eq(log.entries[0].state, FLIGHT_DONE);
    ck_assert_int_eq(log.entries[1].signature.call, COLLECTIVE_BARRIER);
    ck_assert_uint_eq(log.entries[1].signature.sequence, 2);
    flight_log_release(&log);
    world_run("ring", 3, record_operations, NULL); /* with recorders of their own, in memory */
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("flight", 240, TEST(test_states_and_header),
                       TEST(test_ring_keeps_the_newest), TEST(test_killed_writer),
                       TEST(test_reader_beside_writer), TEST(test_groups_share_a_recorder),
                       TEST(test_damaged_files), TEST(test_open_errors), TEST(test_group_records));
}
