/*
 * The store in a file: the suite of all stores, and the faults of files: garbage, truncation, a
 * killed writer, a full disk, a lock that is not released, a path that is not a file.
 */
#include "tests/common/store/store_suite.h"

#include "common/base/clock.h"
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char url[600];
static const char *path; /* of url */

/* A file of the test's folder that does not exist; the folder is the parent's in a forked rank. */
static const char *fresh_url(void)
{
    static unsigned serial;
    char name[32];

    (void)snprintf(name, sizeof(name), "store%u", serial++);
    path = support_path(name);
    (void)snprintf(url, sizeof(url), "file://%s", path);
    return url;
}

static const struct store_kind file_kind = {"file", fresh_url};

static off_t file_size(void)
{
    struct stat info;

    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_size;
}

START_TEST(garbage_is_not_a_store)
{
    static const char *const texts[] = {"x", "hello, this is a text file of more than 32 bytes",
                                        "sparring store 1", "sparring store 2................"};
    struct error err = {0};
    struct store *store = NULL;

    (void)fresh_url();
    assert_ok(file_write_atomic(path, texts[_i], strlen(texts[_i]), &err));
    assert_fails(try_open(url, "", 0, 1, 1000, &store, &err), STATUS_DATA, "is not a store file");
    ck_assert_ptr_nonnull(strstr(err.text, path));
    ck_assert_int_eq(file_size(), (off_t)strlen(texts[_i])); /* left as it was */
}
END_TEST

START_TEST(empty_file_is_a_store)
{
    struct store *store;
    struct error err = {0};

    (void)fresh_url();
    assert_ok(file_write_atomic(path, "", 0, &err));
    store = open_rank(url, "", 0, 1, 1000);
    assert_ok(store_set(store, "k", "v", 1, &err));
    check_value(store, "k", "v");
    store_close(store, 0);
}
END_TEST

/* A store file with three keys, without departures (two more ranks are expected). */
static void make_file(void)
{
    struct error err = {0};
    struct store *store = open_rank(fresh_url(), "", 0, 3, 1000);

    assert_ok(store_set(store, "first", "one", 3, &err));
    assert_ok(store_set(store, "second", "two", 3, &err));
    assert_ok(store_set(store, "third", "three", 5, &err));
    store_close(store, 0);
}

START_TEST(every_truncation_is_detected)
{
    struct error err = {0};
    off_t whole;

    make_file();
    whole = file_size();
    for (off_t size = whole - 1; size > 0; size -= 1 + size / 9) {
        struct store *store = NULL;

        ck_assert_int_eq(truncate(path, size), 0);
        assert_fails(try_open(url, "", 1, 3, 1000, &store, &err), STATUS_DATA,
                     size < 32 ? "is not a store file" : "is cut off");
    }
}
END_TEST

START_TEST(truncation_under_an_open_handle)
{
    struct error err = {0};
    struct store *store;
    char *value = NULL;
    size_t size;

    make_file();
    store = open_rank(url, "", 1, 3, 1000);
    check_value(store, "first", "one");
    ck_assert_int_eq(truncate(path, 0), 0);
    assert_fails(store_get(store, "first", 0, &value, &size, &err), STATUS_DATA, "cut off");
    assert_fails(store_set(store, "first", "", 0, &err), STATUS_DATA, "cut off");
    store_close(store, 0);
}
END_TEST

/* Flip each byte in turn: an error or, in an unused field, no change; never another value. */
START_TEST(every_flipped_byte_is_detected)
{
    struct error err = {0};
    char *bytes = NULL;
    size_t size;
    unsigned refused = 0;

    make_file();
    assert_ok(file_read(path, 1 << 20, &bytes, &size, &err));
    for (size_t i = 0; i < size; i++) {
        struct store *store = NULL;
        enum status status;

        bytes[i] = (char)(bytes[i] ^ 0x41);
        assert_ok(file_write_atomic(path, bytes, size, &err));
        status = try_open(url, "", 1, 3, 1000, &store, &err);
        if (status == STATUS_OK) {
            ck_assert_msg(i >= 24 && i < 32, "byte %zu", i); /* the reserved field */
            check_value(store, "first", "one");
            store_close(store, 0);
        } else {
            ck_assert_int_eq(status, STATUS_DATA);
            refused++;
        }
        bytes[i] = (char)(bytes[i] ^ 0x41);
    }
    ck_assert_uint_eq(refused, size - 8);
    free(bytes);
}
END_TEST

