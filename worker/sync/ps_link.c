/*
 * A link over rpc: each lane has a client of its own, one bidirectional Exchange call and one
 * Attend call; Join and Leave are unary calls on lane 0's client.
 *
 * The gRPC status of a stream's end decides whether a new connection may succeed
 * (ps_link_may_return): an error that the server returned is final, unless it is UNAVAILABLE.
 *
 * Locking: `lock` guards the lanes' client pointers and handover_fd, because ps_link_interrupt may
 * run on any thread.  Call-backs run without it.
 */
#include "worker/sync/ps_link.h"

#include "common/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define GRPC_PREFIX_BYTES 5

static enum status prefix_error(const struct ps_link *l, enum status status, struct error *err)
{
    if (status != STATUS_OK)
        (void)error_prefix(err, "rank %u, %s: ", l->rank, l->name);
    return status;
}

enum status ps_link_open(struct ps_link *l, struct error *err)
{
    struct rpc_client_config config = {
        .target = l->server, .security = l->security, .keepalive = l->keepalive};
    enum status status = STATUS_OK;

    for (unsigned i = 0; status == STATUS_OK && i < l->lane_count; i++) {
        struct rpc_client *client;

        status = rpc_client_open(&config, &client, err);
        if (status != STATUS_OK)
            break;
        (void)pthread_mutex_lock(&l->lock);
        l->lanes[i].link = l;
        l->lanes[i].client = client;
        l->lanes[i].rejection.status = STATUS_OK;
        (void)pthread_mutex_unlock(&l->lock);
    }
    return prefix_error(l, status, err);
}

enum status ps_link_join(struct ps_link *l, const struct join_request *request, int64_t deadline_ns,
                         struct join_reply *ret_reply, struct error *err)
{
    uint8_t *bytes = NULL, *reply = NULL;
    size_t size, reply_size;
    enum status status = wire_pack_join_request(request, &bytes, &size, err);

    if (status == STATUS_OK)
        status =
            rpc_client_unary_with_origin(l->lanes[0].client, PS_METHOD("Join"), bytes, size,
                                         deadline_ns, &reply, &reply_size, &l->failed_by_peer, err);
    if (status == STATUS_OK)
        atomic_store(&l->joined, true);
    if (status == STATUS_OK)
        status = wire_unpack_join_reply(reply, reply_size, ret_reply, err);
    if (status == STATUS_OK) {
        l->epoch = ret_reply->epoch;
        l->session = l->epoch > 0 ? request->session : 0;
        l->connection = ret_reply->connection;
    }
    free(bytes);
    free(reply);
    return prefix_error(l, status, err);
}

/* ------------------------------------------------------------------ the streams */

bool ps_link_may_return(enum status status, bool by_peer)
{
    if (status == STATUS_UNAVAILABLE) /* a restarted server may listen there soon */
        return true;
    return !by_peer && (status == STATUS_PEER_LOST || status == STATUS_UNREACHABLE ||
                        status == STATUS_TIMEOUT || status == STATUS_CANCELLED);
}

static void on_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct ps_lane *lane = user;
    struct ps_link *l = lane->link;
    struct chunk_header header;
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message)
        return; /* the status follows */
    atomic_store(&lane->has_received, true);
    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &header, &err);
    if (status == STATUS_OK)
        status = l->owner.take_chunk(l->owner.user, l, &header, message, &err);
    if (status == STATUS_OK) {
        rpc_call_replied(call, header.partition + 1);
        rpc_call_receive(call);
        return;
    }
    ps_link_reject(l, (unsigned)(lane - l->lanes), &err);
}

void ps_link_reject(struct ps_link *l, unsigned lane, const struct error *why)
{
    (void)pthread_mutex_lock(&l->lock);
    l->lanes[lane].rejection = *why;
    (void)pthread_mutex_unlock(&l->lock);
    atomic_store(&l->reply_rejected, true);
    if (l->lanes[lane].stream) /* else the server sends without having been asked */
        rpc_call_cancel(l->lanes[lane].stream);
}

