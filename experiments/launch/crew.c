/*
 * crew: supervision of the children.
 *
 * The model: child ends come through pidfds in an epoll, because its ready list keeps the order of
 * events, and "who failed first" is what a user wants to know; waitpid and poll would tell in the
 * order of their own tables.  This process is a subreaper: orphans of a dead rank become its
 * children, and SIGCHLD tells when to look again whether a group is empty.
 * First failure wins: it is logged, kept, and the ranks are told to stop; what they end with after
 * that is their answer to our signal and not a failure of its own.  The kernel closes the sockets
 * of a dying process some time before it reports its end, so a peer that notices may be reported
 * first: for VERDICT_MS after the first failure a crash still takes the blame from an exit code.
 * One thread.  Nothing sleeps; every wait has the nearest deadline.
 */
#include "experiments/launch/crew_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"

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

static enum status watch(struct crew *c, int fd, enum event_kind kind, size_t place,
                         struct error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | place};

    if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_set_errno(err, errno, "cannot watch a descriptor");
    return STATUS_OK;
}

static int64_t grace_deadline_ns(const struct crew *c)
{
    return clock_deadline_ns(c->grace_ms);
}

void crew_stop(struct crew *c, size_t first, size_t end, int number)
{
    for (size_t i = first; i < end; i++) {
        struct child *child = &c->children[i];

        child_signal(child, number);
        if (child_is_active(child) && child->kill_at_ns == INT64_MAX)
            child->kill_at_ns = grace_deadline_ns(c);
    }
}

void crew_stop_ranks(struct crew *c, int number)
{
    c->stopping = true;
    c->patience_ns = grace_deadline_ns(c);
    crew_stop(c, c->servers, c->count, number);
}

/* Once the job is to end, nobody who does not read our output may hold it up for long. */
static struct output_patience patience_now(const struct crew *c)
{
    int64_t nearest = c->patience_ns < c->deadline_ns ? c->patience_ns : c->deadline_ns;

    return (struct output_patience){.stop_fd = c->stop_fd, .deadline_ns = nearest};
}

/* ---- ends */

bool crew_any_active(const struct crew *c, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        if (child_is_active(&c->children[i]))
            return true;
    return false;
}

/* The others have ended without it: a stopped rank would never end. */
static void kill_stopped(struct crew *c)
{
    for (size_t i = c->servers; c->ended_well > 0 && c->tolerant && i < c->count; i++) {
        struct child *child = &c->children[i];
        siginfo_t info = {.si_pid = 0};

        if (child->state != CHILD_RUNNING || child->killed ||
            waitid(P_PID, (id_t)child->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            continue;
        child->killed = true;
        child->kill_at_ns = clock_deadline_ns(c->grace_ms + 10000);
        child_signal(child, SIGKILL);
    }
}

static void settle(struct crew *c, struct child *child)
{
    const struct output_patience patience = patience_now(c);

    child->state = CHILD_GONE;
    child->kill_at_ns = INT64_MAX;
    keeper_forget(&c->keeper, child->pid);
    for (int i = 0; i < 2; i++)
        output_close(&child->outputs[i], &patience);
}

static void take_end(struct crew *c, size_t place)
{
    struct child *child = &c->children[place];

    if (child->state != CHILD_RUNNING)
        return;
    (void)epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, child->pidfd, NULL);
    child_reap(child);
    crew_note_end(c, child);
    /* What it left behind ends with it, but is told only once: to many programs a second SIGTERM
     * means "at once". */
    if (child_group_is_empty(child))
        settle(c, child);
    else if (child->kill_at_ns == INT64_MAX)
        crew_stop(c, place, place + 1, SIGTERM);
}

static void settle_empty_groups(struct crew *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->children[i].state == CHILD_LINGERING && child_group_is_empty(&c->children[i]))
            settle(c, &c->children[i]);
}

/* SIGKILL when the grace time is over; what even that does not end (a process stuck in the kernel)
 * is given up after as long again. */
static void kill_overdue(struct crew *c)
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
            settle(c, child);
            continue;
        }
        log_warning("%s does not stop: killed%s", name,
                    child->state == CHILD_RUNNING ? "" : " what it left behind");
        child->killed = true;
        child->kill_at_ns = clock_deadline_ns(c->grace_ms + 10000);
        child_signal(child, SIGKILL);
    }
}

