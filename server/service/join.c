/*
 * Join.  The first of a rank is held until every rank has joined and the supervisor has built the
 * job, so its answer means: all are here, all agree, go.  In a job that runs it brings a session
 * back that was cut off, or another one to a slot that is free; the supervisor answers it when
 * nothing is left of the slot's last connection (rank_recovery.c).  Nothing but a reference to the
 * call waits.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/version.h"
#include "server/service/call_binding.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A join answers so long before its call's own deadline would cut it off without a reason: a part
 * of its time, within limits, because a busy host needs a while to say it. */
#define ANSWER_MARGIN_PART     8
#define ANSWER_MARGIN_LEAST_NS INT64_C(250000000)
#define ANSWER_MARGIN_MOST_NS  INT64_C(2000000000)

#define TAKEOVER_MARGIN_MS 500 /* for the news of a death that everybody else has heard */

struct join_call {
    struct service *service;
    struct job *job; /* NULL until admitted */
    unsigned rank;
};

/* What else a join that was admitted leads to. */
struct join_outcome {
    struct rpc_call *displaced; /* an earlier join of the rank; a reference */
    bool is_back;               /* it was of another session, which wanted the place of this one */
    struct rpc_call
        *cut[RANK_SESSION_CALLS_MAX]; /* the session's calls that are over; references */
    size_t cut_count;
};

static int64_t answer_margin_ns(int64_t left_ns)
{
    int64_t margin_ns = left_ns / ANSWER_MARGIN_PART;

    if (margin_ns < ANSWER_MARGIN_LEAST_NS)
        return ANSWER_MARGIN_LEAST_NS;
    return margin_ns < ANSWER_MARGIN_MOST_NS ? margin_ns : ANSWER_MARGIN_MOST_NS;
}

static int64_t join_deadline(const struct service *s, const struct rpc_call *call)
{
    int64_t own_ns = clock_deadline_ns(s->table.timeout_ms);
    int64_t call_ns = rpc_call_deadline_ns(call);

    if (call_ns != INT64_MAX)
        call_ns -= answer_margin_ns(call_ns - clock_now_ns());
    return own_ns < call_ns ? own_ns : call_ns;
}

/* There is no job to come back to: say what became of it.  Lock held. */
static enum status refuse_return(const struct service *s, const struct join_request *request,
                                 struct error *err)
{
    if (strcmp(s->table.last_job, request->job) != 0)
        return error_set(err, STATUS_NOT_FOUND,
                         "job '%s' is not known here: rank %u cannot come back to it", request->job,
                         request->rank);
    if (s->table.last_failure.status == STATUS_OK)
        return error_set(err, STATUS_NOT_FOUND, "job '%s' is done: rank %u cannot come back to it",
                         request->job, request->rank);
    return error_set(err, s->table.last_failure.status, "%s", s->table.last_failure.text);
}

/* How long it takes to find out that the holder of a slot is dead, if it is.  Lock held. */
static int64_t takeover_delay_ms(const struct job *j, const struct rank_session *session)
{
    int64_t silence_ms = rank_session_has_heartbeat(session) ? j->terms.heartbeat_timeout_ms : 0;
    int64_t open_ms = rank_session_is_open(session) ? 0 : session_open_ms(j);

    return (silence_ms > open_ms ? silence_ms : open_ms) + TAKEOVER_MARGIN_MS;
}

/* The join waits for the supervisor.  Lock held. */
static void hold_join(struct join_call *jc, struct job *j, struct rpc_call *call,
                      const struct join_request *request, enum job_join kind,
                      struct join_outcome *outcome)
{
    struct job_rank *r = &j->ranks[request->rank];

    if (r->join)
        rpc_call_ref(r->join);
    outcome->displaced = r->join;
    outcome->is_back = r->join_session != request->session;
    jc->job = j;
    jc->rank = request->rank;
    j->users++;
    j->shares = j->shares || (kind == JOIN_START && memory_sharing_serves(jc->service, request));
    r->join = call;
    r->join_kind = kind;
    r->join_deadline_ns = join_deadline(jc->service, call);
    r->takeover_deadline_ns = clock_deadline_ns(takeover_delay_ms(j, &r->session));
    r->join_session = request->session;
    r->join_attempt = request->attempt;
    r->join_round = request->round;
    r->join_lanes = request->lanes;
    rpc_call_ref(call);
    (void)pthread_cond_broadcast(&jc->service->table.changed);
}

