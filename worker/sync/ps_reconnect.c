/*
 * Reconnection of a lost link, on a thread of its own.  Closes all old connections first, so that
 * no reply can arrive on them; then connects, joins as the same session, opens the streams, and
 * repeats every request without a reply.
 *
 * An attempt that fails because no server listens, or because the connection breaks again, is
 * repeated until reconnect_ms after the loss; any other error from the server ends the
 * reconnection, except, with a replica, NOT_FOUND from the primary.  With a replica the attempts
 * alternate between the two servers (ps_replica.c).
 *
 * Locking: while the link is RECONNECTING this thread owns its connections; `state`, `loss` and
 * `stream_error` are guarded by sync_ps.lock.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "worker/sync/ps.h"

#include <inttypes.h>

#define PAUSE_MS 50

static enum status try_reconnect(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns,
                                 struct error *err)
{
    enum status status;

    l->failed_by_peer = false;
    (void)pthread_mutex_lock(&s->lock);
    l->stream_error.status = STATUS_OK;
    (void)pthread_mutex_unlock(&s->lock);
    status = ps_link_open(l, err);
    if (status == STATUS_OK)
        status = ps_join(s, l, true, deadline_ns, err);
    if (status == STATUS_OK)
        status = ps_link_start(l, err);
    return status;
}

/* Let requests use the new streams, unless one of them has ended already. */
static enum status mark_up(struct sync_ps *s, struct ps_link *l, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    if (l->stream_error.status != STATUS_OK) {
        *err = l->stream_error;
        status = STATUS_PEER_LOST; /* for any error: the next join finds its kind */
    } else {
        int64_t away_ns = clock_now_ns() - l->lost_ns;

        l->state = PS_LINK_UP;
        l->waits_for_rank = false;
        l->connection_count++;
        s->counters.reconnects++;
        s->counters.away_ns += (uint64_t)away_ns;
        s->counters.takeovers += l->at_replica && !l->promoted;
        l->promoted = l->at_replica;
        s->extended_deadline_ns = clock_deadline_ns(s->timeout_ms + PS_MARGIN_MS);
    }
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

/* False: another attempt cannot succeed, or there is no time. */
static bool wait_before_retry(struct sync_ps *s, struct ps_link *l, enum status last,
                              int64_t deadline_ns)
{
    bool may_retry = ps_replica_may_retry(s, l, last);
    struct timespec until = condition_until(clock_deadline_ns(PAUSE_MS));
    bool again;
    int late = 0;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->reconnect_disabled && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    again = !s->reconnect_disabled && may_retry && clock_now_ns() < deadline_ns;
    (void)pthread_mutex_unlock(&s->lock);
    return again;
}

/* Fail with both errors: of the loss, and of the last attempt. */
static void abandon_link(struct sync_ps *s, struct ps_link *l, const struct error *last)
{
    struct error why = {0};

    (void)pthread_mutex_lock(&s->lock);
    (void)error_set(&why, l->loss.status, "%s; it did not come back within %" PRId64 " ms: %s",
                    l->loss.text, (clock_now_ns() - l->lost_ns) / 1000000, last->text);
    if (!ps_link_may_return(last->status, l->failed_by_peer))
        (void)error_set(&why, last->status, "%s (after: %s)", last->text, l->loss.text);
    l->state = PS_LINK_CLOSED;
    ps_fail(s, &why);
    (void)pthread_mutex_unlock(&s->lock);
}

static void mark_reconnect_done(struct sync_ps *s, struct ps_link *l)
{
    (void)pthread_mutex_lock(&s->lock);
    l->reconnect_done = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_cond_signal(&s->monitor_wake);
    (void)pthread_mutex_unlock(&s->lock);
}

void *ps_reconnect(void *link)
{
    struct ps_link *l = link;
    struct sync_ps *s = l->owner.user;
    const struct error loss = l->loss; /* constant while the link is RECONNECTING */
    int64_t lost_ns = l->lost_ns;
    int64_t deadline_ns = lost_ns + s->reconnect_ms * 1000000;
    struct error last = {0};
    bool was_promoted = l->promoted;
    unsigned count = 0;
    enum status status;

    do {
        ps_channel_drop(s, l);
        ps_link_shut(l);
        status = try_reconnect(s, l, ps_replica_select(s, l, count++, deadline_ns), &last);
        if (status == STATUS_OK)
            status = mark_up(s, l, &last);
    } while (status != STATUS_OK && wait_before_retry(s, l, status, deadline_ns));
    if (status == STATUS_OK) {
        log_warning("%s; %s after %" PRId64 " ms", loss.text,
                    l->promoted && !was_promoted ? "its replica has taken over" : "it is back",
                    (clock_now_ns() - lost_ns) / 1000000);
        ps_repeat_requests(s, l);
    } else {
        ps_channel_drop(s, l);
        ps_link_shut(l);
        abandon_link(s, l, &last);
    }
    mark_reconnect_done(s, l);
    return NULL;
}
