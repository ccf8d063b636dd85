/*
 * send: the messages of a call that wait for their turn, the urgent ones first.
 *
 * gRPC takes one message at a time, so the rest waits here, where it can still be overtaken, as
 * slices: the header is copied into one, the payload stays where it is and its slice calls
 * `release` when the last reference goes.  Nodes are kept by the call and used again, so a long
 * stream allocates none after its first burst.  Whoever calls in holds call->lock where call.h says
 * so; slices are dropped outside it, because dropping runs the owners' release functions.
 */
#include "common/rpc/call.h"

#include <grpc/slice.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static struct rpc_send *take_node(struct rpc_call *call)
{
    struct rpc_send *node = call->spare;

    if (node)
        call->spare = node->next;
    else
        node = malloc(sizeof(*node));
    return node;
}

static void spare_node(struct rpc_call *call, struct rpc_send *node)
{
    node->next = call->spare;
    call->spare = node;
}

bool rpc_send_pop(struct rpc_call *call, grpc_slice *ret_slices, size_t *ret_count)
{
    struct rpc_send *node = priority_queue_take(&call->sends);

    if (!node)
        return false;
    memcpy(ret_slices, node->slices, sizeof(node->slices));
    *ret_count = node->count;
    spare_node(call, node);
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
    while ((node = priority_queue_take(&dropped))) {
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

/* ------------------------------------------------------------------ rpc_call_send */

static void run_release(const struct rpc_payload *payload)
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

static size_t make_slices(const uint8_t *head, size_t head_size, const struct rpc_payload *payload,
                          grpc_slice *slices)
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
        run_release(payload); /* nothing refers to it */
        return 1;
    }
    slices[1] = payload_slice(payload);
    return 2;
}

/* Put the slices in the queue; they are still the caller's when this fails. */
static enum status queue_slices(struct rpc_call *call, uint32_t priority, const grpc_slice *slices,
                                size_t count)
{
    struct rpc_send *node;

    (void)pthread_mutex_lock(&call->lock);
    if (call->ended || call->want_last || call->want_cancel) {
        (void)pthread_mutex_unlock(&call->lock);
        return STATUS_CANCELLED;
    }
    node = take_node(call);
    if (!node || !priority_queue_put(&call->sends, priority, node)) {
        if (node)
            spare_node(call, node);
        (void)pthread_mutex_unlock(&call->lock);
        return STATUS_NO_MEMORY;
    }
    memcpy(node->slices, slices, count * sizeof(*slices));
    node->count = count;
    rpc_call_wake_and_unlock(call);
    return STATUS_OK;
}

enum status rpc_call_send_urgent(struct rpc_call *call, uint32_t priority, const uint8_t *head,
                                 size_t head_size, const struct rpc_payload *payload)
{
    static const struct rpc_payload nothing = {0};
    grpc_slice slices[2];
    size_t count;
    enum status status;

    if (!payload)
        payload = &nothing;
    if (head_size > RPC_HEAD_MAX || payload->size > INT_MAX - 2 * RPC_HEAD_MAX) {
        run_release(payload);
        return STATUS_INVALID; /* core's lengths are 31 bits */
    }
    count = make_slices(head, head_size, payload, slices);
    status = queue_slices(call, priority, slices, count);
    for (size_t i = 0; status != STATUS_OK && i < count; i++)
        grpc_slice_unref(slices[i]); /* this runs the release function */
    return status;
}

enum status rpc_call_send(struct rpc_call *call, const uint8_t *head, size_t head_size,
                          const struct rpc_payload *payload)
{
    return rpc_call_send_urgent(call, 0, head, head_size, payload);
}

bool rpc_call_has_unsent(struct rpc_call *call)
{
    bool any;

    (void)pthread_mutex_lock(&call->lock);
    any = call->sends.length > 0;
    (void)pthread_mutex_unlock(&call->lock);
    return any;
}
