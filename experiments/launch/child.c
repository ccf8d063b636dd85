/*
 * child: fork, a few calls, exec.  The launcher has one thread, so the child may call any function
 * after fork; a close-on-exec pipe carries the errno of a failed start back.
 * This process is a subreaper (see child_set.c): orphans of a dead rank become our children, so
 * waitpid on our own children covers the whole process group.
 */
#include "experiments/launch/child.h"

#include "experiments/network/privilege.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PF_EXITING 0x4ul /* of the kernel's include/linux/sched.h */

struct pipes {
    int failure[2]; /* errno of a failed start */
    int control[2];
    int streams[2][2];
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void close_pipes(struct pipes *p)
{
    for (int side = 0; side < 2; side++) {
        close_fd(&p->failure[side]);
        close_fd(&p->control[side]);
        close_fd(&p->streams[0][side]);
        close_fd(&p->streams[1][side]);
    }
}

static enum status open_pipes(struct pipes *p, bool streams, bool control, struct error *err)
{
    *p = (struct pipes){{-1, -1}, {-1, -1}, {{-1, -1}, {-1, -1}}};
    if (pipe2(p->failure, O_CLOEXEC) != 0 || (control && pipe2(p->control, O_CLOEXEC) != 0) ||
        (streams && (pipe2(p->streams[0], O_CLOEXEC) != 0 || pipe2(p->streams[1], O_CLOEXEC) != 0)))
        return error_set_errno(err, errno, "cannot make a pipe");
    for (int i = 0; i < 2 && streams; i++)
        if (fcntl(p->streams[i][0], F_SETFL, O_NONBLOCK) != 0)
            return error_set_errno(err, errno, "cannot make a pipe non-blocking");
    return STATUS_OK;
}

/* In the child: stdin from /dev/null or for the names of signals, stdout and stderr into the pipes.
 */
static bool connect_stdio(const struct pipes *p)
{
    int in = p->control[0] >= 0 ? p->control[0] : open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (in < 0 || dup2(in, STDIN_FILENO) < 0)
        return false;
    return p->streams[0][1] < 0 || (dup2(p->streams[0][1], STDOUT_FILENO) >= 0 &&
                                    dup2(p->streams[1][1], STDERR_FILENO) >= 0);
}

static bool enter_host(const struct child_request *request)
{
    if (!request->network)
        return true;
    if (network_enter(request->network, request->host, NULL) != STATUS_OK)
        return false;
    privilege_drop();
    return true;
}

static _Noreturn void exec_child(const struct child_request *request, const struct pipes *p,
                                 pid_t parent)
{
    int failure;

    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, request->engine ? request->engine->kill_signal : SIGKILL);
    if (getppid() != parent) /* the launcher died before prctl */
        _exit(127);
    if (!request->engine) /* which has to end its tasks first */
        orphan_reaper_add(request->orphan_reaper, getpid());
    for (char *const *variable = request->variables; *variable; variable++)
        (void)putenv(*variable);
    if (enter_host(request) && connect_stdio(p)) {
        (void)sigprocmask(SIG_SETMASK, request->mask, NULL);
        (void)execvp(request->file, request->argv);
    }
    failure = errno;
    (void)!write(p->failure[1], &failure, sizeof(failure));
    _exit(127);
}

