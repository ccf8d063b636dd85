/*
 * The gRPC service of the store.
 *
 * Each call has a store_call from `start` to `closed`.  Set, Add, CompareSet, Delete and NumKeys
 * reply in the handler.  Get and Wait become a waiter of the table: its function replies from the
 * thread that stored the key, or from the thread that handles the deadlines.
 *
 * Lifetime of a store_call: one reference for gRPC (until `closed`), one for the table (until the
 * waiter was called or cancelled); the table's side also holds a reference of the rpc_call, because
 * the reply may come after the peer has disconnected.
 */
#include "common/store/store_server.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/store/store_table.h"
#include "common/wire/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { close_grace_ms = 500 };

struct store_server {
    struct store_table *table;
    struct rpc_server *rpc;
    pthread_t timer; /* runs store_table_run_timer */
    bool timer_started;
};

struct store_call {
    struct store_server *server;
    struct rpc_call *call;
    atomic_uint references;
    bool is_waiting; /* the waiter was handed to the table; queue thread only */
    struct store_request request;
    struct store_waiter waiter;
};

static void store_call_unref(struct store_call *c, unsigned references)
{
    if (atomic_fetch_sub(&c->references, references) > references)
        return;
    wire_release_store_request(&c->request);
    free(c);
}

/* ---- replies, from any thread */

static void send_reply(struct rpc_call *call, const struct store_reply *reply)
{
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size = 0;
    enum status status = wire_pack_store_reply(reply, &bytes, &size, &err);

    if (status == STATUS_OK) {
        (void)rpc_call_send(call, bytes, size, NULL); /* fails when the peer has disconnected */
        rpc_call_finish(call, STATUS_OK, "");
    } else {
        rpc_call_finish(call, status, err.text);
    }
    free(bytes);
}

/* Reply with the waiter's keys that are missing now (at least one was at its deadline). */
static void reply_missing_keys(struct store_call *c)
{
    struct store_reply reply = {0};
    struct error err = {0};
    char **keys =
        c->waiter.count == 1 && c->request.key_count == 0 ? &c->request.key : c->request.keys;
    enum status status =
        mem_calloc(c->waiter.count, sizeof(*reply.missing), "missing keys", &reply.missing, &err);

    if (status != STATUS_OK) {
        rpc_call_finish(c->call, status, err.text);
        return;
    }
    for (size_t i = 0; i < c->waiter.count; i++)
        if (!store_table_has(c->server->table, keys[i]))
            reply.missing[reply.missing_count++] = keys[i];
    if (reply.missing_count == 0) /* the last key arrived after the deadline: still a time-out */
        reply.missing[reply.missing_count++] = keys[0];
    send_reply(c->call, &reply);
    free(reply.missing);
}

static void waiter_done(struct store_waiter *waiter, enum status status, char *value, size_t size)
{
    struct store_call *c = waiter->user;
    const struct store_reply reply = {.value = (uint8_t *)value, .value_size = size};

    if (status == STATUS_OK)
        send_reply(c->call, &reply);
    else if (status == STATUS_TIMEOUT)
        reply_missing_keys(c);
    else if (status == STATUS_CANCELLED)
        rpc_call_finish(c->call, STATUS_UNAVAILABLE, "the store is closing");
    else
        rpc_call_finish(c->call, status, "no memory for the value");
    free(value);
    rpc_call_unref(c->call);
    store_call_unref(c, 1);
}

/* ---- operations, on the call's queue thread */

typedef enum status (*operation)(struct store_table *table, const struct store_request *request,
                                 struct store_reply *reply, struct error *err);

static enum status do_set(struct store_table *table, const struct store_request *request,
                          struct store_reply *reply, struct error *err)
{
    (void)reply;
    return store_table_set(table, request->key, request->value, request->value_size, false, err);
}

static enum status do_add(struct store_table *table, const struct store_request *request,
                          struct store_reply *reply, struct error *err)
{
    return store_table_add(table, request->key, request->delta, &reply->number, err);
}

