/*
 * The supervisor: the service's own thread.  It looks at one thing after the other under the lock
 * and gives the lock up for whatever takes time; only it builds and frees jobs, so a job it looks
 * at stays.  Only it moves slots on, too (rank_recovery.c).  It sleeps without a limit while no job
 * is known, else a tenth of the time-out at most.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "server/persistence/persistence.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define TICK_MS_MAX     100
#define OVER_GRACE_NS   INT64_C(5000000000) /* for ranks to read why their job ended */
#define LEAVE_GRACE_NS  INT64_C(2000000000) /* for the others, when some have left */
#define RECORDS_AT_ONCE 64

/* Compare the ranks, allocate, answer the joins.  Lock held on entry and return. */
static void build(struct service *s, struct job *j)
{
    struct error err = {0};
    enum status status;

    j->shares = j->shares ||
                memory_sharing_serves(s, &j->terms); /* of a job that comes from elsewhere, too */
    (void)pthread_mutex_unlock(&s->lock);
    status = job_build(j, &err);
    if (status == STATUS_OK && j->terms.replica[0] && !j->replica.is_kept)
        status = primary_open(s, j, &err);
    else if (status == STATUS_OK && j->replica.is_kept)
        status = shard_check_recorded(&j->shard.config, &err);
    if (status == STATUS_OK)
        status = persistence_begin(s, j, &err);
    (void)pthread_mutex_lock(&s->lock);
    if (status == STATUS_OK && j->state == JOB_BUILDING)
        job_run(j, clock_now_ns());
    if (status == STATUS_OK && j->replica.is_kept) {
        replica_start(s, j);
        return;
    }
    if (status == STATUS_OK)
        persistence_members(s, j); /* before anybody is told that it runs */
    (void)pthread_mutex_unlock(&s->lock);
    if (status != STATUS_OK) {
        service_end_job(s, j, &err);
    } else {
        log_info("job '%s': %u ranks, %zu of %zu partitions here, %s", j->members.job,
                 j->members.world_size, j->shard.length, j->map.length,
                 j->shard.config.update ? "the optimizer runs here" : "mean gradients go back");
        join_answer_all(s, j);
    }
    (void)pthread_mutex_lock(&s->lock);
}

/* Is a rank missing that no round goes without?  While the server drains nobody joins.  Lock held.
 */
static bool waits_for_rank(const struct job *j)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        enum rank_state state = j->ranks[rank].session.state;

        if (j->members.members[rank].state == MEMBER_JOINED &&
            (state == RANK_AWAY || state == RANK_LOST))
            return true;
    }
    return false;
}

/* Is this a good moment for the job to be interrupted?  Between two rounds, or in one that cannot
 * be completed any more; what is kept on the disk can be anywhere.  A job that ranks have begun to
 * leave is at its end: the others may still wait for another server's answers, and leave next;
 * where they may leave early that says nothing. Lock held. */
static bool may_interrupt(const struct service *s, const struct job *j, int64_t now_ns)
{
    bool ends = j->members.left > 0;

    if (j->state != JOB_RUNNING || waits_for_rank(j))
        return true;
    if (!j->log)
        return !ends && !job_is_pending(j) && j->parked_since_ns == 0;
    return !ends || j->terms.on_loss == WORKER_LOSS_SHRINK ||
           now_ns >= s->drain_begin_ns + LEAVE_GRACE_NS;
}

/* Should the server stop now?  Lock held. */
static bool is_drained(const struct service *s, const struct job *j, int64_t now_ns,
                       struct error *err)
{
    bool ready = j->replica.is_kept || may_interrupt(s, j, now_ns); /* its ranks are elsewhere */

    if (!s->draining || (!ready && now_ns < s->drain_deadline_ns))
        return false;
    (void)error_set(err, STATUS_UNAVAILABLE,
                    "the parameter server is stopping (%" PRIu64 " rounds were complete)",
                    j->totals.rounds);
    return true;
}

/* Does the current job have to end?  Lock held. */
static bool must_end(const struct service *s, struct error *err)
{
    const struct job *j = s->current;
    int64_t now_ns = clock_now_ns();

    return j && (is_drained(s, j, now_ns, err) || job_join_expired(j, now_ns, err) ||
                 job_has_stalled(j, now_ns, s->timeout_ms, err));
}

static void give_up_records(struct service *s, const struct error *err)
{
    log_warning("no more records: %s", err->text);
    run_log_close(&s->run_log);
    s->run_log.folder = NULL;
}

/* Write what a job has to say.  Lock held on entry and return; returns whether there was anything.
 */
