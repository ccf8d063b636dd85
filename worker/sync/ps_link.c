#include "worker/sync/ps_link.h"

#include "common/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define GRPC_PREFIX_BYTES 5

static enum status name_failure(const struct ps_link *l, enum status status, struct error *err)
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
        l->lanes[i].refused.status = STATUS_OK;
        (void)pthread_mutex_unlock(&l->lock);
    }
    return name_failure(l, status, err);
}

enum status ps_link_join(struct ps_link *l, const struct join_request *request, int64_t deadline_ns,
                         struct join_reply *ret_reply, struct error *err)
{
    uint8_t *bytes = NULL, *reply = NULL;
    size_t size, reply_size;
    enum status status = wire_pack_join_request(request, &bytes, &size, err);

    if (status == STATUS_OK)
        status = rpc_client_unary_with_origin(l->lanes[0].client, PS_METHOD("Join"), bytes, size,
                                              deadline_ns, &reply, &reply_size, &l->told, err);
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
    return name_failure(l, status, err);
}

/* ------------------------------------------------------------------ the streams */

bool ps_link_may_return(enum status status, bool by_peer)
{
    if (status == STATUS_UNAVAILABLE) /* another process may serve there soon */
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
    atomic_store(&lane->heard, true);
    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &header, &err);
    if (status == STATUS_OK)
        status = l->owner.take(l->owner.user, l, &header, message, &err);
    if (status == STATUS_OK) {
        rpc_call_receive(call);
        return;
    }
    lane->refused = err;
    atomic_store(&l->refused, true);
    rpc_call_cancel(call);
}

static void tell_end(struct ps_link *l, const struct rpc_result *result,
                     const struct error *refused)
{
    bool may_return = !refused && ps_link_may_return(result->status, result->by_peer);
    struct error err = {0};

    if (refused)
        err = *refused;
    else if (result->status == STATUS_OK)
        (void)error_set(&err, STATUS_PEER_LOST, "it ended the stream");
    else
        (void)error_set(&err, result->status, "%s", result->text);
    (void)error_prefix(&err, "rank %u, %s: ", l->rank, l->name);
    l->owner.closed(l->owner.user, l, &err, may_return);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct ps_lane *lane = user;

    (void)call;
    (void)atomic_fetch_sub(&lane->link->open, 1);
    tell_end(lane->link, result, lane->refused.status != STATUS_OK ? &lane->refused : NULL);
}

static const struct rpc_handler stream_handler = {.message = on_message, .closed = on_closed};

static void on_beat(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct ps_lane *lane = user;
    struct ps_link *l = lane->link;
    struct heartbeat beat;
    const uint8_t *head;
    size_t size;

    if (!message)
        return;
    head = rpc_message_head(message, &size);
    if (wire_unpack_heartbeat(head, size, &beat, NULL) != STATUS_OK) {
        rpc_call_cancel(call);
        return;
    }
    atomic_store(&lane->heard, true);
    l->owner.beat(l->owner.user, l, &beat);
    rpc_call_receive(call);
}

/* A server that does not want our beats still takes our chunks: only a lost connection is a loss of
 * the link. */
static void on_attend_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct ps_lane *lane = user;

    (void)call;
    atomic_store(&lane->attended, false);
    if (!result->by_peer && ps_link_may_return(result->status, false))
        tell_end(lane->link, result, NULL);
}

static const struct rpc_handler attend_handler = {.message = on_beat, .closed = on_attend_closed};

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
    (void)atomic_fetch_add(&l->open, 1);
    if (l->session != 0)
        (void)ps_link_send(lane->stream, UINT32_MAX, &hello, NULL, &wire_bytes);
    rpc_call_receive(lane->stream);
    return STATUS_OK;
}

static enum status start_attending(struct ps_lane *lane, struct error *err)
{
    enum status status;

    atomic_store(&lane->attended, true);
    atomic_store(&lane->heard, true);
    status = rpc_client_call(lane->client, PS_METHOD("Attend"), INT64_MAX, &attend_handler, lane,
                             &lane->attend, err);
    if (status == STATUS_OK)
        rpc_call_receive(lane->attend);
    return status;
}

enum status ps_link_start(struct ps_link *l, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned i = 0; status == STATUS_OK && i < l->lane_count; i++)
        status = start_lane(l, i, err);
    for (unsigned i = 0; status == STATUS_OK && l->session != 0 && i < l->lane_count; i++)
        status = start_attending(&l->lanes[i], err);
    return name_failure(l, status, err);
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

void ps_link_beat(struct rpc_call *attend, const struct heartbeat *beat)
{
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    (void)rpc_call_send(attend, bytes, wire_pack_heartbeat(beat, bytes), NULL);
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
        status = rpc_client_unary_with_origin(l->lanes[0].client, PS_METHOD("Leave"), bytes, size,
                                              deadline_ns, &reply, &reply_size, &l->told, err);
    free(bytes);
    free(reply);
    if (ps_link_may_return(status, l->told))
        return status;
    atomic_store(&l->joined, false);
    for (unsigned i = 0; i < l->lane_count; i++) {
        if (l->lanes[i].stream)
            rpc_call_send_done(l->lanes[i].stream);
        if (l->lanes[i].attend)
            rpc_call_send_done(l->lanes[i].attend);
    }
    return STATUS_OK;
}

void ps_link_interrupt(struct ps_link *l)
{
    (void)pthread_mutex_lock(&l->lock);
    for (unsigned i = 0; i < l->lane_count; i++)
        if (l->lanes[i].client)
            rpc_client_cancel(l->lanes[i].client);
    if (l->meeting >= 0)
        (void)shutdown(l->meeting, SHUT_RDWR); /* whoever waits for it sees the end */
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
        if (l->lanes[i].attend)
            rpc_call_unref(l->lanes[i].attend);
        l->lanes[i].stream = l->lanes[i].attend = NULL;
    }
}