static enum status do_compare_set(struct store_table *table, const struct store_request *request,
                                  struct store_reply *reply, struct error *err)
{
    bool written;
    char *value = NULL;
    enum status status = store_table_compare_set(
        table, request->key, request->expected, request->expected_size, request->value,
        request->value_size, &value, &reply->value_size, &written, err);

    reply->value = (uint8_t *)value;
    return status;
}

static enum status do_delete(struct store_table *table, const struct store_request *request,
                             struct store_reply *reply, struct error *err)
{
    (void)err;
    reply->found = store_table_delete(table, request->key);
    return STATUS_OK;
}

static enum status do_num_keys(struct store_table *table, const struct store_request *request,
                               struct store_reply *reply, struct error *err)
{
    (void)request;
    (void)err;
    reply->number = (int64_t)store_table_count(table);
    return STATUS_OK;
}

/* ---- calls */

static void call_start(struct rpc_call *call, void *user)
{
    struct store_call *c = NULL;
    struct error err = {0};
    enum status status = mem_calloc(1, sizeof(*c), "a store call", &c, &err);

    if (status != STATUS_OK) {
        rpc_call_set_user(call, NULL);
        rpc_call_finish(call, status, err.text);
        return;
    }
    c->server = user;
    c->call = call;
    atomic_init(&c->references, 1);
    rpc_call_set_user(call, c);
    rpc_call_receive(call);
}

static void call_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct store_call *c = user;
    unsigned references = 1;

    (void)result;
    if (!c)
        return;
    if (c->is_waiting && store_table_cancel(c->server->table, &c->waiter)) {
        rpc_call_unref(call);
        references++; /* also the table's */
    }
    store_call_unref(c, references);
}

/* Unpack into c->request; false: the call was refused. */
static bool unpack_request(struct store_call *c, struct rpc_message *message)
{
    struct error err = {0};
    const uint8_t *head;
    size_t size = 0;
    enum status status;

    if (!message) {
        rpc_call_finish(c->call, STATUS_PROTOCOL, "the call has no request");
        return false;
    }
    if (rpc_message_payload_size(message) > 0) {
        rpc_call_finish(c->call, STATUS_PROTOCOL, "a store request has no payload");
        return false;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_store_request(head, size, &c->request, &err);
    if (status != STATUS_OK)
        rpc_call_finish(c->call, status, err.text);
    return status == STATUS_OK;
}

static void handle_operation(struct rpc_message *message, struct store_call *c,
                             operation run_operation)
{
    struct store_reply reply = {0};
    struct error err = {0};
    enum status status;

    if (!c || !unpack_request(c, message))
        return;
    status = run_operation(c->server->table, &c->request, &reply, &err);
    if (status == STATUS_OK)
        send_reply(c->call, &reply);
    else
        rpc_call_finish(c->call, status, err.text);
    free(reply.value);
}

static void set_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)call;
    handle_operation(message, user, do_set);
}

static void add_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)call;
    handle_operation(message, user, do_add);
}

static void compare_set_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)call;
    handle_operation(message, user, do_compare_set);
}

static void delete_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)call;
    handle_operation(message, user, do_delete);
}

static void num_keys_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)call;
    handle_operation(message, user, do_num_keys);
}

/* Register a waiter for the call; waiter_done replies, perhaps before this returns. */
static void wait_for_keys(struct store_call *c, const char *const *keys, size_t count,
                          bool wants_value)
{
    const int64_t timeout_ms = c->request.timeout_ms;

    c->waiter =
        (struct store_waiter){.keys = keys,
                              .count = count,
                              .deadline_ns = clock_deadline_ns(timeout_ms > 0 ? timeout_ms : 0),
                              .wants_value = wants_value,
                              .done = waiter_done,
                              .user = c};
    c->is_waiting = true;
    rpc_call_ref(c->call);
    (void)atomic_fetch_add(&c->references, 1);
    store_table_wait(c->server->table, &c->waiter);
}

