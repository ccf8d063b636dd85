/*
 * The folder of a server's unfinished jobs: one server at a time, every term of a job is restored,
 * foreign files are left alone, and leftovers of an interrupted process do no harm.
 */
#include "common/base/file.h"
#include "server/persistence/state_dir.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct error err;
static struct state_dir dir;
static char folder[STATE_PATH_MAX], found[STATE_PATH_MAX];
static uint64_t digest, found_digest;
static struct join_request found_terms;

static struct join_request make_terms(const char *job)
{
    static struct exact_staleness rules[2] = {{0, 1, 1, 5}, {1, 2, 3, 9}};
    static uint32_t weights[3] = {1, 5, 2};
    static char manifest[] = "seed\t1\nmodel\tmlp\n";
    struct join_request t = {.rank = 1,
                             .world_size = 2,
                             .server_index = 2,
                             .server_count = 3,
                             .manifest = manifest,
                             .element_count = 12345,
                             .partition_bytes = 8192,
                             .optimizer = optimizer_defaults(OPTIMIZER_ADAMW),
                             .consistency = {.mode = CONSISTENCY_ASP, .lr_by_staleness = true},
                             .rules = rules,
                             .rule_count = 2,
                             .session = 0xfedcba9876543210,
                             .lanes = 3,
                             .on_loss = WORKER_LOSS_SHRINK,
                             .reconnect_ms = 1234,
                             .weights = weights,
                             .weight_count = 3};

    (void)snprintf(t.job, sizeof(t.job), "%s", job);
    return t;
}

static const char *path_in_folder(const char *name)
{
    static char path[STATE_PATH_MAX];

    assert_ok(file_join(path, sizeof(path), folder, name, &err));
    return path;
}

static void setup(void)
{
    assert_ok(state_dir_open(&dir, support_path("a/b"), &err));
}

static void teardown(void)
{
    state_dir_close(&dir);
}

START_TEST(test_terms_round_trip)
{
    struct join_request t = make_terms("an odd/job: \"x\"");
    uint8_t *wanted, *got;
    size_t wanted_size, got_size;

    assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
    ck_assert_str_eq(found, "");
    assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
    ck_assert_ptr_nonnull(strstr(folder, "/a/b/an%20odd%2Fjob%3A%20%22x%22.2"));
    assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
    ck_assert_str_eq(found, folder);
    ck_assert_uint_eq(found_digest, digest);
    assert_ok(wire_pack_join_request(&t, &wanted, &wanted_size, &err));
    assert_ok(wire_pack_join_request(&found_terms, &got, &got_size, &err));
    ck_assert_uint_eq(got_size, wanted_size);
    ck_assert_mem_eq(got, wanted, wanted_size);
    free(wanted);
    free(got);
    wire_release_join_request(&found_terms);
    assert_fails(state_dir_add(&dir, &t, folder, &digest, &err), STATUS_EXISTS, "was not finished");
    assert_ok(state_dir_remove(folder, &err));
    assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
    ck_assert_str_eq(found, "");
}
END_TEST

START_TEST(test_names)
{
    static const char *const jobs[] = {"..",        ".",         ".failed", "lock",
                                       "plain-1.2", "a/../../b", "\xc3\xa4"};
    char other[STATE_PATH_MAX], text[WIRE_JOB_MAX];

    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        struct join_request t = make_terms(jobs[i]);

        assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
        ck_assert(strncmp(folder, dir.path, strlen(dir.path)) == 0);
        ck_assert_ptr_null(strchr(folder + strlen(dir.path) + 1, '/'));
        assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
        ck_assert_str_eq(found, folder);
        ck_assert_str_eq(found_terms.job, jobs[i]);
        wire_release_join_request(&found_terms);
        assert_ok(state_dir_remove(folder, &err));
    }
    memset(text, '/', sizeof(text));
    for (unsigned last = 0; last < 2; last++) { /* too long for a file name */
        struct join_request t;

        text[sizeof(text) - 2] = (char)('a' + last);
        text[sizeof(text) - 1] = '\0';
        t = make_terms(text);
        memcpy(other, folder, sizeof(other));
        assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
    }
    ck_assert_str_ne(other, folder);
}
END_TEST

START_TEST(test_one_server_at_a_time)
{
    struct state_dir second;
    char pid[32];
    pid_t child = fork();
    int exit_status;

    if (child == 0)
        _exit(state_dir_open(&second, dir.path, &err) == STATUS_EXISTS &&
                      strstr(err.text, "pid ") != NULL
                  ? 0
                  : 1);
    ck_assert_int_eq(waitpid(child, &exit_status, 0), child);
    ck_assert(WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0);
    (void)snprintf(pid, sizeof(pid), "(pid %ld)", (long)getpid());
    assert_fails(state_dir_open(&second, dir.path, &err), STATUS_EXISTS, pid);
    state_dir_close(&second);
    state_dir_close(&dir);
    assert_ok(state_dir_open(&dir, support_path("a/b"), &err));
}
END_TEST

