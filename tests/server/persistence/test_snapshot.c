/*
 * Snapshots: partitions written in any order are read bit for bit, a flipped bit anywhere is
 * detected or changes nothing, a full disk leaves the previous snapshot in place.
 */
#include "common/base/file.h"
#include "server/persistence/snapshot.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORLD    3u
#define PARTS    4u
#define ELEMENTS 50u
#define SLABS    2u

static struct error err;
static const struct snapshot_shape shape = {.elements = ELEMENTS,
                                            .parts = PARTS,
                                            .world_size = WORLD,
                                            .slabs = SLABS,
                                            .names = {"values", "momentum"}};
static const size_t offsets[PARTS + 1] = {0, 16, 32, 48, ELEMENTS};

static uint64_t clocks[PARTS][WORLD], seen[PARTS][WORLD], flags[PARTS][WORLD];
static float slabs[SLABS][ELEMENTS];

static void make_state(unsigned salt)
{
    for (unsigned i = 0; i < PARTS; i++)
        for (unsigned r = 0; r < WORLD; r++) {
            clocks[i][r] = ((uint64_t)i << 40) + r + salt;
            seen[i][r] = clocks[i][r] / 2;
            flags[i][r] = (i + r + salt) % 4;
        }
    for (unsigned k = 0; k < SLABS; k++)
        for (unsigned i = 0; i < ELEMENTS; i++)
            slabs[k][i] = (float)(k * 1000 + i + salt);
    slabs[0][3] = nanf("123");
    slabs[1][49] = -INFINITY;
    slabs[1][48] = -0.0f;
}

static struct snapshot_partition make_partition(size_t index)
{
    struct snapshot_partition part = {.partition = 1 + 3 * index,
                                      .step = 100 + index,
                                      .clocks = clocks[index],
                                      .seen = seen[index],
                                      .flags = flags[index],
                                      .initialised = index != 2,
                                      .offset = offsets[index],
                                      .count = offsets[index + 1] - offsets[index]};

    for (unsigned k = 0; k < SLABS; k++)
        part.data[k] = slabs[k] + part.offset;
    return part;
}

static enum status write_state(const char *path)
{
    static const char *const metadata[] = {"format", "pt", "job", "a \"quoted\" job"};
    static const size_t order[PARTS] = {2, 0, 3, 1};
    struct snapshot_writer w;
    enum status status = snapshot_begin(&w, path, &shape, metadata, 2, &err);

    for (unsigned i = 0; i < PARTS && status == STATUS_OK; i++) {
        struct snapshot_partition part = make_partition(order[i]);

        status = snapshot_write_partition(&w, order[i], &part, &err);
    }
    if (status == STATUS_OK)
        status = snapshot_commit(&w, &err);
    snapshot_abandon(&w);
    return status;
}

/* Read every partition of the file and compare it with the state. */
static enum status read_state(const char *path)
{
    struct snapshot s;
    enum status status = snapshot_read(&s, path, &shape, &err);

    if (status != STATUS_OK)
        return status;
    for (size_t index = 0; index < PARTS && status == STATUS_OK; index++) {
        struct snapshot_partition wanted = make_partition(index);
        struct snapshot_partition got = {
            .partition = wanted.partition, .offset = wanted.offset, .count = wanted.count};

        status = snapshot_read_partition(&s, index, &got, &err);
        if (status != STATUS_OK)
            break;
        ck_assert_uint_eq(got.step, wanted.step);
        ck_assert(got.initialised == wanted.initialised);
        ck_assert_mem_eq(got.clocks, wanted.clocks, sizeof(clocks[0]));
        ck_assert_mem_eq(got.seen, wanted.seen, sizeof(seen[0]));
        ck_assert_mem_eq(got.flags, wanted.flags, sizeof(flags[0]));
        for (unsigned k = 0; k < SLABS; k++)
            ck_assert_mem_eq(got.data[k], wanted.data[k], wanted.count * sizeof(float));
    }
    snapshot_release(&s);
    return status;
}

static off_t file_size(const char *path)
{
    struct stat info;

    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_size;
}