static void get_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct store_call *c = user;

    (void)call;
    if (c && unpack_request(c, message))
        wait_for_keys(c, (const char *const *)&c->request.key, 1, true);
}

static void wait_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct store_call *c = user;

    (void)call;
    if (c && unpack_request(c, message))
        wait_for_keys(c, (const char *const *)c->request.keys, c->request.key_count, false);
}

/* ---- open and close */

static void *timer_main(void *user)
{
    struct store_server *server = user;

    store_table_run_timer(server->table);
    return NULL;
}

static enum status open_rpc_server(struct store_server *server, const struct endpoint *listen,
                                   const char *origin, const struct rpc_security *security,
                                   struct error *err)
{
#define STORE_HANDLER(name)                                                                        \
    {                                                                                              \
        call_start, name##_message, call_closed                                                    \
    }
    static const struct rpc_handler set = STORE_HANDLER(set);
    static const struct rpc_handler get = STORE_HANDLER(get);
    static const struct rpc_handler add = STORE_HANDLER(add);
    static const struct rpc_handler compare_set = STORE_HANDLER(compare_set);
    static const struct rpc_handler wait = STORE_HANDLER(wait);
    static const struct rpc_handler delete_key = STORE_HANDLER(delete);
    static const struct rpc_handler num_keys = STORE_HANDLER(num_keys);
#undef STORE_HANDLER
    const struct rpc_method methods[] = {
        {.path = "/sparring.v1.Store/Set", .handler = &set, .user = server},
        {.path = "/sparring.v1.Store/Get", .handler = &get, .user = server},
        {.path = "/sparring.v1.Store/Add", .handler = &add, .user = server},
        {.path = "/sparring.v1.Store/CompareSet", .handler = &compare_set, .user = server},
        {.path = "/sparring.v1.Store/Wait", .handler = &wait, .user = server},
        {.path = "/sparring.v1.Store/Delete", .handler = &delete_key, .user = server},
        {.path = "/sparring.v1.Store/NumKeys", .handler = &num_keys, .user = server},
    };
    const struct rpc_server_config config = {.listen = *listen,
                                             .listen_origin = origin,
                                             .security = *security,
                                             .threads = 1,
                                             .max_message_bytes = WIRE_STORE_MAX,
                                             .methods = methods,
                                             .method_count = sizeof(methods) / sizeof(methods[0])};

    return rpc_server_open(&config, &server->rpc, err);
}

enum status store_server_open(const struct endpoint *listen, const char *origin,
                              const struct rpc_security *security, struct store_server **ret_server,
                              struct error *err)
{
    struct store_server *server = NULL;
    enum status status = mem_calloc(1, sizeof(*server), "a store server", &server, err);
    int failed;

    if (status != STATUS_OK)
        return status;
    status = store_table_open(STORE_BYTES_MAX, &server->table, err);
    if (status != STATUS_OK)
        goto out;
    failed = pthread_create(&server->timer, NULL, timer_main, server);
    if (failed) {
        status = error_set_errno(err, failed, "cannot start the store's thread");
        goto out;
    }
    server->timer_started = true;
    status = open_rpc_server(server, listen, origin, security, err);
    if (status == STATUS_OK)
        *ret_server = server;
out:
    if (status != STATUS_OK)
        store_server_close(server);
    return status;
}

uint16_t store_server_port(const struct store_server *server)
{
    return rpc_server_port(server->rpc);
}

const struct rpc_server *store_server_rpc(const struct store_server *server)
{
    return server->rpc;
}

void store_server_close(struct store_server *server)
{
    if (!server)
        return;
    if (server->table)
        store_table_stop(server->table); /* first: pending calls then end within the grace period */
    if (server->timer_started)
        (void)pthread_join(server->timer, NULL);
    rpc_server_close(server->rpc, close_grace_ms);
    store_table_close(server->table);
    free(server);
}
