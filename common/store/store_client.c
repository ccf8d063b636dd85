/*
 * The store over gRPC: rank 0 serves the table, every rank, including rank 0, calls it.
 *
 * Time-outs.  The server holds Get and Wait open until the caller's deadline and then replies with
 * the missing keys.  The call's own deadline is `reply_grace_ms` later: a store that has not
 * replied by then is lost, which is another error than a missing key. Errors after `open` name rank
 * 0, because it has the table.  Nothing is retried: Add and CompareSet would be applied twice. Once
 * the connection has broken, every later call fails at once: the next process to listen there would
 * have another table. Locking: one atomic flag; the rest is in rpc.
 */
#include "common/store/store_ops.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/wait.h"
#include "common/store/store_server.h"
#include "common/wire/wire.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { reply_grace_ms = 2000 };

struct store_client {
    struct store_server *server; /* NULL unless this is rank 0 */
    struct rpc_client *rpc;
    atomic_bool lost;  /* the connection broke, and the table with it; never unset */
    char address[300]; /* "tcp://host:port" or "unix:/path" */
    char origin[96];
};

/* protobuf-c's parameters are not const, but it only reads them. */
static char *remove_const(const void *pointer)
{
    union {
        const void *constant;
        char *plain;
    } both = {.constant = pointer};

    return both.plain;
}

/* ---- calls */

/* Does the status mean that the store itself did not reply? */
static bool is_lost(enum status status)
{
    return status == STATUS_UNREACHABLE || status == STATUS_TIMEOUT ||
           status == STATUS_UNAVAILABLE || status == STATUS_PEER_LOST || status == STATUS_CANCELLED;
}

/* One call; the caller owns *ret_reply on success.  Returns the call's status unchanged. */
static enum status call_rpc(struct store_client *client, const char *path,
                            const struct store_request *request, int64_t deadline_ns,
                            struct store_reply *ret_reply, struct error *err)
{
    uint8_t *packed = NULL;
    size_t packed_size = 0;
    uint8_t *bytes = NULL;
    size_t size = 0;
    enum status status = wire_pack_store_request(request, &packed, &packed_size, err);

    if (status != STATUS_OK)
        return status;
    status =
        rpc_client_unary(client->rpc, path, packed, packed_size, deadline_ns, &bytes, &size, err);
    free(packed);
    if (status != STATUS_OK)
        return status;
    status = wire_unpack_store_reply(bytes, size, ret_reply, err);
    free(bytes);
    return status;
}

/* The call's own deadline; an operation whose deadline has passed is still sent once. */
static int64_t call_deadline(int64_t deadline_ns)
{
    const int64_t now_ns = clock_now_ns();
    const int64_t from_ns = deadline_ns > now_ns ? deadline_ns : now_ns;

    return from_ns < INT64_MAX - (int64_t)reply_grace_ms * 1000000
               ? from_ns + (int64_t)reply_grace_ms * 1000000
               : from_ns;
}

/* call_rpc with the deadline of an operation and an error text for a lost store.  The store counts
 * as lost at reply_deadline_ns, or at the call's own deadline if that is later. */
static enum status call_until(struct store_client *client, const char *path,
                              struct store_request *request, int64_t deadline_ns,
                              int64_t reply_deadline_ns, struct store_reply *ret_reply,
                              struct error *err)
{
    const int64_t call_deadline_ns = call_deadline(deadline_ns);
    struct error detail = {0};
    enum status status;

    if (atomic_load(&client->lost))
        return error_set(err, STATUS_PEER_LOST,
                         "lost the store of rank 0 at %s (%s): the connection broke before",
                         client->address, client->origin);
    request->timeout_ms = clock_left_ms(deadline_ns);
    status = call_rpc(client, path, request,
                      reply_deadline_ns > call_deadline_ns ? reply_deadline_ns : call_deadline_ns,
                      ret_reply, &detail);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (status == STATUS_PEER_LOST)
        atomic_store(&client->lost, true);
    if (is_lost(status))
        return error_set(err, STATUS_PEER_LOST, "lost the store of rank 0 at %s (%s): %.1500s",
                         client->address, client->origin, detail.text);
    return error_set(err, status, "%s", detail.text);
}

static enum status call_with_deadline(struct store_client *client, const char *path,
                                      struct store_request *request, int64_t deadline_ns,
                                      struct store_reply *ret_reply, struct error *err)
{
    return call_until(client, path, request, deadline_ns, deadline_ns, ret_reply, err);
}

