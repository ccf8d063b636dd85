/*
 * Loss and return of ranks.  Handlers only notice: rank_recovery_cut ends all calls of a connection
 * that broke, Join leaves its call in the rank.  What becomes of the slot is decided here, one rank
 * after the other, by the supervisor alone, and only when no handler of the old connection is at
 * work. rank_return.c has what is done about those who want in.
 *
 *   back in time         the session holds its slot again; nobody else notices more than a delay
 *   not back, fail       the job ends
 *   not back, shrink     the rank is taken out of all rounds, which may complete them
 *   not back, wait       the job stands still until another session takes the place or time is up
 *
 * The initial values come from rank 0 alone: where it is lost before they are here, the job ends.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/persistence/persistence.h"
#include "server/service/exchange.h"
#include "server/service/rank_recovery_internal.h"

#include <inttypes.h>
#include <stdio.h>

#define OPEN_MS_LEAST 2000
#define LOOK_MS_MOST  200 /* between two looks of a supervisor that gets on the processor */

/* ------------------------------------------------------------------ notice */

/* Nothing to come back to, and nothing that goes on: said at once.  Lock held. */
static bool ends_job(const struct job *j, const struct rank_session *session)
{
    return j->terms.on_loss == WORKER_LOSS_FAIL && (session->id == 0 || j->terms.reconnect_ms == 0);
}

size_t rank_recovery_cut_slot(struct service *s, struct job *j, unsigned rank, const char *how,
                              struct rpc_call **ret_calls)
{
    struct rank_session *session = &j->ranks[rank].session;

    rank_session_cut(session, how, j->terms.reconnect_ms, clock_now_ns());
    j->totals.cut++;
    job_resume_watch(j, session->cut_ns);
    (void)pthread_cond_broadcast(&s->changed);
    return rank_session_take_calls(session, ret_calls);
}

void rank_recovery_end_calls(struct rpc_call **calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rpc_call_cancel(calls[i]);
        rpc_call_unref(calls[i]);
    }
}

void rank_recovery_cut(struct service *s, struct job *j, unsigned rank, uint64_t connection,
                       const char *how)
{
    const struct rank_session *session = &j->ranks[rank].session;
    struct rpc_call *calls[RANK_SESSION_CALLS_MAX];
    struct error err = {0};
    size_t count = 0;
    bool cut;

    (void)pthread_mutex_lock(&s->lock);
    cut = j->state == JOB_RUNNING && j->members.members[rank].state != MEMBER_LEFT &&
          session->connection == connection && session->state == RANK_HELD;
    if (cut && ends_job(j, session))
        (void)error_set(&err, STATUS_PEER_LOST, WIRE_RANK_LOST "%s in round %" PRIu64 ")", rank,
                        how, job_round(j));
    else if (cut)
        count = rank_recovery_cut_slot(s, j, rank, how, calls);
    (void)pthread_mutex_unlock(&s->lock);
    if (err.status != STATUS_OK)
        service_end_job(s, j, &err);
    rank_recovery_end_calls(calls, count);
}

/* ------------------------------------------------------------------ what a look finds */

enum rank_recovery_act {
    RECOVERY_NONE,
    RECOVERY_CUT,     /* silent, or never there */
    RECOVERY_REFUSE,  /* a join whose slot is another's, or that waited too long */
    RECOVERY_RETURN,  /* the session is back */
    RECOVERY_TAKE,    /* another one is there for the slot */
    RECOVERY_REPLY,   /* and may be told */
    RECOVERY_GIVE_UP, /* AWAY for too long, and the job ends or waits */
    RECOVERY_VACATE,  /* the same, and the job goes on without */
    RECOVERY_END      /* LOST for too long */
};

static bool has_values(const struct job *j)
{
    return j->values_set == j->shard.length;
}

/* What becomes of a join that waits.  Lock held. */
static enum rank_recovery_act judge_join(const struct job_rank *r, int64_t now_ns)
{
    const struct rank_session *session = &r->session;
    bool free = session->state == RANK_VACANT || session->state == RANK_LOST;

    if (r->join_kind == JOIN_RESUME && session->id != r->join_session)
        return RECOVERY_REFUSE;
    if (r->join_kind == JOIN_RESUME && session->state == RANK_VACANT)
        return RECOVERY_REFUSE;
    if (r->join_kind == JOIN_TAKE && session->state == RANK_HELD &&
        now_ns >= r->takeover_deadline_ns)
        return RECOVERY_REFUSE;
    if (rank_session_is_quiet(session) && r->join_kind == JOIN_RESUME)
        return RECOVERY_RETURN;
    if (rank_session_is_quiet(session) && free)
        return RECOVERY_TAKE;
    return now_ns >= r->join_deadline_ns ? RECOVERY_REFUSE : RECOVERY_NONE;
}

