/*
 * health: the service grpc.health.v1, for stock health probes.
 *
 * Check replies once; Watch replies at once and at every change, of which there is one: draining.
 * An unknown service is NOT_FOUND on Check and the message SERVICE_UNKNOWN on Watch, as the
 * standard requires (grpc/grpc, doc/health-checking.md). Locks: `lock` guards the watcher list and
 * the two flags.  Lock order: `lock`, then a call's lock.
 */
#include "common/base/memory.h"
#include "common/protobuf/unpack.h"
#include "common/rpc/rpc_internal.h"

#include "health.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define REQUEST_BYTES_MAX 1024

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;
#define SERVING(state) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##state

/* Listed from its start, so that a watch without a request is ended with the others. */
struct watcher {
    struct rpc_health *health;
    struct rpc_call *call; /* valid until `closed` */
    bool is_known_service; /* its request arrived and names a service of this server */
    struct watcher *previous, *next;
};

struct rpc_health {
    char **services; /* owned; [0] is "" */
    size_t service_count;
    pthread_mutex_t lock;
    /* under lock */
    bool draining, finished;
    struct watcher *first;
};

/* ------------------------------------------------------------------ shared */

static bool has_service(const struct rpc_health *health, const char *service)
{
    for (size_t i = 0; i < health->service_count; i++)
        if (strcmp(health->services[i], service) == 0)
            return true;
    return false;
}

static enum status read_request(const struct rpc_health *health, const struct rpc_message *message,
                                bool *ret_known, struct error *err)
{
    struct arena arena;
    ProtobufCMessage *request = NULL;
    size_t size;
    const uint8_t *bytes = rpc_message_head(message, &size);
    enum status status = unpack_message(&grpc__health__v1__health_check_request__descriptor, bytes,
                                        size, REQUEST_BYTES_MAX, &arena, &request, err);

    if (status == STATUS_OK)
        *ret_known =
            has_service(health, ((const Grpc__Health__V1__HealthCheckRequest *)request)->service);
    arena_release(&arena);
    return status;
}

static void send_serving_status(struct rpc_call *call, serving_status state)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    uint8_t bytes[16];

    response.status = state;
    (void)rpc_call_send(call, bytes,
                        grpc__health__v1__health_check_response__pack(&response, bytes), NULL);
}

static serving_status current_serving_status(struct rpc_health *health)
{
    return health->draining ? SERVING(NOT_SERVING) : SERVING(SERVING);
}

/* ------------------------------------------------------------------ Check */

static void check_start(struct rpc_call *call, void *user)
{
    (void)user;
    rpc_call_receive(call);
}

static void check_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct rpc_health *health = user;
    struct error err = {0};
    bool is_known_service = false;
    serving_status state;

    if (!message) {
        rpc_call_finish(call, STATUS_PROTOCOL, "Check needs one request");
    } else if (read_request(health, message, &is_known_service, &err) != STATUS_OK) {
        rpc_call_finish(call, err.status, err.text);
    } else if (!is_known_service) {
        rpc_call_finish(call, STATUS_NOT_FOUND, "unknown service");
    } else {
        (void)pthread_mutex_lock(&health->lock);
        state = current_serving_status(health);
        (void)pthread_mutex_unlock(&health->lock);
        send_serving_status(call, state);
        rpc_call_finish(call, STATUS_OK, "");
    }
}

static void check_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

/* ------------------------------------------------------------------ Watch */

static void list_watcher(struct watcher *w)
{
    struct rpc_health *health = w->health;

    (void)pthread_mutex_lock(&health->lock);
    w->next = health->first;
    if (w->next)
        w->next->previous = w;
    health->first = w;
    if (health->finished)
        rpc_call_finish(w->call, STATUS_UNAVAILABLE, "the server is closing");
    (void)pthread_mutex_unlock(&health->lock);
}

static void watch_start(struct rpc_call *call, void *user)
{
    struct watcher *w = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*w), "health watcher", &w, &err) == STATUS_OK) {
        w->health = user;
        w->call = call;
        list_watcher(w);
        rpc_call_receive(call);
    } else {
        rpc_call_finish(call, err.status, err.text);
    }
    rpc_call_set_user(call, w);
}

