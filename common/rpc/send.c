/*
 * send: the messages of a call that wait for their turn.
 *
 * gRPC takes one message at a time, so the rest waits here, as slices: the header is copied into
 * one, the payload stays where it is and its slice calls `release` when the last reference goes.
 * Nodes are kept by the call and used again, so a long stream allocates none after its first
 * burst.  Whoever calls in holds call->lock where call.h says so; slices are dropped outside it,
 * because dropping runs the owners' release functions.
 */
#include "common/rpc/call.h"

#include <stdlib.h>
#include <string.h>

struct rpc_send *rpc_send_node(struct rpc_call *call)
{
    struct rpc_send *node = call->spare;

    if (node)
        call->spare = node->next;
    else
        node = malloc(sizeof(*node));
    return node;
}

void rpc_send_push(struct rpc_call *call, struct rpc_send *node)
{
    node->next = NULL;
    if (call->last)
        call->last->next = node;
    else
        call->first = node;
    call->last = node;
}

bool rpc_send_pop(struct rpc_call *call, grpc_slice *ret_slices, size_t *ret_count)
{
    struct rpc_send *node = call->first;

    if (!node)
        return false;
    call->first = node->next;
    if (!call->first)
        call->last = NULL;
    memcpy(ret_slices, node->slices, sizeof(node->slices));
    *ret_count = node->count;
    node->next = call->spare;
    call->spare = node;
    return true;
}

void rpc_send_drop(struct rpc_call *call)
{
    struct rpc_send *node;

    (void)pthread_mutex_lock(&call->lock);
    node = call->first;
    call->first = NULL;
    call->last = NULL;
    (void)pthread_mutex_unlock(&call->lock);
    while (node) {
        struct rpc_send *next = node->next;

        for (size_t i = 0; i < node->count; i++)
            grpc_slice_unref(node->slices[i]);
        free(node);
        node = next;
    }
}

void rpc_send_release(struct rpc_call *call)
{
    while (call->spare) {
        struct rpc_send *next = call->spare->next;

        free(call->spare);
        call->spare = next;
    }
}
