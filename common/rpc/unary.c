/*
 * unary: one request, one reply, for a thread that blocks until the reply.
 *
 * A call that its server holds for long (until all ranks have joined, for example) cannot be
 * distinguished from one on a dead connection, which core's own keepalive detects only after half a
 * minute.  So the waiting thread sends health checks on the same connection.  Loss is measured in
 * unanswered checks, not in time: a local process that was stopped or starved has not received
 * either.  While there is no connection, core reconnects.  A stop that interrupts waits also ends
 * the call. Locks: a struct unary's lock is taken before a call's.
 */
#include "common/rpc/rpc_internal.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/base/wait.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { stop_poll_ms = 100, note_ms = 2000, probe_ms = 50 };

struct unary {
    struct rpc_client *client;
    int64_t deadline_ns;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC: done or is_checking */
    bool done;              /* under lock; until then the next four are the queue thread's */
    struct error failure;
    struct rpc_result result;
    uint8_t *reply; /* owned */
    size_t reply_size;
    struct rpc_call *health_check; /* waiting thread only; a reference; NULL: none was sent yet */
    bool is_checking;              /* under lock; the health check has not ended */
    bool is_alive_seen;            /* under lock; a check was answered in this interval */
    unsigned unanswered_intervals; /* waiting thread only: in a row */
    bool given_up;                 /* waiting thread only, as the rest */
    bool stopped;
    struct wait wait;
    int64_t note_ns; /* when the wait's reason is next updated */
};

static enum status take_reply(struct unary *unary, const struct rpc_message *message,
                              struct error *err)
{
    const uint8_t *head = rpc_message_head(message, &unary->reply_size);
    enum status status;

    if (unary->reply)
        return error_set(err, STATUS_PROTOCOL, "more than one reply");
    if (rpc_message_payload_size(message) > 0)
        return error_set(err, STATUS_PROTOCOL, "a reply with a payload");
    status = mem_calloc(unary->reply_size + 1, 1, "reply", &unary->reply, err);
    if (status == STATUS_OK)
        memcpy(unary->reply, head, unary->reply_size);
    return status;
}

static void unary_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct unary *unary = user;

    if (!message)
        return;
    if (take_reply(unary, message, &unary->failure) == STATUS_OK)
        rpc_call_receive(call); /* the status arrives only after the last message */
    else
        rpc_call_cancel(call);
}

static void unary_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct unary *unary = user;

    (void)call;
    (void)pthread_mutex_lock(&unary->lock);
    unary->result = *result;
    unary->done = true;
    (void)pthread_cond_broadcast(&unary->changed);
    (void)pthread_mutex_unlock(&unary->lock);
}

/* ------------------------------------------------------------------ keepalive */

static void health_check_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)user;
    if (message)
        rpc_call_receive(call);
}

/* Any reply from the server, also an error, proves that it is alive. */
static void health_check_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct unary *unary = user;

    (void)call;
    (void)pthread_mutex_lock(&unary->lock);
    unary->is_alive_seen = unary->is_alive_seen || result->status == STATUS_OK || result->by_peer;
    unary->is_checking = false;
    (void)pthread_cond_broadcast(&unary->changed);
    (void)pthread_mutex_unlock(&unary->lock);
}

/* Lock held on entry and return. */
static void start_health_check(struct unary *unary)
{
    static const struct rpc_handler handler = {NULL, health_check_message, health_check_closed};
    struct error none;

    unary->is_checking = true;
    (void)pthread_mutex_unlock(&unary->lock);
    if (unary->health_check)
        rpc_call_unref(unary->health_check);
    unary->health_check = NULL;
    if (rpc_client_call(unary->client, RPC_HEALTH_CHECK, unary->deadline_ns, &handler, unary,
                        &unary->health_check, &none) == STATUS_OK) {
        (void)rpc_call_send(unary->health_check, (const uint8_t *)"", 0, NULL);
        rpc_call_send_done(unary->health_check);
        rpc_call_receive(unary->health_check);
    }
    (void)pthread_mutex_lock(&unary->lock);
    if (!unary->health_check)
        unary->is_checking = false; /* the interval is then not counted */
}

/* Evaluate the interval that has passed.  Lock held on entry and return. */
static void check_liveness(struct unary *unary, struct rpc_call *call)
{
    const struct rpc_keepalive *keepalive = rpc_client_keepalive(unary->client);
    bool is_unanswered =
        unary->is_checking && !unary->is_alive_seen && rpc_client_is_connected(unary->client);

    if (unary->given_up)
        return;
    unary->unanswered_intervals = is_unanswered ? unary->unanswered_intervals + 1 : 0;
    unary->is_alive_seen = false;
    if (unary->unanswered_intervals * keepalive->interval_ms >= keepalive->timeout_ms) {
        unary->given_up = true;
        rpc_call_cancel(call);
    } else if (!unary->is_checking) {
        start_health_check(unary);
    }
}

/* Update the reason that the wait shows.  Lock held on entry and return. */
static void note_connection_state(struct unary *unary)
{
    char reason[160] = "";

    if (!unary->wait.is_listed || clock_now_ns() < unary->note_ns)
        return;
    unary->note_ns = clock_deadline_ns(note_ms);
    (void)pthread_mutex_unlock(&unary->lock);
    if (!rpc_client_is_connected(unary->client))
        rpc_client_probe(unary->client, probe_ms, reason, sizeof(reason));
    wait_note(&unary->wait, "%s", reason);
    (void)pthread_mutex_lock(&unary->lock);
}

