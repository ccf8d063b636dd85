/*
 * The supervisor: the thread of the service.  It selects the next task under the table's lock and
 * runs it without the lock.  Only this thread builds and frees jobs, so the job of a selected task
 * stays valid.  Only this thread resumes, replaces or gives up a session (rank_recovery.c);
 * handlers only mark it AWAY (session_cut) or, when its rank leaves, VACANT; those of a replica
 * apply the primary's membership.
 *
 * It waits without a limit while there is no job, else a tenth of the time-out at most.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "server/service/rank_recovery.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define TICK_MS_MAX      100
#define OVER_GRACE_NS    INT64_C(5000000000) /* for ranks to read the reason of the end */
#define LEAVE_GRACE_NS   INT64_C(2000000000) /* for the other ranks, when some have left */
#define RECORD_BATCH_MAX 64

/* A job's records, taken out of its queues. */
struct record_batch {
    struct round_record rounds[RECORD_BATCH_MAX];
    struct incident incidents[RECORD_BATCH_MAX];
    size_t round_count, incident_count;
    bool first, last; /* the first, the last batch of the job */
};

struct task {
    void (*run)(struct service *s, struct task *t); /* no lock */
    struct job *job;
    struct error err;                 /* end_job: the reason */
    enum folder_action folder_action; /* finalize_folder */
    struct recovery recovery;         /* recover_rank */
    struct record_batch batch;        /* write_records */
};

/* ------------------------------------------------------------------ the end of a job */

/* True when a rank is missing that rounds need.  While the server drains no rank joins.  Lock
 * held. */
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

/* True when the job may be interrupted: between two rounds, or in a round that cannot complete any
 * more; a persistent job anywhere.  A job that ranks have begun to leave is at its end: the others
 * may still wait for another server's replies, and leave next.  With shrink a leave does not mean
 * that.  Lock held. */
static bool may_interrupt(const struct service *s, const struct job *j, int64_t now_ns)
{
    const bool is_late = now_ns >= s->table.drain_begin_ns + LEAVE_GRACE_NS;
    const bool shrinks = j->terms.on_loss == WORKER_LOSS_SHRINK;
    const bool ends = j->members.left > 0;

    if (j->state != JOB_RUNNING || waits_for_rank(j))
        return true;
    if (!j->log)
        return (!ends || (shrinks && is_late)) && !job_is_pending(j) && j->parked_since_ns == 0;
    return !ends || shrinks || is_late;
}

/* True when a draining server should end the job now.  Lock held. */
static bool is_drained(const struct service *s, const struct job *j, int64_t now_ns,
                       struct error *err)
{
    /* its ranks use the primary */
    bool ready = j->role == JOB_REPLICA || may_interrupt(s, j, now_ns);

    if (!s->table.draining || (!ready && now_ns < s->table.drain_deadline_ns))
        return false;
    (void)error_set(err, STATUS_UNAVAILABLE,
                    "the parameter server is stopping (%" PRIu64 " rounds were complete)",
                    j->totals.rounds);
    return true;
}

static void end_job(struct service *s, struct task *t)
{
    job_table_end(&s->table, t->job, &t->err);
}

/* True when the current job has to end.  Lock held, as for every next_ function. */
static bool next_end(struct service *s, struct task *t)
{
    const struct job *j = s->table.current;
    int64_t now_ns = clock_now_ns();

    t->run = end_job;
    return j && (is_drained(s, j, now_ns, &t->err) || job_join_expired(j, now_ns, &t->err) ||
                 job_has_stalled(j, now_ns, s->table.timeout_ms, &t->err));
}

static void finalize_folder(struct service *s, struct task *t)
{
    (void)s;
    persistence_apply_folder_action(t->job, t->folder_action);
}

/* Finalize the folder of the last job before the next job is built, because that may have the same
 * name. */
static bool next_folder(struct service *s, struct task *t)
{
    t->run = finalize_folder;
    t->job = persistence_next_ended(&s->table, &t->folder_action);
    return t->job != NULL;
}

/* ------------------------------------------------------------------ the beginning of a job */

/* Check that the ranks agree, allocate, and open replication and persistence. */
static enum status build_modules(struct service *s, struct job *j, struct error *err)
{
    enum status status = job_build(j, err);

    if (status == STATUS_OK && j->role == JOB_REPLICA)
        status = shard_check_recorded(&j->shard.config, err);
    else if (status == STATUS_OK && j->terms.replica[0])
        status = replication_open(&s->replication, j, err);
    if (status == STATUS_OK)
        status = persistence_begin(&s->persistence, j, err);
    return status;
}

