/*
 * process: fork and exec, with stdout and stderr in a file in the folder of the test.  Waits for
 * the end poll a pidfd, waits for output use inotify; both have a deadline.
 */
#include "tests/support/process.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOWN_BYTES ((size_t)2000) /* of a failed program's output: Check limits messages */

/* True if `variable` ("NAME=value") has the name of `text` ("NAME" or "NAME=value"). */
static bool has_same_name(const char *variable, const char *text)
{
    size_t length = strcspn(text, "=");

    return strncmp(variable, text, length) == 0 && variable[length] == '=';
}

static bool is_in_list(const char *variable, const char *const *list)
{
    for (; *list; list++)
        if (has_same_name(variable, *list))
            return true;
    return false;
}

/* The environment without variables of a launcher, plus `extra` (the last entry of a name wins).
 * The caller frees the list but not the strings. */
static const char **make_environment(const char *const *extra)
{
    static const char *const launcher_names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SPARRING_SERVERS", NULL};
    size_t count = 0, extra_count = 0, length = 0;
    const char **list;

    while (environ[count])
        count++;
    while (extra[extra_count])
        extra_count++;
    list = calloc(count + extra_count + 1, sizeof(*list));
    ck_assert_ptr_nonnull(list);
    for (size_t i = 0; i < count; i++)
        if (!is_in_list(environ[i], launcher_names) && !is_in_list(environ[i], extra))
            list[length++] = environ[i];
    for (size_t i = 0; i < extra_count; i++)
        if (!is_in_list(extra[i], extra + i + 1))
            list[length++] = extra[i];
    return list;
}

/* Runs in the child of a process that may have threads: only async-signal-safe functions.  Check's
 * assertions take a lock, which another thread may have held at the fork. */
static void exec_in_child(const struct process *p, const char **environment,
                          const char *const *argv, pid_t parent)
{
    int fd = open(p->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const char *why;

    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(126);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    (void)execvpe(argv[0], (char *const *)(uintptr_t)argv, (char *const *)(uintptr_t)environment);
    why = strerrordesc_np(errno);
    (void)!write(STDERR_FILENO, argv[0], strlen(argv[0]));
    (void)!write(STDERR_FILENO, ": ", 2);
    (void)!write(STDERR_FILENO, why, strlen(why));
    _exit(127);
}

void process_start(struct process *p, const char *const *extra, const char *const *argv)
{
    static unsigned serial;
    const char **environment = make_environment(extra ? extra : ARGS(NULL));
    pid_t parent = getpid();

    (void)snprintf(p->log, sizeof(p->log), "%s/process-%u.log", support_folder(), serial++);
    p->pid = fork();
    if (p->pid == 0)
        exec_in_child(p, environment, argv, parent);
    free(environment);
    ck_assert_int_gt(p->pid, 0);
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    ck_assert_int_ge(p->pidfd, 0);
}

int process_wait(struct process *p, int timeout_ms)
{
    struct pollfd watch = {.fd = p->pidfd, .events = POLLIN};
    int64_t deadline = clock_deadline_ns(timeout_ms);
    int status;
    int ready;

    do {
        ready = poll(&watch, 1, clock_left_ms(deadline));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0)
        (void)kill(p->pid, SIGKILL);
    ck_assert_int_eq(waitpid(p->pid, &status, 0), p->pid);
    (void)close(p->pidfd);
    if (ready <= 0)
        return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* NULL if there is no file yet; the caller frees it. */
static char *read_output(const struct process *p)
{
    char *text = NULL;
    size_t size;

    (void)file_read(p->log, (size_t)16 << 20, &text, &size, NULL);
    return text;
}

const char *process_output(const struct process *p)
{
    static char *kept_texts[1024]; /* keeps the texts reachable for the leak checker */
    static size_t length;
    char *text = read_output(p);

    if (!text)
        return "";
    ck_assert_uint_lt(length, sizeof(kept_texts) / sizeof(kept_texts[0]));
    kept_texts[length++] = text;
    return text;
}

void process_signal(const struct process *p, int number)
{
    ck_assert_int_eq(kill(p->pid, number), 0);
}

void process_wait_output(const struct process *p, const char *text, int timeout_ms)
{
    int64_t deadline = clock_deadline_ns(timeout_ms);
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    struct pollfd poll_fd = {.fd = watch, .events = POLLIN};

    ck_assert_int_ge(inotify_add_watch(watch, support_folder(), IN_MODIFY | IN_CREATE), 0);
    for (;;) {
        char events[4096];
        char *output = read_output(p);
        int found = output && strstr(output, text);

        free(output);
        if (found)
            break;
        ck_assert_msg(clock_left_ms(deadline) > 0, "no '%s' within %d ms in:\n%s", text, timeout_ms,
                      process_output(p));
        (void)poll(&poll_fd, 1, clock_left_ms(deadline));
        while (read(watch, events, sizeof(events)) > 0)
            ;
    }
    (void)close(watch);
}

const char *process_run(int wanted, int timeout_ms, const char *const *extra,
                        const char *const *argv)
{
    const char *output;
    struct process p;
    size_t length;
    int code;

    process_start(&p, extra, argv);
    code = process_wait(&p, timeout_ms);
    output = process_output(&p);
    length = strlen(output);
    ck_assert_msg(code == wanted || (wanted == PROCESS_FAILS && code > 0),
                  "%s: exit code %d, wanted %d; output ends with:\n%s", argv[0], code, wanted,
                  length > SHOWN_BYTES ? output + length - SHOWN_BYTES : output);
    return output;
}

bool process_shell(const char *format, ...)
{
    char line[4500];
    char shell[] = "sh";
    char option[] = "-c";
    char *argv[] = {shell, option, line, NULL};
    va_list args;
    pid_t pid;
    int status;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (posix_spawnp(&pid, "sh", NULL, NULL, argv, environ) != 0)
        return false;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
