/*
 * process: starts programs for integration tests, keeps their output, waits with a deadline.
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

/* Start argv[0] with our environment (without RANK and the like) and `extra` ("NAME=value",
 * NULL-terminated, may be NULL).  The process dies with the test. */
void process_start(struct process *p, const char *const *extra, const char *const *argv);

/* Exit code, 128 + n for signal n, -1 when it still ran after timeout_ms (it is killed then). */
int process_wait(struct process *p, int timeout_ms);

/* What it has printed so far; valid until the test ends. */
const char *process_output(const struct process *p);

void process_signal(const struct process *p, int number);

/* Wait until its output holds `text`; fails the test after timeout_ms. */
void process_wait_output(const struct process *p, const char *text, int timeout_ms);

/* process_start and process_wait; fails the test with the output when the exit code is not
 * `wanted`. */
#define PROCESS_FAILS (-1) /* any but 0 */
const char *process_run(int wanted, int timeout_ms, const char *const *extra,
                        const char *const *argv);

/* Does this line of shell end well?  Usable outside a test, too. */
__attribute__((format(printf, 1, 2))) bool process_shell(const char *format, ...);

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
