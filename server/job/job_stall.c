/*
 * job_stall: detects ranks that make the others wait for too long.
 *
 * Reads the job only; the supervisor calls it with the table's lock held.  While a rank is away or
 * its replacement is awaited no stall is reported: that wait has its own deadline, and the other
 * ranks may be silent because they wait for it, here or on another server.
 */
#include "server/job/job.h"

#include "common/base/strbuf.h"

#include <inttypes.h>

/* The condition that job_has_stalled checks for each rank. */
struct silence {
    const struct job *job;
    int64_t before_ns; /* a rank last heard at or before this time is silent */
    bool waiting;      /* a reply has been pending since then */
};

/* Do the pending replies wait for this rank? */
static bool is_waited_for(const struct job *j, unsigned rank)
{
    const struct job_rank *r = &j->ranks[rank];
    bool lockstep = job_is_lockstep(j);

    if (lockstep ? j->arrived == 0 : j->values_set < j->shard.length)
        return rank == 0; /* round 0: rank 0's values are awaited */
    return lockstep ? r->pushed < j->shard.length : r->parked == 0;
}

static bool is_missing(const void *user, unsigned rank)
{
    const struct silence *s = user;
    const struct job_rank *r = &s->job->ranks[rank];

    if (r->heard_ns > s->before_ns || s->job->members.members[rank].state == MEMBER_LEFT)
        return false;
    return r->session.opened == 0 || (s->waiting && is_waited_for(s->job, rank));
}

/* The time of the oldest pending reply; 0: none. */
static int64_t waits_since_ns(const struct job *j)
{
    int64_t since_ns = 0;

    if (j->parked_since_ns != 0 || job_is_lockstep(j))
        return j->arrived > 0 ? j->current.begin_ns : j->parked_since_ns;
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        const struct job_rank *r = &j->ranks[rank];

        if (r->parked > 0 && (since_ns == 0 || r->parked_since_ns < since_ns))
            since_ns = r->parked_since_ns;
    }
    return since_ns;
}

bool job_has_stalled(const struct job *j, int64_t now_ns, int64_t timeout_ms, struct error *err)
{
    int64_t since_ns = waits_since_ns(j);
    struct silence silence = {.job = j, .before_ns = now_ns - timeout_ms * 1000000};
    struct strbuf ranks = STRBUF_INIT;
    unsigned missing;

    if (j->state != JOB_RUNNING || j->paused_since_ns != 0)
        return false;
    silence.waiting = since_ns != 0 && since_ns + j->paused_ns <= silence.before_ns;
    missing = membership_format_ranks(&j->members, is_missing, &silence, &ranks);
    if (missing > 0)
        (void)error_set(err, STATUS_TIMEOUT,
                        "waited in round %" PRIu64 " for rank%s %s: nothing came for %.1f s",
                        j->values_set < j->shard.length ? 0 : job_round(j), missing == 1 ? "" : "s",
                        ranks.text, (double)timeout_ms * 1e-3);
    strbuf_release(&ranks);
    return missing > 0;
}

bool job_join_expired(const struct job *j, int64_t now_ns, struct error *err)
{
    struct strbuf missing = STRBUF_INIT;
    bool expired = false;

    for (unsigned rank = 0; j->state == JOB_GATHERING && rank < j->members.world_size; rank++)
        expired = expired || (j->ranks[rank].join && j->ranks[rank].join_deadline_ns <= now_ns);
    if (!expired)
        return false;
    membership_format_missing(&j->members, &missing);
    (void)error_set(err, STATUS_TIMEOUT, "the join of job '%s' waited in vain for %s",
                    j->members.job, missing.text);
    strbuf_release(&missing);
    return true;
}
