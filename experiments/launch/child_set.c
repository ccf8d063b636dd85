/*
 * child_set: supervision of the children.
 *
 * The model: ends of children arrive through pidfds in an epoll, because its ready list keeps the
 * order of events, from which the launcher reports which child failed first; waitpid and poll
 * report in the order of their own tables.  This process is a subreaper: orphans of a dead rank
 * become its children, and on SIGCHLD it checks again which groups are empty.
 *
 * The first failure is logged and kept, and the ranks are stopped; how they end after that is the
 * effect of our signal and not a failure.  The kernel closes the files of a dying process some time
 * before it reports its end, so a peer that fails in consequence may be reported first: a crash
 * replaces an exit code as the first failure within BLAME_WINDOW_MS, and while a child exits (its
 * flag in /proc) up to BLAME_LIMIT_MS.  Likewise a rank that our stop signal reaches late may fail
 * first because another has left: then the first failure is known when all ranks have ended, and
 * one that obeyed the signal replaces one that failed.
 *
 * One thread.  No sleeps; every wait ends at the nearest deadline.
 */
#include "experiments/launch/child_set_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/stop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVENTS_MAX 64

enum event_kind { EVENT_STOP, EVENT_ORPHANS, EVENT_WAKE, EVENT_END, EVENT_STDOUT, EVENT_STDERR };

static enum status watch_fd(struct child_set *c, int fd, enum event_kind kind, size_t index,
                            struct error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | index};

    if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_set_errno(err, errno, "cannot watch a descriptor");
    return STATUS_OK;
}

static int64_t grace_deadline_ns(const struct child_set *c)
{
    return clock_deadline_ns(c->grace_ms);
}

void child_set_stop(struct child_set *c, size_t first, size_t end, int number)
{
    for (size_t i = first; i < end; i++) {
        struct child *child = &c->children[i];

        child_signal(child, number);
        if (child_is_active(child) && child->kill_at_ns == INT64_MAX)
            child->kill_at_ns = grace_deadline_ns(c);
    }
}

void child_set_stop_ranks(struct child_set *c, int number)
{
    c->stopping = true;
    c->output_deadline_ns = grace_deadline_ns(c);
    /* without ranks the servers: the one process of a member of a DMLC job */
    child_set_stop(c, c->servers < c->count ? c->servers : 0, c->count, number);
}

/* Once the job must end, a reader that does not read our output may delay it only to the deadline.
 */
static struct output_wait_limit output_limit_now(const struct child_set *c)
{
    int64_t nearest =
        c->output_deadline_ns < c->deadline_ns ? c->output_deadline_ns : c->deadline_ns;

    return (struct output_wait_limit){.stop_fd = c->stop_fd, .deadline_ns = nearest};
}

/* ---- ends */

/* Is it gone and to be started again? */
static bool awaits_restart(const struct child_set *c, const struct child *child)
{
    return child->to_restart && child->state == CHILD_GONE && !c->stopping && !c->servers_may_end;
}

static bool any_active(const struct child_set *c, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        if (child_is_active(&c->children[i]) || awaits_restart(c, &c->children[i]))
            return true;
    return false;
}

/* After other ranks ended well, kill ranks that are stopped (SIGSTOP): they would never end. */
static void kill_stopped(struct child_set *c)
{
    for (size_t i = c->servers; c->ended_well > 0 && c->tolerates_rank_loss && i < c->count; i++) {
        struct child *child = &c->children[i];

        if (child->killed || child->to_resume || !child_is_stopped(child))
            continue;
        child->killed = true;
        child->kill_at_ns = clock_deadline_ns(c->grace_ms + 10000);
        child_signal(child, SIGKILL);
    }
}

static void mark_gone(struct child_set *c, struct child *child)
{
    const struct output_wait_limit limit = output_limit_now(c);

    child->state = CHILD_GONE;
    child->kill_at_ns = INT64_MAX;
    child_close(child);
    orphan_reaper_forget(&c->orphan_reaper, child->pid);
    for (int i = 0; i < 2; i++)
        output_close(&child->outputs[i], &limit);
}