static void build_job(struct service *s, struct task *t)
{
    struct job *j = t->job;
    struct error err = {0};
    enum status status = build_modules(s, j, &err);

    if (status != STATUS_OK) {
        job_table_end(&s->table, j, &err);
        return;
    }
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state == JOB_BUILDING)
        job_run(j, clock_now_ns());
    if (j->role == JOB_REPLICA)
        replica_start(&s->replication, j);
    else /* before any rank gets its reply */
        (void)job_table_persist_members(&s->table, j, NULL);
    (void)pthread_mutex_unlock(&s->table.lock);
    if (j->role == JOB_REPLICA) {
        replica_request_records(&s->replication, j);
        return;
    }
    log_info("job '%s': %u ranks, %zu of %zu partitions here, %s", j->members.job,
             j->members.world_size, j->shard.length, j->map.length,
             j->shard.config.update ? "the optimizer runs here" : "mean gradients go back");
    join_send_replies(s, j);
}

static bool next_build(struct service *s, struct task *t)
{
    struct job *j = s->table.current;

    if (!j || j->state != JOB_BUILDING)
        return false;
    j->shares = j->shares || memory_sharing_is_possible(s, &j->terms); /* also for a job that a
                                                                          primary has sent */
    t->run = build_job;
    t->job = j;
    return true;
}

/* ------------------------------------------------------------------ its ranks, and its replica */

static void take_over(struct service *s, struct task *t)
{
    if (!replica_take_over(&s->replication, t->job))
        return;
    rank_recovery_vacate_departed(s, t->job);
    replica_send_superseded(&s->replication, t->job);
}

static bool next_replica(struct service *s, struct task *t)
{
    struct job *j = s->table.current;
    enum replica_event event = j ? replica_poll(&s->replication, j, &t->err) : REPLICA_NO_EVENT;

    t->run = event == REPLICA_TAKEOVER_DUE ? take_over : end_job;
    t->job = j;
    return event != REPLICA_NO_EVENT;
}

static void recover_rank(struct service *s, struct task *t)
{
    rank_recovery_run(s, &t->recovery);
}

static bool next_recovery(struct service *s, struct task *t)
{
    t->run = recover_rank;
    return rank_recovery_next(s, &t->recovery);
}

/* ------------------------------------------------------------------ records */

static void write_records(struct service *s, struct task *t)
{
    const struct record_batch *b = &t->batch;
    struct error err = {0};
    enum status status = STATUS_OK;

    if (b->first)
        status = run_log_start(&s->run_log, &s->table, t->job, &err);
    for (size_t i = 0; status == STATUS_OK && i < b->round_count; i++)
        status = run_log_round(&s->run_log, &b->rounds[i], &err);
    for (size_t i = 0; status == STATUS_OK && i < b->incident_count; i++)
        status = run_log_incident(&s->run_log, &b->incidents[i], &err);
    if (b->last && status == STATUS_OK)
        status = run_log_end(&s->run_log, &s->table, t->job, &err);
    if (b->last)
        run_log_close(&s->run_log);
    if (status == STATUS_OK)
        return;
    log_warning("no more records: %s", err.text);
    run_log_close(&s->run_log);
    s->run_log.folder = NULL;
}

/* Take records out of the job; false: there is nothing to write. */
static bool collect_records(struct job *j, struct record_batch *b)
{
    bool over = j->state == JOB_OVER;

    b->round_count = b->incident_count = 0;
    if (!j->shard.parts || j->state < JOB_RUNNING || j->recorded)
        return false;
    while (b->round_count < RECORD_BATCH_MAX && job_next_record(j, &b->rounds[b->round_count]))
        b->round_count++;
    while (b->incident_count < RECORD_BATCH_MAX &&
           job_next_incident(j, &b->incidents[b->incident_count]))
        b->incident_count++;
    if (j->recording && b->round_count == 0 && b->incident_count == 0 && !over)
        return false;
    b->first = !j->recording;
    b->last = over && b->round_count < RECORD_BATCH_MAX && b->incident_count < RECORD_BATCH_MAX;
    j->recording = true;
    j->recorded = b->last;
    return true;
}

/* The oldest job first: its file is finished before the next is begun. */
static bool next_records(struct service *s, struct task *t)
{
    t->run = write_records;
    for (t->job = s->table.over; t->job; t->job = t->job->next)
        if (collect_records(t->job, &t->batch))
            return true;
    t->job = s->table.current;
    return t->job && collect_records(t->job, &t->batch);
}

