/*
 * Join.  The first join of a rank is held until every rank has joined and the supervisor has built
 * the job, so its reply means that all ranks have joined and agree.
 *
 * In a running job, a join resumes a session that was cut off, or takes a rank that is vacant or
 * lost; the supervisor replies when all calls of the rank's last connection are closed
 * (rank_recovery.c).  A waiting join holds only a reference to its call.
 *
 * Locking: requests are checked and held under the table's lock; calls are ended after unlock.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/version.h"
#include "server/service/call_binding.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reply this long before the call's own deadline, which would end the call without a reason.  A
 * fraction of the remaining time, within limits, because a busy host may need a while to send the
 * reply. */
#define REPLY_MARGIN_DIVISOR 8
#define REPLY_MARGIN_MIN_NS  INT64_C(250000000)
#define REPLY_MARGIN_MAX_NS  INT64_C(2000000000)

/* For a loss that the other ranks have detected but this server has not yet. */
#define REPLACEMENT_MARGIN_MS 500

struct join_call {
    struct service *service;
    struct job *job; /* NULL until admitted */
    unsigned rank;
};

/* Further effects of an admitted join. */
struct join_outcome {
    struct rpc_call *displaced; /* an earlier join of the rank; a reference */
    bool session_resumed;       /* the earlier join was a replacement for this session */
    struct rpc_call *cut[RANK_SESSION_CALLS_MAX]; /* calls of the session to be ended; references */
    size_t cut_count;
};

static int64_t reply_margin_ns(int64_t left_ns)
{
    int64_t margin_ns = left_ns / REPLY_MARGIN_DIVISOR;

    if (margin_ns < REPLY_MARGIN_MIN_NS)
        return REPLY_MARGIN_MIN_NS;
    return margin_ns < REPLY_MARGIN_MAX_NS ? margin_ns : REPLY_MARGIN_MAX_NS;
}

static int64_t join_reply_deadline_ns(const struct service *s, const struct rpc_call *call)
{
    int64_t own_ns = clock_deadline_ns(s->table.timeout_ms);
    int64_t call_ns = rpc_call_deadline_ns(call);

    if (call_ns != INT64_MAX)
        call_ns -= reply_margin_ns(call_ns - clock_now_ns());
    return own_ns < call_ns ? own_ns : call_ns;
}