static void handle_child_end(struct child_set *c, size_t index)
{
    struct child *child = &c->children[index];

    if (child->state != CHILD_RUNNING)
        return;
    (void)epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, child->pidfd, NULL);
    child_reap(child);
    child_set_handle_end(c, child);
    /* Processes that it left behind get SIGTERM once: many programs abort at the second SIGTERM. */
    if (child_group_is_empty(child))
        mark_gone(c, child);
    else if (child->kill_at_ns == INT64_MAX)
        child_set_stop(c, index, index + 1, SIGTERM);
}

static void mark_empty_groups_gone(struct child_set *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->children[i].state == CHILD_LEADER_ENDED && child_group_is_empty(&c->children[i]))
            mark_gone(c, &c->children[i]);
}

/* SIGKILL after the grace time; a process that outlives SIGKILL (stuck in the kernel) by another
 * grace time and 10 s is given up. */
static void kill_overdue(struct child_set *c)
{
    int64_t now = clock_now_ns();

    for (size_t i = 0; i < c->count; i++) {
        struct child *child = &c->children[i];
        char name[64];

        if (!child_is_active(child) || child->kill_at_ns > now)
            continue;
        child_name(child, name, sizeof(name));
        if (child->killed) {
            log_error("%s is still there after SIGKILL: given up", name);
            child->signaled = true;
            child->code = SIGKILL;
            if (child->engine) /* whose hosts do not answer */
                (void)kill(-child->pid, SIGKILL);
            mark_gone(c, child);
            continue;
        }
        log_warning("%s does not stop: killed%s", name,
                    child->state == CHILD_RUNNING ? "" : " what it left behind");
        child->killed = true;
        child->kill_at_ns = clock_deadline_ns(c->grace_ms + 10000);
        child_signal(child, SIGKILL);
    }
}

/* Kill an mpirun whose ranks have all ended and that still waits for them (see mpirun.h). */
static void kill_stuck_mpirun(struct child_set *c)
{
    struct child *child = &c->children[c->servers];

    if (c->mpirun.pid == 0)
        return;
    if (child->state != CHILD_RUNNING || child->killed) {
        c->mpirun.pid = 0; /* ended or killed: no more checks */
        return;
    }
    if (!mpirun_is_stuck(&c->mpirun))
        return;
    log_error("mpirun does not end, and all its ranks have: killed");
    child->killed = true;
    child->kill_at_ns = grace_deadline_ns(c);
    child_signal(child, SIGKILL);
}

static enum status restart_lost_children(struct child_set *c, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < c->count && status == STATUS_OK; i++) {
        struct child *child = &c->children[i];

        if (!awaits_restart(c, child) || clock_now_ns() < child->restart_at_ns)
            continue;
        child->to_restart = false;
        status = c->restart(c->user, i, err);
        if (status == STATUS_OK && child->paused)
            child_signal(child, SIGSTOP);
    }
    return status;
}

/* ---- events */

