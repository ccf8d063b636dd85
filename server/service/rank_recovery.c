/*
 * Loss and return of ranks.  Handlers only notice: loss_cut ends all calls of a connection that
 * broke, Join leaves its call in the rank.  What becomes of the slot is decided here, one rank
 * after the other, by the keeper alone, and only when no handler of the old connection is at work.
 * loss_return.c has what is done about those who want in.
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
#define LOOK_MS_MOST  200 /* between two looks of a keeper that gets on the processor */

/* ------------------------------------------------------------------ notice */

/* Nothing to come back to, and nothing that goes on: said at once.  Lock held. */
static bool ends_job(const struct job *j, const struct slot *slot)
{
    return j->terms.on_loss == WORKER_LOSS_FAIL &&
           (slot->session == 0 || j->terms.reconnect_ms == 0);
}

size_t loss_cut_slot(struct service *s, struct job *j, unsigned rank, const char *how,
                     struct rpc_call **ret_calls)
{
    struct slot *slot = &j->ranks[rank].slot;

    slot_cut(slot, how, j->terms.reconnect_ms, clock_now_ns());
    j->totals.cut++;
    job_resume_watch(j, slot->cut_ns);
    (void)pthread_cond_broadcast(&s->changed);
    return slot_take_calls(slot, ret_calls);
}

void loss_end_calls(struct rpc_call **calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rpc_call_cancel(calls[i]);
        rpc_call_unref(calls[i]);
    }
}

void loss_cut(struct service *s, struct job *j, unsigned rank, uint64_t connection, const char *how)
{
    const struct slot *slot = &j->ranks[rank].slot;
    struct rpc_call *calls[SLOT_CALLS_MAX];
    struct error err = {0};
    size_t count = 0;
    bool cut;

    (void)pthread_mutex_lock(&s->lock);
    cut = j->state == JOB_RUNNING && j->members.members[rank].state != MEMBER_LEFT &&
          slot->connection == connection && slot->state == SLOT_HELD;
    if (cut && ends_job(j, slot))
        (void)error_set(&err, STATUS_PEER_LOST, WIRE_RANK_LOST "%s in round %" PRIu64 ")", rank,
                        how, job_round(j));
    else if (cut)
        count = loss_cut_slot(s, j, rank, how, calls);
    (void)pthread_mutex_unlock(&s->lock);
    if (err.status != STATUS_OK)
        service_end_job(s, j, &err);
    loss_end_calls(calls, count);
}

/* ------------------------------------------------------------------ what a look finds */

enum loss_act {
    LOSS_NONE,
    LOSS_CUT,     /* silent, or never there */
    LOSS_REFUSE,  /* a join whose slot is another's, or that waited too long */
    LOSS_RETURN,  /* the session is back */
    LOSS_TAKE,    /* another one is there for the slot */
    LOSS_WELCOME, /* and may be told */
    LOSS_GIVE_UP, /* AWAY for too long, and the job ends or waits */
    LOSS_VACATE,  /* the same, and the job goes on without */
    LOSS_END      /* LOST for too long */
};

static bool has_values(const struct job *j)
{
    return j->values_set == j->shard.length;
}

/* What becomes of a join that waits.  Lock held. */
static enum loss_act judge_join(const struct job_rank *r, int64_t now_ns)
{
    const struct slot *slot = &r->slot;
    bool free = slot->state == SLOT_VACANT || slot->state == SLOT_LOST;

    if (r->join_kind == JOIN_RESUME && slot->session != r->join_session)
        return LOSS_REFUSE;
    if (r->join_kind == JOIN_RESUME && slot->state == SLOT_VACANT)
        return LOSS_REFUSE;
    if (r->join_kind == JOIN_TAKE && slot->state == SLOT_HELD && now_ns >= r->join_doubt_ns)
        return LOSS_REFUSE;
    if (slot_is_quiet(slot) && r->join_kind == JOIN_RESUME)
        return LOSS_RETURN;
    if (slot_is_quiet(slot) && free)
        return LOSS_TAKE;
    return now_ns >= r->join_deadline_ns ? LOSS_REFUSE : LOSS_NONE;
}

int64_t loss_open_ms(const struct job *j)
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
    int64_t limit_ms = r->slot.is_new && !doubted ? s->timeout_ms : loss_open_ms(j);

    return !r->welcome && slot_is_unopened(&r->slot, limit_ms, now_ns);
}

/* Lock held. */
static enum loss_act judge(const struct service *s, const struct job *j, unsigned rank,
                           int64_t now_ns)
{
    const struct job_rank *r = &j->ranks[rank];
    bool lost_start = rank == 0 && !has_values(j);
    unsigned lane;
    enum loss_act act = LOSS_NONE;

    if (r->welcome && chain_knows(j->chain, r->welcome_number))
        return LOSS_WELCOME;
    if (r->join && r->join_kind != JOIN_START)
        act = judge_join(r, now_ns);
    if (act != LOSS_NONE || j->members.members[rank].state == MEMBER_LEFT)
        return act;
    if (slot_is_silent(&r->slot, j->terms.heartbeat_timeout_ms, now_ns, &lane) ||
        is_unopened(s, j, r, now_ns))
        return LOSS_CUT;
    if (!slot_is_overdue(&r->slot, now_ns) || !slot_is_quiet(&r->slot))
        return LOSS_NONE;
    if (r->slot.state == SLOT_LOST)
        return LOSS_END;
    return j->terms.on_loss == WORKER_LOSS_SHRINK && !lost_start ? LOSS_VACATE : LOSS_GIVE_UP;
}

/* ------------------------------------------------------------------ what is done about it */

