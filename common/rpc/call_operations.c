/*
 * The requests that any thread may make on a call, and the gRPC operations that they become.
 *
 * A request is a field under call->lock.  The queue's thread processes it: at once when it made the
 * request itself, after the handler when the call's own handler made it, otherwise when woken by an
 * empty batch, which core completes at once on the call's queue and which may be started at any
 * time.  A short message is sent by the thread that requests it, which saves the wake-up, unless
 * another thread starts batches of the call just then (call->batch_lock).  At most one batch of
 * sends and one receive are in flight, as core requires (surface/call.cc); operations that are
 * ready together (initial metadata, a message, the status) leave in one batch and one write.
 *
 * gRPC accepts one message at a time, so the others are queued here, where a more urgent message
 * can overtake them, as slices: the header is copied into one, the payload is not copied and its
 * slice calls `release` with the last reference.  The call reuses its nodes, so a long stream
 * allocates none after its first burst.  Slices are released outside call->lock, because that runs
 * the owners' release functions.
 */
#include "common/rpc/call.h"

#include <assert.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A longer message is written by the queue's thread: the write takes longer than a wake-up. */
#define DIRECT_SEND_MAX (16u << 10)

/* ------------------------------------------------------------------ queued messages */

static struct rpc_send *take_node(struct rpc_call *call)
{
    struct rpc_send *node = call->spare;

    if (node)
        call->spare = node->next;
    else
        node = malloc(sizeof(*node));
    return node;
}

static void recycle_node(struct rpc_call *call, struct rpc_send *node)
{
    node->next = call->spare;
    call->spare = node;
}

/* Take the most urgent message; false: none, or it must wait for replies.  Lock held. */
static bool pop_queued_message(struct rpc_call *call, grpc_slice *ret_slices, size_t *ret_count)
{
    struct rpc_send *node = priority_queue_first(&call->sends);

    if (!node || !send_limit_allows(&call->limit, node->priority))
        return false;
    (void)priority_queue_pop(&call->sends);
    send_limit_sent(&call->limit, node->priority);
    memcpy(ret_slices, node->slices, sizeof(node->slices));
    *ret_count = node->count;
    recycle_node(call, node);
    return true;
}

void rpc_send_drop(struct rpc_call *call)
{
    struct priority_queue dropped;
    struct rpc_send *node;

    (void)pthread_mutex_lock(&call->lock);
    dropped = call->sends;
    call->sends = (struct priority_queue){0};
    (void)pthread_mutex_unlock(&call->lock);
    while ((node = priority_queue_pop(&dropped))) {
        for (size_t i = 0; i < node->count; i++)
            grpc_slice_unref(node->slices[i]);
        free(node);
    }
    priority_queue_release(&dropped);
}

void rpc_send_release(struct rpc_call *call)
{
    priority_queue_release(&call->sends);
    while (call->spare) {
        struct rpc_send *next = call->spare->next;

        free(call->spare);
        call->spare = next;
    }
}

/* ------------------------------------------------------------------ operations */

void rpc_call_start_batch(struct rpc_call *call, const grpc_op *ops, size_t count,
                          struct rpc_tag *tag)
{
    grpc_call_error refused = grpc_call_start_batch(call->grpc, ops, count, tag, NULL);

    call->in_flight++;
    if (refused == GRPC_CALL_OK)
        return;
    /* No operation of the batch was started: end the call, and still complete its tag. */
    (void)error_set(&call->failure, STATUS_INTERNAL, "gRPC refused a batch of %s: %s", call->path,
                    grpc_call_error_to_string(refused));
    (void)grpc_call_cancel(call->grpc, NULL);
    refused = grpc_call_start_batch(call->grpc, NULL, 0, tag, NULL);
    assert(refused == GRPC_CALL_OK);
}

/* One batch of sends; core has copied or referenced its parts when the start returns. */
struct outgoing {
    grpc_op ops[3];
    size_t count;
    bool message, last;
    grpc_slice slices[2]; /* of the message, owned */
    size_t slice_count;
    grpc_byte_buffer *buffer; /* owned */
    grpc_slice text;          /* of the status, owned */
    grpc_metadata name;       /* of the status */
    grpc_metadata token;      /* client; its value is owned */
};

static grpc_op *append_op(struct outgoing *out, grpc_op_type type)
{
    grpc_op *op = &out->ops[out->count++];

    memset(op, 0, sizeof(*op)); /* core refuses an op whose reserved fields are not zero */
    op->op = type;
    return op;
}

/* Under call->lock. */
static void collect_outgoing(struct rpc_call *call, struct outgoing *out)
{
    if (call->sending || call->send_failed || call->last_sent)
        return;
    if (!call->initial_sent && (call->is_client || call->sends.length > 0 || call->want_last)) {
        grpc_op *op = append_op(out, GRPC_OP_SEND_INITIAL_METADATA);

        if (call->is_client && !call->fail_fast) /* wait for a server that is not up yet */
            op->flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                        GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
        if (call->is_client && call->token->length > 0) {
            out->token = rpc_token_metadata(call->token);
            op->data.send_initial_metadata.count = 1;
            op->data.send_initial_metadata.metadata = &out->token;
        }
        call->initial_sent = true;
    }
    out->message = pop_queued_message(call, out->slices, &out->slice_count);
    out->last = call->want_last && call->sends.length == 0;
}