/* Forward our first stop signal to the ranks; at the next one kill them (stop.h). */
static void forward_stop_signals(struct child_set *c)
{
    struct signalfd_siginfo info;

    while (read(c->stop_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        int number = (int)info.ssi_signo;

        if (c->stop_signal != 0 && clock_now_ns() - c->stop_ns < STOP_ONE_REQUEST_NS)
            continue;
        if (c->stop_signal != 0) {
            for (size_t i = 0; i < c->count; i++)
                if (!c->children[i].killed)
                    c->children[i].kill_at_ns = 0;
            continue;
        }
        c->stop_signal = number;
        c->stop_ns = clock_now_ns();
        log_info("got SIG%s: passed on to the ranks", sigabbrev_np(number));
        child_set_stop_ranks(c, number);
    }
}

static void reap_empty_groups(struct child_set *c)
{
    struct signalfd_siginfo info;

    while (read(c->orphans_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        ;
    mark_empty_groups_gone(c);
}

static void drain_wake_fd(struct child_set *c)
{
    char events[4096];

    while (c->wake_fd >= 0 && read(c->wake_fd, events, sizeof(events)) > 0)
        ;
}

static void copy_child_output(struct child_set *c, size_t index, size_t stream)
{
    struct output *o = &c->children[index].outputs[stream];
    const struct output_wait_limit limit = output_limit_now(c);

    if (o->fd < 0 || output_copy(o, &limit))
        return;
    (void)close(
        o->fd); /* also removes it from the epoll: the description has no other descriptor */
    o->fd = -1;
}

static void dispatch_event(struct child_set *c, uint64_t data)
{
    size_t index = (size_t)(data & UINT32_MAX);

    switch ((enum event_kind)(data >> 32)) {
    case EVENT_STOP:
        forward_stop_signals(c);
        break;
    case EVENT_ORPHANS:
        reap_empty_groups(c);
        break;
    case EVENT_WAKE:
        drain_wake_fd(c);
        break;
    case EVENT_END:
        handle_child_end(c, index);
        break;
    case EVENT_STDOUT:
        copy_child_output(c, index, 0);
        break;
    case EVENT_STDERR:
        copy_child_output(c, index, 1);
        break;
    }
}

static void check_deadline(struct child_set *c)
{
    if (c->timed_out || c->servers_may_end || clock_now_ns() < c->deadline_ns)
        return;
    c->timed_out = true;
    c->deadline_ns = INT64_MAX;
    log_error("the job has not ended within its time limit: stopped");
    if (!c->stopping)
        child_set_stop_ranks(c, SIGTERM);
}

static int64_t earliest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool has_event(const struct child_set *c)
{
    return c->event && !c->stopping;
}

static int64_t next_deadline_ns(const struct child_set *c)
{
    int64_t nearest =
        earliest(c->servers_may_end ? INT64_MAX : c->deadline_ns, c->blame_deadline_ns);

    for (size_t i = 0; i < c->count; i++) {
        const struct child *child = &c->children[i];

        if (child_is_active(child))
            nearest = earliest(nearest, child->kill_at_ns);
        else if (awaits_restart(c, child))
            nearest = earliest(nearest, child->restart_at_ns);
    }
    if (c->mpirun.pid != 0)
        nearest = earliest(nearest, c->mpirun.next_check_ns);
    return has_event(c) ? earliest(nearest, c->event_ns) : nearest;
}

enum status child_set_step(struct child_set *c, int64_t deadline_ns, struct error *err)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t nearest = earliest(deadline_ns, next_deadline_ns(c));
    int count = epoll_wait(c->epoll_fd, events, EVENTS_MAX,
                           nearest == INT64_MAX ? -1 : clock_left_ms(nearest));

    if (count < 0 && errno != EINTR)
        return error_set_errno(err, errno, "cannot wait for the ranks");
    for (int i = 0; i < count; i++)
        dispatch_event(c, events[i].data.u64);
    check_deadline(c);
    child_set_declare_first_failure(c);
    kill_stopped(c);
    kill_stuck_mpirun(c);
    kill_overdue(c);
    if (has_event(c) && clock_now_ns() >= c->event_ns) {
        enum status status = c->event(c->user, &c->event_ns, err);

        if (status != STATUS_OK)
            return status;
    }
    return restart_lost_children(c, err);
}

enum status child_set_wait(struct child_set *c, size_t first, size_t end, struct error *err)
{
    enum status status = STATUS_OK;

    while (status == STATUS_OK && any_active(c, first, end))
        status = child_set_step(c, INT64_MAX, err);
    return status;
}

/* ---- lifetime */

/* Signals that the parent process has set to SIG_IGN (nohup, a shell's '&') stay ignored. */
static void choose_stop_signals(sigset_t *ret)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

    (void)sigemptyset(ret);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct sigaction action;

        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            (void)sigaddset(ret, numbers[i]);
    }
}

static enum status take_over_signals(struct child_set *c, struct error *err)
{
    struct sigaction normal = {.sa_handler = SIG_DFL};
    sigset_t stop;
    sigset_t child;
    sigset_t blocked;

