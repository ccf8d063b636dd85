#include "worker/sync/ps_link.h"

#include "common/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METHOD(name)      "/sparring.v1.ParameterServer/" name
#define GRPC_PREFIX_BYTES 5

enum status ps_link_open(struct ps_link *l, const struct rpc_security *security, struct error *err)
{
    struct rpc_client_config config = {.target = l->server, .security = *security};
    enum status status = rpc_client_open(&config, &l->client, err);

    if (status != STATUS_OK)
        (void)error_prefix(err, "rank %u, %s: ", l->rank, l->name);
    return status;
}

enum status ps_link_join(struct ps_link *l, const struct join_request *request, int64_t deadline_ns,
                         struct join_reply *ret_reply, struct error *err)
{
    uint8_t *bytes = NULL, *reply = NULL;
    size_t size, reply_size;
    enum status status = wire_pack_join_request(request, &bytes, &size, err);

    if (status == STATUS_OK)
        status = rpc_client_unary(l->client, METHOD("Join"), bytes, size, deadline_ns, &reply,
                                  &reply_size, err);
    l->joined = status == STATUS_OK;
    if (status == STATUS_OK)
        status = wire_unpack_join_reply(reply, reply_size, ret_reply, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "rank %u, %s: ", l->rank, l->name);
    free(bytes);
    free(reply);
    return status;
}

/* ------------------------------------------------------------------ the stream */

static void on_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct ps_link *l = user;
    struct chunk_header header;
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message)
        return; /* the status follows */
    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &header, &err);
    if (status == STATUS_OK)
        status = l->take(l->user, l, &header, message, &err);
    if (status == STATUS_OK) {
        rpc_call_receive(call);
        return;
    }
    l->refused = err;
    rpc_call_cancel(call);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct ps_link *l = user;
    struct error err = {0};

    (void)call;
    if (l->refused.status != STATUS_OK)
        err = l->refused;
    else if (result->status == STATUS_OK)
        (void)error_set(&err, STATUS_PEER_LOST, "it ended the stream");
    else
        (void)error_set(&err, result->status, "%s", result->text);
    (void)error_prefix(&err, "rank %u, %s: ", l->rank, l->name);
    l->ended(l->user, l, &err);
}

static const struct rpc_handler stream_handler = {.message = on_message, .closed = on_closed};

enum status ps_link_start(struct ps_link *l, struct error *err)
{
    enum status status = rpc_client_call(l->client, METHOD("Exchange"), INT64_MAX, &stream_handler,
                                         l, &l->stream, err);

    if (status == STATUS_OK)
        rpc_call_receive(l->stream);
    else
        (void)error_prefix(err, "rank %u, %s: ", l->rank, l->name);
    return status;
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

enum status ps_link_send(struct ps_link *l, const struct chunk_header *header,
                         const struct rpc_payload *payload, size_t *ret_wire_bytes)
{
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    size_t size = wire_pack_chunk(header, head);
    enum status status = rpc_call_send(l->stream, head, size, payload);

    if (status == STATUS_OK)
        *ret_wire_bytes = ps_link_wire_bytes(size, payload ? payload->size : 0);
    return status;
}

/* ------------------------------------------------------------------ the end */

void ps_link_leave(struct ps_link *l, const char *job, const char *reason, int64_t deadline_ns)
{
    struct leave_request request = {.rank = l->rank};
    uint8_t *bytes = NULL, *reply = NULL;
    size_t size, reply_size;

    if (!l->joined)
        return;
    (void)snprintf(request.job, sizeof(request.job), "%s", job);
    (void)snprintf(request.reason, sizeof(request.reason), "%s", reason);
    /* A server that is gone has nothing to be told. */
    if (wire_pack_leave_request(&request, &bytes, &size, NULL) == STATUS_OK)
        (void)rpc_client_unary(l->client, METHOD("Leave"), bytes, size, deadline_ns, &reply,
                               &reply_size, NULL);
    free(bytes);
    free(reply);
    l->joined = false;
    if (l->stream)
        rpc_call_send_done(l->stream);
}

void ps_link_close(struct ps_link *l)
{
    rpc_client_close(l->client);
    if (l->stream)
        rpc_call_unref(l->stream);
    l->client = NULL;
    l->stream = NULL;
}
