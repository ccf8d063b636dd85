/*
 * subprocess: fork and exec, wait on a pidfd, the stop flag's eventfd and the deadline.
 * When a child must end, its whole group gets SIGTERM, after the grace time SIGKILL; the rest of
 * the group is killed once the leader is gone, so that a stray rank cannot disturb the next run.
 * Limits: Linux 5.3 (pidfd_open).  No locking: one caller at a time per request.
 */
#include "experiments/subprocess/subprocess.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_MS       250
#define LOG_BYTES_MAX ((size_t)256 << 20) /* that subprocess_last_line reads */

/* Default signal handling, no signal blocked. */
static void reset_signals(void)
{
    sigset_t none;

    for (int number = 1; number < NSIG; number++)
        (void)signal(number, SIG_DFL); /* fails for those that have no other */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool set_streams(int log_fd)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);

    return in >= 0 && dup2(in, STDIN_FILENO) >= 0 && dup2(log_fd, STDOUT_FILENO) >= 0 &&
           dup2(log_fd, STDERR_FILENO) >= 0;
}

/* In the child, which may be that of a process with threads: no call that takes a lock.  failure_fd
 * gets the errno of a failure. */
static _Noreturn void exec_child(const char *const *argv, int log_fd, int failure_fd, pid_t parent)
{
    union { /* execvp takes char *const * and does not write */
        const char *const *from;
        char *const *to;
    } words = {.from = argv};
    int failure;

    if (log_fd >= 0)
        (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, log_fd >= 0 ? SIGKILL : SIGTERM);
    if (getppid() != parent) /* it died before prctl */
        _exit(127);
    reset_signals();
    if (log_fd < 0 || set_streams(log_fd))
        (void)execvp(argv[0], words.to);
    failure = errno;
    (void)!write(failure_fd, &failure, sizeof(failure));
    _exit(127);
}

/* log_fd -1: it shares streams and process group with this one.  Returns an errno, 0 when the
 * program is loaded. */
static int spawn(const char *const *argv, int log_fd, pid_t *ret_pid)
{
    const pid_t parent = getpid();
    int pipe_fds[2], failure = 0;
    sigset_t all, own;
    ssize_t got;

    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return errno;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &own); /* no handler of this process runs in it */
    *ret_pid = fork();
    if (*ret_pid == 0)
        exec_child(argv, log_fd, pipe_fds[1], parent);
    if (*ret_pid < 0)
        failure = errno;
    (void)pthread_sigmask(SIG_SETMASK, &own, NULL);
    (void)close(pipe_fds[1]);
    do {
        got = read(pipe_fds[0], &failure, sizeof(failure));
    } while (got < 0 && errno == EINTR);
    (void)close(pipe_fds[0]);
    if (*ret_pid > 0 && failure != 0)
        (void)waitpid(*ret_pid, NULL, 0);
    return failure;
}

static enum status start(const char *const *argv, int log_fd, struct subprocess_child *ret,
                         struct error *err)
{
    int failed;

    *ret = (struct subprocess_child){.fd = -1};
    failed = spawn(argv, log_fd, &ret->pid);
    if (failed != 0)
        return error_set_errno(err, failed, "cannot start '%s'", argv[0]);
    ret->fd = pidfd_open(ret->pid, 0);
    if (ret->fd >= 0)
        return STATUS_OK;
    failed = errno;
    (void)kill(ret->pid, SIGKILL);
    (void)waitpid(ret->pid, NULL, 0);
    return error_set_errno(err, failed, "cannot watch '%s' (pidfd_open)", argv[0]);
}

/* Wait for the pidfd until deadline_ns; returns true when the child ended. */
static int wait_until(int pidfd, int64_t deadline_ns, int watch_stop,
                      const struct subprocess_request *request)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = pidfd, .events = POLLIN},
                                {.fd = watch_stop ? stop_fd() : -1, .events = POLLIN}};
        int left_ms = clock_left_ms(deadline_ns);
        int ready;

        if (request->tick && left_ms > TICK_MS)
            left_ms = TICK_MS;
        ready = poll(fds, 2, left_ms);
        if (ready > 0 && fds[0].revents != 0)
            return 1;
        if ((watch_stop && stop_requested()) || clock_left_ms(deadline_ns) == 0)
            return 0;
        if (request->tick)
            request->tick(request->context);
    }
}

