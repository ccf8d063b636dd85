/*
 * The state of links and of the synchronisation: failures, lost links, links that a call holds,
 * payloads that gRPC holds.  Calls no other source of ps.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "worker/sync/ps.h"

#include <time.h>

#define RELEASE_POLL_NS 100000 /* between looks at the outstanding sends */

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
    if (link->state == PS_LINK_AWAY) {
        if (link->broken.status == STATUS_OK)
            link->broken = *why;
    } else if (link->state == PS_LINK_UP && atomic_load(&link->joined) && may_return &&
               s->reconnect_ms > 0 && link->session != 0 && !s->failed && !s->giving_up) {
        link->state = PS_LINK_AWAY;
        link->loss = *why;
        link->lost_ns = clock_now_ns();
        (void)pthread_cond_signal(&s->tend);
    } else if (link->state == PS_LINK_UP) {
        link->state = PS_LINK_OVER;
        ps_fail(s, why);
    }
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

bool ps_hold_link(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns)
{
    struct timespec until = condition_until(deadline_ns);
    int late = 0;
    bool held;

    (void)pthread_mutex_lock(&s->lock);
    while (l->state == PS_LINK_AWAY && !s->giving_up && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    held = l->state == PS_LINK_UP && l->lanes[0].client; /* none: its first join ended badly */
    if (l->state == PS_LINK_OVER && l->lanes[0].client && atomic_load(&l->joined))
        held = atomic_exchange(&l->refused, false); /* once: nothing brings it back */
    l->busy = held;
    (void)pthread_mutex_unlock(&s->lock);
    return held;
}

void ps_let_go(struct sync_ps *s, struct ps_link *l)
{
    (void)pthread_mutex_lock(&s->lock);
    l->busy = false;
    (void)pthread_cond_signal(&s->tend);
    (void)pthread_mutex_unlock(&s->lock);
}

bool ps_wait_release(struct sync_ps *s, int64_t deadline_ns)
{
    struct timespec pause = {.tv_nsec = RELEASE_POLL_NS};

    while (atomic_load(&s->outstanding) > 0) {
        if (clock_now_ns() > deadline_ns)
            return false;
        (void)nanosleep(&pause, NULL); /* release functions may only touch atomics: no wake-up */
    }
    return true;
}

bool ps_may_repeat(const struct sync_ps *s)
{
    return s->catching_up || (s->round > 0 && s->round <= s->again_through);
}

void ps_replica_propose(struct sync_ps *s, struct ps_link *l, uint64_t epoch)
{
    uint64_t vote = l->replica_text[0] ? succession_worker_propose(&l->succession, epoch) : 0;

    if (vote == 0 || vote == l->vote_epoch)
        return;
    l->vote_epoch = vote;
    s->beat_soon = true;
    (void)pthread_cond_signal(&s->tend);
}
