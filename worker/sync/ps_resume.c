/*
 * The way back of a lost link.  What is left of the old connections is closed first, all of it, so
 * that no answer of theirs can come any more.  Then: connect, join as the session that was cut off,
 * open the lanes, and put every question again that has no answer.  An attempt that fails because
 * nobody is there, or because the connection breaks again, is repeated until reconnect_ms after the
 * loss; any other answer of the server ends it.  A server that is kept twice is looked for at both
 * places (ps_replica.c).
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "worker/sync/ps.h"

#include <inttypes.h>

#define PAUSE_MS 50

static enum status attempt(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns,
                           struct error *err)
{
    enum status status;

    l->told = false;
    (void)pthread_mutex_lock(&s->lock);
    l->broken.status = STATUS_OK;
    (void)pthread_mutex_unlock(&s->lock);
    status = ps_link_open(l, err);
    if (status == STATUS_OK)
        status = ps_join(s, l, true, deadline_ns, err);
    if (status == STATUS_OK)
        status = ps_link_start(l, err);
    return status;
}

/* From here on chunks go up on the new streams; unless one of them is over already. */
static enum status come_up(struct sync_ps *s, struct ps_link *l, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    if (l->broken.status != STATUS_OK) {
        *err = l->broken;
        status = STATUS_PEER_LOST; /* of whatever kind: the next join tells */
    } else {
        int64_t away_ns = clock_now_ns() - l->lost_ns;

        l->state = PS_LINK_UP;
        l->waits = false;
        l->connections++;
        s->counters.reconnects++;
        s->counters.away_ns += (uint64_t)away_ns;
        s->counters.takeovers += l->at_replica && !l->promoted;
        l->promoted = l->at_replica;
        s->extended_ns = clock_deadline_ns(s->timeout_ms + PS_MARGIN_MS);
    }
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

/* False: there is no use in another attempt, or no time. */
static bool pause_between(struct sync_ps *s, struct ps_link *l, enum status last,
                          int64_t deadline_ns)
{
    bool may_retry = ps_replica_may_retry(s, l, last);
    struct timespec until = condition_until(clock_deadline_ns(PAUSE_MS));
    bool again;
    int late = 0;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->giving_up && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    again = !s->giving_up && may_retry && clock_now_ns() < deadline_ns;
    (void)pthread_mutex_unlock(&s->lock);
    return again;
}

/* The first loss says what happened, the last attempt why there is no way back. */
static void give_up(struct sync_ps *s, struct ps_link *l, const struct error *last)
{
    struct error why = {0};

    (void)pthread_mutex_lock(&s->lock);
    (void)error_set(&why, l->loss.status, "%s; it did not come back within %" PRId64 " ms: %s",
                    l->loss.text, (clock_now_ns() - l->lost_ns) / 1000000, last->text);
    if (!ps_link_may_return(last->status, l->told))
        (void)error_set(&why, last->status, "%s (after: %s)", last->text, l->loss.text);
    l->state = PS_LINK_OVER;
    ps_fail(s, &why);
    (void)pthread_mutex_unlock(&s->lock);
}

static void finish(struct sync_ps *s, struct ps_link *l)
{
    (void)pthread_mutex_lock(&s->lock);
    l->resumed = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_cond_signal(&s->tend);
    (void)pthread_mutex_unlock(&s->lock);
}

void *ps_resume(void *link)
{
    struct ps_link *l = link;
    struct sync_ps *s = l->owner.user;
    const struct error loss = l->loss; /* stays while the link is AWAY */
    int64_t lost_ns = l->lost_ns;
    int64_t deadline_ns = lost_ns + s->reconnect_ms * 1000000;
    struct error last = {0};
    bool was_promoted = l->promoted;
    unsigned count = 0;
    enum status status;

    do {
        ps_link_shut(l);
        status = attempt(s, l, ps_replica_aim(s, l, count++, deadline_ns), &last);
        if (status == STATUS_OK)
            status = come_up(s, l, &last);
    } while (status != STATUS_OK && pause_between(s, l, status, deadline_ns));
    if (status == STATUS_OK) {
        log_warning("%s; %s after %" PRId64 " ms", loss.text,
                    l->promoted && !was_promoted ? "its replica has taken over" : "it is back",
                    (clock_now_ns() - lost_ns) / 1000000);
        ps_ask_again(s, l);
    } else {
        ps_link_shut(l);
        give_up(s, l, &last);
    }
    finish(s, l);
    return NULL;
}
