/*
 * Shared by the tests of `sparring launch`.  Ranks are small shell scripts; each test runs the
 * launcher as a program and checks its output and exit code.
 */
#ifndef SPARRING_TESTS_EXPERIMENTS_LAUNCH_LAUNCH_TEST_H
#define SPARRING_TESTS_EXPERIMENTS_LAUNCH_LAUNCH_TEST_H

#include "common/base/error.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <string.h>

#define LAUNCH_TIMEOUT_MS 30000

/* Run `program` with the words; the exit code must be `wanted`.  Returns its output. */
const char *launch_with(const char *program, int wanted, const char *const *extra,
                        const char *const *words);
void launch_start(struct process *p, const char *program, const char *const *extra,
                  const char *const *words);

#define LAUNCH(wanted, ...) launch_with(LAUNCH_PROGRAM, wanted, NULL, ARGS(__VA_ARGS__))

#define assert_holds(text, part)                                                                   \
    ck_assert_msg(strstr((text), (part)) != NULL, "no '%s' in:\n%s", (part), (text))
#define assert_lacks(text, part)                                                                   \
    ck_assert_msg(strstr((text), (part)) == NULL, "'%s' in:\n%s", (part), (text))

/* Make a FIFO in the test's folder and return its path. */
const char *launch_fifo(const char *name);

/* Open a FIFO for writing; blocks until a reader opens it. */
int launch_open_fifo(const char *path);

/* Lines "name PID" of an output -> pidfds; returns how many. */
size_t launch_find_pids(const char *output, const char *name, int *pidfds, size_t max);

/* Wait until all these processes have ended; fails the test after timeout_ms. Closes them. */
void launch_await_ends(const int *pidfds, size_t count, int timeout_ms);

TCase *launch_cases(void);
TCase *launch_server_cases(void);
TCase *launch_binding_cases(void);
TCase *launch_fault_cases(void);
TCase *launch_restart_cases(void);
TCase *launch_injection_cases(void);

/* Install a copy of the launcher and beside it a script as sparring-server: lines that read the
 * launcher's arguments into $file and $listen, then `body`.  Returns the launcher's path. */
const char *launch_install_server(const char *body);

#endif
