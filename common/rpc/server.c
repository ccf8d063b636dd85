/*
 * server: a gRPC server with N completion queues, one thread each.
 *
 * For every method and every queue a few calls are requested from core in advance; a new call
 * completes a request on the queue that its connection belongs to and stays there.  Calls of
 * unknown methods are requested too: core would otherwise hold them until the client's deadline.
 *
 * Stop, in this order and no other (grpc 1.51, surface/server.cc; a batch on a shut-down queue
 * aborts the process): end health and watches; shutdown_and_notify while the threads keep polling;
 * grace period; cancel all calls; wait until the shutdown has completed, every requested call has
 * come back and every call is closed; destroy the server; drain and join the queues.
 * Locks: calls.lock guards the counters below it; `closing` is an atomic.
 */
#include "common/rpc/rpc_internal.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/host.h"
#include "common/base/memory.h"
#include "common/rpc/socket_options.h"

#include <assert.h>
#include <grpc/slice.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUESTS_PER_METHOD 4 /* calls requested in advance, per queue */
#define QUEUES_DEFAULT_MAX  4
#define NS_PER_SECOND       1000000000
#define METADATA_BYTES_MAX  8192 /* of one call */
#define CONTROL_QUEUE_INDEX 0    /* the queue of the shutdown's completion */

struct requested_call {
    struct rpc_tag tag;
    struct rpc_server *server;
    struct rpc_queue *queue;
    size_t method; /* index in server->methods; method_count: unknown methods */
    grpc_call *call;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details; /* unknown methods only */
};

struct rpc_server {
    grpc_server *grpc;
    uint16_t port;
    struct unix_path path;    /* of a Unix socket */
    struct rpc_queue *queues; /* owned */
    size_t queue_count;
    struct rpc_method *methods; /* owned with their paths: the caller's, then health's */
    size_t method_count;
    size_t own_method_count;   /* of the caller */
    size_t max_calls;          /* open at once, not counting unauthenticated ones */
    void **registered;         /* core's handle of each method */
    struct rpc_counts *counts; /* of each method, and of unknown ones; owned */
    struct requested_call *requested_calls;
    struct rpc_health *health;
    struct rpc_idle_reaper *reaper;
    struct rpc_admission admission;
    atomic_bool closing; /* request no more calls */
    struct rpc_tag on_shutdown;
    struct rpc_calls calls;
    /* under calls.lock */
    size_t outstanding_requests; /* that core holds */
    bool shut_down;
};

/* ------------------------------------------------------------------ requested calls */

static void request_call(struct requested_call *requested_call)
{
    struct rpc_server *server = requested_call->server;
    grpc_completion_queue *queue = requested_call->queue->grpc;
    grpc_call_error refused;

    requested_call->call = NULL;
    grpc_metadata_array_init(&requested_call->metadata);
    if (requested_call->method == server->method_count) {
        grpc_call_details_init(&requested_call->details);
        refused =
            grpc_server_request_call(server->grpc, &requested_call->call, &requested_call->details,
                                     &requested_call->metadata, queue, queue, &requested_call->tag);
    } else {
        refused = grpc_server_request_registered_call(
            server->grpc, server->registered[requested_call->method], &requested_call->call,
            &requested_call->deadline, &requested_call->metadata, NULL, queue, queue,
            &requested_call->tag);
    }
    assert(refused == GRPC_CALL_OK); /* also after shutdown: the tag then completes with false */
    (void)refused;
}

static void clear_requested_call(struct requested_call *requested_call)
{
    grpc_metadata_array_destroy(&requested_call->metadata);
    if (requested_call->method == requested_call->server->method_count)
        grpc_call_details_destroy(&requested_call->details);
}

static void retire_requested_call(struct requested_call *requested_call)
{
    struct rpc_calls *calls = &requested_call->server->calls;

    (void)pthread_mutex_lock(&calls->lock);
    requested_call->server->outstanding_requests--;
    (void)pthread_cond_broadcast(&calls->changed);
    (void)pthread_mutex_unlock(&calls->lock);
}

static int64_t to_deadline_ns(gpr_timespec deadline)
{
    gpr_timespec left;

    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0)
        return INT64_MAX;
    left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    if (left.tv_sec > INT64_MAX / NS_PER_SECOND / 2)
        return INT64_MAX;
    return clock_now_ns() + left.tv_sec * NS_PER_SECOND + left.tv_nsec;
}

