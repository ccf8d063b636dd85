/*
 * call: the life of a call on either side.
 *
 * Wishes (send, receive, finish, cancel) are recorded under call->lock by any thread; `advance`, on
 * the queue's thread only, turns them into batches: at most one batch of sends and one receive in
 * flight, as core demands.  Wishes made inside the call's own handler are looked at when it
 * returns, so a reply and its status leave in one write.
 *
 * Lifetime.  The batch that tells the end (RECV_STATUS on a client, RECV_CLOSE on a server) is in
 * flight from the start; when it and all others are back, and no wake is on its way, nothing can
 * reach the call any more: `closed` runs and the library's reference goes.
 * Rules of core followed here: surface/call.cc and grpc_types.h of grpc 1.51.
 */
#include "common/rpc/call.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <assert.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void send_done(struct rpc_tag *tag, bool ok);
static void receive_done(struct rpc_tag *tag, bool ok);
static void close_done(struct rpc_tag *tag, bool ok);
static void wake_done(struct rpc_tag *tag, bool ok);

/* ------------------------------------------------------------------ open and release */

static void lock(struct rpc_call *call)
{
    (void)pthread_mutex_lock(&call->lock);
}

static void unlock(struct rpc_call *call)
{
    (void)pthread_mutex_unlock(&call->lock);
}

static void set_peer(struct rpc_call *call, const char *target)
{
    char *peer;

    if (target) {
        (void)snprintf(call->peer, sizeof(call->peer), "%s", target);
        return;
    }
    peer = grpc_call_get_peer(call->grpc);
    (void)snprintf(call->peer, sizeof(call->peer), "%s", peer ? peer : "unknown");
    gpr_free(peer);
}

enum status rpc_call_open(const struct rpc_call_setup *setup, struct rpc_call **ret_call,
                          struct error *err)
{
    struct rpc_call *call;
    enum status status = mem_calloc(1, sizeof(*call), "call", &call, err);

    if (status != STATUS_OK) {
        grpc_call_unref(setup->grpc); /* cancels it: no batch was started */
        return status;
    }
    atomic_init(&call->refs, 1);
    call->is_client = setup->channel != NULL;
    call->channel = setup->channel;
    call->handler = setup->handler;
    call->user = setup->user;
    call->grpc = setup->grpc;
    call->queue = setup->queue;
    call->calls = setup->calls;
    call->opened_ns = clock_now_ns();
    call->deadline_ns = setup->deadline_ns;
    (void)snprintf(call->path, sizeof(call->path), "%s", setup->path);
    set_peer(call, setup->target);
    call->on_send = (struct rpc_tag){send_done, call};
    call->on_receive = (struct rpc_tag){receive_done, call};
    call->on_close = (struct rpc_tag){close_done, call};
    call->on_wake = (struct rpc_tag){wake_done, call};
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->details = grpc_empty_slice();
    (void)pthread_mutex_init(&call->lock, NULL);
    call->woken = true; /* until it is started: wishes are only recorded */
    *ret_call = call;
    return STATUS_OK;
}

void rpc_call_ref(struct rpc_call *call)
{
    (void)atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
}

void rpc_call_unref(struct rpc_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1)
        return;
    rpc_send_release(call);
    rpc_message_release(&call->message);
    free(call->runs);
    (void)pthread_mutex_destroy(&call->lock);
    free(call);
}

/* ------------------------------------------------------------------ starting batches */

static void start_batch(struct rpc_call *call, const grpc_op *ops, size_t count,
                        struct rpc_tag *tag)
{
    grpc_call_error refused = grpc_call_start_batch(call->grpc, ops, count, tag, NULL);

    call->in_flight++;
    if (refused == GRPC_CALL_OK)
        return;
    /* Nothing of the batch was started: end the call, and let its tag come back all the same. */
    (void)error_set(&call->failure, STATUS_INTERNAL, "gRPC refused a batch of %s: %s", call->path,
                    grpc_call_error_to_string(refused));
    (void)grpc_call_cancel(call->grpc, NULL);
    refused = grpc_call_start_batch(call->grpc, NULL, 0, tag, NULL);
    assert(refused == GRPC_CALL_OK);
}

/* What one batch of sends is made of. */
struct outgoing {
    grpc_op ops[3];
    size_t count;
    grpc_slice slices[2];
    size_t slice_count;
    bool message, last;
};