int64_t rank_recovery_open_ms(const struct job *j)
{
    return j->terms.reconnect_ms > OPEN_MS_LEAST ? j->terms.reconnect_ms : OPEN_MS_LEAST;
}

/* A session that opens no stream: a new one may have to wait for other servers, unless another one
 * is there for its place.  Who has not been told that it is in has nothing to open yet.  Lock held.
 */
static bool is_unopened(const struct service *s, const struct job *j, const struct job_rank *r,
                        int64_t now_ns)
{
    bool doubted = r->join && r->join_kind == JOIN_TAKE;
    int64_t limit_ms = r->session.is_new && !doubted ? s->timeout_ms : rank_recovery_open_ms(j);

    return !r->pending_join_reply && rank_session_is_unopened(&r->session, limit_ms, now_ns);
}

/* Lock held. */
static enum rank_recovery_act judge(const struct service *s, const struct job *j, unsigned rank,
                                    int64_t now_ns)
{
    const struct job_rank *r = &j->ranks[rank];
    bool lost_start = rank == 0 && !has_values(j);
    unsigned lane;
    enum rank_recovery_act act = RECOVERY_NONE;

    if (r->pending_join_reply && replica_stream_knows(j->replica_stream, r->pending_join_change))
        return RECOVERY_REPLY;
    if (r->join && r->join_kind != JOIN_START)
        act = judge_join(r, now_ns);
    if (act != RECOVERY_NONE || j->members.members[rank].state == MEMBER_LEFT)
        return act;
    if (rank_session_is_silent(&r->session, j->terms.heartbeat_timeout_ms, now_ns, &lane) ||
        is_unopened(s, j, r, now_ns))
        return RECOVERY_CUT;
    if (!rank_session_is_overdue(&r->session, now_ns) || !rank_session_is_quiet(&r->session))
        return RECOVERY_NONE;
    if (r->session.state == RANK_LOST)
        return RECOVERY_END;
    return j->terms.on_loss == WORKER_LOSS_SHRINK && !lost_start ? RECOVERY_VACATE
                                                                 : RECOVERY_GIVE_UP;
}

/* ------------------------------------------------------------------ what is done about it */

static void cut_silent(struct service *s, struct job *j, unsigned rank)
{
    const struct rank_session *session = &j->ranks[rank].session;
    uint64_t connection = session->connection;
    int64_t now_ns = clock_now_ns();
    unsigned lane;
    char how[64];

    if (!rank_session_is_silent(session, j->terms.heartbeat_timeout_ms, now_ns, &lane))
        (void)snprintf(how, sizeof(how), "it opened %u of %u lanes in %.1f s",
                       (unsigned)__builtin_popcount(session->opened), session->lanes,
                       (double)(now_ns - session->held_ns) * 1e-9);
    else if (session->lanes == 1)
        (void)snprintf(how, sizeof(how), "silent for %.1f s",
                       (double)(now_ns - session->alive_ns[lane]) * 1e-9);
    else
        (void)snprintf(how, sizeof(how), "lane %u of %u silent for %.1f s", lane, session->lanes,
                       (double)(now_ns - session->alive_ns[lane]) * 1e-9);
    (void)pthread_mutex_unlock(&s->lock);
    rank_recovery_cut(s, j, rank, connection, how);
    (void)pthread_mutex_lock(&s->lock);
}

/* "rank 1 was lost (its connection closed in round 7; waited 2.0 s for it to come back)" */
static void describe(const struct job *j, unsigned rank, const char *awaited, int64_t now_ns,
                     struct error *err)
{
    const struct rank_session *session = &j->ranks[rank].session;

    (void)error_set(err, STATUS_PEER_LOST,
                    WIRE_RANK_LOST "%s in round %" PRIu64 "; waited %.1f s for %s)", rank,
                    session->how, job_round(j), (double)(now_ns - session->cut_ns) * 1e-9, awaited);
}

/* The job ends, or begins to wait for another session. */
static void give_up(struct service *s, struct job *j, unsigned rank)
{
    struct rank_session *session = &j->ranks[rank].session;
    struct rpc_call *newcomer = NULL; /* the end of the job is told to all */
    int64_t now_ns = clock_now_ns();
    struct error err = {0};
    bool waits = j->terms.on_loss == WORKER_LOSS_WAIT && (rank != 0 || has_values(j)) &&
                 session->state == RANK_AWAY;

    describe(j, rank, session->state == RANK_LOST ? "a replacement" : "it to come back", now_ns,
             &err);
    if (waits) {
        newcomer = rank_recovery_take_pending(&j->ranks[rank]);
        session->state = RANK_LOST;
        session->until_ns = now_ns + s->timeout_ms * 1000000;
        j->totals.lost++;
    } else {
        j->totals.lost += session->state == RANK_AWAY;
        job_note_incident(j, rank, INCIDENT_FAILED, now_ns);
    }
    (void)pthread_mutex_unlock(&s->lock);
    rank_recovery_end_pending(newcomer, RECOVERY_PLACE_GONE);
    if (waits)
        log_warning("job '%s': %s; waiting for a replacement", j->members.job, err.text);
    else
        service_end_job(s, j, &err);
    (void)pthread_mutex_lock(&s->lock);
}