/* A writer that is killed before it commits leaves bytes after the committed size. */
START_TEST(incomplete_record_is_overwritten)
{
    struct error err = {0};
    struct store *store;
    char *value = NULL;
    size_t size;
    int fd;

    make_file();
    fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_ok(file_write_all(fd, path, "SPRRhalf a record that never was committed", 42, &err));
    (void)close(fd);
    store = open_rank(url, "", 1, 3, 1000);
    check_value(store, "third", "three");
    assert_ok(store_set(store, "fourth", "four", 4, &err));
    store_close(store, 0);
    store = open_rank(url, "", 2, 3, 1000);
    check_value(store, "first", "one");
    check_value(store, "fourth", "four");
    assert_fails(store_get(store, "half a record", 0, &value, &size, &err), STATUS_TIMEOUT, "half");
    store_close(store, 0);
}
END_TEST

/* Write until this process is killed. */
static void write_for_ever(unsigned rank)
{
    struct error err = {0};
    struct store *store = open_rank(url, "", rank, 9, 10000);
    char fill[5000];
    int64_t sum;

    memset(fill, 'f', sizeof(fill));
    for (size_t i = 0;; i++) {
        if (store_set(store, "fill", fill, i * 13 % sizeof(fill), &err) != STATUS_OK ||
            store_add(store, "n", 1, &sum, &err) != STATUS_OK)
            _exit(3);
    }
}

START_TEST(killed_writers_leave_a_whole_store)
{
    struct error err = {0};
    struct store *store = open_rank(fresh_url(), "", 0, 9, 10000);
    int64_t before = 0;

    assert_ok(store_add(store, "n", 0, &before, &err));
    for (unsigned round = 0; round < 12; round++) {
        pid_t child = fork();
        int64_t now;
        int how = 0;

        ck_assert_int_ge(child, 0);
        if (child == 0)
            write_for_ever(1);
        do { /* it is at work */
            assert_ok(store_add(store, "n", 0, &now, &err));
        } while (now < before + 3 + (int64_t)(support_random() * 20));
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        ck_assert_int_eq(waitpid(child, &how, 0), child);
        ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        assert_ok(
            store_add(store, "n", 1, &now, &err)); /* its lock is released, the counter is intact */
        ck_assert_int_gt(now, before);
        before = now;
    }
    store_close(store, 0);
}
END_TEST

START_TEST(unreleased_lock_times_out)
{
    struct error err = {0};
    struct store *store = open_rank(fresh_url(), "", 0, 2, 1200);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int64_t start_ns;
    int fd;

    assert_ok(store_set(store, "k", "v", 1, &err));
    fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
    start_ns = clock_now_ns();
    assert_fails(store_set(store, "k", "w", 1, &err), STATUS_UNREACHABLE, "which another process");
    ck_assert_int_ge(clock_now_ns() - start_ns, 1200000000);
    ck_assert_int_le(clock_now_ns() - start_ns, 9000000000);
    (void)close(fd);
    check_value(store, "k", "v");
    store_close(store, 0);
}
END_TEST

START_TEST(no_space_left)
{
    struct error err = {0};
    struct store *store;
    struct rlimit limit;
    static char big[200000];

    make_file();
    store = open_rank(url, "", 1, 3, 1000);
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 100000;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_ne(store_set(store, "first", big, sizeof(big), &err), STATUS_OK);
    ck_assert_ptr_nonnull(strstr(err.text, path));
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_value(store, "first", "one"); /* what was not written is not seen */
    assert_ok(store_set(store, "first", "1", 1, &err));
    check_value(store, "first", "1");
    store_close(store, 0);
}
END_TEST

START_TEST(removed_while_in_use)
{
    struct error err = {0};
    struct store *store = open_rank(fresh_url(), "", 0, 2, 1000);

    assert_ok(store_set(store, "k", "v", 1, &err));
    ck_assert_int_eq(unlink(path), 0);
    assert_fails(store_set(store, "k", "w", 1, &err), STATUS_IO, "was removed");
    store_close(store, 0);
}
END_TEST

/* Opened before an earlier job removed the file: the handle reopens the new one. */
START_TEST(removed_before_use)
{
    struct error err = {0};
    struct store *early = open_rank(fresh_url(), "", 0, 2, 1000);
    struct store *late;

    ck_assert_int_eq(unlink(path), 0);
    late = open_rank(url, "", 1, 2, 1000);
    assert_ok(store_set(late, "k", "v", 1, &err));
    check_value(early, "k", "v");
    store_close(early, 0);
    store_close(late, 0);
}
END_TEST

