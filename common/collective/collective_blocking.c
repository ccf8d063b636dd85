/*
 * Threads of a group whose backend blocks.  `lock` guards what is marked (L).  The watchdog reads
 * busy_since_ns without it, so that an operation on the caller's thread pays two atomic stores.
 */
#include "common/collective/collective_blocking.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/collective/flight/flight.h"
#include "common/collective/verdict.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TICK_NS       100000000LL /* the watchdog's period */
#define GRACE_NS      200000000LL /* after an alarm: a call that is nearly done may still succeed */
#define SLACK_NS      1000000000LL /* past the time-out, before a process ends for it */
#define GIVE_UP_NS    5000000000LL /* after an interrupt, for a starved thread to return */
#define CLOSE_WAIT_MS 2000

struct blocking {
    struct collective *group;
    int stop_fd; /* eventfd of the watchdog */
    pthread_t watchdog, executor;
    bool has_watchdog, has_executor;
    _Atomic int64_t busy_since_ns;         /* of the library call under way; 0: none */
    _Atomic int64_t interrupted_call;      /* busy_since_ns of the one that was interrupted */
    _Atomic(struct collective_work *) own; /* runs on the caller's thread; NULL: none */
    atomic_bool is_examining;              /* the watchdog reads `own` */
    _Atomic int64_t sampled_ns;            /* last sample of ops->is_waiting */

    pthread_mutex_t examine_lock; /* held while is_examining */

    pthread_mutex_t lock;
    pthread_cond_t changed;       /* monotonic clock */
    struct collective_work *work; /* (L) given to the executor and not yet taken back */
    bool is_over;                 /* (L) of work */
    bool stop;                    /* (L) */
    enum run_outcome outcome;     /* (L) of work */
    struct error error;           /* (L) of work */
};

static enum run_outcome call_library(struct blocking *b, struct collective_work *w,
                                     struct error *err)
{
    int64_t since_ns = clock_now_ns();
    enum run_outcome outcome;

    atomic_store(&b->sampled_ns, since_ns);
    atomic_store_explicit(&b->busy_since_ns, since_ns, memory_order_release);
    outcome = b->group->ops->run(b->group, w, INT64_MAX, err);
    atomic_store_explicit(&b->busy_since_ns, 0, memory_order_release);
    if (outcome == RUN_FAILED && atomic_load(&b->interrupted_call) == since_ns)
        (void)error_set(err, STATUS_TIMEOUT, "%s was interrupted", b->group->ops->name);
    return outcome; /* the error of an interrupted library is replaced */
}

/* Sample whether the call under way waits for a peer, and add to the work's waited_ns. */
static void sample_wait(struct blocking *b, struct collective_work *w)
{
    int64_t now_ns = clock_now_ns();
    int64_t since_ns = now_ns - atomic_load(&b->sampled_ns);

    if (!b->group->ops->is_waiting || since_ns < TICK_NS)
        return;
    atomic_store(&b->sampled_ns, now_ns);
    if (b->group->ops->is_waiting(b->group))
        w->waited_ns += since_ns < 2 * TICK_NS ? since_ns : 2 * TICK_NS; /* else we were stopped */
}

/* ---- the watchdog ---- */

/* Lock the operation on the caller's thread, so that it cannot end while it is read; NULL: there is
 * none.  The caller's thread checks is_examining after it has cleared `own`. */
static struct collective_work *lock_own_work(struct blocking *b)
{
    struct collective_work *work;

    (void)pthread_mutex_lock(&b->examine_lock);
    atomic_store(&b->is_examining, true);
    work = atomic_load(&b->own);
    if (!work) {
        atomic_store(&b->is_examining, false);
        (void)pthread_mutex_unlock(&b->examine_lock);
    }
    return work;
}

static void unlock_own_work(struct blocking *b)
{
    atomic_store(&b->is_examining, false);
    (void)pthread_mutex_unlock(&b->examine_lock);
}

/* What drive_work does between two slices, for a library call that is not sliced. */
static void report_own_work(struct blocking *b)
{
    struct collective_work *work = lock_own_work(b);

    if (!work)
        return;
    sample_wait(b, work);
    collective_report(work, clock_now_ns());
    unlock_own_work(b);
}

/* The library call does not return, and a thread of this process is inside it. */
static void end_stuck_process(struct blocking *b, int64_t since_ns)
{
    struct collective *g = b->group;
    struct collective_work *work = lock_own_work(b);
    struct error err = {0};

    if (atomic_load(&b->busy_since_ns) != since_ns) { /* it has returned */
        if (work)
            unlock_own_work(b);
        return;
    }
    if (work) {
        verdict_reach(g, work, atomic_load(&g->alarm->raised) ? VERDICT_ALARM : VERDICT_TIMEOUT,
                      &err);
        if (atomic_load(&b->busy_since_ns) != since_ns) {
            unlock_own_work(b);
            return;
        }
    } else {
        (void)error_set(&err, STATUS_TIMEOUT, "group '%s': an operation takes %.1f s", g->name,
                        (double)(clock_now_ns() - since_ns) * 1e-9);
    }
    (void)error_prefix(&err, "%s cannot be interrupted, so this process ends: ", g->ops->name);
    flight_fail(g->flight, g->fault, g->culprit, err.text);
    _exit(log_failure(&err));
}

