/*
 * child_set_ends: classifies the end of a child: a failure, of which the first one ends the job; a
 * rank loss that the job tolerates; a loss after which the child is restarted; a loss of a server
 * whose replica goes on, or of a replica.
 */
#include "experiments/launch/child_set_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <string.h>

#define BLAME_WINDOW_MS 20
#define BLAME_LIMIT_MS  2000

/* Killed by a signal that is not sent to stop a program, nor raised by a library that aborts. */
static bool crashed(const struct child *child)
{
    static const int signals[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (child->signaled && child->code == signals[i])
            return true;
    return false;
}

/* Ended as a program does that gets the signal: ours exit with the code of STATUS_CANCELLED. */
static bool obeyed_stop(const struct child_set *c, const struct child *child)
{
    int code = child_exit_code(child);

    return code == 128 + c->stop_signal || code == status_exit_code(STATUS_CANCELLED);
}

static bool replaces_suspect(const struct child_set *c, const struct child *child)
{
    if (crashed(child) || crashed(c->suspect))
        return !crashed(c->suspect);
    return c->suspect_after_stop && obeyed_stop(c, child) && !obeyed_stop(c, c->suspect);
}

static void record_failure(struct child_set *c, const struct child *child)
{
    if (!c->suspect) {
        c->suspect = child;
        c->suspect_after_stop = c->stop_signal != 0;
        c->blame_deadline_ns = c->suspect_after_stop
                                   ? INT64_MAX
                                   : clock_deadline_ns(c->stopping ? 0 : BLAME_WINDOW_MS);
        c->blame_limit_ns = clock_deadline_ns(c->stopping ? 0 : BLAME_LIMIT_MS);
    } else if (replaces_suspect(c, child)) {
        c->suspect = child;
    }
}

static bool any_rank_runs(const struct child_set *c)
{
    for (size_t i = c->servers; i < c->count; i++)
        if (c->children[i].state == CHILD_RUNNING)
            return true;
    return false;
}

static bool any_child_is_exiting(const struct child_set *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (child_is_exiting(&c->children[i]))
            return true;
    return false;
}

static bool is_blame_settled(struct child_set *c)
{
    const bool is_window_over = clock_now_ns() >= c->blame_deadline_ns;

    if (!is_window_over && any_rank_runs(c))
        return false;
    if (c->blame_deadline_ns >= c->blame_limit_ns && is_window_over)
        return true;
    if (!any_child_is_exiting(c))
        return true;
    if (is_window_over)
        c->blame_deadline_ns = clock_deadline_ns(BLAME_WINDOW_MS);
    return false;
}

void child_set_declare_first_failure(struct child_set *c)
{
    char name[64];
    char end[64];

    if (!c->suspect || c->first_failed || !is_blame_settled(c))
        return;
    child_name(c->suspect, name, sizeof(name));
    child_end_text(c->suspect, end, sizeof(end));
    if (c->stop_signal != 0)
        log_info("%s ended after SIG%s: %s", name, sigabbrev_np(c->stop_signal), end);
    else if (c->timed_out)
        log_info("%s ended after the time limit: %s", name, end);
    else
        log_error("%s failed first: %s", name, end);
    c->first_failed = c->suspect;
    c->blame_deadline_ns = INT64_MAX;
    if (!c->stopping)
        child_set_stop_ranks(c, SIGTERM);
}

/* Killed by a signal, or a shell whose command was (exit code 128 + signal). */
static bool was_killed(const struct child *child)
{
    return child->signaled || child->code > 128;
}

static bool is_usage_error(const struct child *child)
{
    return !child->signaled && (child->code == status_exit_code(STATUS_INVALID) ||
                                child->code == status_exit_code(STATUS_CONFIG));
}

/* May the child be restarted?  Only a killed rank: one that exited by itself would fail again for
 * the same reason.  A durable server however it ended, except after a usage error. */
static bool may_restart(const struct child_set *c, const struct child *child, bool is_server)
{
    if (c->restarts_left == 0 || c->stopping || c->servers_may_end || c->first_failed)
        return false;
    return is_server ? c->durable && !is_usage_error(child)
                     : c->tolerates_rank_loss && c->ended_well == 0 && was_killed(child);
}

static void schedule_restart(struct child_set *c, struct child *child)
{
    char name[64];
    char end[64];

    c->restarts_left--;
    child->restarts++;
    child->to_restart = true;
    child_name(child, name, sizeof(name));
    child_end_text(child, end, sizeof(end));
    log_warning("%s is lost: %s; started again (%u restarts left)", name, end, c->restarts_left);
}

/* A loss that the job tolerates.  A usage error is none: the other ranks have the same command line
 * and configuration. */
static bool is_loss(const struct child_set *c, const struct child *child)
{
    return c->tolerates_rank_loss && !c->stopping && c->count - c->servers > 1 &&
           !is_usage_error(child);
}

static void record_rank_loss(struct child_set *c, const struct child *child)
{
    char name[64];
    char end[64];

    child_name(child, name, sizeof(name));
    child_end_text(child, end, sizeof(end));
    log_warning("%s is lost: %s; the others go on", name, end);
    c->lost++;
    if (!c->first_lost)
        c->first_lost = child;
}

/* A server or replica whose counterpart is running. */
static bool has_running_partner(const struct child_set *c, const struct child *child)
{
    size_t index = (size_t)(child - c->children);

    return index < 2 * c->replica_pairs && !c->stopping && !c->servers_may_end &&
           c->children[index < c->replica_pairs ? index + c->replica_pairs
                                                : index - c->replica_pairs]
                   .state == CHILD_RUNNING;
}

static void log_lost_partner(const struct child_set *c, const struct child *child)
{
    bool was_first = (size_t)(child - c->children) < c->replica_pairs;
    char name[64];
    char end[64];

    child_name(child, name, sizeof(name));
    child_end_text(child, end, sizeof(end));
    log_warning("%s is lost: %s; %s goes on", name, end,
                was_first ? "its replica" : "the server whose replica it was");
}

void child_set_handle_end(struct child_set *c, struct child *child)
{
    bool is_server = child < c->children + c->servers;
    char name[64];
    char end[64];

    if (c->closing)
        return;
    if ((is_server || child_failed(child)) && may_restart(c, child, is_server)) {
        schedule_restart(c, child);
        return;
    }
    if (is_server && has_running_partner(c, child)) {
        log_lost_partner(c, child);
        return;
    }
    if (!is_server && !child_failed(child))
        c->ended_well++;
    if (!is_server && child_failed(child) && is_loss(c, child)) {
        record_rank_loss(c, child);
        return;
    }
    if (is_server && c->servers_may_end && child_failed(child)) {
        child_name(child, name, sizeof(name));
        child_end_text(child, end, sizeof(end));
        log_error("%s failed when it was told to stop: %s", name, end);
        if (!c->first_failed)
            c->first_failed = child;
    } else if (!c->first_failed &&
               (child_failed(child) || (is_server && !c->servers_may_end && !c->stopping))) {
        record_failure(c, child);
    }
}