START_TEST(last_departure_removes_the_file)
{
    struct error err = {0};
    struct job job;

    open_job(&job, 3, 1000);
    assert_ok(store_set(job.stores[1], "k", "v", 1, &err));
    store_close(job.stores[0], 0);
    store_close(job.stores[2], 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    store_close(job.stores[1], 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    open_job(&job, 1, 1000); /* and the path may be used again */
    close_job(&job);
}
END_TEST

START_TEST(other_groups_keep_the_file)
{
    static const char *const names[] = {"other", "job2", ""}; /* the last one has no prefix */
    struct error err = {0};
    struct job job;
    struct store *other;
    int64_t count = -1;

    open_job(&job, 1, 1000);
    other = open_rank(job.url, names[_i], 0, 1, 1000);
    assert_ok(store_rendezvous(job.stores[0], &err));
    assert_ok(store_rendezvous(other, &err));
    assert_ok(store_set(other, "k", "v", 1, &err));
    close_job(&job);
    ck_assert_int_eq(access(path, F_OK), 0);
    check_value(other, "k", "v");
    assert_ok(store_num_keys(other, &count, &err)); /* world size, rank, verdict and k */
    ck_assert_int_eq(count, 4);
    store_close(other, 0);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

/* The group without a prefix departs first: the reserved keys of the other group stay. */
START_TEST(unnamed_group_departs_first)
{
    struct error err = {0};
    struct job job;
    struct store *other;

    open_job(&job, 1, 1000);
    other = open_rank(job.url, "", 0, 1, 1000);
    assert_ok(store_rendezvous(job.stores[0], &err));
    store_close(other, 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    assert_ok(store_rendezvous(job.stores[0], &err));
    close_job(&job);
}
END_TEST

/* A crashed job leaves its file; the next job gets an error with a remedy. */
START_TEST(file_of_an_earlier_job)
{
    struct error err = {0};
    struct store *store = open_rank(fresh_url(), "", 0, 2, 100);

    assert_fails(store_rendezvous(store, &err), STATUS_TIMEOUT, "rank 1 is missing");
    store_close(store, 0);
    store = open_rank(url, "", 0, 2, 100);
    assert_fails(store_rendezvous(store, &err), STATUS_MISMATCH, "two processes claim rank 0");
    ck_assert_ptr_nonnull(strstr(err.text, "earlier job, remove the file"));
    store_close(store, 0);
}
END_TEST

START_TEST(unusable_paths_fail)
{
    struct error err = {0};
    struct store *store = NULL;
    const char *folder = support_folder();
    char bad[600];

    (void)snprintf(bad, sizeof(bad), "file://%s", folder);
    assert_fails(try_open(bad, "", 0, 1, 500, &store, &err), STATUS_IO, folder);
    (void)snprintf(bad, sizeof(bad), "file://%s/none/store", folder);
    assert_fails(try_open(bad, "", 0, 1, 500, &store, &err), STATUS_NOT_FOUND, "/none'");
    assert_fails(try_open("file:///dev/null", "", 0, 1, 500, &store, &err), STATUS_CONFIG,
                 "not a regular file");
    ck_assert_ptr_null(store);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_file");
    TCase *cases = tcase_create("file");

    add_store_cases(suite, &file_kind);
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, garbage_is_not_a_store, 0, 4);
    tcase_add_test(cases, empty_file_is_a_store);
    tcase_add_test(cases, every_truncation_is_detected);
    tcase_add_test(cases, truncation_under_an_open_handle);
    tcase_add_test(cases, every_flipped_byte_is_detected);
    tcase_add_test(cases, incomplete_record_is_overwritten);
    tcase_add_test(cases, killed_writers_leave_a_whole_store);
    tcase_add_test(cases, unreleased_lock_times_out);
    tcase_add_test(cases, no_space_left);
    tcase_add_test(cases, removed_while_in_use);
    tcase_add_test(cases, removed_before_use);
    tcase_add_test(cases, last_departure_removes_the_file);
    tcase_add_loop_test(cases, other_groups_keep_the_file, 0, 3);
    tcase_add_test(cases, unnamed_group_departs_first);
    tcase_add_test(cases, file_of_an_earlier_job);
    tcase_add_test(cases, unusable_paths_fail);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