/* How long a library call may take. */
static int64_t call_limit_ns(const struct blocking *b)
{
    return b->group->timeout_ms * 1000000 + (b->group->ops->interrupt ? 0 : SLACK_NS);
}

static bool is_call_overdue(const struct blocking *b, int64_t since_ns, int64_t alarm_ns,
                            int64_t now_ns)
{
    if (alarm_ns != 0 && now_ns - alarm_ns >= GRACE_NS && now_ns - since_ns >= GRACE_NS)
        return true;
    return now_ns - since_ns >= call_limit_ns(b);
}

/* Until the next tick, or the end of what the call may take. */
static int next_tick_ms(const struct blocking *b)
{
    int64_t since_ns = atomic_load_explicit(&b->busy_since_ns, memory_order_acquire);
    int64_t left_ns = since_ns == 0 ? TICK_NS : since_ns + call_limit_ns(b) - clock_now_ns();

    if (left_ns <= 0 || left_ns > TICK_NS)
        left_ns = TICK_NS;
    return (int)((left_ns + 999999) / 1000000);
}

/* Sleep until the next tick, an alarm that is new, or stop; true: stop. */
static bool sleep_a_tick(const struct blocking *b, bool watch_alarm)
{
    struct pollfd fds[] = {
        {.fd = b->stop_fd, .events = POLLIN},
        {.fd = watch_alarm ? b->group->alarm->fd : -1, .events = POLLIN},
    };

    (void)poll(fds, 2, next_tick_ms(b));
    return fds[0].revents != 0;
}

static void *run_watchdog(void *argument)
{
    struct blocking *b = argument;
    struct mesh_alarm *alarm = b->group->alarm;
    int64_t alarm_ns = 0;
    int64_t interrupted_ns = 0; /* when the call that began at b->interrupted_call was */

    while (!sleep_a_tick(b, alarm && alarm_ns == 0)) {
        int64_t since_ns = atomic_load_explicit(&b->busy_since_ns, memory_order_acquire);
        int64_t now_ns = clock_now_ns();

        if (alarm && alarm_ns == 0 && atomic_load(&alarm->raised))
            alarm_ns = now_ns;
        if (since_ns == 0)
            continue;
        if (!is_call_overdue(b, since_ns, alarm_ns, now_ns)) {
            if (now_ns - since_ns >= TICK_NS)
                report_own_work(b);
            continue;
        }
        if (b->group->ops->interrupt && atomic_load(&b->interrupted_call) != since_ns) {
            atomic_store(&b->interrupted_call, since_ns);
            interrupted_ns = now_ns;
            b->group->ops->interrupt(b->group);
        } else if (!b->group->ops->interrupt || now_ns - interrupted_ns >= GIVE_UP_NS) {
            end_stuck_process(b, since_ns);
        }
    }
    return NULL;
}

/* ---- the executor ---- */

