/*
 * admission: decides which new calls a server accepts, before any of their messages is read.
 *
 * A refused call gets a handler that ends it in `start` and never requests a message, so core
 * buffers at most one flow-control window of it.
 * No locks: the admission state is constant or atomic.
 */
#include "common/base/log.h"
#include "common/rpc/rpc_internal.h"

#include <stdio.h>

static void refused_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)call; /* never requested */
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

/* Log the first, second, fourth ... refusal, so that repeated attempts cannot fill the log. */
static void refuse_unauthenticated(struct rpc_call *call, void *user)
{
    struct rpc_admission *admission = user;
    unsigned count = atomic_fetch_add(&admission->unauthenticated_refusals, 1) + 1;

    if ((count & (count - 1)) == 0)
        log_warning("a call without the right token was refused (%u so far, this one from %s)",
                    count, rpc_call_peer(call));
    rpc_call_finish(call, STATUS_UNAUTHENTICATED,
                    "this server wants its bearer token with every call (--token-file)");
}

const struct rpc_handler rpc_unknown_handler = {refuse_unknown, refused_message, refused_closed};
static const struct rpc_handler draining_handler = {refuse_draining, refused_message,
                                                    refused_closed};
static const struct rpc_handler unauthenticated_handler = {refuse_unauthenticated, refused_message,
                                                           refused_closed};

const struct rpc_handler *rpc_admission_refusal(const struct rpc_admission *admission,
                                                struct rpc_admission_request *request)
{
    if (request->is_public)
        return NULL;
    request->has_token =
        admission->token.length == 0 || rpc_token_matches(&admission->token, request->metadata);
    if (!request->has_token)
        return &unauthenticated_handler;
    return atomic_load(&admission->draining) && !request->while_draining ? &draining_handler : NULL;
}