/* Select the handler of the call.  `path` is filled for an unknown method. */
static void select_handler(struct requested_call *requested_call, char *path, size_t size,
                           struct rpc_call_setup *setup)
{
    struct rpc_server *server = requested_call->server;
    bool unknown = requested_call->method == server->method_count;
    struct rpc_admission_request request = {
        .is_public = !unknown && requested_call->method >= server->own_method_count,
        .while_draining = !unknown && server->methods[requested_call->method].while_draining,
        .metadata = &requested_call->metadata};
    const struct rpc_handler *refusal = rpc_admission_refusal(&server->admission, &request);

    setup->is_unauthenticated = !request.has_token;
    if (unknown) {
        (void)snprintf(path, size, "%.*s", (int)GRPC_SLICE_LENGTH(requested_call->details.method),
                       (const char *)GRPC_SLICE_START_PTR(requested_call->details.method));
        setup->path = path;
        setup->handler = &rpc_unknown_handler;
        setup->user = path;
    } else {
        const struct rpc_method *method = &server->methods[requested_call->method];

        setup->path = method->path;
        setup->handler = method->handler;
        setup->user = method->user;
        setup->max_head_bytes = method->max_head_bytes;
        setup->max_payload_bytes = method->max_payload_bytes;
    }
    if (refusal) {
        setup->handler = refusal;
        setup->user = &server->admission;
    }
}

/* At the limit a call is rejected before a struct is allocated for it. */
static bool is_at_call_limit(struct rpc_server *server, bool is_unauthenticated)
{
    struct rpc_calls *calls = &server->calls;
    size_t unauthenticated_max = server->max_calls / RPC_UNAUTHENTICATED_PART + 1;
    bool at_limit;

    (void)pthread_mutex_lock(&calls->lock);
    at_limit = is_unauthenticated
                   ? calls->unauthenticated_count >= unauthenticated_max
                   : calls->count - calls->unauthenticated_count >= server->max_calls;
    (void)pthread_mutex_unlock(&calls->lock);
    return at_limit;
}

static void reject_call(grpc_call *call, struct rpc_counts *counts)
{
    rpc_counts_start(counts);
    rpc_counts_end(counts, STATUS_NO_MEMORY); /* the status that the code stands for */
    (void)grpc_call_cancel_with_status(call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                       "this server has as many calls open as it allows", NULL);
    grpc_call_unref(call);
}

static void requested_call_done(struct rpc_tag *tag, bool ok)
{
    struct requested_call *requested_call = tag->owner;
    struct rpc_server *server = requested_call->server;
    bool unknown = requested_call->method == server->method_count;
    bool again = ok && !atomic_load(&server->closing);
    char path[128] = "";
    struct rpc_call_setup setup = {.calls = &server->calls,
                                   .queue = requested_call->queue,
                                   .counts = &server->counts[requested_call->method]};
    struct rpc_call *call;

    if (ok) {
        setup.grpc = requested_call->call;
        setup.deadline_ns =
            to_deadline_ns(unknown ? requested_call->details.deadline : requested_call->deadline);
        select_handler(requested_call, path, sizeof(path), &setup);
    }
    clear_requested_call(requested_call);
    if (again)
        request_call(requested_call); /* first: the next call may already be pending */
    if (ok && is_at_call_limit(server, setup.is_unauthenticated))
        reject_call(setup.grpc, setup.counts);
    else if (ok && rpc_call_open(&setup, &call, NULL) == STATUS_OK)
        rpc_call_start_server(call); /* when out of memory core cancels the call */
    if (!again)
        retire_requested_call(requested_call);
}

static void shutdown_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_server *server = tag->owner;

    (void)ok;
    (void)pthread_mutex_lock(&server->calls.lock);
    server->shut_down = true;
    (void)pthread_cond_broadcast(&server->calls.changed);
    (void)pthread_mutex_unlock(&server->calls.lock);
}

/* ------------------------------------------------------------------ open */

/* The limit on core's buffers of all connections together. */
static grpc_resource_quota *create_quota(const struct rpc_server_config *config)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("sparring");
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t bytes = config->max_memory_bytes;

    if (bytes == 0 && pages > 0 && page > 0)
        bytes = (uint64_t)pages * (uint64_t)page / 4;
    if (bytes > 0)
        grpc_resource_quota_resize(quota, bytes);
    return quota;
}

static grpc_arg quota_arg(grpc_resource_quota *quota)
{
    grpc_arg arg = rpc_channel_arg(GRPC_ARG_RESOURCE_QUOTA, 0);

    arg.type = GRPC_ARG_POINTER;
    arg.value.pointer.p = quota;
    arg.value.pointer.vtable = grpc_resource_quota_arg_vtable();
    return arg;
}