static void cut_silent(struct service *s, struct job *j, unsigned rank)
{
    const struct slot *slot = &j->ranks[rank].slot;
    uint64_t connection = slot->connection;
    int64_t now_ns = clock_now_ns();
    unsigned lane;
    char how[64];

    if (!slot_is_silent(slot, j->terms.heartbeat_timeout_ms, now_ns, &lane))
        (void)snprintf(how, sizeof(how), "it opened %u of %u lanes in %.1f s",
                       (unsigned)__builtin_popcount(slot->opened), slot->lanes,
                       (double)(now_ns - slot->held_ns) * 1e-9);
    else if (slot->lanes == 1)
        (void)snprintf(how, sizeof(how), "silent for %.1f s",
                       (double)(now_ns - slot->alive_ns[lane]) * 1e-9);
    else
        (void)snprintf(how, sizeof(how), "lane %u of %u silent for %.1f s", lane, slot->lanes,
                       (double)(now_ns - slot->alive_ns[lane]) * 1e-9);
    (void)pthread_mutex_unlock(&s->lock);
    loss_cut(s, j, rank, connection, how);
    (void)pthread_mutex_lock(&s->lock);
}

/* "rank 1 was lost (its connection closed in round 7; waited 2.0 s for it to come back)" */
static void describe(const struct job *j, unsigned rank, const char *awaited, int64_t now_ns,
                     struct error *err)
{
    const struct slot *slot = &j->ranks[rank].slot;

    (void)error_set(err, STATUS_PEER_LOST,
                    WIRE_RANK_LOST "%s in round %" PRIu64 "; waited %.1f s for %s)", rank,
                    slot->how, job_round(j), (double)(now_ns - slot->cut_ns) * 1e-9, awaited);
}

/* The job ends, or begins to wait for another session. */
static void give_up(struct service *s, struct job *j, unsigned rank)
{
    struct slot *slot = &j->ranks[rank].slot;
    struct rpc_call *newcomer = NULL; /* the end of the job is told to all */
    int64_t now_ns = clock_now_ns();
    struct error err = {0};
    bool waits = j->terms.on_loss == WORKER_LOSS_WAIT && (rank != 0 || has_values(j)) &&
                 slot->state == SLOT_AWAY;

    describe(j, rank, slot->state == SLOT_LOST ? "a replacement" : "it to come back", now_ns, &err);
    if (waits) {
        newcomer = loss_take_welcome(&j->ranks[rank]);
        slot->state = SLOT_LOST;
        slot->until_ns = now_ns + s->timeout_ms * 1000000;
        j->totals.lost++;
    } else {
        j->totals.lost += slot->state == SLOT_AWAY;
        job_note_incident(j, rank, INCIDENT_FAILED, now_ns);
    }
    (void)pthread_mutex_unlock(&s->lock);
    loss_end_welcome(newcomer, LOSS_PLACE_GONE);
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
    struct rpc_call *newcomer = loss_take_welcome(&j->ranks[rank]);
    struct error err = {0};
    unsigned joined;
    uint64_t epoch;
    bool deserted;

    describe(j, rank, "it to come back", clock_now_ns(), &err);
    job_lose(j, rank);
    if (j->members.joined > 0) /* else it is over; who goes on with its files takes this place */
        preserve_members(s, j);
    (void)primary_members(j);
    (void)pthread_mutex_unlock(&s->lock);
    loss_end_welcome(newcomer, LOSS_PLACE_GONE);
    exchange_vacate_rank(s, j, rank);
    chain_forget(j->chain, rank); /* nobody is there to be told */
    (void)pthread_mutex_lock(&s->lock);
    if (j->state != JOB_RUNNING)
        return;
    j->totals.lost++;
    job_vacate(j, rank, clock_now_ns());
    job_note_incident(j, rank, INCIDENT_VACATED, clock_now_ns());
    joined = j->members.joined;
    epoch = j->epoch;
    deserted = is_deserted(j);
    j->forsaken = joined == 0;
    (void)pthread_mutex_unlock(&s->lock);
    log_warning("job '%s': %s; it goes on with %u of %u ranks, epoch %" PRIu64, j->members.job,
                err.text, joined, j->members.world_size, epoch);
    if (deserted) {
        (void)error_prefix(&err, "no rank is left: ");
        service_end_job(s, j, &err);
    }
    (void)pthread_mutex_lock(&s->lock);
}

void loss_take_out(struct service *s, struct job *j)
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
        slot_forgive(&j->ranks[rank].slot, since_ns, now_ns);
}

bool loss_look(struct service *s)
{
    struct job *j = s->current;

    if (j && j->replica.is_kept)
        return false; /* its ranks are another server's */
    if (j && j->state == JOB_RUNNING && j->forsaken && is_deserted(j)) {
        end_deserted(s, j);
        return true;
    }
    if (j)
        forgive_own_delay(s, j);
    for (unsigned rank = 0; j && j->state == JOB_RUNNING && rank < j->members.world_size; rank++) {
        switch (judge(s, j, rank, clock_now_ns())) {
        case LOSS_NONE:
            continue;
        case LOSS_CUT:
            cut_silent(s, j, rank);
            return true;
        case LOSS_REFUSE:
            loss_refuse_join(s, j, rank);
            return true;
        case LOSS_RETURN:
            loss_bring_back(s, j, rank);
            return true;
        case LOSS_TAKE:
            loss_take_slot(s, j, rank);
            return true;
        case LOSS_WELCOME:
            loss_welcome(s, j, rank);
            return true;
        case LOSS_GIVE_UP:
        case LOSS_END:
            give_up(s, j, rank);
            return true;
        case LOSS_VACATE:
            vacate(s, j, rank);
            return true;
        }
    }
    return false;
}
