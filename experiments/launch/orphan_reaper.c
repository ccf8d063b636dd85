/*
 * orphan_reaper: PR_SET_PDEATHSIG kills the ranks when the launcher dies, but not the processes
 * that the ranks have started (a rank is often a shell script around the real program).  So a
 * separate process holds the list of process groups and reads a pipe whose write side only the
 * launcher holds: the kernel closes it however the launcher dies, and the reaper kills the groups.
 * Messages are int32: a group to add, or its negative to forget; writes that small are atomic, so
 * the children add themselves.
 * Limit: a process that moves to a session of its own leaves its group and is not followed.
 */
#include "experiments/launch/orphan_reaper.h"

#include "common/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void update_groups(int32_t *groups, size_t capacity, int32_t message)
{
    int32_t wanted = message > 0 ? 0 : -message; /* an empty entry, or the entry to clear */

    for (size_t i = 0; i < capacity; i++) {
        if (groups[i] == wanted) {
            groups[i] = message > 0 ? message : 0;
            return;
        }
    }
}

static void quiet_stdio(void)
{
    int fd = open("/dev/null", O_RDWR);

    for (int i = 0; i <= 2 && fd >= 0; i++)
        (void)dup2(fd, i);
    if (fd > 2)
        (void)close(fd);
}

static _Noreturn void reap_orphans(int fd, int32_t *groups, size_t capacity)
{
    int32_t message;
    ssize_t got;

    (void)setsid();
    quiet_stdio(); /* a reader of the launcher's output sees its end although the reaper lives on */
    do {
        got = read(fd, &message, sizeof(message));
        if (got == (ssize_t)sizeof(message))
            update_groups(groups, capacity, message);
    } while (got > 0 || (got < 0 && errno == EINTR));
    for (size_t i = 0; i < capacity; i++)
        if (groups[i] > 0)
            (void)kill(-groups[i], SIGKILL);
    _exit(0);
}

enum status orphan_reaper_open(struct orphan_reaper *k, size_t groups, struct error *err)
{
    int32_t *list = NULL;
    int ends[2];
    enum status status = mem_calloc(groups, sizeof(*list), "process groups", &list, err);

    *k = (struct orphan_reaper){.fd = -1};
    if (status != STATUS_OK)
        return status;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        status = error_set_errno(err, errno, "cannot make a pipe");
        goto out;
    }
    k->pid = fork();
    if (k->pid == 0) {
        (void)close(ends[1]);
        reap_orphans(ends[0], list, groups);
    }
    (void)close(ends[0]);
    k->fd = ends[1];
    if (k->pid < 0) {
        status = error_set_errno(err, errno, "cannot fork");
        k->pid = 0;
        orphan_reaper_close(k);
    }
out:
    free(list);
    return status;
}

static void send_message(const struct orphan_reaper *k, int32_t message)
{
    ssize_t put;

    do { /* fails only when the reaper is gone: PR_SET_PDEATHSIG still applies */
        put = write(k->fd, &message, sizeof(message));
    } while (put < 0 && errno == EINTR);
}

void orphan_reaper_add(const struct orphan_reaper *k, pid_t group)
{
    send_message(k, (int32_t)group);
}

void orphan_reaper_forget(const struct orphan_reaper *k, pid_t group)
{
    send_message(k, -(int32_t)group);
}

void orphan_reaper_close(struct orphan_reaper *k)
{
    if (k->fd >= 0)
        (void)close(k->fd);
    k->fd = -1;
    if (k->pid > 0)
        while (waitpid(k->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    k->pid = 0;
}
