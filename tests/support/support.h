/*
 * support: helpers of every test program: a main, a temporary folder, assertions on statuses.
 */
#ifndef SPARRING_TESTS_SUPPORT_SUPPORT_H
#define SPARRING_TESTS_SUPPORT_SUPPORT_H

#include "common/base/error.h"

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Check sends a message for each assertion that holds, to say after which one a test crashed, and
 * reads them in quadratic time.  Of a test's assertions the first 1,000 are sent, and then each
 * 1,000th, so that loops may hold them. */
#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                                                                   \
    ((expr) ? support_note_assertion(__FILE__, __LINE__)                                           \
            : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", __VA_ARGS__))
void support_note_assertion(const char *file, int line);

/* The expression returns STATUS_OK; else fail with err's text. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        struct error *assert_err_ = &err;                                                          \
        enum status assert_status_ = (expression);                                                 \
        ck_assert_msg(assert_status_ == STATUS_OK, "%s: %s (%s)", #expression,                     \
                      status_name(assert_status_), assert_err_->text);                             \
    } while (0)

/* The expression fails with `wanted` and err's text holds `part`. */
#define assert_fails(expression, wanted, part)                                                     \
    do {                                                                                           \
        enum status assert_status_ = (expression);                                                 \
        ck_assert_msg(assert_status_ == (wanted), "%s: got %s, wanted %s (%s)", #expression,       \
                      status_name(assert_status_), status_name(wanted), err.text);                 \
        ck_assert_msg(strstr(err.text, (part)) != NULL, "'%s' lacks '%s'", err.text, (part));      \
    } while (0)

/* The text holds `part`. */
#define assert_contains(text, part)                                                                \
    do {                                                                                           \
        const char *assert_text_ = (text);                                                         \
        const char *assert_part_ = (part);                                                         \
        ck_assert_msg(strstr(assert_text_, assert_part_) != NULL, "no '%s' in:\n%.3000s",          \
                      assert_part_, assert_text_);                                                 \
    } while (0)

/* Number of random draws, or amount of data: smaller under a sanitizer, where each costs ten times
 * as much and few cover the same lines. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SUPPORT_DRAWS(usual, instrumented) (instrumented)
#else
#define SUPPORT_DRAWS(usual, instrumented) (usual)
#endif

/* Run the suite and print the processor time that it took; the return value is main's. */
int support_run(Suite *suite);

/* One line of a suite: a test, a fixture, or the beginning of a test case. */
struct support_entry {
    const char *case_name;
    double timeout_s;
    const TTest *test;
    int first, past_last; /* values of _i */
    bool is_fixture, checked;
    void (*setup)(void);
    void (*teardown)(void);
};

#define TEST(name) ((struct support_entry){.test = (name), .past_last = 1})
#define LOOP_TEST(name, start, end)                                                                \
    ((struct support_entry){.test = (name), .first = (int)(start), .past_last = (int)(end)})
/* Around each test, in its process; around all tests of the case, in the process that starts them.
 */
#define CHECKED_FIXTURE(before, after)                                                             \
    ((struct support_entry){                                                                       \
        .is_fixture = true, .checked = true, .setup = (before), .teardown = (after)})
#define UNCHECKED_FIXTURE(before, after)                                                           \
    ((struct support_entry){.is_fixture = true, .setup = (before), .teardown = (after)})
/* The entries that follow have fixtures and a time-out of their own, per test (0: Check's). */
#define TEST_CASE(name, seconds)                                                                   \
    ((struct support_entry){.case_name = (name), .timeout_s = (seconds)})

/* Run a suite that is a list of entries, which begin in a case of the suite's name:
 *   return SUPPORT_RUN("policy", 60, TEST(test_ranges), LOOP_TEST(test_modes, 0, MODES)); */
#define SUPPORT_RUN(name, seconds, ...)                                                            \
    support_run_list(name, (const struct support_entry[]){TEST_CASE(name, seconds), __VA_ARGS__,   \
                                                          (struct support_entry){0}})
int support_run_list(const char *name, const struct support_entry *entries);

/* A fresh folder under $TMPDIR or /tmp, removed with everything in it when the test process ends.
 */
const char *support_folder(void);

/* "<support_folder>/<name>", valid until the process ends. */
const char *support_path(const char *name);

/* Write a file of that name in the folder and return its path. */
const char *support_write(const char *name, const void *data, size_t size);

/* Folder of the shared data sets ($SPARRING_DATA, default ../shared/data), or NULL when it is not
 * there; then a line says that the test is skipped. */
const char *support_data(const char *test_name);

/* Say that a test is skipped for want of a Debian package that ./bootstrap --tests installs, which
 * tests/run --ci takes for a failure. */
void support_skip_package(const char *package);

/* Fail where `backend` is nccl, which cannot run for this reason, although SPARRING_TEST_GPU is
 * set; several ranks of one GPU may skip, since NCCL refuses them. */
void support_check_nccl_skip(const char *backend, const char *reason);

/* Path inside the source tree ("tests/data/x"). */
const char *support_source(const char *name);

/* Python of the system, which has the packages that ./bootstrap --tests installs, before others. */
const char *support_python(void);

/* Path of one of our programs in the build ("sparring-worker"). */
const char *support_program(const char *name);

/* A TCP port of 127.0.0.1 that the kernel does not assign again before this test's process ends. It
 * is bound and does not listen: connections are refused until a process that sets SO_REUSEADDR, as
 * net_listen and gRPC's servers do, listens there. */
uint16_t support_port(void);

/* The first of `count` such ports in a row. */
uint16_t support_ports(unsigned count);

/* Uniform in [0, 1) from a generator seeded by $SPARRING_TEST_SEED or the clock; the seed is
 * printed once, so a failure can be repeated. */
double support_random(void);

#endif
