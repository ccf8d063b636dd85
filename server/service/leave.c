/*
 * Leave: a rank has finished, or reports why it cannot continue.
 *
 * After a normal leave, rounds that waited for the rank continue without it or, in lockstep without
 * shrinking, can no longer complete.  A leave with a reason is an immediate loss of the rank.
 *
 * Locking: the effect is decided under the table's lock (apply_leave) and carried out without it
 * (perform_leave_effect).
 */
#include "common/base/clock.h"
#include "server/service/service_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The effect of a leave on the other ranks. */
struct leave_effect {
    struct job *job;                                /* with one use of it; NULL: no effect */
    bool ends;                                      /* the job ends; as failed if there is a
                                                       failure */
    bool ended;                                     /* this leave ended the job: finish the end */
    struct error failure;                           /* STATUS_OK: none */
    bool vacates;                                   /* the rank is removed, the others continue */
    bool finishes;                                  /* the rank contributes no more; not in
                                                       lockstep */
    struct rpc_call *calls[RANK_SESSION_CALLS_MAX]; /* to be ended, because the rank is lost */
    size_t call_count;
};

static const struct error *leave_failure(const struct leave_effect *effect)
{
    return effect->failure.status == STATUS_OK ? NULL : &effect->failure;
}

/* The rank failed, and the job can continue without it: it is lost at once, without time to
 * reconnect.  Lock held. */
static void mark_rank_lost(struct service *s, struct job *j, const struct leave_request *request,
                           struct leave_effect *effect)
{
    struct rank_session *session = &j->ranks[request->rank].session;
    char how[RANK_SESSION_HOW_MAX];

    (void)snprintf(how, sizeof(how), "failed: %.160s", request->reason);
    if (session->state == RANK_HELD)
        effect->call_count = session_cut_locked(&s->table, j, request->rank, how, effect->calls);
    session->until_ns = clock_now_ns();
}

/* True when this job was the last one here and its folder is kept: the rank must leave after the
 * restart, because the folder has it as a member.  Lock held. */
static bool is_job_kept(const struct service *s, const char *job)
{
    const struct job_table *t = &s->table;

    return s->persistence.dir.path[0] != '\0' && persistence_keeps(t, &t->last_failure) &&
           strcmp(t->last_job, job) == 0;
}

/* Check that the rank is a member and may leave.  Lock held. */
static enum status check_leave(const struct service *s, const struct leave_request *request,
                               struct error *err)
{
    const struct job *j = s->table.current;

    if (!j && is_job_kept(s, request->job))
        return error_set(err, STATUS_UNAVAILABLE, "%s", s->table.last_failure.text);
    if (!j || j->state == JOB_GATHERING)
        return error_set(err, STATUS_NOT_FOUND, "job '%s' does not run here", request->job);
    if (request->rank < j->members.world_size && j->state == JOB_RUNNING &&
        j->ranks[request->rank].session.id != request->session)
        return error_set(err, STATUS_NOT_FOUND, "job '%s': rank %u is another session",
                         request->job, request->rank);
    return membership_check_leave(&j->members, request->job, request->rank, err);
}

/* Lock held. */
static enum status apply_leave(struct service *s, const struct leave_request *request,
                               struct leave_effect *effect, struct error *err)
{
    struct job *j = s->table.current;
    enum status status = check_leave(s, request, err);
    bool shrinks;

    if (status != STATUS_OK)
        return status;
    j->users++;
    effect->job = j;
    if (request->reason[0] != '\0' && j->terms.on_loss != WORKER_LOSS_FAIL &&
        j->state == JOB_RUNNING) {
        mark_rank_lost(s, j, request, effect);
        return STATUS_OK;
    }
    shrinks = j->terms.on_loss == WORKER_LOSS_SHRINK && j->state == JOB_RUNNING;
    if (shrinks)
        job_remove_rank(j, request->rank);
    else
        membership_remove(&j->members, request->rank);
    (void)job_table_persist_members(&s->table, j, NULL);
    (void)replication_send_membership(j);
    if (request->reason[0] != '\0')
        (void)error_set(&effect->failure, STATUS_PEER_LOST, "rank %u failed: %s", request->rank,
                        request->reason);
    else if (!shrinks && job_is_lockstep(j) && job_is_pending(j))
        (void)error_set(&effect->failure, STATUS_PEER_LOST,
                        "rank %u left in the middle of round %" PRIu64, request->rank,
                        job_round(j));
    effect->ends = effect->failure.status != STATUS_OK || j->members.left == j->members.world_size;
    effect->vacates = !effect->ends && shrinks;
    effect->finishes = !effect->ends && !shrinks && j->state == JOB_RUNNING && !job_is_lockstep(j);
    job_update_pause(j, clock_now_ns());
    /* Begin the end before unlock: otherwise the next chunk would end the job because a rank has
     * left, without the reason. */
    effect->ended = effect->ends && job_table_begin_end(&s->table, j, leave_failure(effect));
    return STATUS_OK;
}

/* No lock. */
static void perform_leave_effect(struct service *s, struct leave_effect *effect, unsigned rank)
{
    struct job *j = effect->job;

    session_end_calls(effect->calls, effect->call_count);
    if (effect->ended) {
        job_table_finish_end(&s->table, j, leave_failure(effect));
    } else if (effect->vacates) {
        exchange_vacate_rank(s, j, rank);
        (void)pthread_mutex_lock(&s->table.lock);
        job_vacate(j, rank, clock_now_ns());
        (void)pthread_mutex_unlock(&s->table.lock);
    } else if (effect->finishes) {
        exchange_finish_rank(s, j, rank);
    }
    if (!effect->ends && effect->call_count == 0)
        replication_mark_settled(&s->replication, j, rank);
    job_table_unref(&s->table, j);
}

static void leave_start(struct rpc_call *call, void *user)
{
    (void)user; /* the call's pointer stays the service */
    rpc_call_receive(call);
}

static void leave_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct service *s = user;
    struct leave_request request = {0};
    struct leave_effect effect = {0};
    struct error err = {0};
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
        status = authorize_rank(s, call, request.rank, &err);
    if (status == STATUS_OK) {
        (void)pthread_mutex_lock(&s->table.lock);
        status = apply_leave(s, &request, &effect, &err);
        (void)pthread_mutex_unlock(&s->table.lock);
    }
    if (effect.job)
        perform_leave_effect(s, &effect, request.rank);
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