static void wait_and_collect(pid_t pid, int pidfd, const struct subprocess_request *request,
                             struct subprocess_result *ret)
{
    siginfo_t info;
    int stopped_by_us = 0;
    int state = 0;

    if (!wait_until(pidfd, clock_deadline_ns(request->timeout_ms), !request->ignores_stop,
                    request)) {
        stopped_by_us = 1;
        ret->outcome =
            stop_requested() && !request->ignores_stop ? SUBPROCESS_STOPPED : SUBPROCESS_TIMED_OUT;
        (void)kill(-pid, SIGTERM);
        if (!wait_until(pidfd, clock_deadline_ns(SUBPROCESS_GRACE_MS), 0, request))
            (void)kill(-pid, SIGKILL);
    }
    /* The unreaped zombie keeps the group's number reserved until the rest of the group is killed.
     */
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        continue;
    (void)kill(-pid, SIGKILL);
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR)
        continue;
    if (stopped_by_us)
        return;
    ret->outcome = WIFSIGNALED(state) ? SUBPROCESS_SIGNALED : SUBPROCESS_EXITED;
    ret->code = WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state);
}

enum status subprocess_run(const struct subprocess_request *request, struct subprocess_result *ret,
                           struct error *err)
{
    int64_t start_ns = clock_now_ns();
    struct subprocess_child child;
    enum status status;
    int log_fd = open(request->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (log_fd < 0)
        return error_set_errno(err, errno, "cannot create '%s'", request->log_path);
    status = start(request->argv, log_fd, &child, err);
    (void)close(log_fd);
    if (status != STATUS_OK)
        return status;
    *ret = (struct subprocess_result){0};
    wait_and_collect(child.pid, child.fd, request, ret);
    (void)close(child.fd);
    ret->seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    return STATUS_OK;
}

enum status subprocess_start(const char *const *argv, struct subprocess_child *ret,
                             struct error *err)
{
    return start(argv, -1, ret, err);
}

bool subprocess_has_ended(struct subprocess_child *child, int *ret_exit_code)
{
    int state = 0;

    if (waitpid(child->pid, &state, WNOHANG) != child->pid)
        return false;
    (void)close(child->fd);
    *ret_exit_code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
    return true;
}

void subprocess_pass_on(const struct subprocess_child *child, int signal_number)
{
    if (signal_number != SIGINT)
        (void)kill(child->pid, signal_number);
}

void subprocess_result_text(const struct subprocess_result *result, char *text, size_t size)
{
    switch (result->outcome) {
    case SUBPROCESS_EXITED:
        (void)snprintf(text, size, "exit code %d", result->code);
        break;
    case SUBPROCESS_SIGNALED:
        (void)snprintf(text, size, "killed by signal %d (%s)", result->code,
                       strsignal(result->code));
        break;
    case SUBPROCESS_TIMED_OUT:
        (void)snprintf(text, size, "timed out after %.0f s", result->seconds);
        break;
    case SUBPROCESS_STOPPED:
        (void)snprintf(text, size, "stopped after %.0f s", result->seconds);
        break;
    }
}

enum status subprocess_last_line(const char *log_path, char *line, size_t size, struct error *err)
{
    char *text = NULL;
    const char *last;
    size_t length;
    enum status status = file_read(log_path, LOG_BYTES_MAX, &text, &length, err);

    if (status != STATUS_OK)
        return status;
    while (length > 0 && text[length - 1] == '\n')
        text[--length] = '\0';
    last = strrchr(text, '\n');
    (void)snprintf(line, size, "%s", last ? last + 1 : text);
    free(text);
    return STATUS_OK;
}

enum status subprocess_program_folder(char *text, size_t size, struct error *err)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *slash;

    if (length < 0)
        return error_set_errno(err, errno, "cannot read '/proc/self/exe'");
    path[length] = '\0';
    slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) >= size)
        return error_set(err, STATUS_CONFIG, "the path '%s' of this program is too long", path);
    *slash = '\0';
    (void)snprintf(text, size, "%s", path);
    return STATUS_OK;
}