static void watch_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct watcher *w = user;
    struct rpc_health *health = w->health;
    struct error err = {0};
    bool is_known_service = false;

    if (!message) {
        rpc_call_finish(call, STATUS_PROTOCOL, "Watch needs one request");
        return;
    }
    if (read_request(health, message, &is_known_service, &err) != STATUS_OK) {
        rpc_call_finish(call, err.status, err.text);
        return;
    }
    (void)pthread_mutex_lock(&health->lock);
    send_serving_status(call, is_known_service ? current_serving_status(health)
                                               : SERVING(SERVICE_UNKNOWN));
    w->is_known_service = is_known_service; /* from here on rpc_health_drain notifies it */
    (void)pthread_mutex_unlock(&health->lock);
}

static void watch_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct watcher *w = user;

    (void)call;
    (void)result;
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->health->lock);
    if (w->previous)
        w->previous->next = w->next;
    else
        w->health->first = w->next;
    if (w->next)
        w->next->previous = w->previous;
    (void)pthread_mutex_unlock(&w->health->lock);
    free(w);
}

/* ------------------------------------------------------------------ open, drain, close */

/* "/package.Service/Method" -> "package.Service", once. */
static enum status add_service(struct rpc_health *health, const char *path, struct error *err)
{
    const char *end = path[0] == '/' ? strchr(path + 1, '/') : NULL;
    char *service;
    enum status status;

    if (!end)
        return error_set(err, STATUS_INVALID, "method path '%s' is not '/Service/Method'", path);
    status = mem_calloc((size_t)(end - path), 1, "service name", &service, err);
    if (status != STATUS_OK)
        return status;
    memcpy(service, path + 1, (size_t)(end - path) - 1);
    if (has_service(health, service))
        free(service);
    else
        health->services[health->service_count++] = service;
    return STATUS_OK;
}

enum status rpc_health_open(const struct rpc_method *methods, size_t method_count,
                            struct rpc_health **ret, struct error *err)
{
    struct rpc_health *health;
    enum status status = mem_calloc(1, sizeof(*health), "health service", &health, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_init(&health->lock, NULL);
    status = mem_calloc(method_count + 1, sizeof(*health->services), "service names",
                        &health->services, err);
    if (status == STATUS_OK)
        status = mem_strdup("", &health->services[0], err);
    if (status == STATUS_OK)
        health->service_count = 1;
    for (size_t i = 0; status == STATUS_OK && i < method_count; i++)
        status = add_service(health, methods[i].path, err);
    if (status == STATUS_OK)
        *ret = health;
    else
        rpc_health_close(health);
    return status;
}

void rpc_health_methods(struct rpc_health *health, struct rpc_method *ret_methods)
{
    static const struct rpc_handler check = {check_start, check_message, check_closed};
    static const struct rpc_handler watch = {watch_start, watch_message, watch_closed};

    ret_methods[0] = (struct rpc_method){.path = RPC_HEALTH_CHECK,
                                         .handler = &check,
                                         .user = health,
                                         .max_head_bytes = REQUEST_BYTES_MAX,
                                         .max_payload_bytes = RPC_NO_PAYLOAD};
    ret_methods[1] = (struct rpc_method){.path = "/grpc.health.v1.Health/Watch",
                                         .handler = &watch,
                                         .user = health,
                                         .max_head_bytes = REQUEST_BYTES_MAX,
                                         .max_payload_bytes = RPC_NO_PAYLOAD};
}

void rpc_health_drain(struct rpc_health *health)
{
    (void)pthread_mutex_lock(&health->lock);
    for (struct watcher *w = health->first; w && !health->draining; w = w->next)
        if (w->is_known_service)
            send_serving_status(w->call, SERVING(NOT_SERVING));
    health->draining = true;
    (void)pthread_mutex_unlock(&health->lock);
}

void rpc_health_finish(struct rpc_health *health)
{
    (void)pthread_mutex_lock(&health->lock);
    health->finished = true;
    for (struct watcher *w = health->first; w; w = w->next)
        rpc_call_finish(w->call, STATUS_UNAVAILABLE, "the server is closing");
    (void)pthread_mutex_unlock(&health->lock);
}

void rpc_health_close(struct rpc_health *health)
{
    if (!health)
        return;
    for (size_t i = 0; i < health->service_count; i++)
        free(health->services[i]);
    free(health->services);
    (void)pthread_mutex_destroy(&health->lock);
    free(health);
}