/* May this session take the place of the one that has, or had, it?  Lock held. */
static enum status check_take(const struct job *j, const struct join_request *request,
                              const char *peer, struct error *err)
{
    const struct job_rank *r = &j->ranks[request->rank];
    const struct member *member = &j->members.members[request->rank];
    bool ends = j->terms.on_loss == WORKER_LOSS_FAIL || request->session == 0;
    bool free = r->session.state == RANK_VACANT || r->session.state == RANK_LOST || !ends;

    if (request->resume)
        return error_set(err, STATUS_PEER_LOST,
                         "job '%s': " WIRE_RANK_LOST "%s); its place is %s since epoch %" PRIu64,
                         j->members.job, request->rank, r->session.how,
                         r->session.state == RANK_VACANT ? "vacant" : "another session's",
                         j->epoch);
    if (!free || (member->state == MEMBER_LEFT && j->terms.on_loss != WORKER_LOSS_SHRINK))
        return error_set(err, STATUS_EXISTS, "job '%s': rank %u has %s from %s; %s is a second one",
                         j->members.job, request->rank,
                         member->state == MEMBER_LEFT ? "joined and left" : "joined", member->peer,
                         peer);
    if (j->terms.update != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "job '%s' runs: rank %u cannot join it, because its optimizer runs on the "
                         "workers and the parameters are not here",
                         j->members.job, request->rank);
    if (r->join && r->join_session != request->session)
        return error_set(err, STATUS_EXISTS, "job '%s': another process takes the place of rank %u",
                         j->members.job, request->rank);
    return STATUS_OK;
}

/* A job that runs: the session of the rank comes back, or another one takes its place.  Lock held.
 */
static enum status admit_running(struct join_call *jc, struct rpc_call *call,
                                 const struct join_request *request, struct join_outcome *outcome,
                                 struct error *err)
{
    struct job *j = jc->service->table.current;
    enum status status = membership_check_size(&j->members, request, err);
    const struct rank_session *session;
    bool known;

    if (status != STATUS_OK)
        return status;
    session = &j->ranks[request->rank].session;
    known = request->session != 0 && request->session == session->id &&
            session->state != RANK_VACANT &&
            j->members.members[request->rank].state == MEMBER_JOINED;
    if (j->role == JOB_COPY && !known)
        return error_set(err, STATUS_UNAVAILABLE,
                         "job '%s': this server keeps a copy for a primary, which knows no session "
                         "of rank %u like this",
                         j->members.job, request->rank);
    if (j->role == JOB_COPY)
        status = membership_check_again(&j->members, request, err);
    if (j->role == JOB_COPY && status == STATUS_OK)
        status = replica_admit(j, request, err);
    if (!known)
        status = check_take(j, request, rpc_call_peer(call), err);
    if (status == STATUS_OK)
        status = membership_check_again(&j->members, request, err);
    if (status != STATUS_OK)
        return status;
    if (known && session->state == RANK_HELD)
        outcome->cut_count = session_cut_locked(&jc->service->table, j, request->rank,
                                                "it joined again", outcome->cut);
    hold_join(jc, j, call, request, known ? JOIN_RESUME : JOIN_TAKE, outcome);
    return STATUS_OK;
}

/* A job that gathers, or is built.  Lock held. */
static enum status admit_first(struct join_call *jc, struct rpc_call *call,
                               const struct join_request *request, struct join_outcome *outcome,
                               struct error *err)
{
    struct service *s = jc->service;
    struct job *j = s->table.current;
    bool same = request->session != 0 && strcmp(j->members.job, request->job) == 0 &&
                request->rank < j->members.world_size &&
                j->members.members[request->rank].state == MEMBER_JOINED &&
                j->ranks[request->rank].join_session == request->session;
    enum status status;

    if (same && j->state == JOB_GATHERING) /* its call broke, which nobody has told us yet */
        membership_forget(&j->members, request->rank);
    if (request->resume && !same)
        return refuse_return(s, request, err);
    if (!same || j->state == JOB_GATHERING) {
        status = membership_join(&j->members, request, rpc_call_peer(call), err);
        if (status != STATUS_OK)
            return status;
    }
    hold_join(jc, j, call, request, JOIN_START, outcome);
    if (j->state == JOB_GATHERING && membership_is_complete(&j->members))
        j->state = JOB_BUILDING;
    return STATUS_OK;
}