static grpc_server *create_server(const struct rpc_server_config *config)
{
    grpc_resource_quota *quota = create_quota(config);
    grpc_server *server;
    size_t limit = config->max_message_bytes ? config->max_message_bytes : RPC_MESSAGE_MAX_DEFAULT;
    bool fixed = rpc_has_fixed_windows(&config->listen);
    grpc_arg args[] = {
        rpc_channel_arg(GRPC_ARG_HTTP2_BDP_PROBE, !fixed),
        rpc_channel_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE,
                        fixed ? RPC_FRAME_BYTES : RPC_FRAME_BYTES_MIN),
        rpc_channel_arg(GRPC_ARG_ALLOW_REUSEPORT,
                        0), /* otherwise a second server could share the port */
        rpc_channel_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, RPC_CONCURRENT_CALLS),
        rpc_channel_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                        (int)(limit > INT_MAX ? INT_MAX : limit)),
        rpc_channel_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        rpc_channel_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        rpc_channel_arg(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX),
        /* Also the time-out for HTTP/2's first frame: it ends a connection that sends nothing. */
        rpc_channel_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000),
        quota_arg(quota),
        /* The client pings every 20 s: allow it, or the connection ends with too_many_pings. */
        rpc_channel_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 30000),
        rpc_channel_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        rpc_channel_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        rpc_channel_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000),
        rpc_socket_arg(fixed),
    };
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};

    server = grpc_server_create(&list, NULL); /* has copied the list, and holds the quota */
    grpc_resource_quota_unref(quota);
    return server;
}

static enum status copy_methods(struct rpc_server *server, const struct rpc_server_config *config,
                                struct error *err)
{
    struct rpc_method health[RPC_HEALTH_METHODS];
    size_t count = config->method_count + RPC_HEALTH_METHODS;
    enum status status =
        rpc_health_open(config->methods, config->method_count, &server->health, err);

    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*server->methods), "methods", &server->methods, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(count, sizeof(*server->registered), "methods", &server->registered, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(count + 1, sizeof(*server->counts), "call counters", &server->counts, err);
    if (status != STATUS_OK)
        return status;
    rpc_health_methods(server->health, health);
    for (size_t i = 0; i < count; i++) {
        const struct rpc_method *from =
            i < config->method_count ? &config->methods[i] : &health[i - config->method_count];
        char *path;

        status = mem_strdup(from->path, &path, err);
        if (status != STATUS_OK)
            return status;
        server->methods[i] = *from;
        server->methods[i].path = path;
        server->method_count = i + 1;
        server->registered[i] =
            grpc_server_register_method(server->grpc, path, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
        if (!server->registered[i])
            return error_set(err, STATUS_INVALID, "method '%s' is given twice", path);
    }
    server->own_method_count = config->method_count;
    return STATUS_OK;
}

/* One per core; half as many when all clients are on this host and use the other half.  Too many
 * threads are slower: core has one epoll set for all queues, so a thread receives events of other
 * queues' connections and forwards them (one worker, 2 cores, 2 threads: 0.8 of the speed for 1.3
 * times the processor time of one thread). */
static size_t default_queues(const struct endpoint *listen)
{
    unsigned count = host_cores_part(endpoint_is_loopback(listen) ? 2 : 1);

    return count > QUEUES_DEFAULT_MAX ? QUEUES_DEFAULT_MAX : count;
}

static enum status start_queues(struct rpc_server *server, const struct rpc_server_config *config,
                                struct error *err)
{
    size_t count = config->threads ? config->threads : default_queues(&config->listen);
    enum status status = mem_calloc(count, sizeof(*server->queues), "queues", &server->queues, err);

    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "rpc-server-%zu", i % 1000);
        server->queues[i].grpc = grpc_completion_queue_create_for_next(NULL);
        server->queue_count = i + 1;
        grpc_server_register_completion_queue(server->grpc, server->queues[i].grpc, NULL);
        status = rpc_queue_start(&server->queues[i], name, err);
    }
    return status;
}

static enum status create_requested_calls(struct rpc_server *server, struct error *err)
{
    size_t methods = server->method_count + 1;
    size_t count = server->queue_count * methods * REQUESTS_PER_METHOD;
    enum status status = mem_calloc(count, sizeof(*server->requested_calls), "call slots",
                                    &server->requested_calls, err);

    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        struct requested_call *requested_call = &server->requested_calls[i];

        requested_call->tag = (struct rpc_tag){requested_call_done, requested_call};
        requested_call->server = server;
        requested_call->queue = &server->queues[i % server->queue_count];
        requested_call->method = i / server->queue_count % methods;
    }
    return status;
}

static void request_all_calls(struct rpc_server *server)
{
    size_t count = server->queue_count * (server->method_count + 1) * REQUESTS_PER_METHOD;

    server->outstanding_requests = count; /* set first: a request may complete at once */
    for (size_t i = 0; i < count; i++)
        request_call(&server->requested_calls[i]);
}