/* No job can be resumed: report how the job of that name ended.  Lock held. */
static enum status refuse_resume(const struct service *s, const struct join_request *request,
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

/* Time to detect that a rank's current session is dead, if it is.  Lock held. */
static int64_t replacement_delay_ms(const struct job *j, const struct rank_session *session)
{
    int64_t silence_ms = rank_session_has_heartbeat(session) ? j->terms.heartbeat_timeout_ms : 0;
    int64_t open_ms = rank_session_is_open(session) ? 0 : session_open_ms(j);

    return (silence_ms > open_ms ? silence_ms : open_ms) + REPLACEMENT_MARGIN_MS;
}

/* Queue the join for the supervisor.  Lock held. */
static void queue_join(struct join_call *jc, struct job *j, struct rpc_call *call,
                       const struct join_request *request, enum job_join kind,
                       struct join_outcome *outcome)
{
    struct job_rank *r = &j->ranks[request->rank];

    if (r->join)
        rpc_call_ref(r->join);
    outcome->displaced = r->join;
    outcome->session_resumed = r->join_session != request->session;
    jc->job = j;
    jc->rank = request->rank;
    j->users++;
    j->shares =
        j->shares || (kind == JOIN_START && memory_sharing_is_possible(jc->service, request));
    r->join = call;
    r->join_kind = kind;
    r->join_deadline_ns = join_reply_deadline_ns(jc->service, call);
    r->replacement_deadline_ns = clock_deadline_ns(replacement_delay_ms(j, &r->session));
    r->join_session = request->session;
    r->join_attempt = request->attempt;
    r->join_round = request->round;
    r->join_lanes = request->lanes;
    rpc_call_ref(call);
    (void)pthread_cond_broadcast(&jc->service->table.changed);
}

/* Check whether this session may take the rank from its current or last session.  Lock held. */
static enum status check_occupy(const struct job *j, const struct join_request *request,
                                const char *peer, struct error *err)
{
    const struct job_rank *r = &j->ranks[request->rank];
    const struct member *member = &j->members.members[request->rank];
    bool ends = j->terms.on_loss == WORKER_LOSS_FAIL || request->session == 0;
    bool available = r->session.state == RANK_VACANT || r->session.state == RANK_LOST || !ends;

    if (request->resume)
        return error_set(err, STATUS_PEER_LOST,
                         "job '%s': " WIRE_RANK_LOST "%s); its place is %s since epoch %" PRIu64,
                         j->members.job, request->rank, r->session.how,
                         r->session.state == RANK_VACANT ? "vacant" : "another session's",
                         j->epoch);
    if (!available || (member->state == MEMBER_LEFT && j->terms.on_loss != WORKER_LOSS_SHRINK))
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

/* In a running job: resume the session of the rank, or give the rank to another one.  Lock held. */
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
    if (j->role == JOB_REPLICA && !known)
        return error_set(err, STATUS_UNAVAILABLE,
                         "job '%s': this server keeps a copy for a primary, which knows no session "
                         "of rank %u like this",
                         j->members.job, request->rank);
    if (j->role == JOB_REPLICA)
        status = membership_check_rejoin(&j->members, request, err);
    if (j->role == JOB_REPLICA && status == STATUS_OK)
        status = replica_admit(j, request, err);
    if (!known)
        status = check_occupy(j, request, rpc_call_peer(call), err);
    if (status == STATUS_OK)
        status = membership_check_rejoin(&j->members, request, err);
    if (status != STATUS_OK)
        return status;
    if (known && session->state == RANK_HELD)
        outcome->cut_count = session_cut_locked(&jc->service->table, j, request->rank,
                                                "it joined again", outcome->cut);
    queue_join(jc, j, call, request, known ? JOIN_RESUME : JOIN_OCCUPY, outcome);
    return STATUS_OK;
}

/* In a job that gathers its ranks or is being built.  Lock held. */
static enum status admit_gathering(struct join_call *jc, struct rpc_call *call,
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

    if (same && j->state == JOB_GATHERING) /* its call broke, but is not closed here yet */
        membership_forget(&j->members, request->rank);
    if (request->resume && !same)
        return refuse_resume(s, request, err);
    if (!same || j->state == JOB_GATHERING) {
        status = membership_join(&j->members, request, rpc_call_peer(call), err);
        if (status != STATUS_OK)
            return status;
    }
    queue_join(jc, j, call, request, JOIN_START, outcome);
    if (j->state == JOB_GATHERING && membership_is_complete(&j->members))
        j->state = JOB_BUILDING;
    return STATUS_OK;
}

/* True when the job runs here and this server is its primary.  Lock held. */
static bool is_primary_of_job(const struct service *s, const struct join_request *request)
{
    return s->table.current && s->table.current->state == JOB_RUNNING &&
           s->table.current->role != JOB_REPLICA &&
           strcmp(s->table.current->members.job, request->job) == 0;
}

/* True when a later join of the same session arrived first: the current connection belongs to that
 * one.  Lock held. */
static bool is_superseded(const struct job *j, const struct join_request *request)
{
    const struct job_rank *r;

    if (!j || request->attempt == 0 || request->session == 0 ||
        request->rank >= j->members.world_size || strcmp(j->members.job, request->job) != 0)
        return false;
    r = &j->ranks[request->rank];
    return r->join_session == request->session && request->attempt < r->join_attempt;
}

/* Lock held. */
static enum status admit_join(struct join_call *jc, struct rpc_call *call,
                              const struct join_request *request, struct join_outcome *outcome,
                              struct error *err)
{
    struct service *s = jc->service;
    const bool opens = !s->table.current;
    enum status status = STATUS_OK;

    if (s->table.draining)
        return error_set(err, STATUS_UNAVAILABLE, "the parameter server is stopping");
    if (is_superseded(s->table.current, request))
        return error_set(err, STATUS_UNAVAILABLE,
                         "job '%s': rank %u has joined again since this join was sent",
                         request->job, request->rank);
    if (!s->table.current && request->resume)
        return refuse_resume(s, request, err);
    if (request->follows && !request->resume && !is_primary_of_job(s, request))
        return error_set(err, STATUS_NOT_FOUND, "job '%s' has not been taken over here",
                         request->job);
    if (opens)
        status = job_open(request, &s->table.current, err);
    if (status != STATUS_OK)
        return status;
    if (s->table.current->state == JOB_RUNNING &&
        strcmp(s->table.current->members.job, request->job) == 0)
        return admit_running(jc, call, request, outcome, err);
    status = admit_gathering(jc, call, request, outcome, err);
    if (status != STATUS_OK && opens) { /* no other call has it */
        job_close(s->table.current);
        s->table.current = NULL;
    }
    return status;
}

/* Ranks with different world sizes never become complete: end the job that gathers, so that all its
 * ranks get the reason. */
static void end_mismatched_gathering(struct service *s, const struct join_request *request,
                                     const struct error *err)
{
    struct job *j;
    bool affected;

    (void)pthread_mutex_lock(&s->table.lock);
    j = s->table.current;
    affected = j && j->state == JOB_GATHERING && strcmp(j->members.job, request->job) == 0 &&
               j->members.world_size != request->world_size;
    if (affected)
        j->users++;
    (void)pthread_mutex_unlock(&s->table.lock);
    if (!affected)
        return;
    job_table_end(&s->table, j, err);
    job_table_unref(&s->table, j);
}

static enum status handle_join(struct join_call *jc, struct rpc_call *call,
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
    status = admit_join(jc, call, &request, &outcome, err);
    (void)pthread_mutex_unlock(&s->table.lock);
    if (outcome.displaced) {
        rpc_call_finish(
            outcome.displaced, outcome.session_resumed ? STATUS_EXISTS : STATUS_UNAVAILABLE,
            outcome.session_resumed ? "the rank is back" : "its session has joined again");
        rpc_call_unref(outcome.displaced);
    }
    session_end_calls(outcome.cut, outcome.cut_count);
    if (status == STATUS_MISMATCH)
        end_mismatched_gathering(s, &request, err);
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
        status = handle_join(user, call, message, &err);
    if (status != STATUS_OK)
        rpc_call_finish(call, status, err.text);
}

/* The join call is closed, after its reply or without.  If it broke before the job began, the rank
 * may join again; if after, the connection broke.  Lock held; *ret_cut: the connection to cut
 * off. */
static void forget_join(struct join_call *jc, struct rpc_call *call,
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
    forget_join(jc, call, result, &end, &cut);
    (void)pthread_mutex_unlock(&s->table.lock);
    if (end) {
        (void)error_set(&err, STATUS_PEER_LOST, WIRE_RANK_LOST "its join was cut off)", jc->rank);
        job_table_end_if_empty(&s->table, jc->job, &err);
    } else if (cut != 0) {
        session_cut(&s->table, jc->job, jc->rank, cut, "its join was cut off");
    }
    job_table_unref(&s->table, jc->job);
    rpc_call_unref(call);
    free(jc);
}

const struct rpc_handler join_handler = {
    .start = join_start, .message = join_message, .closed = join_closed};

/* Complete `reply` with the fields common to all joins of the job, and pack it. */
static enum status pack_join_reply(const struct service *s, const struct job *j,
                                   struct join_reply reply, uint8_t **ret_bytes, size_t *ret_size,
                                   struct error *err)
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
        (void)snprintf(reply.memory_address, sizeof(reply.memory_address), "%s",
                       fd_listener_address(s->fd_listener));
    status = wire_pack_join_reply(&reply, ret_bytes, ret_size, err);
    free(reply.partitions);
    return status;
}

void join_send_reply(struct service *s, struct job *j, unsigned rank, struct rpc_call *call,
                     uint64_t epoch, uint64_t round)
{
    struct join_reply reply = {.epoch = epoch, .round = round};
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size = 0;

    (void)pthread_mutex_lock(&s->table.lock);
    reply.connection = call_binding_connection_number(s, &j->ranks[rank].session);
    (void)pthread_mutex_unlock(&s->table.lock);
    if (pack_join_reply(s, j, reply, &bytes, &size, &err) != STATUS_OK) {
        job_table_end(&s->table, j, &err); /* it does not end this call, which is no longer
                                              registered in the job */
        rpc_call_finish(call, err.status, err.text);
        return;
    }
    (void)rpc_call_send(call, bytes, size, NULL);
    rpc_call_finish(call, STATUS_OK, "");
    free(bytes);
}

void join_send_replies(struct service *s, struct job *j)
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
        join_send_reply(s, j, rank, call, 1, 0);
        rpc_call_unref(call);
    }
}
