/*
 * job_restore: continues a job that runs already, from a primary's mutations or from the disk.
 *
 * Its ranks are AWAY (or VACANT) and may reconnect; its counters are derived from the shard.  The
 * caller holds the table's lock, or no other thread uses the job yet (restore.c); no other thread
 * uses the shard meanwhile.
 */
#include "server/job/job.h"

#include <string.h>

enum status job_join_all(struct job *j, const struct join_request *terms, const uint64_t *sessions,
                         const char *peer, struct error *err)
{
    struct join_request request = *terms;
    enum status status = STATUS_OK;

    for (unsigned rank = 0; status == STATUS_OK && rank < j->members.world_size; rank++) {
        request.rank = rank;
        status = membership_join(&j->members, &request, peer, err);
        j->ranks[rank].join_session = sessions[rank];
        j->ranks[rank].join_lanes = 1;
    }
    return status;
}

/* Progress of one partition. */
struct part_progress {
    uint64_t steps;
    bool initialised;
};

static struct part_progress read_progress(struct shard_part *part)
{
    struct part_progress s;

    (void)pthread_mutex_lock(&part->lock);
    s = (struct part_progress){.steps = part->policy.steps,
                               .initialised = part->policy.initialised};
    (void)pthread_mutex_unlock(&part->lock);
    return s;
}

/* Partitions in which the rank has contributed to a round after this one. */
static size_t count_pushed(struct job *j, unsigned rank, uint64_t round)
{
    size_t pushed = 0;

    for (size_t i = 0; i < j->shard.length; i++) {
        struct shard_part *part = &j->shard.parts[i];

        (void)pthread_mutex_lock(&part->lock);
        pushed += part->policy.ranks[rank].clock > round;
        (void)pthread_mutex_unlock(&part->lock);
    }
    return pushed;
}

static void restore_rounds(struct job *j)
{
    uint64_t least = UINT64_MAX;

    j->values_set = 0;
    j->completed = 0;
    for (size_t i = 0; i < j->shard.length; i++) {
        struct part_progress s = read_progress(&j->shard.parts[i]);

        j->values_set += s.initialised;
        least = s.steps < least ? s.steps : least;
    }
    if (consistency_steps_per_push(&j->terms.consistency)) {
        least = UINT64_MAX;
        for (unsigned rank = 0; rank < j->members.world_size; rank++) {
            uint64_t clock = shard_clock(&j->shard, rank);

            j->ranks[rank].clock = j->shard.length > 0 ? clock : 0;
            if (!j->ranks[rank].finished && clock < least)
                least = clock;
        }
    } else {
        for (size_t i = 0; i < j->shard.length; i++)
            j->completed += read_progress(&j->shard.parts[i]).steps > least;
    }
    j->totals.rounds = j->shard.length > 0 && least != UINT64_MAX ? least : 0;
}

void job_restore(struct job *j, int64_t now_ns)
{
    const bool is_by_rank = consistency_steps_per_push(&j->terms.consistency);

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        j->ranks[rank].finished = j->ranks[rank].session.state == RANK_VACANT;
    restore_rounds(j);
    j->arrived = j->arrived_complete = 0;
    j->current = (struct round_record){0};
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct job_rank *r = &j->ranks[rank];

        r->round = j->shard.length > 0 ? shard_clock(&j->shard, rank) : 0;
        r->round_pushes = r->round > 0 ? j->shard.length : 0;
        r->pushed = count_pushed(j, rank, is_by_rank ? r->clock : j->totals.rounds);
        j->arrived += r->pushed;
    }
    if (job_is_lockstep(j))
        j->arrived_complete = j->arrived; /* a restored contribution is part of a complete step */
    if (j->arrived > 0)
        j->current.begin_ns = now_ns;
}

void job_mark_away(struct job *j, const char *how, int64_t until_ns, int64_t now_ns)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct rank_session *session = &j->ranks[rank].session;

        if (session->state == RANK_HELD)
            rank_session_mark_away(session, how, until_ns, now_ns);
        else
            session->until_ns = until_ns;
    }
    job_update_pause(j, now_ns);
}