static void *run_executor(void *argument)
{
    struct blocking *b = argument;

    (void)pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        struct collective_work *work = b->work;
        struct error err = {0};
        enum run_outcome outcome;

        if (!work || b->is_over) {
            (void)pthread_cond_wait(&b->changed, &b->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&b->lock);
        outcome = call_library(b, work, &err);
        (void)pthread_mutex_lock(&b->lock);
        b->outcome = outcome;
        b->error = err;
        b->is_over = true;
        (void)pthread_cond_broadcast(&b->changed);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Under the lock: wait for a change until until_ns; false when that has passed. */
static bool wait_for_change(struct blocking *b, int64_t until_ns)
{
    struct timespec until = condition_until(until_ns);

    return pthread_cond_timedwait(&b->changed, &b->lock, &until) != ETIMEDOUT;
}

/* Under the lock: give the operation to the executor, once that is free, and wait for its end. */
static enum run_outcome run_on_executor(struct blocking *b, struct collective_work *w,
                                        int64_t until_ns, struct error *err)
{
    for (;;) {
        if (!b->work) {
            b->work = w;
            b->is_over = false;
            (void)pthread_cond_broadcast(&b->changed);
        }
        if (b->work == w && b->is_over)
            break;
        if (until_ns <= clock_now_ns() || !wait_for_change(b, until_ns)) {
            if (b->work == w)
                sample_wait(b, w);
            return RUN_PENDING;
        }
    }
    b->work = NULL;
    (void)pthread_cond_broadcast(&b->changed);
    if (b->outcome == RUN_FAILED && err)
        *err = b->error;
    return b->outcome;
}

/* ---- lifetime ---- */

static enum status start_threads(struct collective *g, struct error *err)
{
    struct blocking *b;
    enum status status = mem_calloc(1, sizeof(*b), "threads of a group", &b, err);

    if (status != STATUS_OK)
        return status;
    b->group = g;
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_mutex_init(&b->examine_lock, NULL);
    condition_init(&b->changed);
    g->blocking = b;
    b->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (b->stop_fd < 0)
        return error_set_errno(err, errno, "group '%s': eventfd", g->name);
    b->has_watchdog = pthread_create(&b->watchdog, NULL, run_watchdog, b) == 0;
    b->has_executor = pthread_create(&b->executor, NULL, run_executor, b) == 0;
    if (!b->has_watchdog || !b->has_executor)
        return error_set(err, STATUS_NO_MEMORY, "group '%s': cannot start its threads", g->name);
    return STATUS_OK;
}

/* Does the executor leave the library by itself, or when it is interrupted? */
static bool executor_returns(struct blocking *b)
{
    bool is_free;

    (void)pthread_mutex_lock(&b->lock);
    if (b->work && !b->is_over && b->group->ops->interrupt) {
        int64_t until_ns = clock_deadline_ns(CLOSE_WAIT_MS);

        b->group->ops->interrupt(b->group);
        while (!b->is_over && wait_for_change(b, until_ns))
            ;
    }
    is_free = !b->work || b->is_over;
    if (is_free) {
        b->stop = true;
        (void)pthread_cond_broadcast(&b->changed);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return is_free;
}

bool collective_blocking_close(struct collective *group)
{
    struct blocking *b = group->blocking;
    uint64_t one = 1;

    if (!b)
        return true;
    if (b->has_watchdog && write(b->stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one))
        (void)pthread_join(b->watchdog, NULL);
    b->has_watchdog = false;
    if (b->has_executor && !executor_returns(b))
        return false;
    if (b->has_executor)
        (void)pthread_join(b->executor, NULL);
    if (b->stop_fd >= 0)
        (void)close(b->stop_fd);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    (void)pthread_mutex_destroy(&b->examine_lock);
    free(b);
    group->blocking = NULL;
    return true;
}

/* ---- running ---- */

static enum run_outcome count_library_bytes(struct collective_work *w, enum run_outcome outcome)
{
    struct collective *g = w->group;
    uint64_t tx;
    uint64_t rx;

    if (outcome != RUN_DONE)
        return outcome;
    g->ops->expected_bytes(g, &w->args, &tx, &rx);
    w->done_bytes = w->total_bytes = tx + rx;
    g->stats.operations++;
    g->stats.tx_payload_bytes += tx;
    g->stats.rx_payload_bytes += rx;
    g->stats.tx_wire_bytes += tx; /* the library's own headers are not visible */
    g->stats.rx_wire_bytes += rx;
    return RUN_DONE;
}

static enum run_outcome run_on_caller(struct blocking *b, struct collective_work *w,
                                      struct error *err)
{
    enum run_outcome outcome;

    atomic_store(&b->own, w);
    outcome = call_library(b, w, err);
    atomic_store(&b->own, NULL);
    if (atomic_load(&b->is_examining)) { /* wait until the watchdog is done with the operation */
        (void)pthread_mutex_lock(&b->examine_lock);
        (void)pthread_mutex_unlock(&b->examine_lock);
    }
    return outcome;
}

bool collective_blocking_holds(const struct collective *group, const struct collective_work *work)
{
    struct blocking *b = group->blocking;
    bool holds;

    if (!b)
        return false;
    (void)pthread_mutex_lock(&b->lock);
    holds = b->work == work && !b->is_over;
    (void)pthread_mutex_unlock(&b->lock);
    return holds;
}

enum run_outcome collective_blocking_run(struct collective *group, struct collective_work *work,
                                         int64_t until_ns, struct error *err)
{
    struct blocking *b;
    enum run_outcome outcome;
    bool is_elsewhere;

    if (!group->blocking && start_threads(group, err) != STATUS_OK)
        return RUN_FAILED;
    b = group->blocking;
    if (!work->begun && collective_call_is_pair(work->args.call)) {
        work->begun = true; /* starting a transfer does not block */
        outcome = group->ops->run(group, work, 0, err);
        if (outcome != RUN_PENDING)
            return count_library_bytes(work, outcome);
        if (until_ns <= clock_now_ns())
            return RUN_PENDING;
    }
    (void)pthread_mutex_lock(&b->lock);
    is_elsewhere = b->work != NULL || !group->no_deadline;
    outcome = is_elsewhere ? run_on_executor(b, work, until_ns, err) : RUN_PENDING;
    (void)pthread_mutex_unlock(&b->lock);
    if (!is_elsewhere)
        outcome = run_on_caller(b, work, err);
    return count_library_bytes(work, outcome);
}