static void add_message(struct outgoing *out)
{
    out->buffer = grpc_raw_byte_buffer_create(out->slices, out->slice_count);
    for (size_t i = 0; i < out->slice_count; i++)
        grpc_slice_unref(out->slices[i]); /* the buffer has its own references */
    append_op(out, GRPC_OP_SEND_MESSAGE)->data.send_message.send_message = out->buffer;
}

static void add_status(const struct rpc_call *call, struct outgoing *out)
{
    grpc_op *op = append_op(out, GRPC_OP_SEND_STATUS_FROM_SERVER);

    out->text = grpc_slice_from_copied_string(call->finish_text);
    op->data.send_status_from_server.status = rpc_code_from_status(call->finish_status);
    op->data.send_status_from_server.status_details = &out->text;
    if (call->finish_status == STATUS_OK)
        return;
    out->name.key = grpc_slice_from_static_string(RPC_STATUS_KEY);
    out->name.value = grpc_slice_from_static_string(status_name(call->finish_status));
    op->data.send_status_from_server.trailing_metadata_count = 1;
    op->data.send_status_from_server.trailing_metadata = &out->name;
}

static void start_send(struct rpc_call *call, struct outgoing *out)
{
    if (out->message)
        add_message(out);
    if (out->last && call->is_client)
        (void)append_op(out, GRPC_OP_SEND_CLOSE_FROM_CLIENT);
    else if (out->last)
        add_status(call, out);
    if (out->count == 0)
        return;
    call->last_sent |= out->last;
    call->sending = true;
    rpc_call_start_batch(call, out->ops, out->count, &call->on_send);
    grpc_byte_buffer_destroy(out->buffer); /* the batch has moved the slices out */
    grpc_slice_unref(out->text);
    grpc_slice_unref(out->token.value);
}

static void start_receive(struct rpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    call->receiving = true;
    op.data.recv_message.recv_message = &call->received;
    rpc_call_start_batch(call, &op, 1, &call->on_receive);
}