static grpc_op *add_op(struct outgoing *out, grpc_op_type type)
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
    if (!call->initial_sent && (call->is_client || call->first || call->want_last)) {
        grpc_op *op = add_op(out, GRPC_OP_SEND_INITIAL_METADATA);

        if (call->is_client) /* wait for a server that is not up yet, until the deadline */
            op->flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                        GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
        call->initial_sent = true;
    }
    out->message = rpc_send_pop(call, out->slices, &out->slice_count);
    out->last = call->want_last && !call->first;
}

static void start_send(struct rpc_call *call, struct outgoing *out)
{
    grpc_byte_buffer *buffer = NULL;
    grpc_slice text = grpc_empty_slice();
    grpc_metadata name = {0};

    if (out->message) {
        buffer = grpc_raw_byte_buffer_create(out->slices, out->slice_count);
        for (size_t i = 0; i < out->slice_count; i++)
            grpc_slice_unref(out->slices[i]); /* the buffer has its own references */
        add_op(out, GRPC_OP_SEND_MESSAGE)->data.send_message.send_message = buffer;
    }
    if (out->last && call->is_client) {
        (void)add_op(out, GRPC_OP_SEND_CLOSE_FROM_CLIENT);
    } else if (out->last) {
        grpc_op *op = add_op(out, GRPC_OP_SEND_STATUS_FROM_SERVER);

        name.key = grpc_slice_from_static_string(RPC_STATUS_KEY);
        name.value = grpc_slice_from_static_string(status_name(call->finish_status));
        text = grpc_slice_from_copied_string(call->finish_text);
        op->data.send_status_from_server.status = rpc_code_from_status(call->finish_status);
        op->data.send_status_from_server.status_details = &text;
        if (call->finish_status != STATUS_OK) {
            op->data.send_status_from_server.trailing_metadata_count = 1;
            op->data.send_status_from_server.trailing_metadata = &name;
        }
    }
    call->last_sent |= out->last;
    if (out->count > 0) {
        call->sending = true;
        start_batch(call, out->ops, out->count, &call->on_send);
    }
    grpc_byte_buffer_destroy(buffer); /* the batch has moved the slices out */
    grpc_slice_unref(text);
}

static void start_receive(struct rpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    call->receiving = true;
    op.data.recv_message.recv_message = &call->received;
    start_batch(call, &op, 1, &call->on_receive);
}

static void begin_client(struct rpc_call *call)
{
    grpc_op ops[2] = {{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};

    call->begun = true;
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[1].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[1].data.recv_status_on_client.status = &call->code;
    ops[1].data.recv_status_on_client.status_details = &call->details;
    start_batch(call, ops, 2, &call->on_close);
}

/* Start what is wished for and possible.  Queue thread. */
static void advance(struct rpc_call *call)
{
    struct outgoing out = {0};
    bool receive = false;
    bool cancel = false;

    if (call->is_client && !call->begun)
        begin_client(call);
    lock(call);
    if (!call->ended) {
        collect_outgoing(call, &out);
        cancel = call->want_cancel && !call->cancel_sent;
        receive = call->want_receive && !call->receiving;
        if (receive)
            call->want_receive = false;
    }
    unlock(call);
    start_send(call, &out);
    if (receive)
        start_receive(call);
    if (cancel) {
        call->cancel_sent = true;
        (void)grpc_call_cancel(call->grpc, NULL);
    }
}

/* ------------------------------------------------------------------ the end */

static void link_call(struct rpc_call *call)
{
    struct rpc_calls *calls = call->calls;

    (void)pthread_mutex_lock(&calls->lock);
    call->next = calls->first;
    if (call->next)
        call->next->previous = call;
    calls->first = call;
    calls->count++;
    (void)pthread_mutex_unlock(&calls->lock);
}

static void unlink_call(struct rpc_call *call)
{
    struct rpc_calls *calls = call->calls;

    (void)pthread_mutex_lock(&calls->lock);
    if (call->previous)
        call->previous->next = call->next;
    else
        calls->first = call->next;
    if (call->next)
        call->next->previous = call->previous;
    if (--calls->count == 0)
        (void)pthread_cond_broadcast(&calls->changed);
    (void)pthread_mutex_unlock(&calls->lock);
}

static void close_call(struct rpc_call *call)
{
    struct rpc_result result;

    rpc_send_drop(call);
    rpc_call_result(call, &result);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    grpc_call_unref(call->grpc);
    call->grpc = NULL;
    call->handler->closed(call, &result, call->user);
    unlink_call(call); /* the server or client may be freed from here on */
    rpc_call_unref(call);
}

/* After every completion. */
static void settle(struct rpc_call *call)
{
    bool over = false;

    advance(call);
    if (call->in_flight == 0) {
        lock(call);
        over = !call->woken;
        unlock(call);
    }
    if (over)
        close_call(call);
}

/* ------------------------------------------------------------------ completions */

static void send_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;

    call->in_flight--;
    call->sending = false;
    call->sent_any |= ok;
    if (!ok) {
        call->send_failed = true;
        rpc_send_drop(call);
    }
    settle(call);
}

