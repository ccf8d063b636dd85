/*
 * The Attend call: heartbeats of a rank, each answered with the state of the other ranks.
 *
 * The first heartbeat binds the call to a connection of the rank and one of its lanes; when the
 * call ends, the rank is cut off, as with a stream.  A heartbeat is answered at once, except while
 * the peer has not read earlier replies: then the reply is dropped, and its next heartbeat gets
 * one.  So the replies of a peer that never reads cannot accumulate.
 *
 * Locking: the table's lock for binding and book-keeping, never during a send.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "server/service/call_binding.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct heartbeat_call {
    struct call_binding binding; /* bound by the first heartbeat */
    unsigned lane;
};

static enum status check_heartbeat_bind(const struct service *s, const struct heartbeat *heartbeat,
                                        struct error *err)
{
    const struct call_claim claim = {.rank = heartbeat->rank,
                                     .session = heartbeat->session,
                                     .connection = heartbeat->connection,
                                     .what = "sent a heartbeat"};
    const struct job *j = s->table.current;
    const struct rank_session *session;
    enum status status = call_binding_check(s, &claim, err);

    if (status != STATUS_OK)
        return status;
    if (heartbeat->session == 0)
        return error_set(err, STATUS_PROTOCOL, "rank %u sent a heartbeat without a session",
                         heartbeat->rank);
    if (strcmp(j->members.job, heartbeat->job) != 0)
        return error_set(err, STATUS_UNAVAILABLE, "job '%s' is not served here, job '%s' is",
                         heartbeat->job, j->members.job);
    session = &j->ranks[heartbeat->rank].session;
    if (heartbeat->lane >= session->lanes)
        return error_set(err, STATUS_PROTOCOL, "rank %u has %u lanes, there is no lane %" PRIu32,
                         heartbeat->rank, session->lanes, heartbeat->lane);
    if (session->heartbeats[heartbeat->lane])
        return error_set(err, STATUS_EXISTS, "rank %u sends heartbeats already", heartbeat->rank);
    return STATUS_OK;
}

static enum status bind_heartbeat_call(struct heartbeat_call *c, struct rpc_call *call,
                                       const struct heartbeat *heartbeat, struct error *err)
{
    struct service *s = c->binding.service;
    enum status status = authorize_rank(s, call, heartbeat->rank, err);
    struct job *j;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->table.lock);
    j = s->table.current;
    status = check_heartbeat_bind(s, heartbeat, err);
    if (status == STATUS_OK) {
        call_binding_bind(&c->binding, j, heartbeat->rank, call);
        c->lane = heartbeat->lane;
        j->ranks[heartbeat->rank].session.heartbeats[c->lane] = call;
        j->ranks[heartbeat->rank].session.alive_ns[c->lane] = clock_now_ns();
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    return status;
}

/* Note a sign of life; *ret is the reply.  STATUS_CANCELLED: the rank has another connection
 * now. */
static enum status process_heartbeat(const struct heartbeat_call *c,
                                     const struct heartbeat *heartbeat, struct heartbeat *ret,
                                     struct error *err)
{
    struct job *j = c->binding.job;
    unsigned away = 0;
    enum status status = STATUS_OK;
    int64_t now_ns = clock_now_ns();

    if (heartbeat->rank != c->binding.rank || heartbeat->lane != c->lane)
        return error_set(err, STATUS_PROTOCOL,
                         "the heartbeats of rank %u, lane %u, carry one of rank %u, lane %u",
                         c->binding.rank, c->lane, heartbeat->rank, heartbeat->lane);
    *ret = (struct heartbeat){.rank = heartbeat->rank, .count = heartbeat->count};
    (void)pthread_mutex_lock(&c->binding.service->table.lock);
    if (j->state != JOB_RUNNING || !call_binding_is_current(&c->binding))
        status = STATUS_CANCELLED;
    else
        j->ranks[c->binding.rank].session.alive_ns[c->lane] = now_ns;
    ret->epoch = j->epoch;
    ret->waiting_ms =
        (uint32_t)job_waiting_ms(j, c->binding.service->table.timeout_ms, now_ns, &away);
    if (ret->waiting_ms > 0)
        (void)snprintf(ret->reason, sizeof(ret->reason), "rank %u is %s (%s)", away,
                       rank_session_state_name(j->ranks[away].session.state),
                       j->ranks[away].session.how);
    (void)pthread_mutex_unlock(&c->binding.service->table.lock);
    if (status == STATUS_OK)
        replication_vote(&c->binding.service->replication, j, heartbeat->rank,
                         heartbeat->vote_epoch, &ret->propose_epoch);
    return status;
}

static void heartbeat_start(struct rpc_call *call, void *user)
{
    struct heartbeat_call *c = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*c), "heartbeat call", &c, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        c->binding.service = user;
    rpc_call_set_user(call, c);
    if (c)
        rpc_call_receive(call);
}

static void send_heartbeat_reply(struct rpc_call *call, const struct heartbeat *heartbeat)
{
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    if (!rpc_call_has_unsent(call))
        (void)rpc_call_send(call, bytes, wire_pack_heartbeat(heartbeat, bytes), NULL);
    rpc_call_receive(call);
}

static void heartbeat_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct heartbeat_call *c = user;
    struct heartbeat heartbeat, reply;
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message) {
        if (c->binding.job)
            call_binding_cut(&c->binding, "it stopped its heartbeats without leaving");
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_heartbeat(head, size, &heartbeat, &err);
    if (status == STATUS_OK && !c->binding.job)
        status = bind_heartbeat_call(c, call, &heartbeat, &err);
    if (status == STATUS_OK)
        status = process_heartbeat(c, &heartbeat, &reply, &err);
    if (status == STATUS_OK)
        send_heartbeat_reply(call, &reply);
    else if (status != STATUS_CANCELLED) /* CANCELLED: the call is being closed */
        rpc_call_finish(call, status, err.text);
}

static void heartbeat_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct heartbeat_call *c = user;

    (void)result;
    if (c && c->binding.job) {
        call_binding_cut(&c->binding, "its connection closed");
        call_binding_release(&c->binding, call,
                             &c->binding.job->ranks[c->binding.rank].session.heartbeats[c->lane]);
    }
    free(c);
}

const struct rpc_handler heartbeat_handler = {
    .start = heartbeat_start, .message = heartbeat_message, .closed = heartbeat_closed};