/* Nobody takes part, and no join waits for a place.  Lock held. */
static bool is_deserted(const struct job *j)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (j->ranks[rank].join)
            return false;
    return j->members.joined == 0;
}

/* Rounds go without it. */
static void vacate(struct service *s, struct job *j, unsigned rank)
{
    struct rpc_call *newcomer = rank_recovery_take_pending(&j->ranks[rank]);
    struct error err = {0};
    unsigned joined;
    uint64_t epoch;
    bool deserted;

    describe(j, rank, "it to come back", clock_now_ns(), &err);
    job_lose(j, rank);
    if (j->members.joined > 0) /* else it is over; who goes on with its files takes this place */
        persistence_members(s, j);
    (void)primary_members(j);
    (void)pthread_mutex_unlock(&s->lock);
    rank_recovery_end_pending(newcomer, RECOVERY_PLACE_GONE);
    exchange_vacate_rank(s, j, rank);
    replica_stream_forget(j->replica_stream, rank); /* nobody is there to be told */
    (void)pthread_mutex_lock(&s->lock);
    if (j->state != JOB_RUNNING)
        return;
    j->totals.lost++;
    job_vacate(j, rank, clock_now_ns());
    job_note_incident(j, rank, INCIDENT_VACATED, clock_now_ns());
    joined = j->members.joined;
    epoch = j->epoch;
    deserted = is_deserted(j);
    j->takeover_pending = joined == 0;
    (void)pthread_mutex_unlock(&s->lock);
    log_warning("job '%s': %s; it goes on with %u of %u ranks, epoch %" PRIu64, j->members.job,
                err.text, joined, j->members.world_size, epoch);
    if (deserted) {
        (void)error_prefix(&err, "no rank is left: ");
        service_end_job(s, j, &err);
    }
    (void)pthread_mutex_lock(&s->lock);
}

void rank_recovery_take_out(struct service *s, struct job *j)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        if (j->members.members[rank].state == MEMBER_JOINED)
            continue;
        if (j->terms.on_loss == WORKER_LOSS_SHRINK)
            exchange_vacate_rank(s, j, rank);
        else if (!job_is_lockstep(j))
            exchange_finish_rank(s, j, rank);
    }
}

/* Who wanted to take a place has not come after all, and nobody else is there. */
static void end_deserted(struct service *s, struct job *j)
{
    struct error err = {0};

    (void)error_set(&err, STATUS_PEER_LOST, "no rank is left (in round %" PRIu64 ")", job_round(j));
    (void)pthread_mutex_unlock(&s->lock);
    service_end_job(s, j, &err);
    (void)pthread_mutex_lock(&s->lock);
}

/* When this process was stopped, or did not get on the processor, beats lie unread: the ranks have
 * that time once more.  Lock held. */
static void forgive_own_delay(struct service *s, struct job *j)
{
    int64_t now_ns = clock_now_ns(), since_ns = s->looked_ns;
    int64_t usual_ms = LOOK_MS_MOST + (int64_t)j->terms.heartbeat_timeout_ms / 3;

    s->looked_ns = now_ns;
    if (j->state != JOB_RUNNING || now_ns - since_ns < usual_ms * 1000000)
        return;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        rank_session_forgive(&j->ranks[rank].session, since_ns, now_ns);
}

bool rank_recovery_look(struct service *s)
{
    struct job *j = s->current;

    if (j && j->replica.is_kept)
        return false; /* its ranks are another server's */
    if (j && j->state == JOB_RUNNING && j->takeover_pending && is_deserted(j)) {
        end_deserted(s, j);
        return true;
    }
    if (j)
        forgive_own_delay(s, j);
    for (unsigned rank = 0; j && j->state == JOB_RUNNING && rank < j->members.world_size; rank++) {
        switch (judge(s, j, rank, clock_now_ns())) {
        case RECOVERY_NONE:
            continue;
        case RECOVERY_CUT:
            cut_silent(s, j, rank);
            return true;
        case RECOVERY_REFUSE:
            rank_recovery_refuse_join(s, j, rank);
            return true;
        case RECOVERY_RETURN:
            rank_recovery_bring_back(s, j, rank);
            return true;
        case RECOVERY_TAKE:
            rank_recovery_take_slot(s, j, rank);
            return true;
        case RECOVERY_REPLY:
            rank_recovery_reply(s, j, rank);
            return true;
        case RECOVERY_GIVE_UP:
        case RECOVERY_END:
            give_up(s, j, rank);
            return true;
        case RECOVERY_VACATE:
            vacate(s, j, rank);
            return true;
        }
    }
    return false;
}