static enum status list_runs(struct rpc_call *call, const grpc_slice_buffer *slices,
                             struct error *err)
{
    if (slices->count > call->run_capacity) {
        struct rpc_run *runs;
        enum status status =
            mem_calloc(slices->count * 2, sizeof(*runs), "received slices", &runs, err);

        if (status != STATUS_OK)
            return status;
        free(call->runs);
        call->runs = runs;
        call->run_capacity = slices->count * 2;
    }
    for (size_t i = 0; i < slices->count; i++)
        call->runs[i] = (struct rpc_run){GRPC_SLICE_START_PTR(slices->slices[i]),
                                         GRPC_SLICE_LENGTH(slices->slices[i])};
    return STATUS_OK;
}

static enum status open_message(struct rpc_call *call, const grpc_byte_buffer *buffer,
                                struct error *err)
{
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    enum status status;

    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE)
        return error_set(err, STATUS_UNSUPPORTED, "compressed messages are not taken");
    status = list_runs(call, slices, err);
    if (status != STATUS_OK)
        return status;
    return rpc_message_parse(&call->message, call->runs, slices->count, err);
}

static void deliver(struct rpc_call *call, const grpc_byte_buffer *buffer)
{
    struct error err = {0};

    if (buffer && open_message(call, buffer, &err) != STATUS_OK) {
        if (call->is_client) {
            call->failure = err;
            (void)error_prefix(&call->failure, "%s from %s: ", call->path, call->peer);
            rpc_call_cancel(call);
        } else {
            rpc_call_finish(call, err.status, err.text);
        }
        return;
    }
    call->queue->current = call;
    call->handler->message(call, buffer ? &call->message : NULL, call->user);
    call->queue->current = NULL;
}

static void receive_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    grpc_byte_buffer *buffer = call->received;

    call->received = NULL;
    call->in_flight--;
    call->receiving = false;
    /* No message: the peer's half-close, or the end of a broken call, which only `closed` tells. */
    if (ok && call->failure.status == STATUS_OK &&
        (buffer || !grpc_call_failed_before_recv_message(call->grpc)))
        deliver(call, buffer);
    grpc_byte_buffer_destroy(buffer);
    settle(call);
}

static void close_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;

    (void)ok; /* always true: the status tells */
    call->in_flight--;
    lock(call);
    call->ended = true;
    unlock(call);
    rpc_send_drop(call);
    settle(call);
}

static void wake_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;

    (void)ok;
    lock(call);
    call->woken = false;
    unlock(call);
    settle(call);
}

/* ------------------------------------------------------------------ start */

void rpc_call_start_server(struct rpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    link_call(call);
    op.data.recv_close_on_server.cancelled = &call->peer_cancelled;
    start_batch(call, &op, 1, &call->on_close);
    lock(call);
    call->woken = false;
    unlock(call);
    call->queue->current = call;
    call->handler->start(call, call->user);
    call->queue->current = NULL;
    advance(call);
}

void rpc_call_start_client(struct rpc_call *call)
{
    grpc_call_error refused;

    link_call(call);
    refused = grpc_call_start_batch(call->grpc, NULL, 0, &call->on_wake, NULL);
    assert(refused == GRPC_CALL_OK);
    (void)refused;
}

/* ------------------------------------------------------------------ wishes */

