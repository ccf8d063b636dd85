/*
 * Takeover query: a primary that proposes to continue alone and has no stream asks its replica
 * every 300 ms whether it has taken over, until it has or all ranks have voted for this server.
 *
 * The reply changes no decision, it only makes it known: without it the ranks still connected here
 * would wait for votes of ranks that are already at the replica.  At most one query is in flight.
 */
#include "common/base/clock.h"
#include "server/replication/replica_stream_internal.h"

#include <stdlib.h>
#include <string.h>

#define QUERY_INTERVAL_NS INT64_C(300000000)
#define QUERY_TIMEOUT_MS  2000

static void on_query_reply(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct replica_stream *s = user;
    struct record_reply reply;
    const uint8_t *head;
    size_t size;

    (void)call;
    if (!message)
        return; /* the status follows */
    head = rpc_message_head(message, &size);
    if (wire_unpack_record_reply(head, size, &reply, NULL) == STATUS_OK && reply.superseded)
        replica_stream_step_down(s, reply.epoch);
    rpc_call_receive(call);
}

static void on_query_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct replica_stream *s = user;

    (void)call;
    (void)result; /* unreachable, or without that job: ask again later */
    (void)pthread_mutex_lock(&s->lock);
    s->query_pending = false;
    (void)pthread_mutex_unlock(&s->lock);
}

static const struct rpc_handler takeover_query_handler = {.message = on_query_reply,
                                                          .closed = on_query_closed};

static bool begin_query(struct replica_stream *s, int64_t now_ns)
{
    bool due;

    (void)pthread_mutex_lock(&s->lock);
    due = s->succession.role == SUCCESSION_PROPOSING && s->stream_ended && !s->closing &&
          !s->query_pending && now_ns - s->queried_ns >= QUERY_INTERVAL_NS;
    if (due) {
        s->query_pending = true;
        s->queried_ns = now_ns;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return due;
}

/* The query with the current sessions, by which the replica recognises the run.  Allocates
 * *ret_bytes (free). */
static enum status pack_takeover_query(struct replica_stream *s, uint8_t **ret_bytes,
                                       size_t *ret_size)
{
    uint64_t sessions[WIRE_RANKS_MAX];
    struct wire_record m = {.sessions = sessions, .session_count = WIRE_RANKS_MAX};
    enum status status = wire_unpack_record(s->takeover_query, s->takeover_query_size, &m, NULL);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    memcpy(sessions, s->sessions, s->world_size * sizeof(*sessions));
    (void)pthread_mutex_unlock(&s->lock);
    status = wire_pack_terms(&m, ret_bytes, ret_size, NULL);
    wire_release_record(&m);
    return status;
}

void replica_stream_query_takeover(struct replica_stream *s, int64_t now_ns)
{
    struct rpc_call *call;
    uint8_t *bytes = NULL;
    size_t size;

    if (!begin_query(s, now_ns))
        return;
    if (pack_takeover_query(s, &bytes, &size) != STATUS_OK ||
        rpc_client_call(s->client, REPLICA_STREAM_PATH, clock_deadline_ns(QUERY_TIMEOUT_MS),
                        &takeover_query_handler, s, &call, NULL) != STATUS_OK) {
        free(bytes);
        on_query_closed(NULL, NULL, s);
        return;
    }
    (void)rpc_call_send(call, bytes, size, NULL);
    free(bytes);
    rpc_call_send_done(call);
    rpc_call_receive(call);
    rpc_call_unref(call);
}
