/*
 * The waits are a list, the innermost first, under the monitor's lock.  While the list is not empty
 * the monitor thread checks the clock and the stop flag ten times a second; otherwise it sleeps.
 */
#include "common/base/wait.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "common/base/progress.h"
#include "common/base/stop.h"
#include "common/base/thread.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHOW_AFTER_NS INT64_C(3000000000)
#define REDRAW_NS     INT64_C(1000000000)
#define POLL_MS       100
#define STOP_GRACE_NS INT64_C(500000000) /* for a wait to end by itself */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    pthread_t owner; /* the thread that started the monitor */
    bool runs, ends;
    struct wait *innermost, *outermost;
    bool is_terminal;
    bool is_shown; /* the line of the outermost wait has been written */
    int64_t drawn_ns;
    int64_t stopped_ns; /* when a stop that interrupts waits was first seen; 0: not yet */
} monitor = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Lock held. */
static void format_wait(char *text, size_t size)
{
    const struct wait *w = monitor.outermost;
    int64_t now_ns = clock_now_ns();
    const char *reason = "";
    char limit[48] = "";

    for (const struct wait *in = monitor.innermost; in && !reason[0]; in = in->outer)
        reason = in->reason;
    if (w->limit_ns != INT64_MAX)
        (void)snprintf(limit, sizeof(limit), " of %jd",
                       (intmax_t)((w->limit_ns + 500000000) / 1000000000));
    (void)snprintf(text, size, "waiting for %s%s%s%s, %jd s%s", w->what, reason[0] ? " (" : "",
                   reason, reason[0] ? ")" : "", (intmax_t)((now_ns - w->since_ns) / 1000000000),
                   limit);
}

/* Lock held. */
static void show_outermost(void)
{
    int64_t now_ns = clock_now_ns();
    char text[700];

    if (now_ns - monitor.outermost->since_ns < SHOW_AFTER_NS)
        return;
    if (monitor.is_shown && (!monitor.is_terminal || now_ns - monitor.drawn_ns < REDRAW_NS))
        return;
    format_wait(text, sizeof(text));
    if (monitor.is_terminal)
        progress_draw(text);
    else
        log_info("%s", text);
    monitor.is_shown = true;
    monitor.drawn_ns = now_ns;
}

/* Lock held. */
static void clear_line(void)
{
    if (monitor.is_shown && monitor.is_terminal)
        progress_draw("");
    monitor.is_shown = false;
}

/* Most waits poll for a stop and return.  End the process when one does not.  Lock held. */
static void exit_if_stopped(void)
{
    struct error err = {0};

    if (!stop_ends_waits()) {
        monitor.stopped_ns = 0;
        return;
    }
    if (monitor.stopped_ns == 0)
        monitor.stopped_ns = clock_now_ns();
    if (clock_now_ns() - monitor.stopped_ns < STOP_GRACE_NS)
        return;
    clear_line();
    (void)error_set(&err, STATUS_CANCELLED, "stopped by signal %d while waiting for %s",
                    stop_requested(), monitor.outermost->what);
    _exit(log_failure(&err));
}

static void *monitor_main(void *unused)
{
    (void)pthread_mutex_lock(&monitor.lock);
    while (!monitor.ends) {
        if (monitor.outermost) {
            struct timespec next = condition_until(clock_deadline_ns(POLL_MS));

            show_outermost();
            exit_if_stopped();
            (void)pthread_cond_timedwait(&monitor.changed, &monitor.lock, &next);
        } else {
            (void)pthread_cond_wait(&monitor.changed, &monitor.lock);
        }
    }
    (void)pthread_mutex_unlock(&monitor.lock);
    return unused;
}

void wait_begin(struct wait *w, int64_t deadline_ns, const char *what, ...)
{
    va_list args;

    w->is_listed = monitor.runs && pthread_equal(pthread_self(), monitor.owner) != 0;
    if (!w->is_listed)
        return;
    w->reason[0] = '\0';
    w->since_ns = clock_now_ns();
    w->limit_ns = deadline_ns == INT64_MAX ? INT64_MAX : deadline_ns - w->since_ns;
    va_start(args, what);
    (void)vsnprintf(w->what, sizeof(w->what), what, args);
    va_end(args);
    (void)pthread_mutex_lock(&monitor.lock);
    w->outer = monitor.innermost;
    monitor.innermost = w;
    if (!monitor.outermost) {
        monitor.outermost = w;
        monitor.stopped_ns = 0;
        (void)pthread_cond_signal(&monitor.changed);
    }
    (void)pthread_mutex_unlock(&monitor.lock);
}

void wait_note(struct wait *w, const char *reason, ...)
{
    va_list args;

    if (!w->is_listed)
        return;
    (void)pthread_mutex_lock(&monitor.lock);
    va_start(args, reason);
    (void)vsnprintf(w->reason, sizeof(w->reason), reason, args);
    va_end(args);
    (void)pthread_mutex_unlock(&monitor.lock);
}

void wait_end(struct wait *w)
{
    if (!w->is_listed)
        return;
    (void)pthread_mutex_lock(&monitor.lock);
    monitor.innermost = w->outer;
    if (monitor.outermost == w) {
        clear_line();
        monitor.outermost = NULL;
    }
    (void)pthread_mutex_unlock(&monitor.lock);
}

enum status wait_monitor_start(struct error *err)
{
    int failed;

    condition_init(&monitor.changed);
    monitor.is_terminal = progress_can_draw();
    failed = thread_start(&monitor.thread, monitor_main, NULL);
    if (failed != 0)
        return error_set_errno(err, failed, "cannot start the monitor of waits");
    monitor.owner = pthread_self();
    monitor.runs = true;
    return STATUS_OK;
}

void wait_monitor_stop(void)
{
    if (!monitor.runs)
        return;
    (void)pthread_mutex_lock(&monitor.lock);
    clear_line();
    monitor.ends = true;
    (void)pthread_cond_signal(&monitor.changed);
    (void)pthread_mutex_unlock(&monitor.lock);
    (void)pthread_join(monitor.thread, NULL);
    monitor.runs = false;
}
