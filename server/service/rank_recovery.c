/*
 * Loss and rejoin of ranks.  Handlers only note events: session_cut ends all calls of a connection
 * that broke, Join leaves its call in the rank.  The action is decided here, for one rank at a
 * time, by the supervisor alone, and only when no handler of the old connection is running.
 * rank_rejoin.c carries out the actions that concern joins.
 *
 *   resumes in time      the session continues as the rank; the other ranks see only a delay
 *   lost, fail           the job ends
 *   lost, shrink         the rank is removed from all rounds, which may complete them
 *   lost, wait           the job waits until another session replaces it or the time-out expires
 *
 * The initial values come from rank 0 alone: if it is lost before they are here, the job ends.
 * Locking: rank_recovery_next and its decide_ and prepare_ functions run under the table's lock,
 * rank_recovery_run and its functions without it.
 */
#include "server/service/rank_recovery.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/service/exchange.h"

#include <inttypes.h>
#include <stdio.h>

/* Longest normal time between two checks, if the supervisor gets the processor. */
#define CHECK_INTERVAL_MAX_MS 200

/* ------------------------------------------------------------------ decisions */

static bool has_values(const struct job *j)
{
    return j->values_set == j->shard.length;
}

/* The action for a waiting join.  Lock held. */
static enum recovery_action decide_join_action(const struct job_rank *r, int64_t now_ns)
{
    const struct rank_session *session = &r->session;
    bool available = session->state == RANK_VACANT || session->state == RANK_LOST;

    if (r->join_kind == JOIN_RESUME && session->id != r->join_session)
        return RECOVERY_REFUSE;
    if (r->join_kind == JOIN_RESUME && session->state == RANK_VACANT)
        return RECOVERY_REFUSE;
    if (r->join_kind == JOIN_OCCUPY && session->state == RANK_HELD &&
        now_ns >= r->replacement_deadline_ns)
        return RECOVERY_REFUSE;
    if (rank_session_is_quiet(session) && r->join_kind == JOIN_RESUME)
        return RECOVERY_RESUME;
    if (rank_session_is_quiet(session) && available)
        return RECOVERY_OCCUPY;
    return now_ns >= r->join_deadline_ns ? RECOVERY_REFUSE : RECOVERY_NONE;
}

/* The session has not opened all its streams in time.  A new session may have to wait for other
 * servers first, so it has longer unless a replacement waits; a session whose join reply is pending
 * has nothing to open yet.  Lock held. */
static bool is_unopened(const struct service *s, const struct job *j, const struct job_rank *r,
                        int64_t now_ns)
{
    bool replacement_waits = r->join && r->join_kind == JOIN_OCCUPY;
    int64_t limit_ms =
        r->session.is_new && !replacement_waits ? s->table.timeout_ms : session_open_ms(j);

    return !r->pending_join_reply && rank_session_is_unopened(&r->session, limit_ms, now_ns);
}

/* Lock held. */
static enum recovery_action decide_action(const struct service *s, const struct job *j,
                                          unsigned rank, int64_t now_ns)
{
    const struct job_rank *r = &j->ranks[rank];
    bool initial_values_lost = rank == 0 && !has_values(j);
    unsigned lane;
    enum recovery_action action = RECOVERY_NONE;

    if (r->pending_join_reply && replication_membership_acknowledged(j, r->pending_join_change))
        return RECOVERY_REPLY;
    if (r->join && r->join_kind != JOIN_START)
        action = decide_join_action(r, now_ns);
    if (action != RECOVERY_NONE || j->members.members[rank].state == MEMBER_LEFT)
        return action;
    if (rank_session_is_silent(&r->session, j->terms.heartbeat_timeout_ms, now_ns, &lane) ||
        is_unopened(s, j, r, now_ns))
        return RECOVERY_CUT;
    if (!rank_session_is_overdue(&r->session, now_ns) || !rank_session_is_quiet(&r->session))
        return RECOVERY_NONE;
    if (r->session.state == RANK_LOST)
        return RECOVERY_END;
    return j->terms.on_loss == WORKER_LOSS_SHRINK && !initial_values_lost ? RECOVERY_VACATE
                                                                          : RECOVERY_GIVE_UP;
}

