/*
 * process: starts programs for integration tests, stores their output, and waits with a deadline.
 * Call it inside a Check test or fixture: failures fail the test.
 */
#ifndef SPARRING_TESTS_SUPPORT_PROCESS_H
#define SPARRING_TESTS_SUPPORT_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

struct process {
    pid_t pid;
    int pidfd;
    char log[512]; /* stdout and stderr */
};

/* Start argv[0] with the environment of the test, without RANK and other variables of a launcher,
 * plus `extra` ("NAME=value", NULL-terminated, may be NULL).  It gets SIGKILL when the test process
 * ends. */
void process_start(struct process *p, const char *const *extra, const char *const *argv);

/* Returns the exit code, 128 + n for signal n, or -1 on timeout, after which it is killed. */
int process_wait(struct process *p, int timeout_ms);

/* Its output so far; valid until the test ends. */
const char *process_output(const struct process *p);

void process_signal(const struct process *p, int number);

/* Wait until its output contains `text`; fails the test after timeout_ms. */
void process_wait_output(const struct process *p, const char *text, int timeout_ms);

/* process_start and process_wait; returns the output.  Fails the test if the exit code is not
 * `wanted`. */
#define PROCESS_FAILS (-1) /* any exit code but 0 */
const char *process_run(int wanted, int timeout_ms, const char *const *extra,
                        const char *const *argv);

/* Run a line of shell; true if it exits with 0.  Can be called outside a test. */
__attribute__((format(printf, 1, 2))) bool process_shell(const char *format, ...);

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
