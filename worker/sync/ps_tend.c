/*
 * The tender: one thread per synchronisation that beats on every link, so that a long computation
 * is not taken for a dead worker; judges the silence of servers; and has each lost link brought
 * back by a thread of its own, because that may take a while and other links must not fall silent.
 *
 * Silence is counted in beats of ours without anything heard, not in time: a process that was
 * stopped or got no core has not listened either.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "worker/sync/ps.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define INTERRUPT_MS 20 /* between interruptions of a resumer that has begun another call */

/* ------------------------------------------------------------------ losses */

/* Take leave of what has brought a link back, or start it for a lost one.  Lock held on entry and
 * return; true: it was let go meanwhile. */
static bool see_off(struct sync_ps *s, struct ps_link *l)
{
    int failed;

    if (l->resuming && l->resumed) {
        (void)pthread_mutex_unlock(&s->lock);
        (void)pthread_join(l->resumer, NULL);
        (void)pthread_mutex_lock(&s->lock);
        l->resuming = false;
        return true;
    }
    if (l->state == PS_LINK_AWAY && l->busy) { /* by a call that nobody may ever answer */
        (void)pthread_mutex_unlock(&s->lock);
        ps_link_interrupt(l);
        (void)pthread_mutex_lock(&s->lock);
        return false;
    }
    if (l->state != PS_LINK_AWAY || l->resuming)
        return false;
    l->resuming = true;
    l->resumed = false;
    failed = pthread_create(&l->resumer, NULL, ps_resume, l);
    if (failed) {
        l->resuming = false;
        l->state = PS_LINK_OVER;
        ps_fail(s, &l->loss);
    }
    return false;
}

/* Until there is nothing to see off.  Lock held on entry and return. */
static void see_off_all(struct sync_ps *s)
{
    bool again = true;

    while (again && !s->tended) {
        again = false;
        for (unsigned k = 0; k < s->link_count; k++)
            again = see_off(s, &s->links[k]) || again;
    }
}

/* ------------------------------------------------------------------ beats */

static void judge_silence(struct sync_ps *s, struct ps_link *l, unsigned index)
{
    struct ps_lane *lane = &l->lanes[index];
    struct error err = {0};
    char which[48] = "it";
    int64_t silent_ms;

    if (!atomic_load(&lane->attended) || atomic_exchange(&lane->heard, false)) {
        lane->silent = 0;
        return;
    }
    silent_ms = (int64_t)++lane->silent * s->heartbeat_ms;
    if (silent_ms < s->heartbeat_timeout_ms)
        return;
    if (l->lane_count > 1)
        (void)snprintf(which, sizeof(which), "its lane %u of %u", index, l->lane_count);
    (void)error_set(&err, STATUS_PEER_LOST,
                    "rank %u, %s: nothing was heard of %s for %" PRId64
                    " ms (--heartbeat-timeout-ms)",
                    s->rank, l->name, which, silent_ms);
    lane->silent = 0;
    ps_link_closed(s, l, &err, true);
}

/* On every lane: each is a connection of its own, and may be lost alone. */
static void beat(struct sync_ps *s, struct ps_link *l)
{
    struct heartbeat beat = {.rank = s->rank};
    struct rpc_call *attends[WIRE_LANES_MAX] = {NULL};

    (void)pthread_mutex_lock(&s->lock);
    if (l->state == PS_LINK_UP && l->lanes[0].attend && atomic_load(&l->joined)) {
        for (unsigned i = 0; i < l->lane_count; i++) {
            attends[i] = l->lanes[i].attend;
            rpc_call_ref(attends[i]);
        }
        beat.session = l->session;
        beat.connection = l->connection;
        beat.epoch = l->epoch;
        beat.count = ++l->beats;
        beat.vote_epoch = l->vote_epoch;
    }
    (void)pthread_mutex_unlock(&s->lock);
    memcpy(beat.job, s->terms.job, sizeof(beat.job));
    for (unsigned i = 0; i < l->lane_count && attends[i]; i++) {
        judge_silence(s, l, i);
        beat.lane = i;
        ps_link_beat(attends[i], &beat);
        rpc_call_unref(attends[i]);
    }
}

static void *tend(void *user)
{
    struct sync_ps *s = user;
    int64_t next_ns = clock_now_ns();

    (void)pthread_mutex_lock(&s->lock);
    while (!s->tended) {
        see_off_all(s);
        if (s->tended)
            break;
        if (s->heartbeat_ms > 0 && (s->beat_soon || clock_now_ns() >= next_ns)) {
            s->beat_soon = false;
            (void)pthread_mutex_unlock(&s->lock);
            for (unsigned k = 0; k < s->link_count; k++)
                beat(s, &s->links[k]);
            next_ns = clock_deadline_ns(s->heartbeat_ms);
            (void)pthread_mutex_lock(&s->lock);
            continue;
        }
        if (s->heartbeat_ms > 0) {
            struct timespec next = condition_until(next_ns);

            (void)pthread_cond_timedwait(&s->tend, &s->lock, &next);
        } else {
            (void)pthread_cond_wait(&s->tend, &s->lock);
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum status ps_tend_start(struct sync_ps *s, struct error *err)
{
    sigset_t all, before;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's own threads' */
    failed = pthread_create(&s->tender, NULL, tend, s);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return error_set_errno(err, failed, "cannot start thread 'ps-tender'");
    (void)pthread_setname_np(s->tender, "ps-tender");
    s->tending = true;
    return STATUS_OK;
}

/* Lock held on entry and return. */
static void stop_resumer(struct sync_ps *s, struct ps_link *l)
{
    while (l->resuming && !l->resumed) {
        struct timespec again = condition_until(clock_deadline_ns(INTERRUPT_MS));

        (void)pthread_mutex_unlock(&s->lock);
        ps_link_interrupt(l);
        (void)pthread_mutex_lock(&s->lock);
        if (!l->resumed)
            (void)pthread_cond_timedwait(&s->changed, &s->lock, &again);
    }
    if (!l->resuming)
        return;
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(l->resumer, NULL);
    (void)pthread_mutex_lock(&s->lock);
    l->resuming = false;
}

void ps_tend_stop(struct sync_ps *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->tended = true;
    s->giving_up = true;
    (void)pthread_cond_broadcast(&s->tend);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->tending)
        (void)pthread_join(s->tender, NULL);
    s->tending = false;
    (void)pthread_mutex_lock(&s->lock);
    for (unsigned k = 0; k < s->link_count; k++)
        stop_resumer(s, &s->links[k]);
    (void)pthread_mutex_unlock(&s->lock);
}
