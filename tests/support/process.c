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

#define SHOWN_BYTES ((size_t)2000) /* of a failed program's output: Check takes no long message */

static void become(const struct process *p, const char *const *extra, const char *const *argv,
                   pid_t parent)
{
    static const char *const launcher_names[] = {"RANK",        "WORLD_SIZE",  "LOCAL_RANK",
                                                 "MASTER_ADDR", "MASTER_PORT", "SPARRING_SERVERS"};
    int fd = open(p->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(126);
    for (size_t i = 0; i < sizeof(launcher_names) / sizeof(launcher_names[0]); i++)
        (void)unsetenv(launcher_names[i]);
    for (; extra && *extra; extra++)
        (void)putenv(strdup(*extra));
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    (void)dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

void process_start(struct process *p, const char *const *extra, const char *const *argv)
{
    static unsigned serial;
    pid_t parent = getpid();

    (void)snprintf(p->log, sizeof(p->log), "%s/process-%u.log", support_folder(), serial++);
    p->pid = fork();
    ck_assert_int_ge(p->pid, 0);
    if (p->pid == 0)
        become(p, extra, argv, parent);
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

/* NULL while there is no file yet; the caller frees it. */
static char *read_output(const struct process *p)
{
    char *text = NULL;
    size_t size;

    (void)file_read(p->log, (size_t)16 << 20, &text, &size, NULL);
    return text;
}

const char *process_output(const struct process *p)
{
    static char
        *kept[1024]; /* reachable, so that the leak checker counts only what is ours to free */
    static size_t length;
    char *text = read_output(p);

    if (!text)
        return "";
    ck_assert_uint_lt(length, sizeof(kept) / sizeof(kept[0]));
    kept[length++] = text;
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
