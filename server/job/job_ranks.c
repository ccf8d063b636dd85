/*
 * job_ranks: records changes of ranks in a running job: counters, epochs, incidents, and the pause
 * of stall detection while a rank is away.
 *
 * server/service/rank_recovery.c decides about lost ranks; this file updates the job.  The caller
 * holds the table's lock.
 */
#include "server/job/job.h"

#include <stdio.h>
#include <string.h>

static bool is_awaited(const struct job *j, unsigned rank)
{
    enum rank_state state = j->ranks[rank].session.state;

    return j->members.members[rank].state == MEMBER_JOINED &&
           (state == RANK_AWAY || state == RANK_LOST);
}

void job_update_pause(struct job *j, int64_t now_ns)
{
    bool away = false;
    int64_t pause_ns;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        away = away || is_awaited(j, rank);
    if (away == (j->paused_since_ns != 0))
        return;
    if (away) {
        j->paused_since_ns = now_ns;
        return;
    }
    pause_ns = now_ns - j->paused_since_ns;
    j->paused_since_ns = 0;
    j->paused_ns += pause_ns;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        j->ranks[rank].heard_ns += pause_ns;
}

int64_t job_waiting_ms(const struct job *j, int64_t timeout_ms, int64_t now_ns, unsigned *ret_rank)
{
    int64_t longest_ms = 0;

    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        const struct rank_session *s = &j->ranks[rank].session;
        int64_t ms;

        if (!is_awaited(j, rank))
            continue;
        ms = s->until_ns > now_ns ? (s->until_ns - now_ns) / 1000000 + 1 : 1;
        if (s->state == RANK_AWAY && j->terms.on_loss == WORKER_LOSS_WAIT)
            ms += timeout_ms;
        if (ms > longest_ms) {
            longest_ms = ms;
            *ret_rank = rank;
        }
    }
    return longest_ms;
}

void job_remove_rank(struct job *j, unsigned rank)
{
    membership_remove(&j->members, rank);
    j->epoch++;
}

void job_vacate(struct job *j, unsigned rank, int64_t now_ns)
{
    struct job_rank *r = &j->ranks[rank];

    r->session.state = RANK_VACANT;
    r->parked = 0;
    job_update_pause(j, now_ns);
    if (!r->finished)
        job_count_finish(j, rank, false, now_ns);
}

void job_occupy(struct job *j, unsigned rank, const struct joining_session *by, uint64_t clock,
                int64_t now_ns)
{
    struct job_rank *r = &j->ranks[rank];
    bool replaces = r->session.state == RANK_LOST;

    if (replaces)
        job_add_incident(j, rank, INCIDENT_REPLACED, now_ns);
    rank_session_hold(&r->session, by->session, by->lanes, now_ns);
    membership_rejoin(&j->members, rank, by->peer);
    j->epoch++;
    j->totals.taken_places++;
    job_update_pause(j, now_ns);
    r->heard_ns = now_ns;
    r->parked = 0;
    r->finished = false;
    r->took_vacant_rank = !replaces;
    if (replaces)
        return; /* it continues with the counters of the lost session */
    r->pushed = 0;
    r->clock = clock;
    r->round = clock;
    r->round_pushes = clock > 0 ? j->shard.length : 0;
}

/* ------------------------------------------------------------------ incidents */

void job_add_incident(struct job *j, unsigned rank, enum incident_end end, int64_t now_ns)
{
    const struct rank_session *session = &j->ranks[rank].session;
    struct incident *i;

    j->totals.reconnects += end == INCIDENT_BACK;
    j->totals.detect_ns += session->silent_ns;
    j->totals.recover_ns += now_ns - session->cut_ns;
    if (j->incidents_count == JOB_INCIDENTS) {
        j->totals.records_dropped++;
        return;
    }
    i = &j->incidents[(j->incidents_first + j->incidents_count++) % JOB_INCIDENTS];
    *i = (struct incident){.end = end,
                           .rank = rank,
                           .round = job_round(j),
                           .epoch = j->epoch,
                           .detect_ns = session->silent_ns,
                           .recover_ns = now_ns - session->cut_ns};
    memcpy(i->how, session->how, sizeof(i->how));
}

bool job_next_incident(struct job *j, struct incident *ret)
{
    if (j->incidents_count == 0)
        return false;
    *ret = j->incidents[j->incidents_first];
    j->incidents_first = (j->incidents_first + 1) % JOB_INCIDENTS;
    j->incidents_count--;
    return true;
}

size_t job_ref_calls(const struct job *j, unsigned rank, struct rpc_call **ret)
{
    const struct job_rank *r = &j->ranks[rank];
    struct rpc_call *joins[] = {r->join, r->pending_join_reply};
    size_t count = rank_session_ref_calls(&r->session, ret);

    for (size_t i = 0; i < sizeof(joins) / sizeof(joins[0]); i++)
        if (joins[i]) {
            rpc_call_ref(joins[i]);
            ret[count++] = joins[i];
        }
    return count;
}