/* ------------------------------------------------------------------ preparation under the lock */

static void prepare_cut(struct recovery *r)
{
    const struct job *j = r->job;
    const struct rank_session *session = &j->ranks[r->rank].session;
    int64_t now_ns = clock_now_ns();
    unsigned lane;

    r->connection = session->connection;
    if (!rank_session_is_silent(session, j->terms.heartbeat_timeout_ms, now_ns, &lane))
        (void)snprintf(r->how, sizeof(r->how), "it opened %u of %u lanes in %.1f s",
                       (unsigned)__builtin_popcount(session->opened), session->lanes,
                       (double)(now_ns - session->held_ns) * 1e-9);
    else if (session->lanes == 1)
        (void)snprintf(r->how, sizeof(r->how), "silent for %.1f s",
                       (double)(now_ns - session->alive_ns[lane]) * 1e-9);
    else
        (void)snprintf(r->how, sizeof(r->how), "lane %u of %u silent for %.1f s", lane,
                       session->lanes, (double)(now_ns - session->alive_ns[lane]) * 1e-9);
}

/* "rank 1 was lost (its connection closed in round 7; waited 2.0 s for it to come back)" */
static void describe_loss(const struct job *j, unsigned rank, const char *awaited, int64_t now_ns,
                          struct error *err)
{
    const struct rank_session *session = &j->ranks[rank].session;

    (void)error_set(err, STATUS_PEER_LOST,
                    WIRE_RANK_LOST "%s in round %" PRIu64 "; waited %.1f s for %s)", rank,
                    session->how, job_round(j), (double)(now_ns - session->cut_ns) * 1e-9, awaited);
}

/* The job ends, or starts to wait for another session. */
static void prepare_give_up(const struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    struct rank_session *session = &j->ranks[r->rank].session;
    int64_t now_ns = clock_now_ns();

    describe_loss(j, r->rank, session->state == RANK_LOST ? "a replacement" : "it to come back",
                  now_ns, &r->err);
    r->ends = j->terms.on_loss != WORKER_LOSS_WAIT || (r->rank == 0 && !has_values(j)) ||
              session->state != RANK_AWAY;
    if (r->ends) {
        j->totals.lost_ranks += session->state == RANK_AWAY;
        job_add_incident(j, r->rank, INCIDENT_FAILED, now_ns); /* the end of the job notifies all
                                                                  ranks */
    } else {
        r->displaced = rank_rejoin_detach_pending(&j->ranks[r->rank]);
        session->state = RANK_LOST;
        session->until_ns = now_ns + s->table.timeout_ms * 1000000;
        j->totals.lost_ranks++;
    }
}

static void prepare_vacate(struct service *s, struct recovery *r)
{
    struct job *j = r->job;

    r->displaced = rank_rejoin_detach_pending(&j->ranks[r->rank]);
    describe_loss(j, r->rank, "it to come back", clock_now_ns(), &r->err);
    job_remove_rank(j, r->rank);
    /* Without a rank the job is over, unless a join is pending.  Its files then keep this rank as a
     * member, so that a process that continues from them waits for it. */
    if (j->members.joined > 0)
        (void)job_table_persist_members(&s->table, j, NULL);
    (void)replication_send_membership(j);
}

/* Lock held. */
static void prepare_action(struct service *s, struct recovery *r)
{
    switch (r->action) {
    case RECOVERY_NONE:
        return;
    case RECOVERY_CUT:
        prepare_cut(r);
        return;
    case RECOVERY_REFUSE:
    case RECOVERY_RESUME:
    case RECOVERY_OCCUPY:
    case RECOVERY_REPLY:
        rank_rejoin_prepare(r);
        return;
    case RECOVERY_GIVE_UP:
    case RECOVERY_END:
        prepare_give_up(s, r);
        return;
    case RECOVERY_VACATE:
        prepare_vacate(s, r);
        return;
    case RECOVERY_DESERTED:
        (void)error_set(&r->err, STATUS_PEER_LOST, "no rank is left (in round %" PRIu64 ")",
                        job_round(r->job));
        return;
    }
}