/* Returns the errno of a failed start, 0 when the program is loaded. */
static int wait_for_exec(int fd)
{
    int failure = 0;
    ssize_t got;

    do {
        got = read(fd, &failure, sizeof(failure));
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof(failure) ? failure : 0;
}

static void adopt_streams(struct child *c, const struct child_request *request, struct pipes *p)
{
    for (int i = 0; i < 2; i++) {
        c->outputs[i].fd = p->streams[i][0];
        p->streams[i][0] = -1;
        c->outputs[i].target = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
        (void)snprintf(c->outputs[i].prefix, sizeof(c->outputs[i].prefix), "%s", request->prefix);
    }
}

/* A process starts with the affinity mask of the one that forks it. */
static pid_t fork_bound(const cpu_set_t *processors)
{
    cpu_set_t own;
    pid_t pid;

    if (!processors)
        return fork();
    if (sched_getaffinity(0, sizeof(own), &own) != 0 ||
        sched_setaffinity(0, sizeof(*processors), processors) != 0)
        return -1;
    pid = fork();
    if (pid != 0)
        (void)sched_setaffinity(0, sizeof(own), &own);
    return pid;
}

enum status child_start(struct child *c, const struct child_request *request, struct error *err)
{
    pid_t parent = getpid();
    struct pipes pipes;
    int failure = 0;
    enum status status = open_pipes(&pipes, request->prefix != NULL,
                                    request->engine && request->engine->reads_signals, err);

    if (status != STATUS_OK)
        goto out;
    c->kind = request->kind;
    c->index = request->index;
    c->engine = request->engine;
    c->control_fd = -1;
    c->pid = fork_bound(request->processors);
    if (c->pid == 0)
        exec_child(request, &pipes, parent);
    if (c->pid < 0) {
        status = error_set_errno(err, errno, "cannot start %s %u: %s", c->kind, c->index,
                                 request->processors ? "fork or set its processors" : "fork");
        goto out;
    }
    close_fd(&pipes.failure[1]);
    failure = wait_for_exec(pipes.failure[0]);
    if (failure == 0)
        c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    if (failure != 0 || c->pidfd < 0) {
        status = failure != 0
                     ? error_set(err, STATUS_INVALID, "cannot run '%s': %s", request->file,
                                 strerror(failure))
                     : error_set_errno(err, errno, "cannot watch %s %u", c->kind, c->index);
        (void)kill(-c->pid, SIGKILL);
        (void)waitpid(c->pid, NULL, 0);
        orphan_reaper_forget(request->orphan_reaper, c->pid);
        goto out;
    }
    c->state = CHILD_RUNNING;
    c->control_fd = pipes.control[1];
    pipes.control[1] = -1;
    if (request->prefix)
        adopt_streams(c, request, &pipes);
out:
    close_pipes(&pipes);
    return status;
}

static void signal_step(const struct child *c, bool kills)
{
    if (c->control_fd >= 0)
        (void)!write(c->control_fd, kills ? "KILL\n" : "TERM\n", 5); /* EPIPE: it is ending */
    else
        (void)kill(c->pid, kills ? c->engine->kill_signal : c->engine->stop_signal);
}

void child_signal(const struct child *c, int number)
{
    if (!child_is_active(c))
        return;
    if (c->engine && c->state == CHILD_RUNNING) {
        signal_step(c, number == SIGKILL);
        return;
    }
    /* No SIGCONT to one that runs: it may be at its end, where SIGCONT would undo the stops by
     * which a leak checker attaches, which would then wait for ever. */
    if (child_is_stopped(c))
        (void)kill(-c->pid, SIGCONT);
    (void)kill(-c->pid, number);
}

bool child_is_stopped(const struct child *c)
{
    siginfo_t info = {.si_pid = 0};

    return c->state == CHILD_RUNNING &&
           waitid(P_PID, (id_t)c->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
}

void child_reap(struct child *c)
{
    siginfo_t info = {0};

    while (waitid(P_PID, (id_t)c->pid, &info, WEXITED) != 0 && errno == EINTR)
        ;
    c->signaled = info.si_code != CLD_EXITED;
    c->code = info.si_status;
    close_fd(&c->pidfd);
    c->state = CHILD_LEADER_ENDED;
}

bool child_group_is_empty(const struct child *c)
{
    while (waitpid(-c->pid, NULL, WNOHANG) > 0)
        ;
    return kill(-c->pid, 0) != 0 && errno == ESRCH;
}

void child_close(struct child *c)
{
    if (c->engine)
        close_fd(&c->control_fd);
}

bool child_is_active(const struct child *c)
{
    return c->state == CHILD_RUNNING || c->state == CHILD_LEADER_ENDED;
}

bool child_is_exiting(const struct child *c)
{
    char path[64];
    char text[512] = "";
    const char *name_end;
    unsigned long flags = 0;
    FILE *file;

    if (c->state != CHILD_RUNNING)
        return false;
    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)c->pid);
    file = fopen(path, "re");
    if (!file)
        return false;
    name_end = fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
    (void)fclose(file);
    if (name_end)
        (void)sscanf(name_end, ") %*c %*d %*d %*d %*d %*d %lu", &flags);
    return flags & PF_EXITING;
}

bool child_failed(const struct child *c)
{
    return c->signaled || c->code != 0;
}

int child_exit_code(const struct child *c)
{
    return c->signaled ? 128 + c->code : c->code;
}

void child_name(const struct child *c, char *text, size_t size)
{
    (void)snprintf(text, size, "%s %u (pid %ld)", c->kind, c->index, (long)c->pid);
}

void child_end_text(const struct child *c, char *text, size_t size)
{
    const char *name = c->signaled ? sigabbrev_np(c->code) : NULL;

    if (!c->signaled)
        (void)snprintf(text, size, "exit code %d", c->code);
    else
        (void)snprintf(text, size, "killed by signal %d (SIG%s)", c->code, name ? name : "?");
}
