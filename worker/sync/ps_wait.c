/*
 * Waiting for answers: of a round, whole or in part, or for the final values.  Answers come on the
 * I/O threads, which signal `changed`; everything else that may end a wait (a failure, time that
 * servers grant) signals it, too.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/stop.h"
#include "common/base/strbuf.h"
#include "worker/sync/ps.h"

#include <inttypes.h>
#include <time.h>

#define STOP_LOOK_MS 200 /* between looks whether to stop, while others still train */

/* The server's name if answers of it are missing; of several lanes, with those that did not bring
 * them: "A (lanes 0, 2 of 3)".  Lock held. */
static void name_missing(const struct sync_ps *s, const struct ps_link *l, struct strbuf *names)
{
    const uint32_t *held;
    size_t length = shard_map_held(&s->map, l->index, &held);
    bool missing[WIRE_LANES_MAX] = {false};
    unsigned count = 0;

    for (size_t i = 0; i < length; i++)
        if (s->partitions[held[i]].answered != s->round + 1)
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
static enum status describe_timeout(const struct sync_ps *s, struct error *err)
{
    struct strbuf names = STRBUF_INIT;

    for (unsigned k = 0; k < s->link_count; k++)
        name_missing(s, &s->links[k], &names);
    (void)error_set(err, STATUS_TIMEOUT,
                    "rank %u: %zu of %zu partitions of round %" PRIu64
                    " did not come within %" PRId64 " ms from %s",
                    s->rank, s->map.length - s->received, s->map.length, s->round, s->timeout_ms,
                    names.text);
    strbuf_release(&names);
    return STATUS_TIMEOUT;
}

/* A link that is away is given its own time, and servers say when a round waits for a rank that
 * comes back or is replaced.  Lock held. */
static int64_t round_deadline(const struct sync_ps *s, int64_t deadline_ns)
{
    if (s->extended_ns > deadline_ns)
        deadline_ns = s->extended_ns;
    for (unsigned k = 0; k < s->link_count; k++) {
        const struct ps_link *l = &s->links[k];
        int64_t back_ns =
            l->state == PS_LINK_AWAY ? l->lost_ns + (s->reconnect_ms + s->timeout_ms) * 1000000 : 0;

        if (back_ns > deadline_ns)
            deadline_ns = back_ns;
    }
    return deadline_ns;
}

/* Is there a wait that may be long, for a link or for another rank?  Lock held. */
static bool is_held_up(const struct sync_ps *s)
{
    for (unsigned k = 0; k < s->link_count; k++) {
        const struct ps_link *l = &s->links[k];

        if (l->state == PS_LINK_AWAY || (l->state == PS_LINK_UP && l->waits))
            return true;
    }
    return false;
}

/* A step is made to its end before a request to stop is looked at, but not one that may take for
 * ever. Lock held. */
static bool is_to_stop(const struct sync_ps *s)
{
    return stop_requested() && is_held_up(s);
}

/* Lock held. */
static bool are_here(const struct sync_ps *s, size_t first, size_t end)
{
    if (end - first == s->map.length)
        return s->received == s->map.length;
    while (first < end && s->partitions[first].here == s->round + 1)
        first++;
    return first == end;
}

int64_t ps_deadline(const struct sync_ps *s)
{
    int64_t margin_ms = s->timeout_ms < PS_MARGIN_MS ? s->timeout_ms : PS_MARGIN_MS;

    return clock_deadline_ns(s->timeout_ms + margin_ms);
}

/* Why the wait has ended without the answers.  Lock held. */
static enum status describe_end(const struct sync_ps *s, struct error *err)
{
    if (s->failed)
        return error_set(err, s->failure.status, "%s", s->failure.text);
    if (is_to_stop(s))
        return error_set(err, STATUS_CANCELLED,
                         "stopped by signal %d while round %" PRIu64 " waited for a rank or server",
                         stop_requested(), s->round);
    return describe_timeout(s, err);
}

/* The next neighbours that are here and were not told of.  Lock held. */
static bool find_news(struct sync_ps *s, size_t *ret_first, size_t *ret_end)
{
    struct ps_partition *p = s->partitions;
    uint64_t mark = s->round + 1;
    size_t first, end;

    if (!s->arrived || s->round == 0 || s->told == s->received)
        return false;
    while (s->untold < s->map.length && p[s->untold].told == mark)
        s->untold++;
    first = s->untold;
    while (first < s->map.length && (p[first].here != mark || p[first].told == mark))
        first++;
    for (end = first; end < s->map.length && p[end].here == mark && p[end].told != mark; end++)
        p[end].told = mark;
    if (first == end)
        return false;
    s->told += end - first;
    *ret_first = first;
    *ret_end = end;
    return true;
}

/* Tell of all that is here.  Lock held on entry and return. */
static enum status tell(struct sync_ps *s, struct error *err)
{
    enum status status = STATUS_OK;
    size_t first, end;

    while (status == STATUS_OK && find_news(s, &first, &end)) {
        size_t from = s->map.partitions[first].offset;
        size_t to = s->map.partitions[end - 1].offset + s->map.partitions[end - 1].count;

        (void)pthread_mutex_unlock(&s->lock);
        status = s->arrived(s->user, from, to - from, err);
        (void)pthread_mutex_lock(&s->lock);
    }
    return status;
}

enum status ps_wait(struct sync_ps *s, size_t first, size_t end, int64_t deadline_ns,
                    struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    s->awaited = end - first < s->map.length || s->arrived;
    status = tell(s, err);
    while (status == STATUS_OK && !are_here(s, first, end) && !s->failed && !is_to_stop(s) &&
           clock_now_ns() < round_deadline(s, deadline_ns)) {
        int64_t look_ns = clock_deadline_ns(STOP_LOOK_MS);
        int64_t until_ns = round_deadline(s, deadline_ns);
        struct timespec until = condition_until(look_ns < until_ns ? look_ns : until_ns);

        (void)pthread_cond_timedwait(&s->changed, &s->lock, &until);
        status = tell(s, err);
    }
    s->awaited = false;
    if (status == STATUS_OK && !are_here(s, first, end))
        status = describe_end(s, err);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

enum status ps_wait_others(struct sync_ps *s, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    while (s->received < s->map.length && !s->failed && !stop_requested()) {
        struct timespec look = condition_until(clock_deadline_ns(STOP_LOOK_MS));

        (void)pthread_cond_timedwait(&s->changed, &s->lock, &look);
    }
    if (s->received < s->map.length)
        status = s->failed ? error_set(err, s->failure.status, "%s", s->failure.text)
                           : error_set(err, STATUS_CANCELLED,
                                       "stopped by signal %d while other ranks still trained",
                                       stop_requested());
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}
