/*
 * Closes a rank: sends Leave to every server, stops the monitor, shuts the links, and frees memory
 * that gRPC has released.
 *
 * After a successful run it waits for links that reconnect: a server treats a rank without a Leave
 * as lost, and may end the whole job.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "worker/sync/ps.h"
#include "worker/sync/ps_worker_memory.h"

#include <stdlib.h>

#define LEAVE_FAILED_MS 2000 /* to send Leave after a failure */
#define RELEASE_MS      2000 /* for gRPC to release the payloads of calls that have ended */

/* If the connection breaks during Leave, repeat it on the next one. */
static void leave_server(struct sync_ps *s, struct ps_link *l, const char *reason,
                         int64_t deadline_ns)
{
    enum status status = STATUS_UNAVAILABLE;

    while (status != STATUS_OK && ps_acquire_link(s, l, deadline_ns)) {
        struct error err = {0};

        status = ps_link_leave(l, s->terms.job, reason, deadline_ns, &err);
        if (status != STATUS_OK)
            ps_link_closed(s, l, &err, clock_now_ns() < deadline_ns);
        ps_release_link(s, l);
    }
}

static unsigned count_open_streams(const struct sync_ps *s)
{
    unsigned open = 0;

    for (unsigned k = 0; k < s->link_count; k++)
        open += atomic_load(&s->links[k].open_streams);
    return open;
}

/* Free what payloads reference; leak it if gRPC, which may still read it and decrement the counter,
 * has not released them.  False: leaked. */
static bool release_payloads(struct sync_ps *s)
{
    if (in_flight_wait(&s->unreleased_payloads, clock_deadline_ns(RELEASE_MS))) {
        ps_codec_release(&s->codec);
        ps_row_selection_release(&s->selection);
        free(s);
        return true;
    }
    log_warning("rank %u: gRPC holds %u payloads of connections that were closed %d ms ago; their "
                "memory is given up",
                s->rank, in_flight_count(&s->unreleased_payloads), RELEASE_MS);
    return false;
}

bool ps_close(struct sync *base, const struct error *failure)
{
    struct sync_ps *s = (struct sync_ps *)base;
    /* After a successful run the servers get as long as for any round. */
    int64_t deadline_ns = clock_deadline_ns(failure ? LEAVE_FAILED_MS : s->timeout_ms);
    struct timespec deadline = condition_until(deadline_ns);
    int late = 0;

    (void)pthread_mutex_lock(&s->lock);
    s->closing = true;
    s->reconnect_disabled = failure != NULL;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    for (unsigned k = 0; k < s->link_count; k++)
        leave_server(s, &s->links[k], failure ? failure->text : "", deadline_ns);
    ps_monitor_stop(s);
    (void)pthread_mutex_lock(&s->lock);
    while (count_open_streams(s) > 0 && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &deadline);
    (void)pthread_mutex_unlock(&s->lock);
    for (unsigned k = 0; k < s->link_count; k++) {
        ps_channel_drop(s, &s->links[k]);
        ps_link_shut(&s->links[k]);
        ps_server_memory_release(&s->links[k]);
        (void)pthread_mutex_destroy(&s->links[k].lock);
    }
    ps_channel_close(s);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_cond_destroy(&s->monitor_wake);
    (void)pthread_mutex_destroy(&s->lock);
    shard_map_release(&s->map);
    wire_release_join_request(&s->terms);
    free(s->partitions);
    free(s->links);
    return release_payloads(s); /* true: the caller may free the slabs */
}