/* Have the queue's thread look at the wishes; call->lock is held and is given up. */
static void wake_and_unlock(struct rpc_call *call)
{
    if (call->ended || call->woken) {
        unlock(call);
    } else if (rpc_queue_is_current(call->queue)) {
        unlock(call);
        if (call->queue->current != call) /* else when its handler returns */
            advance(call);
    } else {
        grpc_call_error refused = grpc_call_start_batch(call->grpc, NULL, 0, &call->on_wake, NULL);

        assert(refused == GRPC_CALL_OK);
        (void)refused;
        call->woken = true;
        unlock(call);
    }
}

void rpc_call_receive(struct rpc_call *call)
{
    lock(call);
    call->want_receive = true;
    wake_and_unlock(call);
}

void rpc_call_send_done(struct rpc_call *call)
{
    assert(call->is_client);
    lock(call);
    call->want_last = true;
    wake_and_unlock(call);
}

void rpc_call_finish(struct rpc_call *call, enum status status, const char *text)
{
    assert(!call->is_client);
    lock(call);
    if (!call->want_last) {
        call->want_last = true;
        call->finish_status = status;
        (void)snprintf(call->finish_text, sizeof(call->finish_text), "%s", text ? text : "");
    }
    wake_and_unlock(call);
}

void rpc_call_cancel(struct rpc_call *call)
{
    lock(call);
    if (!call->ended)
        call->want_cancel = true;
    wake_and_unlock(call);
}

static void run_release(const struct rpc_payload *payload)
{
    if (payload && payload->release)
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

static size_t make_slices(const uint8_t *head, size_t head_size, const struct rpc_payload *payload,
                          grpc_slice *slices)
{
    uint8_t prefix[RPC_PAYLOAD_PREFIX];
    size_t prefix_size = rpc_payload_prefix(payload ? payload->size : 0, prefix);
    uint8_t *bytes;

    slices[0] = grpc_slice_malloc(head_size + prefix_size);
    bytes = GRPC_SLICE_START_PTR(slices[0]);
    if (head_size > 0)
        memcpy(bytes, head, head_size);
    memcpy(bytes + head_size, prefix, prefix_size);
    if (prefix_size == 0) {
        run_release(payload); /* nothing refers to it */
        return 1;
    }
    slices[1] = payload_slice(payload);
    return 2;
}

/* Put the slices in the queue; they are still the caller's when this fails. */
static enum status queue_slices(struct rpc_call *call, const grpc_slice *slices, size_t count)
{
    struct rpc_send *node;

    lock(call);
    if (call->ended || call->want_last || call->want_cancel) {
        unlock(call);
        return STATUS_CANCELLED;
    }
    node = rpc_send_node(call);
    if (!node) {
        unlock(call);
        return STATUS_NO_MEMORY;
    }
    memcpy(node->slices, slices, count * sizeof(*slices));
    node->count = count;
    rpc_send_push(call, node);
    wake_and_unlock(call);
    return STATUS_OK;
}

enum status rpc_call_send(struct rpc_call *call, const uint8_t *head, size_t head_size,
                          const struct rpc_payload *payload)
{
    grpc_slice slices[2];
    size_t count;
    enum status status;

    if (head_size > RPC_HEAD_MAX || (payload && payload->size > INT_MAX - 2 * RPC_HEAD_MAX)) {
        run_release(payload);
        return STATUS_INVALID; /* core's lengths are 31 bits */
    }
    count = make_slices(head, head_size, payload, slices);
    status = queue_slices(call, slices, count);
    for (size_t i = 0; status != STATUS_OK && i < count; i++)
        grpc_slice_unref(slices[i]); /* this runs the release function */
    return status;
}

void rpc_calls_cancel(struct rpc_calls *calls)
{
    (void)pthread_mutex_lock(&calls->lock);
    for (struct rpc_call *call = calls->first; call; call = call->next)
        rpc_call_cancel(call);
    (void)pthread_mutex_unlock(&calls->lock);
}

/* ------------------------------------------------------------------ the rest */

enum status rpc_calls_init(struct rpc_calls *calls, struct error *err)
{
    pthread_condattr_t attributes;
    int failed = pthread_mutex_init(&calls->lock, NULL);

    if (failed)
        return error_set_errno(err, failed, "cannot make a mutex");
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&calls->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return STATUS_OK;
}

void rpc_calls_release(struct rpc_calls *calls)
{
    (void)pthread_cond_destroy(&calls->changed);
    (void)pthread_mutex_destroy(&calls->lock);
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