START_TEST(test_a_failed_job_is_put_aside)
{
    struct join_request t = make_terms("j");
    char aside[STATE_PATH_MAX];

    for (unsigned i = 0; i < 2; i++) { /* the second replaces the first */
        assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
        assert_ok(state_dir_put_aside(folder, aside, &err));
        ck_assert_ptr_nonnull(strstr(aside, "/j.2.failed"));
        assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
        ck_assert_str_eq(found, "");
    }
    ck_assert_int_eq(rename(aside, folder), 0); /* as an operator does to resume it */
    assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
    ck_assert_str_eq(found, folder);
    wire_release_join_request(&found_terms);
}
END_TEST

START_TEST(test_foreign_files_stay)
{
    struct join_request t = make_terms("j");
    char old[STATE_PATH_MAX + 64];

    ck_assert_int_eq(mkdir(support_path("a/b/mine.1"), 0777), 0);
    ck_assert_int_eq(mkdir(support_path("a/b/mine.old"), 0777), 0);
    assert_ok(file_publish(support_path("a/b/mine.1/letters"), "x", 1, &err));
    assert_ok(file_publish(support_path("a/b/mine.old/letters"), "x", 1, &err));
    assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
    assert_ok(file_publish(path_in_folder("letters"), "x", 1, &err));
    assert_ok(file_publish(path_in_folder("journal-0"), "x", 1, &err));
    assert_fails(state_dir_remove(folder, &err), STATUS_IO, folder);
    assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
    ck_assert_str_eq(found, "");
    (void)snprintf(old, sizeof(old), "%s.old/letters", folder);
    ck_assert_int_eq(access(old, F_OK), 0);
    (void)snprintf(old, sizeof(old), "%s.old/journal-0", folder);
    ck_assert_int_ne(access(old, F_OK), 0);
    ck_assert_int_eq(access(support_path("a/b/mine.1/letters"), F_OK), 0);
    ck_assert_int_eq(access(support_path("a/b/mine.old/letters"), F_OK), 0);
}
END_TEST

/* Killed while it created the folder (i = 0), or removed it. */
START_TEST(test_interrupted_create_and_remove)
{
    struct join_request t = make_terms("j");
    char other[STATE_PATH_MAX + 64];

    for (unsigned i = 0; i < 2; i++) {
        assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
        assert_ok(file_publish(path_in_folder("journal-3"), "x", 1, &err));
        assert_ok(file_publish(path_in_folder("terms.json.tmp-77"), "x", 1, &err));
        (void)snprintf(other, sizeof(other), "%s%s", folder, i == 0 ? ".new" : ".old");
        ck_assert_int_eq(rename(folder, other), 0);
        if (i == 0) /* a new job comes first, or a new server */
            assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
        else
            assert_ok(state_dir_find(&dir, found, &found_terms, &found_digest, &err));
        ck_assert_int_ne(access(other, F_OK), 0);
        if (i == 0)
            assert_ok(state_dir_remove(folder, &err));
        else
            ck_assert_str_eq(found, "");
    }
}
END_TEST

START_TEST(test_two_jobs)
{
    struct join_request one = make_terms("one"), two = make_terms("two");

    assert_ok(state_dir_add(&dir, &one, folder, &digest, &err));
    assert_ok(state_dir_add(&dir, &two, folder, &digest, &err));
    assert_fails(state_dir_find(&dir, found, &found_terms, &found_digest, &err), STATUS_EXISTS,
                 "two.2'");
    ck_assert_ptr_nonnull(strstr(err.text, "one.2'"));
}
END_TEST

/* A flipped bit of the terms is detected, or is in a field that is not parsed. */
START_TEST(test_damaged_terms)
{
    struct join_request t = make_terms("j");
    char *text;
    size_t size, request;

    assert_ok(state_dir_add(&dir, &t, folder, &digest, &err));
    assert_ok(file_read(path_in_folder("terms.json"), 1 << 20, &text, &size, &err));
    request = (size_t)(strstr(text, "\"digest\"") - text);
    for (size_t at = 0; at < size - 1; at++) { /* the last is a line end */
        enum status status;

        text[at] = (char)(text[at] ^ (1 << at % 7));
        assert_ok(file_publish(path_in_folder("terms.json"), text, size, &err));
        text[at] = (char)(text[at] ^ (1 << at % 7));
        status = state_dir_find(&dir, found, &found_terms, &found_digest, &err);
        if (status == STATUS_OK) {
            ck_assert_msg(at < request || text[at] == ' ', "byte %zu", at);
            ck_assert_uint_eq(found_digest, digest);
            wire_release_join_request(&found_terms);
        } else {
            ck_assert_int_eq(status, STATUS_DATA);
            ck_assert_ptr_nonnull(strstr(err.text, "terms.json"));
        }
    }
    free(text);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("state_dir", 0, CHECKED_FIXTURE(setup, teardown),
                       TEST(test_terms_round_trip), TEST(test_names),
                       TEST(test_one_server_at_a_time), TEST(test_a_failed_job_is_put_aside),
                       TEST(test_foreign_files_stay), TEST(test_interrupted_create_and_remove),
                       TEST(test_two_jobs), TEST(test_damaged_terms));
}
