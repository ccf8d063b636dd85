/*
 * Servers with a replica.  A worker that loses the primary tries it once more for a short time,
 * then votes for the replica by joining it.  A worker that has voted for the primary to continue
 * alone (common/succession) may only join a replica that is promoted already.
 *
 * Locking: `succession` and vote_epoch are guarded by sync_ps.lock; the other replica fields belong
 * to the thread that opens or reconnects the link.
 */
#include "common/base/clock.h"
#include "common/base/parse.h"
#include "worker/sync/ps.h"

#include <stdio.h>
#include <string.h>

#define PRIMARY_TRY_MS 300  /* for a primary that was lost and may still run */
#define ATTEMPT_MS_MIN 1000 /* for an attempt without a reply */

static enum status parse_replica(struct ps_link *l, const char *entry, const char *origin,
                                 struct error *err)
{
    enum status status = endpoint_parse(entry, origin, &l->replica, err);

    if (status == STATUS_OK && l->replica.port == l->server.port &&
        strcmp(l->replica.host, l->server.host) == 0)
        status = error_set(err, STATUS_CONFIG, "%s: '%s' would be its own replica", origin, entry);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(l->replica_text, sizeof(l->replica_text), "%s", entry);
    (void)snprintf(l->origin, sizeof(l->origin), "%s", origin);
    l->primary = l->server;
    memcpy(l->primary_name, l->name, sizeof(l->primary_name));
    return STATUS_OK;
}

enum status ps_replica_parse(struct sync_ps *s, const struct sync_config *config, struct error *err)
{
    const char *origin = config->replicas_origin ? config->replicas_origin : "replicas";
    const char *text = config->replicas ? config->replicas : "";
    const unsigned count = parse_list_length(text);
    enum status status = STATUS_OK;

    if (count > 0 && count != s->link_count)
        return error_set(err, STATUS_INVALID, "%s has %u addresses for %u servers", origin, count,
                         s->link_count);
    if (count > 0 && (s->reconnect_ms == 0 || s->heartbeat_ms == 0))
        return error_set(err, STATUS_CONFIG,
                         "%s: replicas need reconnection and heartbeats (--reconnect-ms and "
                         "--heartbeat-timeout-ms above 0)",
                         origin);
    for (unsigned k = 0; status == STATUS_OK && k < count; k++) {
        char entry[WIRE_ADDRESS_MAX];

        text = parse_list_next(text, entry, sizeof(entry));
        status = parse_replica(&s->links[k], entry, origin, err);
    }
    return status;
}

/* ------------------------------------------------------------------ reconnection */

static int64_t earlier(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* Half of the remaining time: without a reply, the next attempt may reach a server. */
static int64_t attempt_deadline(int64_t deadline_ns)
{
    int64_t now_ns = clock_now_ns();
    int64_t least_ns = clock_deadline_ns(ATTEMPT_MS_MIN);
    int64_t half_ns = now_ns + (deadline_ns - now_ns) / 2;

    return earlier(half_ns > least_ns ? half_ns : least_ns, deadline_ns);
}

static void select_server(struct ps_link *l, bool replica)
{
    char address[300];

    l->at_replica = replica;
    l->server = replica ? l->replica : l->primary;
    if (replica) {
        endpoint_format(&l->server, address, sizeof(address));
        (void)snprintf(l->name, sizeof(l->name), "parameter server %.290s (%s)", address,
                       l->origin);
    } else {
        memcpy(l->name, l->primary_name, sizeof(l->name));
    }
}

bool ps_replica_find(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns)
{
    int64_t probe_deadline_ns = earlier(clock_deadline_ns(ATTEMPT_MS_MIN), deadline_ns);
    struct error refused; /* ignored: the primary's error is reported */
    enum status status;

    if (l->replica_text[0] == '\0')
        return false;
    select_server(l, true);
    l->follows = true;
    status = ps_link_open(l, &refused);
    if (status == STATUS_OK)
        status = ps_join(s, l, false, probe_deadline_ns, &refused);
    /* The replica may be delaying the join until the rank's old session has ended: wait for it. */
    if (status == STATUS_TIMEOUT || (status == STATUS_UNAVAILABLE && l->failed_by_peer)) {
        ps_link_shut(l);
        status = ps_link_open(l, &refused);
        if (status == STATUS_OK)
            status = ps_join(s, l, false, deadline_ns, &refused);
    }
    l->promoted = status == STATUS_OK;
    if (status == STATUS_OK)
        return true;
    ps_link_shut(l);
    select_server(l, false);
    l->follows = false;
    return false;
}

int64_t ps_replica_select(struct sync_ps *s, struct ps_link *l, unsigned count, int64_t deadline_ns)
{
    bool promotes, alternates = l->replica_text[0] != '\0' && !l->promoted;

    if (!alternates)
        return attempt_deadline(deadline_ns);
    (void)pthread_mutex_lock(&s->lock);
    promotes = l->succession.vote == SUCCESSION_REPLICA; /* a vote is final */
    if (!promotes && count % 2 == 1) {
        l->follows = !succession_worker_leave(&l->succession);
        select_server(l, true);
    } else if (!promotes) {
        l->follows = false;
        select_server(l, false);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (l->at_replica)
        return attempt_deadline(deadline_ns);
    return earlier(clock_deadline_ns(PRIMARY_TRY_MS), deadline_ns);
}

bool ps_replica_may_retry(struct sync_ps *s, struct ps_link *l, enum status status)
{
    bool may_return = ps_link_may_return(status, l->failed_by_peer);

    if (l->replica_text[0] == '\0' || l->promoted)
        return may_return;
    if (!l->at_replica) /* a restarted primary does not know this session */
        return may_return || status == STATUS_NOT_FOUND;
    /* If no attempt has ever reached the replica, it cannot have received the vote. */
    l->replica_contacted = l->replica_contacted || status != STATUS_UNREACHABLE;
    if (!l->replica_contacted) {
        (void)pthread_mutex_lock(&s->lock);
        succession_worker_withdraw(&l->succession);
        (void)pthread_mutex_unlock(&s->lock);
    }
    return may_return;
}
