/*
 * The end of a rank: it tells every server that it goes.  After a good run a server that is away is
 * waited for, because to it a rank that does not say so is lost, and perhaps the whole job with it.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "worker/sync/ps.h"
#include "worker/sync/ps_arena.h"

#include <stdlib.h>

#define LEAVE_FAILED_MS 2000 /* for telling the servers that we go because of a failure */
#define RELEASE_MS      2000 /* for gRPC to let go of the slabs of calls that are over */

/* A connection that breaks while the goodbye is under way: once more on the next one. */
static void leave(struct sync_ps *s, struct ps_link *l, const char *reason, int64_t deadline_ns)
{
    enum status status = STATUS_UNAVAILABLE;

    while (status != STATUS_OK && ps_hold_link(s, l, deadline_ns)) {
        struct error err = {0};

        status = ps_link_leave(l, s->terms.job, reason, deadline_ns, &err);
        if (status != STATUS_OK)
            ps_link_closed(s, l, &err, clock_now_ns() < deadline_ns);
        ps_let_go(s, l);
    }
}

static unsigned count_open(const struct sync_ps *s)
{
    unsigned open = 0;

    for (unsigned k = 0; k < s->link_count; k++)
        open += atomic_load(&s->links[k].open);
    return open;
}

/* What core may still read or count down is not to be freed: better it is never freed at all.
 * False: it was not. */
static bool release_payloads(struct sync_ps *s)
{
    if (ps_wait_release(s, clock_deadline_ns(RELEASE_MS))) {
        ps_codec_release(&s->codec);
        ps_names_release(&s->names);
        free(s);
        return true;
    }
    log_warning("rank %u: gRPC holds %zu payloads of connections that were closed %d ms ago; their "
                "memory is given up",
                s->rank, atomic_load(&s->outstanding), RELEASE_MS);
    return false;
}

bool ps_close(struct sync *base, const struct error *failure)
{
    struct sync_ps *s = (struct sync_ps *)base;
    /* After a good run the servers are as alive as in any round, and given as long. */
    int64_t deadline_ns = clock_deadline_ns(failure ? LEAVE_FAILED_MS : s->timeout_ms);
    struct timespec deadline = condition_until(deadline_ns);
    int late = 0;

    (void)pthread_mutex_lock(&s->lock);
    s->closing = true;
    s->giving_up = failure != NULL;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    for (unsigned k = 0; k < s->link_count; k++)
        leave(s, &s->links[k], failure ? failure->text : "", deadline_ns);
    ps_tend_stop(s);
    (void)pthread_mutex_lock(&s->lock);
    while (count_open(s) > 0 && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &deadline);
    (void)pthread_mutex_unlock(&s->lock);
    for (unsigned k = 0; k < s->link_count; k++) {
        ps_link_shut(&s->links[k]);
        ps_arena_release(&s->links[k]);
        (void)pthread_mutex_destroy(&s->links[k].lock);
    }
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_cond_destroy(&s->tend);
    (void)pthread_mutex_destroy(&s->lock);
    shard_map_release(&s->map);
    wire_release_join_request(&s->terms);
    free(s->partitions);
    free(s->links);
    return release_payloads(s); /* then the slabs are the caller's to free */
}
