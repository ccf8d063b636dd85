/*
 * wish: what any thread may ask of a call.
 *
 * A wish is a field under call->lock.  The queue's thread acts on it: at once when it is the one
 * that asks, after the handler when the call's own handler asks, else woken by an empty batch,
 * which core completes at once on the call's queue and may be started beside any other.
 */
#include "common/rpc/call.h"

#include <assert.h>
#include <stdio.h>

/* Have the queue's thread look at the wishes; call->lock is held and is given up. */
void rpc_call_wake_and_unlock(struct rpc_call *call)
{
    if (call->ended || call->woken) {
        (void)pthread_mutex_unlock(&call->lock);
    } else if (rpc_queue_is_current(call->queue)) {
        (void)pthread_mutex_unlock(&call->lock);
        if (call->queue->current != call) /* else when its handler returns */
            rpc_call_advance(call);
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
    rpc_call_wake_and_unlock(call);
}

void rpc_call_send_done(struct rpc_call *call)
{
    assert(call->is_client);
    (void)pthread_mutex_lock(&call->lock);
    call->want_last = true;
    rpc_call_wake_and_unlock(call);
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
    rpc_call_wake_and_unlock(call);
}

void rpc_call_cancel(struct rpc_call *call)
{
    (void)pthread_mutex_lock(&call->lock);
    if (!call->ended)
        call->want_cancel = true;
    rpc_call_wake_and_unlock(call);
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