static bool write_records(struct service *s, struct job *j)
{
    struct round_record rounds[RECORDS_AT_ONCE];
    struct incident incidents[RECORDS_AT_ONCE];
    size_t count = 0, incident_count = 0;
    bool over = j->state == JOB_OVER, ran = j->shard.parts && j->state >= JOB_RUNNING, last;
    struct error err = {0};
    enum status status = STATUS_OK;

    if (!ran || j->recorded)
        return false;
    while (count < RECORDS_AT_ONCE && job_next_record(j, &rounds[count]))
        count++;
    while (incident_count < RECORDS_AT_ONCE && job_next_incident(j, &incidents[incident_count]))
        incident_count++;
    if (j->recording && count == 0 && incident_count == 0 && !over)
        return false;
    last = over && count < RECORDS_AT_ONCE && incident_count < RECORDS_AT_ONCE;
    (void)pthread_mutex_unlock(&s->lock);
    if (!j->recording)
        status = run_log_start(&s->run_log, j, &err);
    for (size_t i = 0; status == STATUS_OK && i < count; i++)
        status = run_log_round(&s->run_log, &rounds[i], &err);
    for (size_t i = 0; status == STATUS_OK && i < incident_count; i++)
        status = run_log_incident(&s->run_log, &incidents[i], &err);
    if (last) {
        if (status == STATUS_OK)
            status = run_log_end(&s->run_log, j, &err);
        run_log_close(&s->run_log);
    }
    if (status != STATUS_OK)
        give_up_records(s, &err);
    (void)pthread_mutex_lock(&s->lock);
    j->recording = true;
    j->recorded = last;
    return true;
}

/* A peer that does not read keeps its call open for ever: cut it off after a while. */
static void cancel_calls(struct service *s, struct job *j)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct rpc_call *calls[RANK_SESSION_CALLS_MAX + 2];
        size_t count = rank_session_take_calls(&j->ranks[rank].session, calls);

        if (j->ranks[rank].join) {
            rpc_call_ref(j->ranks[rank].join);
            calls[count++] = j->ranks[rank].join;
        }
        if (j->ranks[rank].pending_join_reply) {
            rpc_call_ref(j->ranks[rank].pending_join_reply);
            calls[count++] = j->ranks[rank].pending_join_reply;
        }
        (void)pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < count; i++) {
            rpc_call_cancel(calls[i]);
            rpc_call_unref(calls[i]);
        }
        (void)pthread_mutex_lock(&s->lock);
    }
    replica_stream_cancel(j->replica_stream);
    j->over_ns = clock_now_ns(); /* once per grace */
}

/* Free the first job that nothing refers to.  Lock held; returns whether there was one. */
static bool reap(struct service *s)
{
    for (struct job **link = &s->over; *link; link = &(*link)->next) {
        struct job *j = *link;

        if (job_is_unused(j)) {
            *link = j->next;
            (void)pthread_mutex_unlock(&s->lock);
            job_close(j);
            (void)pthread_mutex_lock(&s->lock);
            return true;
        }
        if (clock_now_ns() - j->over_ns <= OVER_GRACE_NS)
            continue;
        if (s->stop) { /* no calls are left, and core will not give the payloads back either */
            log_warning("job '%s': gRPC kept %zu payloads", j->members.job,
                        atomic_load(&j->outstanding));
            *link = j->next;
            return true;
        }
        cancel_calls(s, j);
    }
    return false;
}

/* The oldest job first: a file is finished before the next is begun.  Lock held. */
static bool write_all_records(struct service *s)
{
    for (struct job *j = s->over; j; j = j->next)
        if (write_records(s, j))
            return true;
    return s->current && write_records(s, s->current);
}

/* Lock held. */
static void rest(struct service *s)
{
    int64_t tick_ms = s->timeout_ms / 10 + 1;
    struct timespec until;

    if (!s->current && !s->over) {
        (void)pthread_cond_wait(&s->changed, &s->lock);
        return;
    }
    until = condition_until(clock_deadline_ns(tick_ms < TICK_MS_MAX ? tick_ms : TICK_MS_MAX));
    (void)pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

/* The first thing that is to be done about a job; false: nothing.  The folder of the last job is
 * settled before the next is built, which may have its name.  Lock held on entry and return. */
static bool move_on(struct service *s)
{
    if (persistence_settle(s))
        return true;
    if (s->current && s->current->state == JOB_BUILDING) {
        build(s, s->current);
        return true;
    }
    return replica_look(s) || rank_recovery_look(s);
}

static void *keep(void *user)
{
    struct service *s = user;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->stop || s->current || s->over) {
        struct error err = {0};

        if (must_end(s, &err)) {
            struct job *j = s->current;

            (void)pthread_mutex_unlock(&s->lock);
            service_end_job(s, j, &err);
            (void)pthread_mutex_lock(&s->lock);
        } else if (!move_on(s) && !write_all_records(s) && !reap(s)) {
            primary_look(s);
            rest(s);
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum status supervisor_start(struct service *s, struct error *err)
{
    int failed = pthread_create(&s->supervisor, NULL, keep, s);

    if (failed)
        return error_set_errno(err, failed, "cannot start the supervisor thread");
    s->supervisor_started = true;
    return STATUS_OK;
}

void supervisor_stop(struct service *s)
{
    if (!s->supervisor_started)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->supervisor, NULL);
}
