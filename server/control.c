/*
 * Join and Leave.  A join is held until every rank has joined and the keeper has built the job, so
 * its answer means: all are here, all agree, go.  Nothing but a reference to the call waits.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/version.h"
#include "server/service_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A join answers so long before its call's own deadline would cut it off without a reason: a part
 * of its time, within limits, because a busy host needs a while to say it. */
#define ANSWER_MARGIN_PART     8
#define ANSWER_MARGIN_LEAST_NS INT64_C(250000000)
#define ANSWER_MARGIN_MOST_NS  INT64_C(2000000000)

struct join_call {
    struct service *service;
    struct job *job; /* NULL until admitted */
    unsigned rank;
};

/* ------------------------------------------------------------------ join */

static int64_t answer_margin_ns(int64_t left_ns)
{
    int64_t margin_ns = left_ns / ANSWER_MARGIN_PART;

    if (margin_ns < ANSWER_MARGIN_LEAST_NS)
        return ANSWER_MARGIN_LEAST_NS;
    return margin_ns < ANSWER_MARGIN_MOST_NS ? margin_ns : ANSWER_MARGIN_MOST_NS;
}

static int64_t join_deadline(const struct service *s, const struct rpc_call *call)
{
    int64_t own_ns = clock_deadline_ns(s->timeout_ms);
    int64_t call_ns = rpc_call_deadline_ns(call);

    if (call_ns != INT64_MAX)
        call_ns -= answer_margin_ns(call_ns - clock_now_ns());
    return own_ns < call_ns ? own_ns : call_ns;
}

/* The job that this request is for, made when none is served.  Lock held. */
static enum status find_job(struct service *s, const struct join_request *request,
                            struct error *err)
{
    if (s->draining)
        return error_set(err, STATUS_UNAVAILABLE, "the parameter server is stopping");
    if (s->current)
        return STATUS_OK;
    return job_open(request, &s->current, err);
}

/* Lock held. */
static enum status admit(struct join_call *jc, struct rpc_call *call,
                         const struct join_request *request, struct error *err)
{
    struct service *s = jc->service;
    enum status status = find_job(s, request, err);
    struct job *j = s->current;

    if (status != STATUS_OK)
        return status;
    status = membership_join(&j->members, request, rpc_call_peer(call), err);
    if (status != STATUS_OK) {
        if (j->state == JOB_GATHERING && j->members.joined == 0) {
            job_close(j); /* made for this request */
            s->current = NULL;
        }
        return status;
    }
    jc->job = j;
    jc->rank = request->rank;
    j->users++;
    j->shares = j->shares || desk_serves(s, request);
    j->ranks[jc->rank].session = request->session;
    j->ranks[jc->rank].join = call;
    j->ranks[jc->rank].join_deadline_ns = join_deadline(s, call);
    rpc_call_ref(call);
    if (membership_is_complete(&j->members))
        j->state = JOB_BUILDING;
    (void)pthread_cond_broadcast(&s->changed);
    return STATUS_OK;
}

/* Ranks that gather and cannot agree on how many they are will never be complete: tell them. */
static void end_gathering(struct service *s, const struct join_request *request,
                          const struct error *err)
{
    struct job *j;
    bool concerned;

    (void)pthread_mutex_lock(&s->lock);
    j = s->current;
    concerned = j && j->state == JOB_GATHERING && strcmp(j->members.job, request->job) == 0 &&
                j->members.world_size != request->world_size;
    if (concerned)
        j->users++;
    (void)pthread_mutex_unlock(&s->lock);
    if (!concerned)
        return;
    service_end_job(s, j, err);
    service_drop_job(s, j);
}

static enum status take_join(struct join_call *jc, struct rpc_call *call,
                             struct rpc_message *message, struct error *err)
{
    struct service *s = jc->service;
    struct join_request request = {0};
    size_t size;
    const uint8_t *head = rpc_message_head(message, &size);
    enum status status = wire_unpack_join_request(head, size, &request, err);

    if (status == STATUS_OK)
        status = service_check_rank(s, call, request.rank, err);
    if (status != STATUS_OK) {
        wire_release_join_request(&request);
        return status;
    }
    (void)pthread_mutex_lock(&s->lock);
    status = admit(jc, call, &request, err);
    (void)pthread_mutex_unlock(&s->lock);
    if (status == STATUS_MISMATCH)
        end_gathering(s, &request, err);
    wire_release_join_request(&request);
    return status;
}

static void join_start(struct rpc_call *call, void *user)
{
    struct join_call *jc = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*jc), "join", &jc, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        jc->service = user;
    rpc_call_set_user(call, jc);
    if (jc)
        rpc_call_receive(call);
}

static void join_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct error err = {0};
    enum status status;

    if (!message)
        status = error_set(&err, STATUS_PROTOCOL, "a join without a request");
    else
        status = take_join(user, call, message, &err);
    if (status != STATUS_OK)
        rpc_call_finish(call, status, err.text);
}

