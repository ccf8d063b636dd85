/*
 * gate: which new calls a server takes, decided before anything of theirs is read.
 *
 * A refusal is a handler of its own that ends the call in `start` and never asks for a message, so
 * core keeps no more of a refused call than one flow-control window.
 * No locks: the gate's state is constant or atomic.
 */
#include "common/base/log.h"
#include "common/rpc/rpc_internal.h"

#include <stdio.h>

static void refused_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)call; /* never asked for */
    (void)message;
    (void)user;
}

static void refused_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

static void refuse_unknown(struct rpc_call *call, void *user)
{
    char text[256];

    (void)snprintf(text, sizeof(text), "no method '%s' here", (const char *)user);
    rpc_call_finish(call, STATUS_UNSUPPORTED, text);
    rpc_call_set_user(call, NULL);
}

static void refuse_draining(struct rpc_call *call, void *user)
{
    (void)user;
    rpc_call_finish(call, STATUS_UNAVAILABLE, "the server is draining");
}

/* One line for the first, the second, the fourth ...: whoever tries often does not fill the log. */
static void refuse_stranger(struct rpc_call *call, void *user)
{
    struct rpc_gate *gate = user;
    unsigned count = atomic_fetch_add(&gate->strangers, 1) + 1;

    if ((count & (count - 1)) == 0)
        log_warning("a call without the right token was refused (%u so far, this one from %s)",
                    count, rpc_call_peer(call));
    rpc_call_finish(call, STATUS_UNAUTHENTICATED,
                    "this server wants its bearer token with every call (--token-file)");
}

const struct rpc_handler rpc_unknown_handler = {refuse_unknown, refused_message, refused_closed};
static const struct rpc_handler draining_handler = {refuse_draining, refused_message,
                                                    refused_closed};
static const struct rpc_handler stranger_handler = {refuse_stranger, refused_message,
                                                    refused_closed};

const struct rpc_handler *rpc_gate_refusal(const struct rpc_gate *gate, struct rpc_visit *visit)
{
    if (visit->is_public)
        return NULL;
    visit->has_token = gate->token.length == 0 || rpc_token_matches(&gate->token, visit->metadata);
    if (!visit->has_token)
        return &stranger_handler;
    return atomic_load(&gate->draining) && !visit->while_draining ? &draining_handler : NULL;
}
