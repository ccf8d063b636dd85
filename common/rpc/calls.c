/*
 * calls: the list of live calls of a server or client, so that it can cancel and await them.
 *
 * Lock order: calls->lock, then a call's own lock; no function here may be called with the latter.
 */
#include "common/rpc/call.h"

#include "common/base/condition.h"

enum status rpc_calls_init(struct rpc_calls *calls, struct error *err)
{
    int failed = pthread_mutex_init(&calls->lock, NULL);

    if (failed)
        return error_set_errno(err, failed, "cannot make a mutex");
    condition_init(&calls->changed);
    return STATUS_OK;
}

void rpc_calls_release(struct rpc_calls *calls)
{
    (void)pthread_cond_destroy(&calls->changed);
    (void)pthread_mutex_destroy(&calls->lock);
}

void rpc_calls_add(struct rpc_call *call)
{
    struct rpc_calls *calls = call->calls;

    (void)pthread_mutex_lock(&calls->lock);
    call->next = calls->first;
    if (call->next)
        call->next->previous = call;
    calls->first = call;
    calls->count++;
    calls->unauthenticated_count += call->is_unauthenticated;
    (void)pthread_mutex_unlock(&calls->lock);
}

void rpc_calls_remove(struct rpc_call *call)
{
    struct rpc_calls *calls = call->calls;

    (void)pthread_mutex_lock(&calls->lock);
    if (call->previous)
        call->previous->next = call->next;
    else
        calls->first = call->next;
    if (call->next)
        call->next->previous = call->previous;
    calls->unauthenticated_count -= call->is_unauthenticated;
    if (--calls->count == 0)
        (void)pthread_cond_broadcast(&calls->changed);
    (void)pthread_mutex_unlock(&calls->lock);
}

void rpc_calls_cancel(struct rpc_calls *calls)
{
    (void)pthread_mutex_lock(&calls->lock);
    for (struct rpc_call *call = calls->first; call; call = call->next)
        rpc_call_cancel(call);
    (void)pthread_mutex_unlock(&calls->lock);
}