/* The caller has its answer, or is gone: then, before the job has begun, it may come again. */
static void join_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct join_call *jc = user;
    struct service *s;
    struct job *j;
    struct error err = {0};
    bool nobody = false, lost = false;

    if (!jc || !jc->job) {
        free(jc);
        return;
    }
    s = jc->service;
    j = jc->job;
    (void)pthread_mutex_lock(&s->lock);
    if (j->state == JOB_GATHERING) {
        membership_forget(&j->members, jc->rank);
        nobody = j->members.joined == 0;
    } else if (j->state != JOB_OVER) {
        lost = result->cancelled && !j->ranks[jc->rank].has_streamed;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (nobody || lost) {
        (void)error_set(&err, STATUS_PEER_LOST, "rank %u was lost (its join was cut off)",
                        jc->rank);
        service_end_job(s, j, &err);
    }
    (void)pthread_mutex_lock(&s->lock);
    j->ranks[jc->rank].join = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    service_drop_job(s, j);
    rpc_call_unref(call);
    free(jc);
}

const struct rpc_handler join_handler = {
    .start = join_start, .message = join_message, .closed = join_closed};

/* The reply is the same for all ranks. */
static enum status pack_reply(const struct service *s, const struct job *j, uint8_t **ret_bytes,
                              size_t *ret_size, struct error *err)
{
    struct join_reply reply = {.partition_count = (uint32_t)j->map.length,
                               .held = j->shard.length,
                               .element_count = j->shard.count};
    const uint32_t *held;
    enum status status =
        mem_calloc(reply.held, sizeof(*reply.partitions), "partition list", &reply.partitions, err);

    if (status != STATUS_OK)
        return status;
    (void)shard_map_held(&j->map, j->terms.server_index, &held);
    memcpy(reply.partitions, held, reply.held * sizeof(*held));
    (void)snprintf(reply.version, sizeof(reply.version), "%s", SPARRING_VERSION);
    if (j->shard.arena.base)
        (void)snprintf(reply.arena, sizeof(reply.arena), "%s", arena_desk_address(s->desk));
    status = wire_pack_join_reply(&reply, ret_bytes, ret_size, err);
    free(reply.partitions);
    return status;
}

void control_answer_joins(struct service *s, struct job *j)
{
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size = 0;

    if (pack_reply(s, j, &bytes, &size, &err) != STATUS_OK) {
        service_end_job(s, j, &err);
        return;
    }
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct rpc_call *call;

        (void)pthread_mutex_lock(&s->lock);
        call = j->ranks[rank].join;
        if (call)
            rpc_call_ref(call);
        (void)pthread_mutex_unlock(&s->lock);
        if (!call)
            continue;
        (void)rpc_call_send(call, bytes, size, NULL);
        rpc_call_finish(call, STATUS_OK, "");
        rpc_call_unref(call);
    }
    free(bytes);
}

/* ------------------------------------------------------------------ leave */

/* What a leave means for the others: *ret_job (with one use of it) is set when it means something;
 * *ret_ended when the job ends by it, failure when it ends badly.  Lock held. */
static enum status note_leave(struct service *s, const struct leave_request *request,
                              struct job **ret_job, bool *ret_ended, struct error *failure,
                              struct error *err)
{
    struct job *j = s->current;
    enum status status;

    if (!j || j->state == JOB_GATHERING)
        return error_set(err, STATUS_NOT_FOUND, "job '%s' does not run here", request->job);
    status = membership_leave(&j->members, request->job, request->rank, err);
    if (status != STATUS_OK)
        return status;
    if (request->reason[0] != '\0')
        (void)error_set(failure, STATUS_PEER_LOST, "rank %u failed: %s", request->rank,
                        request->reason);
    else if (job_is_lockstep(j) && job_is_pending(j))
        (void)error_set(failure, STATUS_PEER_LOST, "rank %u left in the middle of round %" PRIu64,
                        request->rank, job_round(j));
    *ret_ended = failure->status != STATUS_OK || j->members.left == j->members.world_size;
    if (*ret_ended || (j->state == JOB_RUNNING && !job_is_lockstep(j))) {
        j->users++;
        *ret_job = j;
    }
    return STATUS_OK;
}

static void leave_start(struct rpc_call *call, void *user)
{
    (void)user; /* stays the call's pointer */
    rpc_call_receive(call);
}

static void leave_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct service *s = user;
    struct leave_request request = {0};
    struct job *job = NULL;
    bool ended = false;
    struct error failure = {0}, err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message) {
        rpc_call_finish(call, STATUS_PROTOCOL, "a leave without a request");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_leave_request(head, size, &request, &err);
    if (status == STATUS_OK)
        status = service_check_rank(s, call, request.rank, &err);
    if (status == STATUS_OK) {
        (void)pthread_mutex_lock(&s->lock);
        status = note_leave(s, &request, &job, &ended, &failure, &err);
        (void)pthread_mutex_unlock(&s->lock);
    }
    if (ended)
        service_end_job(s, job, failure.status == STATUS_OK ? NULL : &failure);
    else if (job)
        exchange_finish_rank(s, job, request.rank);
    if (job)
        service_drop_job(s, job);
    if (status == STATUS_OK)
        (void)rpc_call_send(call, (const uint8_t *)"", 0, NULL); /* LeaveReply has no fields */
    rpc_call_finish(call, status, err.text);
}

static void leave_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

const struct rpc_handler leave_handler = {
    .start = leave_start, .message = leave_message, .closed = leave_closed};