static enum status grpc_set(void *impl, const char *key, const void *value, size_t size,
                            int64_t deadline_ns, struct error *err)
{
    struct store_request request = {
        .key = remove_const(key), .value = (uint8_t *)remove_const(value), .value_size = size};
    struct store_reply reply = {0};
    enum status status;

    if (size > STORE_VALUE_MAX) /* before it is copied */
        return error_set(err, STATUS_INVALID,
                         "the value of store key '%.100s' has %zu bytes, %u allowed", key, size,
                         STORE_VALUE_MAX);
    status = call_with_deadline(impl, "/sparring.v1.Store/Set", &request, deadline_ns, &reply, err);
    wire_release_store_reply(&reply);
    return status;
}

static enum status grpc_get(void *impl, const char *key, int64_t deadline_ns, char **ret_value,
                            size_t *ret_size, struct error *err)
{
    struct store_request request = {.key = remove_const(key)};
    struct store_reply reply = {0};
    enum status status =
        call_with_deadline(impl, "/sparring.v1.Store/Get", &request, deadline_ns, &reply, err);

    if (status == STATUS_OK && reply.missing_count > 0)
        status = STATUS_TIMEOUT;
    if (status == STATUS_OK) {
        *ret_value = (char *)reply.value; /* wire appends a NUL */
        *ret_size = reply.value_size;
        reply.value = NULL;
    }
    wire_release_store_reply(&reply);
    return status;
}

static enum status grpc_add(void *impl, const char *key, int64_t delta, int64_t deadline_ns,
                            int64_t *ret_sum, struct error *err)
{
    struct store_request request = {.key = remove_const(key), .delta = delta};
    struct store_reply reply = {0};
    enum status status =
        call_with_deadline(impl, "/sparring.v1.Store/Add", &request, deadline_ns, &reply, err);

    if (status == STATUS_OK)
        *ret_sum = reply.number;
    wire_release_store_reply(&reply);
    return status;
}

static enum status grpc_compare_set(void *impl, const char *key, const char *expected,
                                    const char *desired, int64_t deadline_ns, char **ret_value,
                                    struct error *err)
{
    struct store_request request = {.key = remove_const(key),
                                    .value = (uint8_t *)remove_const(desired),
                                    .value_size = strlen(desired),
                                    .expected = (uint8_t *)remove_const(expected),
                                    .expected_size = strlen(expected)};
    struct store_reply reply = {0};
    enum status status = call_with_deadline(impl, "/sparring.v1.Store/CompareSet", &request,
                                            deadline_ns, &reply, err);

    if (status == STATUS_OK) {
        *ret_value = (char *)reply.value;
        reply.value = NULL;
    }
    wire_release_store_reply(&reply);
    return status;
}

/* Mark the keys listed in the reply, which are in the order of the request. */
static enum status mark_missing(const struct store_client *client, const struct store_reply *reply,
                                const char *const *keys, size_t count, bool *missing,
                                struct error *err)
{
    size_t next = 0;

    for (size_t i = 0; i < count; i++) {
        missing[i] = next < reply->missing_count && strcmp(keys[i], reply->missing[next]) == 0;
        next += missing[i];
    }
    if (next == reply->missing_count)
        return STATUS_TIMEOUT;
    return error_set(err, STATUS_PROTOCOL,
                     "the store at %s names a missing key that nobody asked for", client->address);
}

static enum status grpc_wait(void *impl, const char *const *keys, size_t count, int64_t deadline_ns,
                             int64_t reply_deadline_ns, bool *ret_missing, struct error *err)
{
    struct store_request request = {.keys = (char **)remove_const(keys), .key_count = count};
    struct store_reply reply = {0};
    enum status status = call_until(impl, "/sparring.v1.Store/Wait", &request, deadline_ns,
                                    reply_deadline_ns, &reply, err);

    if (status == STATUS_OK && reply.missing_count > 0)
        status = mark_missing(impl, &reply, keys, count, ret_missing, err);
    wire_release_store_reply(&reply);
    return status;
}

static enum status grpc_remove(void *impl, const char *key, int64_t deadline_ns, bool *ret_found,
                               struct error *err)
{
    struct store_request request = {.key = remove_const(key)};
    struct store_reply reply = {0};
    enum status status =
        call_with_deadline(impl, "/sparring.v1.Store/Delete", &request, deadline_ns, &reply, err);

    if (status == STATUS_OK)
        *ret_found = reply.found != 0;
    wire_release_store_reply(&reply);
    return status;
}