    choose_stop_signals(&stop);
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    blocked = stop;
    (void)sigaddset(&blocked, SIGCHLD);
    (void)sigaddset(&blocked,
                    SIGPIPE); /* a closed reader of our output becomes an error of write */
    (void)sigemptyset(&normal.sa_mask);
    (void)sigaction(SIGCHLD, &normal, NULL); /* with SIG_IGN the exit codes would be lost */
    if (sigprocmask(SIG_BLOCK, &blocked, &c->mask) != 0)
        return error_set_errno(err, errno, "cannot block signals");
    c->stop_fd = signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
    c->orphans_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (c->stop_fd < 0 || c->orphans_fd < 0)
        return error_set_errno(err, errno, "cannot make a signalfd");
    return STATUS_OK;
}

enum status child_set_open(struct child_set *c, size_t servers, size_t ranks, int64_t grace_ms,
                           int64_t timeout_ms, struct error *err)
{
    enum status status;

    *c = (struct child_set){.servers = servers,
                            .orphan_reaper.fd = -1,
                            .epoll_fd = -1,
                            .stop_fd = -1,
                            .orphans_fd = -1,
                            .wake_fd = -1,
                            .grace_ms = grace_ms,
                            .output_deadline_ns = INT64_MAX,
                            .blame_deadline_ns = INT64_MAX,
                            .deadline_ns =
                                timeout_ms > 0 ? clock_deadline_ns(timeout_ms) : INT64_MAX};
    status = mem_calloc(servers + ranks, sizeof(*c->children), "children", &c->children, err);
    if (status != STATUS_OK)
        return status;
    c->count = servers + ranks;
    for (size_t i = 0; i < c->count; i++) {
        c->children[i].pidfd = -1;
        c->children[i].outputs[0].fd = -1;
        c->children[i].outputs[1].fd = -1;
        c->children[i].kill_at_ns = INT64_MAX;
    }
    status = take_over_signals(c, err);
    if (status == STATUS_OK)
        status = orphan_reaper_open(&c->orphan_reaper, c->count, err);
    if (status != STATUS_OK)
        return status;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return error_set_errno(err, errno, "cannot become a subreaper");
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll_fd < 0)
        return error_set_errno(err, errno, "cannot make an epoll");
    status = watch_fd(c, c->stop_fd, EVENT_STOP, 0, err);
    if (status == STATUS_OK)
        status = watch_fd(c, c->orphans_fd, EVENT_ORPHANS, 0, err);
    return status;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

void child_set_close(struct child_set *c)
{
    struct error ignored;

    if (!c->children)
        return;
    c->closing = true;
    child_set_stop(c, 0, c->count, SIGTERM);
    if (child_set_wait(c, 0, c->count, &ignored) != STATUS_OK)
        for (size_t i = 0; i < c->count; i++)
            child_signal(&c->children[i], SIGKILL);
    orphan_reaper_close(&c->orphan_reaper);
    close_fd(&c->epoll_fd);
    close_fd(&c->stop_fd);
    close_fd(&c->orphans_fd);
    free(c->children);
    c->children = NULL;
    (void)sigprocmask(SIG_SETMASK, &c->mask, NULL);
}

enum status child_set_start(struct child_set *c, size_t index, struct child_request *request,
                            struct error *err)
{
    struct child *child = &c->children[index];
    enum status status;

    child->signaled = child->killed = false;
    child->code = 0;
    child->kill_at_ns = INT64_MAX;
    request->mask = &c->mask;
    request->network = c->network;
    request->orphan_reaper = &c->orphan_reaper;
    status = child_start(child, request, err);
    if (status == STATUS_OK)
        status = watch_fd(c, child->pidfd, EVENT_END, index, err);
    for (unsigned i = 0; i < 2 && status == STATUS_OK; i++)
        if (child->outputs[i].fd >= 0)
            status =
                watch_fd(c, child->outputs[i].fd, i == 0 ? EVENT_STDOUT : EVENT_STDERR, index, err);
    return status;
}

enum status child_set_watch_fd(struct child_set *c, int fd, struct error *err)
{
    c->wake_fd = fd;
    return watch_fd(c, fd, EVENT_WAKE, 0, err);
}
