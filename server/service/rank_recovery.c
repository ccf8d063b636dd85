/*
 * Loss and return of ranks.  Handlers only notice: session_cut ends all calls of a connection that
 * broke, Join leaves its call in the rank.  What becomes of the place is decided here, one rank
 * after the other, by the supervisor alone, and only when no handler of the old connection is at
 * work.  rank_return.c has what is done about those who want in.
 *
 *   back in time         the session holds its place again; nobody else notices more than a delay
 *   not back, fail       the job ends
 *   not back, shrink     the rank is taken out of all rounds, which may complete them
 *   not back, wait       the job stands still until another session takes the place or time is up
 *
 * The initial values come from rank 0 alone: where it is lost before they are here, the job ends.
 */
#include "server/service/rank_recovery.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/service/exchange.h"

#include <inttypes.h>
#include <stdio.h>

#define LOOK_MS_MOST 200 /* between two looks of a supervisor that gets on the processor */

/* ------------------------------------------------------------------ what a look finds */

static bool has_values(const struct job *j)
{
    return j->values_set == j->shard.length;
}

/* What becomes of a join that waits.  Lock held. */
static enum recovery_act judge_join(const struct job_rank *r, int64_t now_ns)
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

/* A session that opens no stream: a new one may have to wait for other servers, unless another one
 * is there for its place.  Who has not heard that it is in has nothing to open yet.  Lock held. */
static bool is_unopened(const struct service *s, const struct job *j, const struct job_rank *r,
                        int64_t now_ns)
{
    bool doubted = r->join && r->join_kind == JOIN_TAKE;
    int64_t limit_ms = r->session.is_new && !doubted ? s->table.timeout_ms : session_open_ms(j);

    return !r->pending_join_reply && rank_session_is_unopened(&r->session, limit_ms, now_ns);
}

/* Lock held. */
static enum recovery_act judge(const struct service *s, const struct job *j, unsigned rank,
                               int64_t now_ns)
{
    const struct job_rank *r = &j->ranks[rank];
    bool lost_start = rank == 0 && !has_values(j);
    unsigned lane;
    enum recovery_act act = RECOVERY_NONE;

    if (r->pending_join_reply && replication_knows(j, r->pending_join_change))
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

/* ------------------------------------------------------------------ noted under the lock */

static void note_cut(struct recovery *r)
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
static void describe(const struct job *j, unsigned rank, const char *awaited, int64_t now_ns,
                     struct error *err)
{
    const struct rank_session *session = &j->ranks[rank].session;

    (void)error_set(err, STATUS_PEER_LOST,
                    WIRE_RANK_LOST "%s in round %" PRIu64 "; waited %.1f s for %s)", rank,
                    session->how, job_round(j), (double)(now_ns - session->cut_ns) * 1e-9, awaited);
}

/* The job ends, or begins to wait for another session. */
static void note_give_up(const struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    struct rank_session *session = &j->ranks[r->rank].session;
    int64_t now_ns = clock_now_ns();

    describe(j, r->rank, session->state == RANK_LOST ? "a replacement" : "it to come back", now_ns,
             &r->err);
    r->ends = j->terms.on_loss != WORKER_LOSS_WAIT || (r->rank == 0 && !has_values(j)) ||
              session->state != RANK_AWAY;
    if (r->ends) {
        j->totals.lost += session->state == RANK_AWAY;
        job_note_incident(j, r->rank, INCIDENT_FAILED, now_ns); /* all hear of the job's end */
    } else {
        r->displaced = rank_return_take_pending(&j->ranks[r->rank]);
        session->state = RANK_LOST;
        session->until_ns = now_ns + s->table.timeout_ms * 1000000;
        j->totals.lost++;
    }
}

static void note_vacate(struct service *s, struct recovery *r)
{
    struct job *j = r->job;

    r->displaced = rank_return_take_pending(&j->ranks[r->rank]);
    describe(j, r->rank, "it to come back", clock_now_ns(), &r->err);
    job_lose(j, r->rank);
    if (j->members.joined > 0) /* else it is over; who goes on with its files takes this place */
        (void)job_table_keep_members(&s->table, j, NULL);
    (void)replication_change_members(j);
}

/* Lock held. */
static void note(struct service *s, struct recovery *r)
{
    switch (r->act) {
    case RECOVERY_NONE:
        return;
    case RECOVERY_CUT:
        note_cut(r);
        return;
    case RECOVERY_REFUSE:
    case RECOVERY_RETURN:
    case RECOVERY_TAKE:
    case RECOVERY_REPLY:
        rank_return_note(r);
        return;
    case RECOVERY_GIVE_UP:
    case RECOVERY_END:
        note_give_up(s, r);
        return;
    case RECOVERY_VACATE:
        note_vacate(s, r);
        return;
    case RECOVERY_DESERTED:
        (void)error_set(&r->err, STATUS_PEER_LOST, "no rank is left (in round %" PRIu64 ")",
                        job_round(r->job));
        return;
    }
}

/* Nobody takes part, and no join waits for a place.  Lock held. */
static bool is_deserted(const struct job *j)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (j->ranks[rank].join)
            return false;
    return j->members.joined == 0;
}