/* ------------------------------------------------------------------ what is left of a job */

/* A peer that does not read keeps its call open: cancel it. */
static void cancel_calls(struct service *s, struct task *t)
{
    struct job *j = t->job;

    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct rpc_call *calls[JOB_CALLS_MAX];
        size_t count;

        (void)pthread_mutex_lock(&s->table.lock);
        count = job_ref_calls(j, rank, calls);
        (void)pthread_mutex_unlock(&s->table.lock);
        session_end_calls(calls, count);
    }
    replication_cancel(j);
}

static void free_job(struct service *s, struct task *t)
{
    job_table_free(&s->table, t->job);
}

/* No calls are left, but gRPC still holds payloads: leave the job allocated. */
static void abandon_job(struct service *s, struct task *t)
{
    (void)s;
    log_warning("job '%s': gRPC kept %zu payloads", t->job->members.job,
                atomic_load(&t->job->outstanding));
}

/* The first finished job that nothing refers to, or that is still referred to after the grace
 * time. */
static bool next_unused(struct service *s, struct task *t)
{
    for (struct job **link = &s->table.over; *link; link = &(*link)->next) {
        struct job *j = *link;
        bool unused = job_is_unused(j), late = clock_now_ns() - j->over_ns > OVER_GRACE_NS;

        if (!unused && !late)
            continue;
        t->job = j;
        t->run = unused ? free_job : s->stop ? abandon_job : cancel_calls;
        if (t->run == cancel_calls)
            j->over_ns = clock_now_ns(); /* at most once per grace time */
        else
            *link = j->next;
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ the thread */

/* Lock held; released while waiting. */
static void wait_for_work(struct service *s)
{
    int64_t tick_ms = s->table.timeout_ms / 10 + 1;
    struct timespec until;

    if (!s->table.current && !s->table.over) {
        (void)pthread_cond_wait(&s->table.changed, &s->table.lock);
        return;
    }
    until = condition_until(clock_deadline_ns(tick_ms < TICK_MS_MAX ? tick_ms : TICK_MS_MAX));
    (void)pthread_cond_timedwait(&s->table.changed, &s->table.lock, &until);
}

/* The first task that is due.  Lock held. */
static bool next_task(struct service *s, struct task *t)
{
    static bool (*const checks[])(struct service * s, struct task * t) = {
        next_end, next_folder, next_build, next_replica, next_recovery, next_records, next_unused};

    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        t->job = s->table.current;
        if (checks[i](s, t))
            return true;
    }
    return false;
}

/* Update the role of a replicated job when the replica has acknowledged a membership change.
 * Returns the job whose replica stream needs a tick, or NULL.  Lock held. */
static struct job *update_replica_role(struct service *s)
{
    struct job *j = s->table.current;

    if (!j || j->state != JOB_RUNNING || !j->replica_stream)
        return NULL;
    if (j->role == JOB_CHANGING) {
        replication_update_role(j);
        if (j->role != JOB_CHANGING)
            (void)job_table_persist_members(&s->table, j, NULL);
    }
    return j;
}

static void *supervise(void *user)
{
    struct service *s = user;
    struct job_table *table = &s->table;
    struct task t;

    (void)pthread_mutex_lock(&table->lock);
    while (!s->stop || table->current || table->over) {
        struct job *replicated = NULL;
        bool found = next_task(s, &t);

        if (!found)
            replicated = update_replica_role(s);
        if (found || replicated) {
            (void)pthread_mutex_unlock(&table->lock);
            if (found)
                t.run(s, &t);
            else
                replication_tick(replicated);
            (void)pthread_mutex_lock(&table->lock);
        }
        if (!found)
            wait_for_work(s);
    }
    (void)pthread_mutex_unlock(&table->lock);
    return NULL;
}

enum status supervisor_start(struct service *s, struct error *err)
{
    int failed = pthread_create(&s->supervisor, NULL, supervise, s);

    if (failed)
        return error_set_errno(err, failed, "cannot start the supervisor thread");
    s->supervisor_started = true;
    return STATUS_OK;
}

void supervisor_stop(struct service *s)
{
    if (!s->supervisor_started)
        return;
    (void)pthread_mutex_lock(&s->table.lock);
    s->stop = true;
    (void)pthread_cond_broadcast(&s->table.changed);
    (void)pthread_mutex_unlock(&s->table.lock);
    (void)pthread_join(s->supervisor, NULL);
}
