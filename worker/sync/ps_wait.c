/*
 * Waits of the training thread: for the replies of a round, all or some, or for the final values.
 * Replies through channels it receives itself, as long as they follow one another closely.
 * I/O threads store all others and signal `changed`; so does every other event that may end a wait
 * (a failure, a link's state).  A request to stop the process signals nothing and is polled.
 *
 * Locking: sync_ps.lock, released during the call of `arrived`.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/stop.h"
#include "common/base/strbuf.h"
#include "worker/sync/ps.h"

#include <inttypes.h>
#include <sched.h>
#include <time.h>

#define STOP_POLL_MS 200 /* between polls for a request to stop */

/* Append the server's name if replies from it are missing; with several lanes, also the lanes:
 * "A (lanes 0, 2 of 3)".  Lock held. */
static void append_missing_lanes(const struct sync_ps *s, const struct ps_link *l,
                                 struct strbuf *names)
{
    const uint32_t *held;
    size_t length = shard_map_held(&s->map, l->index, &held);
    bool missing[WIRE_LANES_MAX] = {false};
    unsigned count = 0;

    for (size_t i = 0; i < length; i++)
        if (s->partitions[held[i]].replied_mark != s->round + 1)
            missing[s->map.partitions[held[i]].local_index % l->lane_count] = true;
    for (unsigned lane = 0; lane < l->lane_count; lane++) {
        if (!missing[lane])
            continue;
        if (count == 0)
            strbuf_addf(names, "%s%s", names->length ? ", " : "", l->name);
        if (l->lane_count > 1)
            strbuf_addf(names, "%s%u", count == 0 ? " (lanes " : ", ", lane);
        count++;
    }
    if (count > 0 && l->lane_count > 1)
        strbuf_addf(names, " of %u)", l->lane_count);
}

/* "2 of 8 partitions of round 7 did not come ... from A, B".  Lock held. */
static enum status set_timeout_error(const struct sync_ps *s, struct error *err)
{
    struct strbuf names = STRBUF_INIT;

    for (unsigned k = 0; k < s->link_count; k++)
        append_missing_lanes(s, &s->links[k], &names);
    (void)error_set(err, STATUS_TIMEOUT,
                    "rank %u: %zu of %zu partitions of round %" PRIu64
                    " did not come within %" PRId64 " ms from %s",
                    s->rank, s->map.length - s->received, s->map.length, s->round, s->timeout_ms,
                    names.text);
    strbuf_release(&names);
    return STATUS_TIMEOUT;
}

/* deadline_ns, extended while a link reconnects, and by servers that wait for a rank's return or
 * replacement.  Lock held. */
static int64_t round_deadline(const struct sync_ps *s, int64_t deadline_ns)
{
    if (s->extended_deadline_ns > deadline_ns)
        deadline_ns = s->extended_deadline_ns;
    for (unsigned k = 0; k < s->link_count; k++) {
        const struct ps_link *l = &s->links[k];
        int64_t back_ns = l->state == PS_LINK_RECONNECTING
                              ? l->lost_ns + (s->reconnect_ms + s->timeout_ms) * 1000000
                              : 0;

        if (back_ns > deadline_ns)
            deadline_ns = back_ns;
    }
    return deadline_ns;
}

/* Does a link reconnect, or a server wait for another rank?  Lock held. */
static bool may_wait_long(const struct sync_ps *s)
{
    for (unsigned k = 0; k < s->link_count; k++) {
        const struct ps_link *l = &s->links[k];

        if (l->state == PS_LINK_RECONNECTING || (l->state == PS_LINK_UP && l->waits_for_rank))
            return true;
    }
    return false;
}

/* A request to stop interrupts steps that may take long at once, others when they take long.  Lock
 * held. */
static bool should_stop(const struct sync_ps *s)
{
    return stop_requested() && (may_wait_long(s) || stop_ends_waits());
}

/* Lock held. */
static bool have_arrived(const struct sync_ps *s, size_t first, size_t end)
{
    if (end - first == s->map.length)
        return s->received == s->map.length;
    while (first < end && s->partitions[first].stored_mark == s->round + 1)
        first++;
    return first == end;
}

int64_t ps_deadline(const struct sync_ps *s)
{
    int64_t margin_ms = s->timeout_ms < PS_MARGIN_MS ? s->timeout_ms : PS_MARGIN_MS;

    return clock_deadline_ns(s->timeout_ms + margin_ms);
}

/* The reason why the wait has ended without the replies.  Lock held. */
static enum status set_wait_error(const struct sync_ps *s, struct error *err)
{
    if (s->failed)
        return error_set(err, s->failure.status, "%s", s->failure.text);
    if (should_stop(s))
        return error_set(err, STATUS_CANCELLED,
                         "stopped by signal %d while round %" PRIu64 " waited for a rank or server",
                         stop_requested(), s->round);
    return set_timeout_error(s, err);
}