static void start_client_batches(struct rpc_call *call)
{
    grpc_op ops[2] = {{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};

    call->begun = true;
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[1].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[1].data.recv_status_on_client.status = &call->code;
    ops[1].data.recv_status_on_client.status_details = &call->details;
    rpc_call_start_batch(call, ops, 2, &call->on_close);
}

void rpc_call_advance(struct rpc_call *call)
{
    struct outgoing out = {0};
    bool receive = false;
    bool cancel = false;

    if (call->is_client && !call->begun)
        start_client_batches(call);
    (void)pthread_mutex_lock(&call->lock);
    if (!call->ended) {
        collect_outgoing(call, &out);
        cancel = call->want_cancel && !call->cancel_sent;
        receive = call->want_receive && !call->receiving;
        if (receive)
            call->want_receive = false;
    }
    (void)pthread_mutex_unlock(&call->lock);
    start_send(call, &out);
    if (receive)
        start_receive(call);
    if (cancel) {
        call->cancel_sent = true;
        (void)grpc_call_cancel(call->grpc, NULL);
    }
}

/* ------------------------------------------------------------------ requests */

/* Have the requests processed, by this thread if it is the queue's, or `direct` and no other is at
 * it, and else by the queue's.  Releases call->lock, which is held. */
static void process_and_unlock(struct rpc_call *call, bool direct)
{
    if (call->ended || call->woken) {
        (void)pthread_mutex_unlock(&call->lock);
    } else if (rpc_queue_is_current(call->queue)) {
        (void)pthread_mutex_unlock(&call->lock);
        if (call->queue->current == call)
            return; /* processed when its handler returns */
        (void)pthread_mutex_lock(&call->batch_lock);
        rpc_call_advance(call);
        (void)pthread_mutex_unlock(&call->batch_lock);
    } else if (direct && pthread_mutex_trylock(&call->batch_lock) == 0) {
        (void)pthread_mutex_unlock(&call->lock);
        rpc_call_advance(call);
        (void)pthread_mutex_unlock(&call->batch_lock);
    } else {
        grpc_call_error refused = grpc_call_start_batch(call->grpc, NULL, 0, &call->on_wake, NULL);

        assert(refused == GRPC_CALL_OK);
        (void)refused;
        call->woken = true;
        (void)pthread_mutex_unlock(&call->lock);
    }
}

void rpc_call_receive(struct rpc_call *call)
{
    (void)pthread_mutex_lock(&call->lock);
    call->want_receive = true;
    process_and_unlock(call, false);
}

void rpc_call_send_done(struct rpc_call *call)
{
    assert(call->is_client);
    (void)pthread_mutex_lock(&call->lock);
    call->want_last = true;
    process_and_unlock(call, false);
}

void rpc_call_finish(struct rpc_call *call, enum status status, const char *text)
{
    assert(!call->is_client);
    (void)pthread_mutex_lock(&call->lock);
    if (!call->want_last) {
        call->want_last = true;
        call->finish_status = status;
        (void)snprintf(call->finish_text, sizeof(call->finish_text), "%s", text ? text : "");
    }
    process_and_unlock(call, false);
}

void rpc_call_cancel(struct rpc_call *call)
{
    (void)pthread_mutex_lock(&call->lock);
    if (!call->ended)
        call->want_cancel = true;
    process_and_unlock(call, false);
}

void rpc_call_set_user(struct rpc_call *call, void *user)
{
    call->user = user;
}

const char *rpc_call_peer(const struct rpc_call *call)
{
    return call->peer;
}

int64_t rpc_call_deadline_ns(const struct rpc_call *call)
{
    return call->deadline_ns;
}

static void call_release(const struct rpc_payload *payload)
{
    if (payload->release)
        payload->release(payload->user);
}

static grpc_slice payload_slice(const struct rpc_payload *payload)
{
    /* core takes a plain pointer but only reads from it */
    union {
        const void *constant;
        void *plain;
    } data = {.constant = payload->data};

    if (!payload->release)
        return grpc_slice_from_static_buffer(payload->data, payload->size);
    return grpc_slice_new_with_user_data(data.plain, payload->size, payload->release,
                                         payload->user);
}

static size_t make_message_slices(const uint8_t *head, size_t head_size,
                                  const struct rpc_payload *payload, grpc_slice *slices)
{
    uint8_t prefix[RPC_PAYLOAD_PREFIX];
    size_t prefix_size = rpc_payload_prefix(payload->size, prefix);
    uint8_t *bytes;

    slices[0] = grpc_slice_malloc(head_size + prefix_size);
    bytes = GRPC_SLICE_START_PTR(slices[0]);
    if (head_size > 0)
        memcpy(bytes, head, head_size);
    memcpy(bytes + head_size, prefix, prefix_size);
    if (prefix_size == 0) {
        call_release(payload); /* no slice refers to it */
        return 1;
    }
    slices[1] = payload_slice(payload);
    return 2;
}

/* Queue the slices as one message; the caller still owns them on failure. */
static enum status queue_slices(struct rpc_call *call, uint32_t priority, const grpc_slice *slices,
                                size_t count, bool is_short)
{
    struct rpc_send *node;

    (void)pthread_mutex_lock(&call->lock);
    if (call->ended || call->want_last || call->want_cancel) {
        (void)pthread_mutex_unlock(&call->lock);
        return STATUS_CANCELLED;
    }
    node = take_node(call);
    if (!node || !priority_queue_push(&call->sends, priority, node)) {
        if (node)
            recycle_node(call, node);
        (void)pthread_mutex_unlock(&call->lock);
        return STATUS_NO_MEMORY;
    }
    memcpy(node->slices, slices, count * sizeof(*slices));
    node->count = count;
    node->priority = priority;
    process_and_unlock(call, is_short);
    return STATUS_OK;
}

enum status rpc_call_send_prioritized(struct rpc_call *call, uint32_t priority, const uint8_t *head,
                                      size_t head_size, const struct rpc_payload *payload)
{
    static const struct rpc_payload nothing = {0};
    grpc_slice slices[2];
    size_t count;
    enum status status;

    if (!payload)
        payload = &nothing;
    if (head_size > RPC_HEAD_MAX || payload->size > INT_MAX - 2 * RPC_HEAD_MAX) {
        call_release(payload);
        return STATUS_INVALID; /* core's lengths are 31 bits */
    }
    count = make_message_slices(head, head_size, payload, slices);
    status = queue_slices(call, priority, slices, count, payload->size <= DIRECT_SEND_MAX);
    for (size_t i = 0; status != STATUS_OK && i < count; i++)
        grpc_slice_unref(slices[i]); /* this runs the release function */
    return status;
}

enum status rpc_call_send(struct rpc_call *call, const uint8_t *head, size_t head_size,
                          const struct rpc_payload *payload)
{
    return rpc_call_send_prioritized(call, 0, head, head_size, payload);
}

void rpc_call_limit_ahead(struct rpc_call *call, uint64_t most)
{
    (void)pthread_mutex_lock(&call->lock);
    call->limit = (struct send_limit){.most = most};
    (void)pthread_mutex_unlock(&call->lock);
}

void rpc_call_replied(struct rpc_call *call, uint32_t priority)
{
    (void)pthread_mutex_lock(&call->lock);
    send_limit_replied(&call->limit, priority);
    if (call->limit.most > 0 && call->sends.length > 0)
        process_and_unlock(call, false);
    else
        (void)pthread_mutex_unlock(&call->lock);
}

bool rpc_call_has_unsent(struct rpc_call *call)
{
    bool any;

    (void)pthread_mutex_lock(&call->lock);
    any = call->sends.length > 0;
    (void)pthread_mutex_unlock(&call->lock);
    return any;
}