static void report_end(struct ps_link *l, const struct rpc_result *result,
                       const struct error *rejection)
{
    bool may_return = !rejection && ps_link_may_return(result->status, result->by_peer);
    struct error err = {0};

    if (rejection)
        err = *rejection;
    else if (result->status == STATUS_OK)
        (void)error_set(&err, STATUS_PEER_LOST, "it ended the stream");
    else
        (void)error_set(&err, result->status, "%s", result->text);
    (void)error_prefix(&err, "rank %u, %s: ", l->rank, l->name);
    l->owner.stream_closed(l->owner.user, l, &err, may_return);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct ps_lane *lane = user;
    struct ps_link *l = lane->link;
    struct error rejection;

    (void)call;
    (void)pthread_mutex_lock(&l->lock);
    rejection = lane->rejection;
    (void)pthread_mutex_unlock(&l->lock);
    (void)atomic_fetch_sub(&l->open_streams, 1);
    report_end(l, result, rejection.status != STATUS_OK ? &rejection : NULL);
}

static const struct rpc_handler stream_handler = {.message = on_message, .closed = on_closed};

static void on_heartbeat(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct ps_lane *lane = user;
    struct ps_link *l = lane->link;
    struct heartbeat heartbeat;
    const uint8_t *head;
    size_t size;

    if (!message)
        return;
    head = rpc_message_head(message, &size);
    if (wire_unpack_heartbeat(head, size, &heartbeat, NULL) != STATUS_OK) {
        rpc_call_cancel(call);
        return;
    }
    atomic_store(&lane->has_received, true);
    l->owner.take_heartbeat(l->owner.user, l, &heartbeat);
    rpc_call_receive(call);
}

/* A server that rejects heartbeats still accepts chunks: only a lost connection ends the link. */
static void on_heartbeats_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct ps_lane *lane = user;

    (void)call;
    atomic_store(&lane->heartbeats_active, false);
    if (!result->by_peer && ps_link_may_return(result->status, false))
        report_end(lane->link, result, NULL);
}

static const struct rpc_handler heartbeat_handler = {.message = on_heartbeat,
                                                     .closed = on_heartbeats_closed};

static enum status start_lane(struct ps_link *l, unsigned index, struct error *err)
{
    struct ps_lane *lane = &l->lanes[index];
    struct chunk_header hello = {.kind = CHUNK_HELLO,
                                 .rank = l->rank,
                                 .session = l->session,
                                 .lane = index,
                                 .connection = l->connection};
    size_t wire_bytes;
    enum status status = rpc_client_call(lane->client, PS_METHOD("Exchange"), INT64_MAX,
                                         &stream_handler, lane, &lane->stream, err);

    if (status != STATUS_OK)
        return status;
    (void)atomic_fetch_add(&l->open_streams, 1);
    if (!l->by_reference) /* of this connection; else the gradients are not in the messages */
        rpc_call_limit_ahead(lane->stream, l->ahead_max);
    if (l->session != 0)
        (void)ps_link_send(lane->stream, UINT32_MAX, &hello, NULL, &wire_bytes);
    rpc_call_receive(lane->stream);
    return STATUS_OK;
}

static enum status start_heartbeats(struct ps_lane *lane, struct error *err)
{
    enum status status;

    atomic_store(&lane->heartbeats_active, true);
    atomic_store(&lane->has_received, true);
    status = rpc_client_call(lane->client, PS_METHOD("Attend"), INT64_MAX, &heartbeat_handler, lane,
                             &lane->heartbeat_call, err);
    if (status == STATUS_OK)
        rpc_call_receive(lane->heartbeat_call);
    return status;
}