/* Does the job run here, as one of which this server is the primary?  Lock held. */
static bool is_served(const struct service *s, const struct join_request *request)
{
    return s->table.current && s->table.current->state == JOB_RUNNING &&
           s->table.current->role != JOB_COPY &&
           strcmp(s->table.current->members.job, request->job) == 0;
}

/* Was it on its way while a later one of its session came?  That one's connection is the present
 * one.  Lock held. */
static bool is_outdated(const struct job *j, const struct join_request *request)
{
    const struct job_rank *r;

    if (!j || request->attempt == 0 || request->session == 0 ||
        request->rank >= j->members.world_size || strcmp(j->members.job, request->job) != 0)
        return false;
    r = &j->ranks[request->rank];
    return r->join_session == request->session && request->attempt < r->join_attempt;
}

/* Lock held. */
static enum status admit(struct join_call *jc, struct rpc_call *call,
                         const struct join_request *request, struct join_outcome *outcome,
                         struct error *err)
{
    struct service *s = jc->service;
    enum status status = STATUS_OK;

    if (s->table.draining)
        return error_set(err, STATUS_UNAVAILABLE, "the parameter server is stopping");
    if (is_outdated(s->table.current, request))
        return error_set(err, STATUS_UNAVAILABLE,
                         "job '%s': rank %u has joined again since this join was sent",
                         request->job, request->rank);
    if (!s->table.current && request->resume)
        return refuse_return(s, request, err);
    if (request->follows && !request->resume && !is_served(s, request))
        return error_set(err, STATUS_NOT_FOUND, "job '%s' has not been taken over here",
                         request->job);
    if (!s->table.current)
        status = job_open(request, &s->table.current, err);
    if (status != STATUS_OK)
        return status;
    if (s->table.current->state == JOB_RUNNING &&
        strcmp(s->table.current->members.job, request->job) == 0)
        return admit_running(jc, call, request, outcome, err);
    status = admit_first(jc, call, request, outcome, err);
    if (status != STATUS_OK && s->table.current->state == JOB_GATHERING &&
        s->table.current->members.joined == 0) {
        job_close(s->table.current); /* made for this request */
        s->table.current = NULL;
    }
    return status;
}

/* Ranks that gather and cannot agree on how many they are will never be complete: tell them. */
static void end_gathering(struct service *s, const struct join_request *request,
                          const struct error *err)
{
    struct job *j;
    bool concerned;

    (void)pthread_mutex_lock(&s->table.lock);
    j = s->table.current;
    concerned = j && j->state == JOB_GATHERING && strcmp(j->members.job, request->job) == 0 &&
                j->members.world_size != request->world_size;
    if (concerned)
        j->users++;
    (void)pthread_mutex_unlock(&s->table.lock);
    if (!concerned)
        return;
    job_table_end(&s->table, j, err);
    job_table_drop(&s->table, j);
}

static enum status take_join(struct join_call *jc, struct rpc_call *call,
                             struct rpc_message *message, struct error *err)
{
    struct service *s = jc->service;
    struct join_request request = {0};
    struct join_outcome outcome = {0};
    size_t size;
    const uint8_t *head = rpc_message_head(message, &size);
    enum status status = wire_unpack_join_request(head, size, &request, err);

    if (status == STATUS_OK)
        status = authorize_rank(s, call, request.rank, err);
    if (status != STATUS_OK) {
        wire_release_join_request(&request);
        return status;
    }
    (void)pthread_mutex_lock(&s->table.lock);
    status = admit(jc, call, &request, &outcome, err);
    (void)pthread_mutex_unlock(&s->table.lock);
    if (outcome.displaced) {
        rpc_call_finish(outcome.displaced, outcome.is_back ? STATUS_EXISTS : STATUS_UNAVAILABLE,
                        outcome.is_back ? "the rank is back" : "its session has joined again");
        rpc_call_unref(outcome.displaced);
    }
    session_end_calls(outcome.cut, outcome.cut_count);
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

/* The caller has its answer, or is gone: then, before the job has begun, it may come again; and
 * when it has begun, that is a connection that broke.  Lock held; *ret_cut: session_cut it.
 */
static void note_closed(struct join_call *jc, struct rpc_call *call,
                        const struct rpc_result *result, bool *ret_end, uint64_t *ret_cut)
{
    struct job *j = jc->job;
    struct job_rank *r = &j->ranks[jc->rank];

    if (r->join == call && j->state == JOB_GATHERING) {
        membership_forget(&j->members, jc->rank);
        *ret_end = j->members.joined == 0;
    } else if (r->join == call && j->state == JOB_BUILDING) {
        *ret_end = r->join_session == 0;
    } else if (j->state == JOB_RUNNING && r->join_kind == JOIN_START && result->cancelled &&
               (r->join == call || r->answered == call) && r->session.opened == 0) {
        *ret_cut = r->session.connection;
    }
    if (r->join == call)
        r->join = NULL;
    if (r->answered == call)
        r->answered = NULL;
}

static void join_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct join_call *jc = user;
    struct service *s;
    struct error err = {0};
    uint64_t cut = 0;
    bool end = false;