/* When this process was stopped, or did not get on the processor, heartbeats lie unread: the ranks
 * have that time once more.  Lock held. */
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

bool rank_recovery_next(struct service *s, struct recovery *ret)
{
    struct job *j = s->table.current;

    *ret = (struct recovery){.job = j};
    if (!j || j->role == JOB_COPY) /* its ranks are another server's */
        return false;
    forgive_own_delay(s, j);
    if (j->state != JOB_RUNNING)
        return false;
    if (j->takeover_pending && is_deserted(j))
        ret->act = RECOVERY_DESERTED;
    for (unsigned rank = 0; ret->act == RECOVERY_NONE && rank < j->members.world_size; rank++) {
        ret->rank = rank;
        ret->act = judge(s, j, rank, clock_now_ns());
    }
    note(s, ret);
    return ret->act != RECOVERY_NONE;
}

/* ------------------------------------------------------------------ done without it */

static void give_up(struct service *s, struct recovery *r)
{
    rank_return_end_pending(r->displaced);
    if (r->ends)
        job_table_end(&s->table, r->job, &r->err);
    else
        log_warning("job '%s': %s; waiting for a replacement", r->job->members.job, r->err.text);
}

/* Rounds go without it. */
static void vacate(struct service *s, struct recovery *r)
{
    struct job *j = r->job;
    unsigned joined;
    uint64_t epoch;
    bool deserted;

    rank_return_end_pending(r->displaced);
    exchange_vacate_rank(s, j, r->rank);
    replication_forget(j, r->rank); /* nobody is there to be told */
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state != JOB_RUNNING) {
        (void)pthread_mutex_unlock(&s->table.lock);
        return;
    }
    j->totals.lost++;
    job_vacate(j, r->rank, clock_now_ns());
    job_note_incident(j, r->rank, INCIDENT_VACATED, clock_now_ns());
    joined = j->members.joined;
    epoch = j->epoch;
    deserted = is_deserted(j);
    j->takeover_pending = joined == 0;
    (void)pthread_mutex_unlock(&s->table.lock);
    log_warning("job '%s': %s; it goes on with %u of %u ranks, epoch %" PRIu64, j->members.job,
                r->err.text, joined, j->members.world_size, epoch);
    if (deserted) {
        (void)error_prefix(&r->err, "no rank is left: ");
        job_table_end(&s->table, j, &r->err);
    }
}

void rank_recovery_run(struct service *s, struct recovery *r)
{
    switch (r->act) {
    case RECOVERY_NONE:
        return;
    case RECOVERY_CUT:
        session_cut(&s->table, r->job, r->rank, r->connection, r->how);
        return;
    case RECOVERY_REFUSE:
        rank_return_refuse(r);
        return;
    case RECOVERY_RETURN:
        rank_return_bring_back(s, r);
        return;
    case RECOVERY_TAKE:
        rank_return_take(s, r);
        return;
    case RECOVERY_REPLY:
        rank_return_reply(s, r);
        return;
    case RECOVERY_GIVE_UP:
    case RECOVERY_END:
        give_up(s, r);
        return;
    case RECOVERY_VACATE:
        vacate(s, r);
        return;
    case RECOVERY_DESERTED: /* who wanted to take a place has not come after all */
        job_table_end(&s->table, r->job, &r->err);
        return;
    }
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