enum status ps_link_start(struct ps_link *l, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned i = 0; status == STATUS_OK && i < l->lane_count; i++)
        status = start_lane(l, i, err);
    for (unsigned i = 0; status == STATUS_OK && l->session != 0 && i < l->lane_count; i++)
        status = start_heartbeats(&l->lanes[i], err);
    return prefix_error(l, status, err);
}

static size_t varint_bytes(size_t value)
{
    size_t bytes = 1;

    while (value >>= 7)
        bytes++;
    return bytes;
}

size_t ps_link_wire_bytes(size_t head_bytes, size_t payload_bytes)
{
    size_t field = payload_bytes ? 1 + varint_bytes(payload_bytes) + payload_bytes : 0;

    return GRPC_PREFIX_BYTES + head_bytes + field;
}

enum status ps_link_send(struct rpc_call *stream, uint32_t priority,
                         const struct chunk_header *header, const struct rpc_payload *payload,
                         size_t *ret_wire_bytes)
{
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    size_t size = wire_pack_chunk(header, head);
    enum status status = rpc_call_send_prioritized(stream, priority, head, size, payload);

    if (status == STATUS_OK)
        *ret_wire_bytes = ps_link_wire_bytes(size, payload ? payload->size : 0);
    return status;
}

void ps_link_send_heartbeat(struct rpc_call *heartbeat_call, const struct heartbeat *heartbeat)
{
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    (void)rpc_call_send(heartbeat_call, bytes, wire_pack_heartbeat(heartbeat, bytes), NULL);
}

/* ------------------------------------------------------------------ the end */

enum status ps_link_leave(struct ps_link *l, const char *job, const char *reason,
                          int64_t deadline_ns, struct error *err)
{
    struct leave_request request = {.rank = l->rank, .session = l->session};
    uint8_t *bytes = NULL, *reply = NULL;
    size_t size, reply_size;
    enum status status;

    (void)snprintf(request.job, sizeof(request.job), "%s", job);
    (void)snprintf(request.reason, sizeof(request.reason), "%s", reason);
    status = wire_pack_leave_request(&request, &bytes, &size, err);
    if (status == STATUS_OK)
        status =
            rpc_client_unary_with_origin(l->lanes[0].client, PS_METHOD("Leave"), bytes, size,
                                         deadline_ns, &reply, &reply_size, &l->failed_by_peer, err);
    free(bytes);
    free(reply);
    if (ps_link_may_return(status, l->failed_by_peer))
        return status;
    atomic_store(&l->joined, false);
    for (unsigned i = 0; i < l->lane_count; i++) {
        if (l->lanes[i].stream)
            rpc_call_send_done(l->lanes[i].stream);
        if (l->lanes[i].heartbeat_call)
            rpc_call_send_done(l->lanes[i].heartbeat_call);
    }
    return STATUS_OK;
}

void ps_link_interrupt(struct ps_link *l)
{
    (void)pthread_mutex_lock(&l->lock);
    for (unsigned i = 0; i < l->lane_count; i++)
        if (l->lanes[i].client)
            rpc_client_cancel(l->lanes[i].client);
    if (l->handover_fd >= 0)
        (void)shutdown(l->handover_fd, SHUT_RDWR); /* its reader gets end of file */
    (void)pthread_mutex_unlock(&l->lock);
}

void ps_link_shut(struct ps_link *l)
{
    for (unsigned i = 0; i < l->lane_count; i++) {
        struct rpc_client *client;

        (void)pthread_mutex_lock(&l->lock);
        client = l->lanes[i].client;
        l->lanes[i].client = NULL;
        (void)pthread_mutex_unlock(&l->lock);
        rpc_client_close(client);
    }
    for (unsigned i = 0; i < l->lane_count; i++) {
        if (l->lanes[i].stream)
            rpc_call_unref(l->lanes[i].stream);
        if (l->lanes[i].heartbeat_call)
            rpc_call_unref(l->lanes[i].heartbeat_call);
        l->lanes[i].stream = l->lanes[i].heartbeat_call = NULL;
    }
}