/* Its ranks have ended, and nothing else would tell it. */
static void kill_stuck_mpirun(struct crew *c)
{
    struct child *child = &c->children[c->servers];

    if (c->mpirun.pid == 0)
        return;
    if (child->state != CHILD_RUNNING || child->killed) {
        c->mpirun.pid = 0; /* it has ended, or is to: no more looks */
        return;
    }
    if (!mpirun_is_stuck(&c->mpirun))
        return;
    log_error("mpirun does not end, and all its ranks have: killed");
    child->killed = true;
    child->kill_at_ns = grace_deadline_ns(c);
    child_signal(child, SIGKILL);
}

static enum status restart_lost(struct crew *c, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < c->count && status == STATUS_OK && !c->stopping; i++) {
        struct child *child = &c->children[i];

        if (!child->to_restart || child->state != CHILD_GONE)
            continue;
        child->to_restart = false;
        status = c->restart(c->user, i, err);
    }
    return status;
}

/* ---- events */

/* A signal for us goes on to the ranks; the second one kills. */
static void take_signals(struct crew *c)
{
    struct signalfd_siginfo info;

    while (read(c->stop_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        int number = (int)info.ssi_signo;

        if (c->stop_signal != 0) {
            for (size_t i = 0; i < c->count; i++)
                if (!c->children[i].killed)
                    c->children[i].kill_at_ns = 0;
            continue;
        }
        c->stop_signal = number;
        log_info("got SIG%s: passed on to the ranks", sigabbrev_np(number));
        crew_stop_ranks(c, number);
    }
}

static void take_orphan_signals(struct crew *c)
{
    struct signalfd_siginfo info;

    while (read(c->orphans_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        ;
    settle_empty_groups(c);
}

static void take_wake(struct crew *c)
{
    char events[4096];

    while (c->wake_fd >= 0 && read(c->wake_fd, events, sizeof(events)) > 0)
        ;
}

static void take_output(struct crew *c, size_t place, size_t stream)
{
    struct output *o = &c->children[place].outputs[stream];
    const struct output_patience patience = patience_now(c);

    if (o->fd < 0 || output_copy(o, &patience))
        return;
    (void)close(o->fd); /* which takes it out of the epoll: nobody else has this descriptor */
    o->fd = -1;
}

static void take_event(struct crew *c, uint64_t data)
{
    size_t place = (size_t)(data & UINT32_MAX);

    switch ((enum event_kind)(data >> 32)) {
    case EVENT_STOP:
        take_signals(c);
        break;
    case EVENT_ORPHANS:
        take_orphan_signals(c);
        break;
    case EVENT_WAKE:
        take_wake(c);
        break;
    case EVENT_END:
        take_end(c, place);
        break;
    case EVENT_STDOUT:
        take_output(c, place, 0);
        break;
    case EVENT_STDERR:
        take_output(c, place, 1);
        break;
    }
}

static void check_deadline(struct crew *c)
{
    if (c->timed_out || c->servers_may_end || clock_now_ns() < c->deadline_ns)
        return;
    c->timed_out = true;
    c->deadline_ns = INT64_MAX;
    log_error("the job has not ended within its time limit: stopped");
    if (!c->stopping)
        crew_stop_ranks(c, SIGTERM);
}

enum status crew_step(struct crew *c, int64_t deadline_ns, struct error *err)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t nearest = deadline_ns < c->deadline_ns ? deadline_ns : c->deadline_ns;
    int count;

    for (size_t i = 0; i < c->count; i++)
        if (child_is_active(&c->children[i]) && c->children[i].kill_at_ns < nearest)
            nearest = c->children[i].kill_at_ns;
    if (c->verdict_at_ns < nearest)
        nearest = c->verdict_at_ns;
    if (c->mpirun.pid != 0 && c->mpirun.look_ns < nearest)
        nearest = c->mpirun.look_ns;
    count = epoll_wait(c->epoll_fd, events, EVENTS_MAX,
                       nearest == INT64_MAX ? -1 : clock_left_ms(nearest));
    if (count < 0 && errno != EINTR)
        return error_set_errno(err, errno, "cannot wait for the ranks");
    for (int i = 0; i < count; i++)
        take_event(c, events[i].data.u64);
    check_deadline(c);
    crew_pass_verdict(c);
    kill_stopped(c);
    kill_stuck_mpirun(c);
    kill_overdue(c);
    return restart_lost(c, err);
}

enum status crew_wait(struct crew *c, size_t first, size_t end, struct error *err)
{
    enum status status = STATUS_OK;

    while (status == STATUS_OK && crew_any_active(c, first, end))
        status = crew_step(c, INT64_MAX, err);
    return status;
}

/* ---- lifetime */

/* Signals that the parent of this process has switched off (nohup, a shell's '&') stay off. */
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

static enum status take_over_signals(struct crew *c, struct error *err)
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
    (void)sigaddset(&blocked, SIGPIPE); /* a reader of our output that left is an error of write */
    (void)sigemptyset(&normal.sa_mask);
    (void)sigaction(SIGCHLD, &normal, NULL); /* ignored, it would take the exit codes away */
    if (sigprocmask(SIG_BLOCK, &blocked, &c->mask) != 0)
        return error_set_errno(err, errno, "cannot block signals");
    c->stop_fd = signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
    c->orphans_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (c->stop_fd < 0 || c->orphans_fd < 0)
        return error_set_errno(err, errno, "cannot make a signalfd");
    return STATUS_OK;
}

enum status crew_open(struct crew *c, size_t servers, size_t ranks, int64_t grace_ms,
                      int64_t timeout_ms, struct error *err)
{
    enum status status;

    *c = (struct crew){.servers = servers,
                       .keeper.fd = -1,
                       .epoll_fd = -1,
                       .stop_fd = -1,
                       .orphans_fd = -1,
                       .wake_fd = -1,
                       .grace_ms = grace_ms,
                       .patience_ns = INT64_MAX,
                       .verdict_at_ns = INT64_MAX,
                       .deadline_ns = timeout_ms > 0 ? clock_deadline_ns(timeout_ms) : INT64_MAX};
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
        status = keeper_open(&c->keeper, c->count, err);
    if (status != STATUS_OK)
        return status;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return error_set_errno(err, errno, "cannot become a subreaper");
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll_fd < 0)
        return error_set_errno(err, errno, "cannot make an epoll");
    status = watch(c, c->stop_fd, EVENT_STOP, 0, err);
    if (status == STATUS_OK)
        status = watch(c, c->orphans_fd, EVENT_ORPHANS, 0, err);
    return status;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

void crew_close(struct crew *c)
{
    struct error ignored;

    if (!c->children)
        return;
    c->closing = true;
    crew_stop(c, 0, c->count, SIGTERM);
    if (crew_wait(c, 0, c->count, &ignored) != STATUS_OK)
        for (size_t i = 0; i < c->count; i++)
            child_signal(&c->children[i], SIGKILL);
    keeper_close(&c->keeper);
    close_fd(&c->epoll_fd);
    close_fd(&c->stop_fd);
    close_fd(&c->orphans_fd);
    free(c->children);
    c->children = NULL;
    (void)sigprocmask(SIG_SETMASK, &c->mask, NULL);
}

enum status crew_start(struct crew *c, size_t place, struct child_request *request,
                       struct error *err)
{
    struct child *child = &c->children[place];
    enum status status;

    child->signaled = child->killed = false;
    child->code = 0;
    child->kill_at_ns = INT64_MAX;
    request->mask = &c->mask;
    request->keeper = &c->keeper;
    status = child_start(child, request, err);
    if (status == STATUS_OK)
        status = watch(c, child->pidfd, EVENT_END, place, err);
    for (unsigned i = 0; i < 2 && status == STATUS_OK; i++)
        if (child->outputs[i].fd >= 0)
            status =
                watch(c, child->outputs[i].fd, i == 0 ? EVENT_STDOUT : EVENT_STDERR, place, err);
    return status;
}

enum status crew_watch(struct crew *c, int fd, struct error *err)
{
    c->wake_fd = fd;
    return watch(c, fd, EVENT_WAKE, 0, err);
}
