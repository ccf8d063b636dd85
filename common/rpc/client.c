/*
 * client: one channel with its own connection, one queue, one thread.
 *
 * By default core shares one connection between clients of the same target; the local subchannel
 * pool prevents that, because parallelism is the number of connections.  Retries are off: only the
 * caller knows whether a call is idempotent.
 * Threads: every function except rpc_client_close may be called from any thread; blocking functions
 * (unary.c, close) must not be called from a handler.
 */
#include "common/rpc/rpc_internal.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/rpc/socket_options.h"

#include <ctype.h>
#include <grpc/slice.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_SECOND 1000000000

struct rpc_client {
    grpc_channel *channel;
    struct rpc_queue queue;
    struct rpc_calls calls;
    struct endpoint endpoint;
    char target[300]; /* the same as "host:port" or "unix:/path" */
    struct rpc_token token;
    struct rpc_keepalive keepalive;
    atomic_bool fail_fast;
};

/* ------------------------------------------------------------------ open and close */

static grpc_channel *create_channel(const struct rpc_client_config *config, const char *target,
                                    grpc_channel_credentials *credentials)
{
    size_t limit = config->max_message_bytes ? config->max_message_bytes : RPC_MESSAGE_MAX_DEFAULT;
    bool fixed = rpc_has_fixed_windows(&config->target);
    grpc_arg args[] = {
        rpc_channel_arg(GRPC_ARG_HTTP2_BDP_PROBE, !fixed),
        rpc_channel_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE,
                        fixed ? RPC_FRAME_BYTES : RPC_FRAME_BYTES_MIN),
        rpc_channel_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        rpc_channel_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0), /* http_proxy would hijack localhost */
        rpc_channel_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        rpc_channel_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        rpc_channel_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                        (int)(limit > INT_MAX ? INT_MAX : limit)),
        rpc_channel_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        rpc_channel_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        rpc_channel_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        rpc_channel_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000),
        rpc_channel_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
        /* Without the third, pings stop after two while a long poll waits. */
        rpc_channel_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 20000),
        rpc_channel_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        rpc_channel_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        rpc_channel_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        rpc_socket_arg(fixed),
    };
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};

    return grpc_channel_create(target, credentials, &list);
}

static void client_release(struct rpc_client *client)
{
    if (client->channel)
        grpc_channel_destroy(client->channel);
    rpc_queue_stop(&client->queue);
    rpc_calls_release(&client->calls);
    rpc_token_close(&client->token);
    free(client);
}

/* The target in core's syntax; result.c relies on these schemes. */
static enum status make_target(const struct endpoint *e, char *text, size_t size, struct error *err)
{
    const char *path = endpoint_unix_path(e);
    char plain[300];

    endpoint_format(e, plain, sizeof(plain));
    (void)snprintf(text, size, "%s%s", path ? "" : "dns:///", plain);
    return path ? unix_path_check_folder(path, "target", err) : STATUS_OK;
}

enum status rpc_client_open(const struct rpc_client_config *config, struct rpc_client **ret_client,
                            struct error *err)
{
    struct rpc_client *client;
    grpc_channel_credentials *credentials = NULL;
    char target[sizeof(client->target) + 8];
    enum status status = make_target(&config->target, target, sizeof(target), err);

    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*client), "client", &client, err);
    if (status != STATUS_OK)
        return status;
    rpc_library_open();
    client->endpoint = config->target;
    endpoint_format(&config->target, client->target, sizeof(client->target));
    client->keepalive = config->keepalive;
    status = rpc_calls_init(&client->calls, err);
    if (status != STATUS_OK) {
        free(client);
        return status;
    }
    status = rpc_token_open(&config->security, &config->target, &client->token, err);
    if (status == STATUS_OK)
        status = rpc_client_credentials(&config->security, &credentials, err);
    if (status != STATUS_OK)
        goto out;
    client->queue.grpc = grpc_completion_queue_create_for_next(NULL);
    status = rpc_queue_start(&client->queue, "rpc-client", err);
    if (status != STATUS_OK)
        goto out;
    client->channel = create_channel(config, target, credentials);
    *ret_client = client;
out:
    grpc_channel_credentials_release(credentials);
    if (status != STATUS_OK)
        client_release(client);
    return status;
}

void rpc_client_cancel(struct rpc_client *client)
{
    rpc_calls_cancel(&client->calls);
}

void rpc_client_close(struct rpc_client *client)
{
    if (!client)
        return;
    rpc_calls_cancel(&client->calls);
    (void)pthread_mutex_lock(&client->calls.lock);
    while (client->calls.count > 0)
        (void)pthread_cond_wait(&client->calls.changed, &client->calls.lock);
    (void)pthread_mutex_unlock(&client->calls.lock);
    client_release(client);
}

/* ------------------------------------------------------------------ calls */

static gpr_timespec to_timespec(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return (gpr_timespec){.tv_sec = deadline_ns / NS_PER_SECOND,
                          .tv_nsec = (int32_t)(deadline_ns % NS_PER_SECOND),
                          .clock_type = GPR_CLOCK_MONOTONIC};
}

enum status rpc_client_open_call(struct rpc_client *client, const char *path, int64_t deadline_ns,
                                 const struct rpc_handler *handler, void *user,
                                 struct rpc_call **ret_call, struct error *err)
{
    grpc_slice method = grpc_slice_from_copied_string(path);
    struct rpc_call_setup setup = {
        .calls = &client->calls,
        .queue = &client->queue,
        .handler = handler,
        .user = user,
        .path = path,
        .deadline_ns = deadline_ns,
        .channel = client->channel,
        .target = client->target,
        .token = &client->token,
        .fail_fast = atomic_load(&client->fail_fast),
    };

    setup.grpc =
        grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->queue.grpc,
                                 method, NULL, to_timespec(deadline_ns), NULL);
    grpc_slice_unref(method);
    return rpc_call_open(&setup, ret_call, err);
}

enum status rpc_client_call(struct rpc_client *client, const char *path, int64_t deadline_ns,
                            const struct rpc_handler *handler, void *user,
                            struct rpc_call **ret_call, struct error *err)
{
    struct rpc_call *call;
    enum status status = rpc_client_open_call(client, path, deadline_ns, handler, user, &call, err);

    if (status != STATUS_OK)
        return status;
    rpc_call_ref(call); /* the caller's */
    *ret_call = call;
    rpc_call_start_client(call);
    return STATUS_OK;
}

const char *rpc_client_target(const struct rpc_client *client)
{
    return client->target;
}

const struct rpc_keepalive *rpc_client_keepalive(const struct rpc_client *client)
{
    return &client->keepalive;
}

bool rpc_client_is_connected(const struct rpc_client *client)
{
    return grpc_channel_check_connectivity_state(client->channel, 0) == GRPC_CHANNEL_READY;
}

void rpc_client_fail_fast(struct rpc_client *client)
{
    atomic_store(&client->fail_fast, true);
}

void rpc_client_probe(const struct rpc_client *client, int64_t timeout_ms, char *reason,
                      size_t size)
{
    if (net_probe(&client->endpoint, clock_deadline_ns(timeout_ms), reason, size))
        (void)snprintf(reason, size, "it accepts connections and does not speak gRPC");
    reason[0] = (char)tolower((unsigned char)reason[0]);
}
