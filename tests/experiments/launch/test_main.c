/*
 * Runs the tests of `sparring launch`, and holds their shared functions.
 */
#include "tests/experiments/launch/launch_test.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORDS_MAX 40

static void join_words(const char *program, const char *const *words, const char **ret)
{
    size_t count = 0;

    ret[count++] = program;
    while (*words) {
        ck_assert_uint_lt(count, WORDS_MAX - 1);
        ret[count++] = *words++;
    }
    ret[count] = NULL;
}

const char *launch_with(const char *program, int wanted, const char *const *extra,
                        const char *const *words)
{
    const char *argv[WORDS_MAX];

    join_words(program, words, argv);
    return process_run(wanted, LAUNCH_TIMEOUT_MS, extra, argv);
}

void launch_start(struct process *p, const char *program, const char *const *extra,
                  const char *const *words)
{
    const char *argv[WORDS_MAX];

    join_words(program, words, argv);
    process_start(p, extra, argv);
}

const char *launch_fifo(const char *name)
{
    const char *path = support_path(name);

    ck_assert_int_eq(mkfifo(path, 0600), 0);
    return path;
}

int launch_open_fifo(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    return fd;
}

size_t launch_find_pids(const char *output, const char *name, int *pidfds, size_t max)
{
    size_t length = strlen(name);
    size_t count = 0;

    for (const char *p = strstr(output, name); p; p = strstr(p + length, name)) {
        long pid = strtol(p + length, NULL, 10);

        ck_assert_uint_lt(count, max);
        ck_assert_int_gt(pid, 0);
        pidfds[count] = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
        ck_assert_msg(pidfds[count] >= 0, "%s%ld is not there any more", name, pid);
        count++;
    }
    return count;
}

void launch_await_ends(const int *pidfds, size_t count, int timeout_ms)
{
    int64_t deadline = clock_deadline_ns(timeout_ms);

    for (size_t i = 0; i < count; i++) {
        struct pollfd end = {.fd = pidfds[i], .events = POLLIN};
        int ready;

        do {
            ready = poll(&end, 1, clock_left_ms(deadline));
        } while (ready < 0 && errno == EINTR);
        ck_assert_msg(ready == 1, "process %zu of %zu is alive after %d ms", i, count, timeout_ms);
        (void)close(pidfds[i]);
    }
}

int main(void)
{
    Suite *suite = suite_create("launch");

    suite_add_tcase(suite, launch_cases());
    suite_add_tcase(suite, launch_server_cases());
    suite_add_tcase(suite, launch_binding_cases());
    suite_add_tcase(suite, launch_fault_cases());
    suite_add_tcase(suite, launch_restart_cases());
    suite_add_tcase(suite, launch_injection_cases());
    return support_run(suite);
}
