/*
 * The Stats call, and the statistics that both it and the metrics page show.
 *
 * service_stats adds the call counts of rpc to the figures of the job table.  Locking: takes the
 * table's lock briefly; packing and sending are done without it.
 */
#include "server/observe/stats.h"

#include "server/service/service_internal.h"

#include <stdlib.h>

enum status service_stats(struct service *s, struct server_stats **ret_stats, struct error *err)
{
    struct server_stats *stats;
    const struct rpc_server *rpc;
    enum status status = stats_read(&s->table, &stats, err);

    if (status != STATUS_OK)
        return status;
    stats->start_time_seconds = s->start_time_seconds;
    (void)pthread_mutex_lock(&s->table.lock);
    rpc = s->rpc;
    (void)pthread_mutex_unlock(&s->table.lock);
    while (rpc && stats->method_count < rpc_server_method_count(rpc) &&
           stats->method_count < STATS_METHODS_MAX) {
        rpc_server_counts(rpc, stats->method_count, &stats->methods[stats->method_count]);
        stats->method_count++;
    }
    *ret_stats = stats;
    return STATUS_OK;
}

static void stats_start(struct rpc_call *call, void *user)
{
    (void)user; /* the call's pointer stays the service */
    rpc_call_receive(call);
}

/* The request has no fields. */
static void stats_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct server_stats *stats = NULL;
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size;
    enum status status;

    if (!message)
        status = error_set(&err, STATUS_PROTOCOL, "Stats needs one request");
    else
        status = service_stats(user, &stats, &err);
    if (status == STATUS_OK)
        status = wire_pack_stats(stats, &bytes, &size, &err);
    if (status == STATUS_OK)
        (void)rpc_call_send(call, bytes, size, NULL);
    rpc_call_finish(call, status, err.text);
    free(bytes);
    free(stats);
}

static void stats_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

const struct rpc_handler stats_handler = {
    .start = stats_start, .message = stats_message, .closed = stats_closed};
