/*
 * The monitor: one thread per synchronisation.  It sends heartbeats on every link, so that a server
 * does not treat a long computation as a dead worker; detects silent servers; and starts a thread
 * for each lost link to reconnect, because that blocks and the other links' heartbeats must
 * continue.
 *
 * Silence is counted in heartbeats sent without a message received, not in time: while this process
 * was stopped or had no core it could not receive, and the server must not be blamed.
 *
 * Locking: sync_ps.lock, released while the thread joins another one, interrupts a link, or sends.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/thread.h"
#include "worker/sync/ps.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define INTERRUPT_MS 20 /* between interruptions of a reconnect_thread: it may start calls */

/* ------------------------------------------------------------------ losses */

/* Join the link's finished reconnect_thread, or start one for a lost link; interrupt a call that
 * uses a lost link.  Lock held on entry and return; true: a thread was joined, with the lock
 * released. */
static bool reap_or_start_reconnect(struct sync_ps *s, struct ps_link *l)
{
    int failed;

    if (l->reconnect_started && l->reconnect_done) {
        (void)pthread_mutex_unlock(&s->lock);
        (void)pthread_join(l->reconnect_thread, NULL);
        (void)pthread_mutex_lock(&s->lock);
        l->reconnect_started = false;
        return true;
    }
    if (l->state == PS_LINK_RECONNECTING && l->in_use) { /* its call may never receive a reply */
        (void)pthread_mutex_unlock(&s->lock);
        ps_link_interrupt(l);
        (void)pthread_mutex_lock(&s->lock);
        return false;
    }
    if (l->state != PS_LINK_RECONNECTING || l->reconnect_started)
        return false;
    l->reconnect_started = true;
    l->reconnect_done = false;
    failed = pthread_create(&l->reconnect_thread, NULL, ps_reconnect, l);
    if (failed) {
        l->reconnect_started = false;
        l->state = PS_LINK_CLOSED;
        ps_fail(s, &l->loss);
    }
    return false;
}

/* For all links, until no thread was joined.  Lock held on entry and return. */
static void reap_or_start_all(struct sync_ps *s)
{
    bool again = true;

    while (again && !s->monitor_stop) {
        again = false;
        for (unsigned k = 0; k < s->link_count; k++)
            again = reap_or_start_reconnect(s, &s->links[k]) || again;
    }
}

/* ------------------------------------------------------------------ heartbeats */

static void check_silence(struct sync_ps *s, struct ps_link *l, unsigned index)
{
    struct ps_lane *lane = &l->lanes[index];
    struct error err = {0};
    char which[48] = "it";
    int64_t silent_ms;

    if (!atomic_load(&lane->heartbeats_active) || atomic_exchange(&lane->has_received, false)) {
        lane->silent_heartbeats = 0;
        return;
    }
    silent_ms = (int64_t)++lane->silent_heartbeats * s->heartbeat_ms;
    if (silent_ms < s->heartbeat_timeout_ms)
        return;
    if (l->lane_count > 1)
        (void)snprintf(which, sizeof(which), "its lane %u of %u", index, l->lane_count);
    (void)error_set(&err, STATUS_PEER_LOST,
                    "rank %u, %s: nothing was heard of %s for %" PRId64
                    " ms (--heartbeat-timeout-ms)",
                    s->rank, l->name, which, silent_ms);
    lane->silent_heartbeats = 0;
    ps_link_closed(s, l, &err, true);
}

/* On every lane: each is a separate connection, which may be lost alone. */
static void send_heartbeats(struct sync_ps *s, struct ps_link *l)
{
    struct heartbeat heartbeat = {.rank = s->rank};
    struct rpc_call *calls[WIRE_LANES_MAX] = {NULL};

    (void)pthread_mutex_lock(&s->lock);
    if (l->state == PS_LINK_UP && l->lanes[0].heartbeat_call && atomic_load(&l->joined)) {
        for (unsigned i = 0; i < l->lane_count; i++) {
            calls[i] = l->lanes[i].heartbeat_call;
            rpc_call_ref(calls[i]);
        }
        heartbeat.session = l->session;
        heartbeat.connection = l->connection;
        heartbeat.epoch = l->epoch;
        heartbeat.count = ++l->heartbeats_sent;
        heartbeat.vote_epoch = l->vote_epoch;
    }
    (void)pthread_mutex_unlock(&s->lock);
    memcpy(heartbeat.job, s->terms.job, sizeof(heartbeat.job));
    for (unsigned i = 0; i < l->lane_count && calls[i]; i++) {
        check_silence(s, l, i);
        heartbeat.lane = i;
        ps_link_send_heartbeat(calls[i], &heartbeat);
        rpc_call_unref(calls[i]);
    }
}

static void *monitor_links(void *user)
{
    struct sync_ps *s = user;
    int64_t next_ns = clock_now_ns();

    (void)pthread_mutex_lock(&s->lock);
    while (!s->monitor_stop) {
        reap_or_start_all(s);
        if (s->monitor_stop)
            break;
        if (s->heartbeat_ms > 0 && (s->heartbeat_due || clock_now_ns() >= next_ns)) {
            s->heartbeat_due = false;
            (void)pthread_mutex_unlock(&s->lock);
            for (unsigned k = 0; k < s->link_count; k++)
                send_heartbeats(s, &s->links[k]);
            next_ns = clock_deadline_ns(s->heartbeat_ms);
            (void)pthread_mutex_lock(&s->lock);
            continue;
        }
        if (s->heartbeat_ms > 0) {
            struct timespec next = condition_until(next_ns);

            (void)pthread_cond_timedwait(&s->monitor_wake, &s->lock, &next);
        } else {
            (void)pthread_cond_wait(&s->monitor_wake, &s->lock);
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum status ps_monitor_start(struct sync_ps *s, struct error *err)
{
    int failed = thread_start(&s->monitor_thread, monitor_links, s);

    if (failed)
        return error_set_errno(err, failed, "cannot start thread 'ps-monitor'");
    (void)pthread_setname_np(s->monitor_thread, "ps-monitor");
    s->monitor_started = true;
    return STATUS_OK;
}

/* Lock held on entry and return. */
static void stop_reconnect(struct sync_ps *s, struct ps_link *l)
{
    while (l->reconnect_started && !l->reconnect_done) {
        struct timespec again = condition_until(clock_deadline_ns(INTERRUPT_MS));

        (void)pthread_mutex_unlock(&s->lock);
        ps_link_interrupt(l);
        (void)pthread_mutex_lock(&s->lock);
        if (!l->reconnect_done)
            (void)pthread_cond_timedwait(&s->changed, &s->lock, &again);
    }
    if (!l->reconnect_started)
        return;
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(l->reconnect_thread, NULL);
    (void)pthread_mutex_lock(&s->lock);
    l->reconnect_started = false;
}

void ps_monitor_stop(struct sync_ps *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->monitor_stop = true;
    s->reconnect_disabled = true;
    (void)pthread_cond_broadcast(&s->monitor_wake);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->monitor_started)
        (void)pthread_join(s->monitor_thread, NULL);
    s->monitor_started = false;
    (void)pthread_mutex_lock(&s->lock);
    for (unsigned k = 0; k < s->link_count; k++)
        stop_reconnect(s, &s->links[k]);
    (void)pthread_mutex_unlock(&s->lock);
}