/* No rank takes part, and no join waits.  Lock held. */
static bool is_deserted(const struct job *j)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (j->ranks[rank].join)
            return false;
    return j->members.joined == 0;
}

/* If this process was stopped, or did not get the processor, heartbeats are unread: extend the
 * deadlines of the ranks by that time.  Lock held. */
static void compensate_own_delay(struct service *s, struct job *j)
{
    int64_t now_ns = clock_now_ns(), since_ns = s->recovery_checked_ns;
    int64_t usual_ms = CHECK_INTERVAL_MAX_MS + (int64_t)j->terms.heartbeat_timeout_ms / 3;

    s->recovery_checked_ns = now_ns;
    if (j->state != JOB_RUNNING || now_ns - since_ns < usual_ms * 1000000)
        return;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        rank_session_exclude_pause(&j->ranks[rank].session, since_ns, now_ns);
}

bool rank_recovery_next(struct service *s, struct recovery *ret)
{
    struct job *j = s->table.current;

    *ret = (struct recovery){.job = j};
    if (!j || j->role == JOB_REPLICA) /* the primary recovers its ranks */
        return false;
    compensate_own_delay(s, j);
    if (j->state != JOB_RUNNING)
        return false;
    if (j->replacement_pending && is_deserted(j))
        ret->action = RECOVERY_DESERTED;
    for (unsigned rank = 0; ret->action == RECOVERY_NONE && rank < j->members.world_size; rank++) {
        ret->rank = rank;
        ret->action = decide_action(s, j, rank, clock_now_ns());
    }
    prepare_action(s, ret);
    return ret->action != RECOVERY_NONE;
}

/* ------------------------------------------------------------------ actions without the lock */

static void give_up_rank(struct service *s, struct recovery *r)
{
    rank_rejoin_refuse_pending(r->displaced);
    if (r->ends)
        job_table_end(&s->table, r->job, &r->err);
    else
        log_warning("job '%s': %s; waiting for a replacement", r->job->members.job, r->err.text);
}

/* Rounds continue without the rank. */
static void vacate_rank(struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    unsigned joined;
    uint64_t epoch;
    bool deserted;

    rank_rejoin_refuse_pending(r->displaced);
    exchange_vacate_rank(s, j, r->rank);
    replication_drop_held(j, r->rank); /* no session is left to receive held replies */
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state != JOB_RUNNING) {
        (void)pthread_mutex_unlock(&s->table.lock);
        return;
    }
    j->totals.lost_ranks++;
    job_vacate(j, r->rank, clock_now_ns());
    job_add_incident(j, r->rank, INCIDENT_VACATED, clock_now_ns());
    joined = j->members.joined;
    epoch = j->epoch;
    deserted = is_deserted(j);
    j->replacement_pending = joined == 0;
    (void)pthread_mutex_unlock(&s->table.lock);
    log_warning("job '%s': %s; the job continues with %u of %u ranks, epoch %" PRIu64,
                j->members.job, r->err.text, joined, j->members.world_size, epoch);
    if (deserted) {
        (void)error_prefix(&r->err, "no rank is left: ");
        job_table_end(&s->table, j, &r->err);
    }
}

void rank_recovery_run(struct service *s, struct recovery *r)
{
    switch (r->action) {
    case RECOVERY_NONE:
        return;
    case RECOVERY_CUT:
        session_cut(&s->table, r->job, r->rank, r->connection, r->how);
        return;
    case RECOVERY_REFUSE:
        rank_rejoin_refuse(r);
        return;
    case RECOVERY_RESUME:
        rank_rejoin_resume(s, r);
        return;
    case RECOVERY_OCCUPY:
        rank_rejoin_occupy(s, r);
        return;
    case RECOVERY_REPLY:
        rank_rejoin_reply(s, r);
        return;
    case RECOVERY_GIVE_UP:
    case RECOVERY_END:
        give_up_rank(s, r);
        return;
    case RECOVERY_VACATE:
        vacate_rank(s, r);
        return;
    case RECOVERY_DESERTED: /* the replacement that was expected has not come */
        job_table_end(&s->table, r->job, &r->err);
        return;
    }
}

void rank_recovery_vacate_departed(struct service *s, struct job *j)
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