    if (!jc || !jc->job) {
        free(jc);
        return;
    }
    s = jc->service;
    (void)pthread_mutex_lock(&s->table.lock);
    note_closed(jc, call, result, &end, &cut);
    (void)pthread_mutex_unlock(&s->table.lock);
    if (end) {
        (void)error_set(&err, STATUS_PEER_LOST, WIRE_RANK_LOST "its join was cut off)", jc->rank);
        job_table_end_deserted(&s->table, jc->job, &err);
    } else if (cut != 0) {
        session_cut(&s->table, jc->job, jc->rank, cut, "its join was cut off");
    }
    job_table_drop(&s->table, jc->job);
    rpc_call_unref(call);
    free(jc);
}

const struct rpc_handler join_handler = {
    .start = join_start, .message = join_message, .closed = join_closed};

/* `reply` with what is the same in all of the job's, packed. */
static enum status pack_reply(const struct service *s, const struct job *j, struct join_reply reply,
                              uint8_t **ret_bytes, size_t *ret_size, struct error *err)
{
    const uint32_t *held;
    enum status status;

    reply.partition_count = (uint32_t)j->map.length;
    reply.held = j->shard.length;
    reply.element_count = j->shard.count;
    status =
        mem_calloc(reply.held, sizeof(*reply.partitions), "partition list", &reply.partitions, err);
    if (status != STATUS_OK)
        return status;
    (void)shard_map_held(&j->map, j->terms.server_index, &held);
    memcpy(reply.partitions, held, reply.held * sizeof(*held));
    (void)snprintf(reply.version, sizeof(reply.version), "%s", SPARRING_VERSION);
    if (j->shard.reply_memory.base)
        (void)snprintf(reply.arena, sizeof(reply.arena), "%s", fd_listener_address(s->fd_listener));
    status = wire_pack_join_reply(&reply, ret_bytes, ret_size, err);
    free(reply.partitions);
    return status;
}

void join_answer(struct service *s, struct job *j, unsigned rank, struct rpc_call *call,
                 uint64_t epoch, uint64_t round)
{
    struct join_reply reply = {.epoch = epoch, .round = round};
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size = 0;

    (void)pthread_mutex_lock(&s->table.lock);
    reply.connection = call_binding_number(s, &j->ranks[rank].session);
    (void)pthread_mutex_unlock(&s->table.lock);
    if (pack_reply(s, j, reply, &bytes, &size, &err) != STATUS_OK) {
        job_table_end(&s->table, j, &err); /* which does not know of this call any more */
        rpc_call_finish(call, err.status, err.text);
        return;
    }
    (void)rpc_call_send(call, bytes, size, NULL);
    rpc_call_finish(call, STATUS_OK, "");
    free(bytes);
}

void join_answer_all(struct service *s, struct job *j)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct rpc_call *call;
        uint64_t connection;

        (void)pthread_mutex_lock(&s->table.lock);
        call = j->ranks[rank].join_kind == JOIN_START ? j->ranks[rank].join : NULL;
        connection = j->ranks[rank].session.connection;
        j->ranks[rank].join = call ? NULL : j->ranks[rank].join;
        j->ranks[rank].answered = call;
        if (call)
            rpc_call_ref(call);
        (void)pthread_mutex_unlock(&s->table.lock);
        if (!call) {
            session_cut(&s->table, j, rank, connection, "its join was cut off");
            continue;
        }
        join_answer(s, j, rank, call, 1, 0);
        rpc_call_unref(call);
    }
}