/* Wait until the call has ended or until_ns.  Lock held on entry and return. */
static void wait_until(struct unary *unary, struct rpc_call *call, int64_t until_ns)
{
    while (!unary->done && clock_now_ns() < until_ns) {
        const int64_t poll_at_ns = clock_deadline_ns(stop_poll_ms);
        const struct timespec next = condition_until(poll_at_ns < until_ns ? poll_at_ns : until_ns);

        (void)pthread_cond_timedwait(&unary->changed, &unary->lock, &next);
        if (!unary->done && !unary->stopped && stop_ends_waits()) {
            unary->stopped = true;
            rpc_call_cancel(call);
        }
        if (!unary->done)
            note_connection_state(unary);
    }
}

/* Wait until the call has ended: by its deadline, or because this thread cancels it. */
static void wait_with_keepalive(struct unary *unary, struct rpc_call *call)
{
    int64_t interval_ms = rpc_client_keepalive(unary->client)->interval_ms;

    (void)pthread_mutex_lock(&unary->lock);
    while (!unary->done) {
        wait_until(unary, call, interval_ms > 0 ? clock_deadline_ns(interval_ms) : INT64_MAX);
        if (!unary->done)
            check_liveness(unary, call);
    }
    if (unary->is_checking)
        rpc_call_cancel(unary->health_check);
    while (unary->is_checking)
        (void)pthread_cond_wait(&unary->changed, &unary->lock);
    (void)pthread_mutex_unlock(&unary->lock);
    if (unary->health_check)
        rpc_call_unref(unary->health_check);
}

/* ------------------------------------------------------------------ the call */

static enum status unary_call_status(const struct unary *unary, const char *path, struct error *err)
{
    const struct rpc_keepalive *keepalive = rpc_client_keepalive(unary->client);
    const char *target = rpc_client_target(unary->client);

    if (unary->failure.status != STATUS_OK)
        return error_set(err, unary->failure.status, "%s on %s: %s", path, target,
                         unary->failure.text);
    if (unary->result.status == STATUS_CANCELLED && unary->stopped)
        return error_set(err, STATUS_CANCELLED, "stopped by signal %d while %s on %s waited",
                         stop_requested(), path, target);
    if (unary->result.status == STATUS_CANCELLED && unary->given_up)
        return error_set(err, STATUS_PEER_LOST,
                         "nothing was heard of %s for %" PRId64 " ms (%s) while %s waited", target,
                         unary->unanswered_intervals * keepalive->interval_ms, keepalive->option,
                         path);
    if (unary->result.status != STATUS_OK)
        return error_set(err, unary->result.status, "%s", unary->result.text);
    if (!unary->reply)
        return error_set(err, STATUS_PROTOCOL, "%s on %s ended without a reply", path, target);
    return STATUS_OK;
}

enum status rpc_client_unary(struct rpc_client *client, const char *path, const uint8_t *request,
                             size_t request_size, int64_t deadline_ns, uint8_t **ret_reply,
                             size_t *ret_reply_size, struct error *err)
{
    bool by_peer;

    return rpc_client_unary_with_origin(client, path, request, request_size, deadline_ns, ret_reply,
                                        ret_reply_size, &by_peer, err);
}

enum status rpc_client_unary_with_origin(struct rpc_client *client, const char *path,
                                         const uint8_t *request, size_t request_size,
                                         int64_t deadline_ns, uint8_t **ret_reply,
                                         size_t *ret_reply_size, bool *ret_by_peer,
                                         struct error *err)
{
    static const struct rpc_handler handler = {NULL, unary_message, unary_closed};
    struct unary unary = {
        .client = client, .deadline_ns = deadline_ns, .note_ns = clock_deadline_ns(note_ms)};
    struct rpc_call *call;
    enum status status =
        rpc_client_open_call(client, path, deadline_ns, &handler, &unary, &call, err);

    *ret_by_peer = false;
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_init(&unary.lock, NULL);
    condition_init(&unary.changed);
    /* Requests made before the start: message and half-close leave in one write. */
    status = rpc_call_send(call, request, request_size, NULL);
    if (status != STATUS_OK) {
        (void)error_set(&unary.failure, status, "cannot send a request of %zu bytes", request_size);
        rpc_call_cancel(call);
    }
    rpc_call_send_done(call);
    rpc_call_receive(call);
    rpc_call_ref(call); /* ours, to cancel it */
    rpc_call_start_client(call);
    wait_begin(&unary.wait, deadline_ns, "%s", rpc_client_target(client));
    wait_with_keepalive(&unary, call);
    wait_end(&unary.wait);
    rpc_call_unref(call);
    status = unary_call_status(&unary, path, err);
    *ret_by_peer = unary.result.by_peer;
    if (status == STATUS_OK) {
        *ret_reply = unary.reply;
        *ret_reply_size = unary.reply_size;
    } else {
        free(unary.reply);
    }
    (void)pthread_cond_destroy(&unary.changed);
    (void)pthread_mutex_destroy(&unary.lock);
    return status;
}
