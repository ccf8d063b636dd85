/*
 * The Attend call: beats of a rank, each answered with what the server knows of the others.  It
 * belongs to the rank's connection, and to one of its lanes, from its first beat on, which says
 * whose it is; when it ends the rank is cut off, as with a stream.
 *
 * A beat is answered at once unless answers wait that the peer does not read: its next beat asks
 * again.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "server/service/call_binding.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attend {
    struct call_binding binding; /* from the first beat on */
    unsigned lane;
};

static enum status check_bind(const struct service *s, const struct heartbeat *beat,
                              struct error *err)
{
    const struct call_claim claim = {.rank = beat->rank,
                                     .session = beat->session,
                                     .connection = beat->connection,
                                     .what = "sent a beat"};
    const struct job *j = s->table.current;
    const struct rank_session *session;
    enum status status = call_binding_check(s, &claim, err);

    if (status != STATUS_OK)
        return status;
    if (beat->session == 0)
        return error_set(err, STATUS_PROTOCOL, "rank %u beats without a session", beat->rank);
    if (strcmp(j->members.job, beat->job) != 0)
        return error_set(err, STATUS_UNAVAILABLE, "job '%s' is not served here, job '%s' is",
                         beat->job, j->members.job);
    session = &j->ranks[beat->rank].session;
    if (beat->lane >= session->lanes)
        return error_set(err, STATUS_PROTOCOL, "rank %u has %u lanes, there is no lane %" PRIu32,
                         beat->rank, session->lanes, beat->lane);
    if (session->heartbeats[beat->lane])
        return error_set(err, STATUS_EXISTS, "rank %u beats already", beat->rank);
    return STATUS_OK;
}

static enum status bind_attend(struct attend *a, struct rpc_call *call,
                               const struct heartbeat *beat, struct error *err)
{
    struct service *s = a->binding.service;
    enum status status = authorize_rank(s, call, beat->rank, err);
    struct job *j;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->table.lock);
    j = s->table.current;
    status = check_bind(s, beat, err);
    if (status == STATUS_OK) {
        call_binding_bind(&a->binding, j, beat->rank, call);
        a->lane = beat->lane;
        j->ranks[beat->rank].session.heartbeats[a->lane] = call;
        j->ranks[beat->rank].session.alive_ns[a->lane] = clock_now_ns();
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    return status;
}

/* The rank is alive; *ret is the answer.  STATUS_CANCELLED: its place is another connection's. */
static enum status note_beat(const struct attend *a, const struct heartbeat *beat,
                             struct heartbeat *ret, struct error *err)
{
    struct job *j = a->binding.job;
    unsigned away = 0;
    enum status status = STATUS_OK;
    int64_t now_ns = clock_now_ns();

    if (beat->rank != a->binding.rank || beat->lane != a->lane)
        return error_set(err, STATUS_PROTOCOL,
                         "the beats of rank %u, lane %u, carry one of rank %u, lane %u",
                         a->binding.rank, a->lane, beat->rank, beat->lane);
    *ret = (struct heartbeat){.rank = beat->rank, .count = beat->count};
    (void)pthread_mutex_lock(&a->binding.service->table.lock);
    if (j->state != JOB_RUNNING || !call_binding_holds(&a->binding))
        status = STATUS_CANCELLED;
    else
        j->ranks[a->binding.rank].session.alive_ns[a->lane] = now_ns;
    ret->epoch = j->epoch;
    ret->waiting_ms =
        (uint32_t)job_waiting_ms(j, a->binding.service->table.timeout_ms, now_ns, &away);
    if (ret->waiting_ms > 0)
        (void)snprintf(ret->reason, sizeof(ret->reason), "rank %u is %s (%s)", away,
                       rank_session_state_name(j->ranks[away].session.state),
                       j->ranks[away].session.how);
    (void)pthread_mutex_unlock(&a->binding.service->table.lock);
    if (status == STATUS_OK)
        replication_vote(&a->binding.service->replication, j, beat->rank, beat->vote_epoch,
                         &ret->propose_epoch);
    return status;
}

static void heartbeat_start(struct rpc_call *call, void *user)
{
    struct attend *a = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*a), "attendance", &a, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        a->binding.service = user;
    rpc_call_set_user(call, a);
    if (a)
        rpc_call_receive(call);
}

static void answer_beat(struct rpc_call *call, const struct heartbeat *beat)
{
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    if (!rpc_call_has_unsent(call))
        (void)rpc_call_send(call, bytes, wire_pack_heartbeat(beat, bytes), NULL);
    rpc_call_receive(call);
}

static void heartbeat_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct attend *a = user;
    struct heartbeat beat, answer;
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message) {
        if (a->binding.job)
            call_binding_cut(&a->binding, "it stopped its beats without leaving");
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_heartbeat(head, size, &beat, &err);
    if (status == STATUS_OK && !a->binding.job)
        status = bind_attend(a, call, &beat, &err);
    if (status == STATUS_OK)
        status = note_beat(a, &beat, &answer, &err);
    if (status == STATUS_OK)
        answer_beat(call, &answer);
    else if (status != STATUS_CANCELLED) /* the end of the call is on its way */
        rpc_call_finish(call, status, err.text);
}

static void heartbeat_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct attend *a = user;

    (void)result;
    if (a && a->binding.job) {
        call_binding_cut(&a->binding, "its connection closed");
        call_binding_release(&a->binding, call,
                             &a->binding.job->ranks[a->binding.rank].session.heartbeats[a->lane]);
    }
    free(a);
}

const struct rpc_handler heartbeat_handler = {
    .start = heartbeat_start, .message = heartbeat_message, .closed = heartbeat_closed};