static enum status grpc_num_keys(void *impl, int64_t deadline_ns, int64_t *ret_count,
                                 struct error *err)
{
    struct store_request request = {0};
    struct store_reply reply = {0};
    enum status status =
        call_with_deadline(impl, "/sparring.v1.Store/NumKeys", &request, deadline_ns, &reply, err);

    if (status == STATUS_OK)
        *ret_count = reply.number;
    wire_release_store_reply(&reply);
    return status;
}

/* ---- open and close */

static void grpc_close(void *impl)
{
    struct store_client *client = impl;

    rpc_client_close(client->rpc);
    store_server_close(client->server);
    free(client);
}

/* Wait until the store replies; start_ns is for the error text. */
static enum status await_first_reply(struct store_client *client, int64_t start_ns,
                                     int64_t deadline_ns, struct error *err)
{
    const struct store_request request = {0};
    struct store_reply reply = {0};
    struct error detail = {0};
    enum status status =
        call_rpc(client, "/sparring.v1.Store/NumKeys", &request, deadline_ns, &reply, &detail);

    wire_release_store_reply(&reply);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (is_lost(status))
        return error_set(err, STATUS_UNREACHABLE,
                         "waited %.1f s for the store at %s (%s): rank 0, which serves it, is "
                         "missing (%.1000s)",
                         (double)(clock_now_ns() - start_ns) * 1e-9, client->address,
                         client->origin, detail.text);
    return error_set(err, status, "the store at %s (%s) does not answer as one: %.1500s",
                     client->address, client->origin, detail.text);
}

static enum status connect_client(struct store_client *client, const struct store_config *config,
                                  const struct endpoint *target, int64_t deadline_ns,
                                  struct error *err)
{
    const struct rpc_client_config rpc = {
        .target = *target, .security = config->security, .max_message_bytes = WIRE_STORE_MAX};
    const int64_t start_ns = clock_now_ns();
    char text[280];
    struct wait wait;
    enum status status;

    endpoint_format(target, text, sizeof(text));
    (void)snprintf(client->address, sizeof(client->address), "%s%s",
                   endpoint_unix_path(target) ? "" : "tcp://", text);
    wait_begin(&wait, deadline_ns, "rank 0 at %s", text);
    status = rpc_client_open(&rpc, &client->rpc, err);
    if (status == STATUS_OK)
        status = await_first_reply(client, start_ns, deadline_ns, err);
    wait_end(&wait);
    if (status == STATUS_OK) /* from here on a lost store does not come back */
        rpc_client_fail_fast(client->rpc);
    return status;
}

/* Rank 0's address may come from a scheduler, whose host names may not resolve here. */
static void append_address_hint(const struct endpoint *listen, struct error *err)
{
    struct error first = *err;

    if (!endpoint_unix_path(listen))
        (void)error_set(err, first.status,
                        "%s; MASTER_ADDR and MASTER_PORT, or --init-method tcp://HOST:PORT, set "
                        "where rank 0 listens",
                        first.text);
}

static enum status grpc_open(const struct store_config *config, const struct init_method *method,
                             int64_t deadline_ns, void **ret_impl, struct error *err)
{
    struct endpoint target = method->endpoint;
    struct store_client *client = NULL;
    enum status status = mem_calloc(1, sizeof(*client), "a store client", &client, err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(client->origin, sizeof(client->origin), "%s", method->origin);
    if (config->launch->rank == 0) {
        status =
            store_server_open(&target, method->origin, &config->security, &client->server, err);
        if (status == STATUS_OK)
            target.port = store_server_port(client->server);
        else
            append_address_hint(&target, err);
    }
    if (status == STATUS_OK)
        status = connect_client(client, config, &target, deadline_ns, err);
    if (status != STATUS_OK) {
        grpc_close(client);
        return status;
    }
    *ret_impl = client;
    return STATUS_OK;
}

static void grpc_address(const void *impl, char *text, size_t size)
{
    const struct store_client *client = impl;

    (void)snprintf(text, size, "%s", client->address);
}

static bool grpc_is_server(const void *impl)
{
    const struct store_client *client = impl;

    return client->server != NULL;
}

const struct store_ops store_grpc_ops = {
    .open = grpc_open,
    .set = grpc_set,
    .get = grpc_get,
    .add = grpc_add,
    .compare_set = grpc_compare_set,
    .wait = grpc_wait,
    .remove = grpc_remove,
    .num_keys = grpc_num_keys,
    .remove_group = NULL, /* the table ends with rank 0 */
    .address = grpc_address,
    .is_server = grpc_is_server,
    .close = grpc_close,
};
