/*
 * crew_ends: what the end of a child means: a failure, of which the first one ends the job; a loss
 * that the others bear; one that another process makes good.
 */
#include "experiments/launch/crew_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <string.h>

#define VERDICT_MS 20

/* Ended by a signal that nobody sends in order to stop a program, nor a library to give up. */
static bool crashed(const struct child *child)
{
    static const int signals[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (child->signaled && child->code == signals[i])
            return true;
    return false;
}

static void note_failure(struct crew *c, const struct child *child)
{
    if (!c->suspect) {
        c->suspect = child;
        c->verdict_at_ns = clock_deadline_ns(c->stopping ? 0 : VERDICT_MS);
    } else if (crashed(child) && !crashed(c->suspect)) {
        c->suspect = child;
    }
}

void crew_pass_verdict(struct crew *c)
{
    char name[64];
    char end[64];

    if (!c->suspect || c->first_failed ||
        (clock_now_ns() < c->verdict_at_ns && crew_any_active(c, c->servers, c->count)))
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
    c->verdict_at_ns = INT64_MAX;
    if (!c->stopping)
        crew_stop_ranks(c, SIGTERM);
}

/* Killed, also where a shell says so of what it ran. */
static bool was_killed(const struct child *child)
{
    return child->signaled || child->code > 128;
}

static bool is_usage(const struct child *child)
{
    return !child->signaled && (child->code == status_exit_code(STATUS_INVALID) ||
                                child->code == status_exit_code(STATUS_CONFIG));
}

/* A lost child whose place another process may take.  A rank that ended by itself had a reason,
 * which it would meet again; a server that was told to stop had none of its own. */
static bool may_restart(const struct crew *c, const struct child *child, bool is_server)
{
    if (c->restarts_left == 0 || c->stopping || c->servers_may_end || c->first_failed)
        return false;
    return is_server ? c->durable && !is_usage(child)
                     : c->tolerant && c->ended_well == 0 && was_killed(child);
}

static void note_restart(struct crew *c, struct child *child)
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

/* A rank that a tolerant job can do without: not one that says that its command line or
 * configuration is wrong, as those of the others will be. */
static bool is_loss(const struct crew *c, const struct child *child)
{
    return c->tolerant && !c->stopping && c->count - c->servers > 1 && !is_usage(child);
}

static void note_loss(struct crew *c, const struct child *child)
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

/* One of two servers, of which the other is there. */
static bool is_spare(const struct crew *c, const struct child *child)
{
    size_t place = (size_t)(child - c->children);

    return place < 2 * c->pairs && !c->stopping && !c->servers_may_end &&
           c->children[place < c->pairs ? place + c->pairs : place - c->pairs].state ==
               CHILD_RUNNING;
}

static void note_spare(const struct crew *c, const struct child *child)
{
    bool was_first = (size_t)(child - c->children) < c->pairs;
    char name[64];
    char end[64];

    child_name(child, name, sizeof(name));
    child_end_text(child, end, sizeof(end));
    log_warning("%s is lost: %s; %s goes on", name, end,
                was_first ? "its replica" : "the server whose replica it was");
}

void crew_note_end(struct crew *c, struct child *child)
{
    bool is_server = child < c->children + c->servers;
    char name[64];
    char end[64];

    if (c->closing)
        return;
    if ((is_server || child_failed(child)) && may_restart(c, child, is_server)) {
        note_restart(c, child);
        return;
    }
    if (is_server && is_spare(c, child)) {
        note_spare(c, child);
        return;
    }
    if (!is_server && !child_failed(child))
        c->ended_well++;
    if (!is_server && child_failed(child) && is_loss(c, child)) {
        note_loss(c, child);
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
        note_failure(c, child);
    }
}