/* Requires that no call was ever accepted, or that all are closed. */
static void server_release(struct rpc_server *server)
{
    rpc_idle_reaper_stop(server->reaper);
    if (server->grpc)
        grpc_server_destroy(server->grpc);
    unix_path_release(&server->path); /* the socket no longer listens */
    for (size_t i = 0; i < server->queue_count; i++)
        rpc_queue_stop(&server->queues[i]);
    free(server->queues);
    for (size_t i = 0; i < server->method_count; i++) {
        union {
            const char *borrowed;
            char *owned;
        } path = {.borrowed = server->methods[i].path};

        free(path.owned);
    }
    free(server->methods);
    free(server->registered);
    free(server->counts);
    free(server->requested_calls);
    rpc_health_close(server->health);
    rpc_calls_release(&server->calls);
    rpc_token_close(&server->admission.token);
    free(server);
}

enum status rpc_server_open(const struct rpc_server_config *config, struct rpc_server **ret_server,
                            struct error *err)
{
    struct rpc_server *server;
    enum status status = mem_calloc(1, sizeof(*server), "server", &server, err);

    if (status != STATUS_OK)
        return status;
    status = rpc_calls_init(&server->calls, err);
    if (status != STATUS_OK) {
        free(server);
        return status;
    }
    rpc_library_open();
    host_raise_file_limit();
    server->max_calls = config->max_calls > 0 ? config->max_calls : RPC_CALLS_MAX_DEFAULT;
    if (server->max_calls > rpc_descriptors_max() / 2) /* each may have a connection of its own */
        server->max_calls = rpc_descriptors_max() / 2;
    server->grpc = create_server(config);
    status = rpc_token_open(&config->security, &config->listen, &server->admission.token, err);
    if (status == STATUS_OK)
        status = copy_methods(server, config, err);
    if (status == STATUS_OK)
        status = start_queues(server, config, err);
    if (status == STATUS_OK)
        status = create_requested_calls(server, err);
    if (status == STATUS_OK)
        status = rpc_idle_reaper_start(&server->calls, &server->reaper, err);
    if (status == STATUS_OK)
        status = rpc_listen(server->grpc, config, &server->path, &server->port,
                            err); /* last: nothing after it can fail */
    if (status != STATUS_OK) {
        server_release(server);
        return status;
    }
    rpc_idle_reaper_set_port(server->reaper, server->port);
    grpc_server_start(server->grpc);
    request_all_calls(server);
    *ret_server = server;
    return STATUS_OK;
}

uint16_t rpc_server_port(const struct rpc_server *server)
{
    return server->port;
}

size_t rpc_server_method_count(const struct rpc_server *server)
{
    return server->method_count + 1;
}

void rpc_server_counts(const struct rpc_server *server, size_t index, struct rpc_call_counts *ret)
{
    assert(index <= server->method_count);
    rpc_counts_read(&server->counts[index], ret);
    ret->path = index < server->method_count ? server->methods[index].path : "other";
}

/* ------------------------------------------------------------------ drain and close */

void rpc_server_drain(struct rpc_server *server)
{
    atomic_store(&server->admission.draining, true);
    rpc_health_drain(server->health);
}

static void wait_for_calls(struct rpc_server *server, int64_t grace_ms)
{
    struct rpc_calls *calls = &server->calls;
    struct timespec until = condition_until(clock_deadline_ns(grace_ms));
    int late = 0;

    (void)pthread_mutex_lock(&calls->lock);
    while (!(server->shut_down && calls->count == 0) && !late)
        late = pthread_cond_timedwait(&calls->changed, &calls->lock, &until);
    (void)pthread_mutex_unlock(&calls->lock);
}

static void wait_for_end(struct rpc_server *server)
{
    struct rpc_calls *calls = &server->calls;

    (void)pthread_mutex_lock(&calls->lock);
    while (!server->shut_down || server->outstanding_requests > 0 || calls->count > 0)
        (void)pthread_cond_wait(&calls->changed, &calls->lock);
    (void)pthread_mutex_unlock(&calls->lock);
}

void rpc_server_close(struct rpc_server *server, int64_t grace_ms)
{
    if (!server)
        return;
    rpc_server_drain(server);
    rpc_health_finish(server->health);
    atomic_store(&server->closing, true);
    server->on_shutdown = (struct rpc_tag){shutdown_done, server};
    grpc_server_shutdown_and_notify(server->grpc, server->queues[CONTROL_QUEUE_INDEX].grpc,
                                    &server->on_shutdown);
    wait_for_calls(server, grace_ms);
    grpc_server_cancel_all_calls(server->grpc);
    wait_for_end(server);
    server_release(server);
}