/* Find the next range of adjacent partitions that are stored and not notified, and mark them as
 * notified.  Lock held. */
static bool next_unnotified_range(struct sync_ps *s, size_t *ret_first, size_t *ret_end)
{
    struct ps_partition *p = s->partitions;
    uint64_t mark = s->round + 1;
    size_t first, end;

    if (!s->arrived || s->round == 0 || s->notified_count == s->received)
        return false;
    while (s->first_unnotified < s->map.length && p[s->first_unnotified].notified_mark == mark)
        s->first_unnotified++;
    first = s->first_unnotified;
    while (first < s->map.length &&
           (p[first].stored_mark != mark || p[first].notified_mark == mark))
        first++;
    for (end = first;
         end < s->map.length && p[end].stored_mark == mark && p[end].notified_mark != mark; end++)
        p[end].notified_mark = mark;
    if (first == end)
        return false;
    s->notified_count += end - first;
    *ret_first = first;
    *ret_end = end;
    return true;
}

/* Call `arrived` for all stored partitions.  Lock held on entry and return. */
static enum status notify_arrivals(struct sync_ps *s, struct error *err)
{
    enum status status = STATUS_OK;
    size_t first, end;

    while (status == STATUS_OK && next_unnotified_range(s, &first, &end)) {
        size_t from = s->map.partitions[first].offset;
        size_t to = s->map.partitions[end - 1].offset + s->map.partitions[end - 1].count;

        (void)pthread_mutex_unlock(&s->lock);
        status = s->arrived(s->user, from, to - from, err);
        (void)pthread_mutex_lock(&s->lock);
    }
    return status;
}

/* Receive from channels on this thread, until poll_until_ns without a reply.  Lock held on entry
 * and return. */
static void poll_channels(struct sync_ps *s, int64_t *poll_until_ns)
{
    (void)pthread_mutex_unlock(&s->lock);
    if (ps_channel_receive(s))
        *poll_until_ns = polling_until_ns(&s->reader.polling, clock_now_ns());
    else
        (void)sched_yield();
    (void)pthread_mutex_lock(&s->lock);
}

/* The same. */
static void end_polling(struct sync_ps *s, bool found)
{
    polling_ended(&s->reader.polling, found);
    (void)pthread_mutex_unlock(&s->lock);
    ps_channel_end(s);
    (void)pthread_mutex_lock(&s->lock);
}

/* Sleep until something changes, but look for a request to stop.  Lock held. */
static void sleep_until_change(struct sync_ps *s, int64_t deadline_ns)
{
    int64_t poll_ns = clock_deadline_ns(STOP_POLL_MS);
    int64_t until_ns = round_deadline(s, deadline_ns);
    struct timespec until = condition_until(poll_ns < until_ns ? poll_ns : until_ns);

    (void)pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

enum status ps_wait(struct sync_ps *s, size_t first, size_t end, int64_t deadline_ns,
                    struct error *err)
{
    int64_t poll_until_ns = polling_until_ns(&s->reader.polling, clock_now_ns());
    enum status status;
    bool polls;

    (void)pthread_mutex_lock(&s->lock);
    s->signal_each_partition = end - first < s->map.length || s->arrived;
    status = notify_arrivals(s, err);
    polls = !have_arrived(s, first, end) && ps_channel_begin(s);
    while (status == STATUS_OK && !have_arrived(s, first, end) && !s->failed && !should_stop(s) &&
           clock_now_ns() < round_deadline(s, deadline_ns)) {
        if (polls && clock_now_ns() >= poll_until_ns) {
            end_polling(s, false);
            polls = false;
        } else if (polls) {
            poll_channels(s, &poll_until_ns);
        } else {
            sleep_until_change(s, deadline_ns);
        }
        status = notify_arrivals(s, err);
    }
    if (polls)
        end_polling(s, true);
    s->signal_each_partition = false;
    if (status == STATUS_OK && !have_arrived(s, first, end))
        status = set_wait_error(s, err);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

enum status ps_wait_final(struct sync_ps *s, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    while (s->received < s->map.length && !s->failed && !stop_requested()) {
        struct timespec poll = condition_until(clock_deadline_ns(STOP_POLL_MS));

        (void)pthread_cond_timedwait(&s->changed, &s->lock, &poll);
    }
    if (s->received < s->map.length)
        status = s->failed ? error_set(err, s->failure.status, "%s", s->failure.text)
                           : error_set(err, STATUS_CANCELLED,
                                       "stopped by signal %d while other ranks still trained",
                                       stop_requested());
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}
