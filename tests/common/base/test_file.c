/*
 * Whole files: bounded reads, and writes that leave the old file or the new one, never a part.
 * RLIMIT_FSIZE stands in for the full disk.
 */
#include "tests/common/base/test_base.h"

#include "common/base/file.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static unsigned entries_of(const char *folder)
{
    DIR *d = opendir(folder);
    unsigned count = 0;

    ck_assert_ptr_nonnull(d);
    while (readdir(d))
        count++;
    (void)closedir(d);
    return count - 2; /* . and .. */
}

START_TEST(write_then_read)
{
    struct error err = {0};
    const char *path = support_path("whole");
    char *data = NULL;
    size_t size = 0;

    assert_ok(file_write_atomic(path, "one\0two", 7, &err));
    assert_ok(_i == 0 ? file_write_atomic(path, "three", 5, &err)
                      : file_publish(path, "three", 5, &err));
    ck_assert_uint_eq(entries_of(support_folder()), 1);
    assert_ok(file_read(path, 5, &data, &size, &err));
    ck_assert_uint_eq(size, 5);
    ck_assert_str_eq(data, "three");
    free(data);
    assert_fails(file_read(path, 4, &data, &size, &err), STATUS_DATA, "more than the 4 allowed");
    assert_fails(file_read(support_folder(), 4, &data, &size, &err), STATUS_IO, "folder");
    assert_fails(file_read(support_path("none"), 4, &data, &size, &err), STATUS_NOT_FOUND, "none");
}
END_TEST

START_TEST(text_is_written_whole_or_not_at_all)
{
    struct error err = {0};
    struct strbuf text = STRBUF_INIT;
    const char *path = support_path("text");
    char *data = NULL;
    size_t size = 0;

    strbuf_addf(&text, "%d\n", 12);
    assert_ok(file_write_text(path, &text, &err));
    text.failed = true; /* as after an allocation that failed */
    assert_fails(file_write_text(path, &text, &err), STATUS_NO_MEMORY, "text'");
    assert_ok(file_read(path, 5, &data, &size, &err));
    ck_assert_str_eq(data, "12\n");
    free(data);
    strbuf_release(&text);
}
END_TEST

START_TEST(read_of_an_endless_device_stops)
{
    struct error err = {0};
    char *data = NULL;
    size_t size = 0;

    assert_fails(file_read("/dev/zero", 10000, &data, &size, &err), STATUS_DATA, "10000");
}
END_TEST

START_TEST(full_disk_keeps_the_old_file)
{
    struct error err = {0};
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    const char *path = support_path("target");
    static char big[65536];
    char *data = NULL;
    size_t size = 0;

    assert_ok(file_write_atomic(path, "old", 3, &err));
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_fails(file_write_atomic(path, big, sizeof(big), &err), STATUS_NO_SPACE, "target");
    assert_ok(file_read(path, 100, &data, &size, &err));
    ck_assert_str_eq(data, "old");
    free(data);
    ck_assert_uint_eq(entries_of(support_folder()), 1);
}
END_TEST

START_TEST(abandoned_writer_leaves_no_file)
{
    struct error err = {0};
    struct file_writer w;

    assert_ok(file_writer_open(&w, support_path("half"), &err));
    assert_ok(file_writer_add(&w, "abc", 3, &err));
    ck_assert_uint_eq(entries_of(support_folder()), 1);
    file_writer_abandon(&w);
    file_writer_abandon(&w);
    ck_assert_uint_eq(entries_of(support_folder()), 0);
    assert_fails(file_writer_open(&w, support_path("no/such/x"), &err), STATUS_NOT_FOUND,
                 "no/such");
}
END_TEST

START_TEST(commit_onto_a_folder_fails_clean)
{
    struct error err = {0};
    const char *path = support_path("taken");

    assert_ok(file_make_folder(support_path("taken/inside"), &err));
    ck_assert_int_ne(file_write_atomic(path, "x", 1, &err), STATUS_OK);
    ck_assert_uint_eq(entries_of(support_folder()), 1);
}
END_TEST

START_TEST(a_folder_is_locked_once)
{
    struct error err = {0};
    char holder[64];
    int fd = -1, other = -1;

    assert_ok(file_lock_folder(support_folder(), "baker", &fd, &err));
    assert_fails(file_lock_folder(support_folder(), "baker", &other, &err), STATUS_EXISTS,
                 "is used by another baker (pid ");
    (void)snprintf(holder, sizeof(holder), "(pid %ld)", (long)getpid());
    ck_assert_ptr_nonnull(strstr(err.text, holder));
    ck_assert_int_eq(other, -1);
    (void)close(fd);
    assert_ok(file_lock_folder(support_folder(), "baker", &fd, &err));
    (void)close(fd);
    ck_assert_int_eq(file_lock_folder("/proc/self", "baker", &fd, &err), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "cannot open '/proc/self/lock'"));
}
END_TEST

START_TEST(folders_and_joins)
{
    struct error err = {0};
    char text[8];

    assert_ok(file_make_folder(support_path("a/b/c"), &err));
    assert_ok(file_make_folder(support_path("a/b/c"), &err));
    ck_assert_int_eq(access(support_path("a/b/c"), W_OK), 0);
    assert_ok(file_join(text, sizeof(text), "abc", "def", &err));
    ck_assert_str_eq(text, "abc/def");
    assert_fails(file_join(text, sizeof(text), "abc", "defg", &err), STATUS_CONFIG, "too long");
    (void)support_write("plain", "x", 1);
    ck_assert_int_ne(file_make_folder(support_path("plain/sub"), &err), STATUS_OK);
}
END_TEST

TCase *file_cases(void)
{
    TCase *cases = tcase_create("file");

    tcase_add_loop_test(cases, write_then_read, 0, 2);
    tcase_add_test(cases, text_is_written_whole_or_not_at_all);
    tcase_add_test(cases, read_of_an_endless_device_stops);
    tcase_add_test(cases, full_disk_keeps_the_old_file);
    tcase_add_test(cases, abandoned_writer_leaves_no_file);
    tcase_add_test(cases, commit_onto_a_folder_fails_clean);
    tcase_add_test(cases, a_folder_is_locked_once);
    tcase_add_test(cases, folders_and_joins);
    return cases;
}
