/*
 * State of the links and of the synchronisation: failures, lost links, links acquired for calls.
 * Guarded by sync_ps.lock.  Calls no other source of ps.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "worker/sync/ps.h"

void ps_fail(struct sync_ps *s, const struct error *why)
{
    if (!s->closing && !s->failed) {
        s->failed = true;
        s->failure = *why;
    }
    (void)pthread_cond_broadcast(&s->changed);
}

void ps_link_closed(void *user, struct ps_link *link, const struct error *why, bool may_return)
{
    struct sync_ps *s = user;

    (void)pthread_mutex_lock(&s->lock);
    if (link->state == PS_LINK_RECONNECTING) {
        if (link->stream_error.status == STATUS_OK)
            link->stream_error = *why;
    } else if (link->state == PS_LINK_UP && atomic_load(&link->joined) && may_return &&
               s->reconnect_ms > 0 && link->session != 0 && !s->failed && !s->reconnect_disabled) {
        link->state = PS_LINK_RECONNECTING;
        link->loss = *why;
        link->lost_ns = clock_now_ns();
        (void)pthread_cond_signal(&s->monitor_wake);
    } else if (link->state == PS_LINK_UP) {
        link->state = PS_LINK_CLOSED;
        ps_fail(s, why);
    }
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

bool ps_acquire_link(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns)
{
    struct timespec until = condition_until(deadline_ns);
    int late = 0;
    bool acquired;

    (void)pthread_mutex_lock(&s->lock);
    while (l->state == PS_LINK_RECONNECTING && !s->reconnect_disabled && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    acquired = l->state == PS_LINK_UP && l->lanes[0].client; /* NULL: its first join failed */
    if (l->state == PS_LINK_CLOSED && l->lanes[0].client && atomic_load(&l->joined))
        acquired = atomic_exchange(&l->reply_rejected, false); /* once: it never reconnects */
    l->in_use = acquired;
    (void)pthread_mutex_unlock(&s->lock);
    return acquired;
}

void ps_release_link(struct sync_ps *s, struct ps_link *l)
{
    (void)pthread_mutex_lock(&s->lock);
    l->in_use = false;
    (void)pthread_cond_signal(&s->monitor_wake);
    (void)pthread_mutex_unlock(&s->lock);
}

bool ps_may_repeat(const struct sync_ps *s)
{
    return s->catching_up || (s->round > 0 && s->round <= s->repeat_through_round);
}

void ps_replica_propose(struct sync_ps *s, struct ps_link *l, uint64_t epoch)
{
    uint64_t vote = l->replica_text[0] ? succession_worker_propose(&l->succession, epoch) : 0;

    if (vote == 0 || vote == l->vote_epoch)
        return;
    l->vote_epoch = vote;
    s->heartbeat_due = true;
    (void)pthread_cond_signal(&s->monitor_wake);
}
