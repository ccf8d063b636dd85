/*
 * call: the life cycle of a call on either side.
 *
 * Any thread records requests (send, receive, finish, cancel) under call->lock; `advance`, under
 * call->batch_lock, turns them into batches: at most one batch of sends and one receive in flight,
 * as core requires.  Requests made inside the call's own handler are processed when it returns, so
 * a reply and its status leave in one write.  The handler runs without a lock.
 *
 * Lifetime.  The batch that reports the end (RECV_STATUS on a client, RECV_CLOSE on a server) is in
 * flight from the start; when it and all others have completed, and no wake-up is pending, nothing
 * can reach the call any more: `closed` runs and the library's reference is released.
 * Rules of core followed here: surface/call.cc and grpc_types.h of grpc 1.51.
 */
#include "common/rpc/call.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <assert.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
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

static void lock_batches(struct rpc_call *call)
{
    (void)pthread_mutex_lock(&call->batch_lock);
}

static void unlock_batches(struct rpc_call *call)
{
    (void)pthread_mutex_unlock(&call->batch_lock);
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
    call->token = setup->token;
    call->is_unauthenticated = setup->is_unauthenticated;
    call->message.max_head_bytes = setup->max_head_bytes;
    call->message.max_payload_bytes = setup->max_payload_bytes;
    call->handler = setup->handler;
    call->user = setup->user;
    call->grpc = setup->grpc;
    call->queue = setup->queue;
    call->calls = setup->calls;
    call->counts = setup->counts;
    call->opened_ns = clock_now_ns();
    call->deadline_ns = setup->deadline_ns;
    call->fail_fast = setup->fail_fast;
    (void)snprintf(call->path, sizeof(call->path), "%s", setup->path);
    set_peer(call, setup->target);
    call->on_send = (struct rpc_tag){send_done, call};
    call->on_receive = (struct rpc_tag){receive_done, call};
    call->on_close = (struct rpc_tag){close_done, call};
    call->on_wake = (struct rpc_tag){wake_done, call};
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->details = grpc_empty_slice();
    (void)pthread_mutex_init(&call->batch_lock, NULL);
    (void)pthread_mutex_init(&call->lock, NULL);
    call->woken = true; /* until the call is started, requests are only recorded */
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
    (void)pthread_mutex_destroy(&call->batch_lock);
    free(call);
}

/* ------------------------------------------------------------------ the end */

static void finish_call_closed(struct rpc_call *call)
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
    if (call->counts)
        rpc_counts_end(call->counts, result.status);
    rpc_calls_remove(call); /* the server or client may be freed from here on */
    rpc_call_unref(call);
}

void rpc_call_advance_or_close(struct rpc_call *call)
{
    bool is_closed = false;

    lock_batches(call);
    rpc_call_advance(call);
    if (call->in_flight == 0) {
        lock(call);
        is_closed = !call->woken;
        unlock(call);
    }
    unlock_batches(call);
    if (is_closed)
        finish_call_closed(call);
}

/* ------------------------------------------------------------------ completions */

static void send_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;

    lock_batches(call);
    call->in_flight--;
    call->sending = false;
    call->sent_any |= ok;
    call->send_failed |= !ok;
    unlock_batches(call);
    if (!ok)
        rpc_send_drop(call);
    rpc_call_advance_or_close(call);
}

static enum status collect_runs(struct rpc_call *call, const grpc_slice_buffer *slices,
                                struct error *err)
{
    if (slices->count > call->run_capacity) {
        struct byte_run *runs;
        enum status status =
            mem_calloc(slices->count * 2, sizeof(*runs), "received slices", &runs, err);

        if (status != STATUS_OK)
            return status;
        free(call->runs);
        call->runs = runs;
        call->run_capacity = slices->count * 2;
    }
    for (size_t i = 0; i < slices->count; i++)
        call->runs[i] = (struct byte_run){GRPC_SLICE_START_PTR(slices->slices[i]),
                                          GRPC_SLICE_LENGTH(slices->slices[i])};
    return STATUS_OK;
}

static enum status parse_received(struct rpc_call *call, const grpc_byte_buffer *buffer,
                                  struct error *err)
{
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    enum status status;

    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE)
        return error_set(err, STATUS_UNSUPPORTED, "compressed messages are not taken");
    status = collect_runs(call, slices, err);
    if (status != STATUS_OK)
        return status;
    call->message.received = buffer;
    return rpc_message_parse(&call->message, call->runs, slices->count, err);
}

static void deliver_message(struct rpc_call *call, const grpc_byte_buffer *buffer)
{
    struct error err = {0};

    if (buffer && parse_received(call, buffer, &err) != STATUS_OK) {
        if (call->is_client) {
            (void)error_prefix(&err, "%s from %s: ", call->path, call->peer);
            lock_batches(call);
            call->failure = err;
            unlock_batches(call);
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
    bool has_failed;

    lock_batches(call);
    call->received = NULL;
    call->in_flight--;
    call->receiving = false;
    has_failed = call->failure.status != STATUS_OK;
    unlock_batches(call);
    /* No message: the peer's half-close, or a broken call, which only `closed` reports. */
    if (ok && !has_failed && (buffer || !grpc_call_failed_before_recv_message(call->grpc)))
        deliver_message(call, buffer);
    grpc_byte_buffer_destroy(buffer);
    rpc_call_advance_or_close(call);
}

static void close_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;

    (void)ok; /* always true: the status has the outcome */
    lock_batches(call);
    call->in_flight--;
    lock(call);
    call->ended = true;
    unlock(call);
    call->unreachable = call->is_client && rpc_call_unreachable(call);
    if (call->unreachable)
        rpc_probe_start(call);
    unlock_batches(call);
    rpc_send_drop(call);
    rpc_call_advance_or_close(call);
}

static void wake_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;

    (void)ok;
    lock(call);
    call->woken = false;
    unlock(call);
    rpc_call_advance_or_close(call);
}

/* ------------------------------------------------------------------ start */

void rpc_call_start_server(struct rpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    rpc_calls_add(call);
    rpc_counts_start(call->counts);
    op.data.recv_close_on_server.cancelled = &call->peer_cancelled;
    lock_batches(call);
    rpc_call_start_batch(call, &op, 1, &call->on_close);
    lock(call);
    call->woken = false;
    unlock(call);
    unlock_batches(call);
    call->queue->current = call;
    call->handler->start(call, call->user);
    call->queue->current = NULL;
    lock_batches(call);
    rpc_call_advance(call);
    unlock_batches(call);
}

void rpc_call_start_client(struct rpc_call *call)
{
    grpc_call_error refused;

    rpc_calls_add(call);
    refused = grpc_call_start_batch(call->grpc, NULL, 0, &call->on_wake, NULL);
    assert(refused == GRPC_CALL_OK);
    (void)refused;
}