START_TEST(test_bit_for_bit)
{
    struct snapshot s;

    make_state(0);
    assert_ok(write_state(support_path("s")));
    assert_ok(read_state(support_path("s")));
    assert_ok(snapshot_read(&s, support_path("s"), &shape, &err));
    ck_assert_str_eq(snapshot_metadata(&s, "job"), "a \"quoted\" job");
    ck_assert_ptr_null(snapshot_metadata(&s, "nothing"));
    snapshot_release(&s);
}
END_TEST

START_TEST(test_empty_shard)
{
    const struct snapshot_shape none = {.world_size = WORLD, .slabs = 1, .names = {"values"}};
    struct snapshot_writer w;
    struct snapshot s;

    assert_ok(snapshot_begin(&w, support_path("s"), &none, NULL, 0, &err));
    assert_ok(snapshot_commit(&w, &err));
    assert_ok(snapshot_read(&s, support_path("s"), &none, &err));
    snapshot_release(&s);
}
END_TEST

START_TEST(test_another_shape)
{
    struct snapshot_shape other = shape;
    struct snapshot s;

    make_state(0);
    assert_ok(write_state(support_path("s")));
    other.elements++;
    assert_fails(snapshot_read(&s, support_path("s"), &other, &err), STATUS_DATA, "'values'");
    other = shape;
    other.world_size++;
    assert_fails(snapshot_read(&s, support_path("s"), &other, &err), STATUS_DATA, "'clocks'");
    other = shape;
    other.names[1] = "exp_avg";
    assert_fails(snapshot_read(&s, support_path("s"), &other, &err), STATUS_DATA,
                 "'exp_avg' is missing");
    assert_fails(snapshot_read(&s, support_path("none"), &shape, &err), STATUS_NOT_FOUND, "none");
}
END_TEST

static void put_byte(const char *path, size_t at, char byte)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    ck_assert_int_eq(close(fd), 0);
}

/* A flipped bit is detected, or no partition has changed. */
START_TEST(test_a_flipped_bit_is_found)
{
    const char *path = support_path("s");
    unsigned found = 0;
    size_t size, header;
    char *data;

    make_state(0);
    assert_ok(write_state(path));
    assert_ok(file_read(path, 1 << 20, &data, &size, &err));
    header = sizeof(uint64_t) + *(const uint64_t *)(const void *)data;
    for (size_t at = 0; at < size; at++) {
        enum status status;

        put_byte(path, at, (char)(data[at] ^ (1 << at % 8)));
        status = read_state(path);
        put_byte(path, at, data[at]);
        found += status != STATUS_OK;
        if (status == STATUS_OK)
            ck_assert_uint_lt(at, header); /* in the metadata */
        else
            ck_assert_msg(strstr(err.text, path) != NULL, "byte %zu: %s", at, err.text);
    }
    ck_assert_uint_ge(found, size - header);
    free(data);
}
END_TEST

START_TEST(test_truncated_file)
{
    const char *path;
    size_t size;

    make_state(0);
    assert_ok(write_state(support_path("s")));
    path = support_path("s");
    size = (size_t)file_size(path);
    while (size-- > 0) {
        ck_assert_int_eq(truncate(path, (off_t)size), 0);
        ck_assert_int_ne(read_state(path), STATUS_OK);
    }
}
END_TEST

/* The disk is full at any byte: the old file stays, and no other file is left. */
START_TEST(test_a_full_disk)
{
    struct rlimit limit, old;
    const char *path = support_path("s"), *pattern = support_path("s*");
    size_t size;
    glob_t files;

    (void)signal(SIGXFSZ, SIG_IGN);
    make_state(0);
    assert_ok(write_state(path));
    size = (size_t)file_size(path);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (size_t room = 0; room < size; room += 5) {
        enum status status;

        make_state(1);
        limit = old;
        limit.rlim_cur = room;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        status = write_state(path);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
        ck_assert_msg(status == STATUS_NO_SPACE && strstr(err.text, path), "room %zu: %s", room,
                      status == STATUS_OK ? "ok" : err.text);
        make_state(0);
        assert_ok(read_state(path));
    }
    ck_assert_int_eq(glob(pattern, 0, NULL, &files), 0);
    ck_assert_uint_eq(files.gl_pathc, 1);
    globfree(&files);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("snapshot", 0, TEST(test_bit_for_bit), TEST(test_empty_shard),
                       TEST(test_another_shape), TEST(test_a_flipped_bit_is_found),
                       TEST(test_truncated_file), TEST(test_a_full_disk));
}
