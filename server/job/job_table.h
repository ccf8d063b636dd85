/*
 * job_table: the jobs of one server: the current one, and those that are over but still referenced.
 * Needs: job, rpc.  Called by service, persistence, replication and observe.
 *
 * Lock: the table's guards it and its jobs (see job.h).  It is not held while a shard's lock is
 * taken, a file is synced, or a rank's call is sent on or ended.  Exceptions: job_restore reads the
 * partitions under it while no other thread uses the shard; a membership change is appended to the
 * journal (page cache) and queued for the replica under it, so that both precede every notification
 * of a rank.
 */
#ifndef SPARRING_SERVER_JOB_JOB_TABLE_H
#define SPARRING_SERVER_JOB_JOB_TABLE_H

#include "server/job/job.h"
#include "server/job/job_figures.h"

#include <pthread.h>

/* Callbacks to higher layers; service sets them and calls those layers in the required order. */
struct job_hooks {
    /* The sessions of the ranks, or the epoch, have changed: persist that before any rank is
     * notified.  Lock held. */
    enum status (*persist_members)(void *user, struct job *j, struct error *err);
    /* The job is over: notify the other server that holds the shard, before the ranks are notified.
     * No lock; the caller has a use of the job.  failure NULL: all ranks left in order. */
    void (*ended)(void *user, struct job *j, const struct error *failure);
    /* Free what higher layers own in it.  No lock; there are no more references to it. */
    void (*release)(void *user, struct job *j);
    /* Fill in the counters of higher layers.  Lock held. */
    void (*count)(void *user, const struct job *j, struct job_figures *ret);
    void *user;
};

struct job_table {
    int64_t timeout_ms;     /* constant: the longest wait for a silent rank */
    struct job_hooks hooks; /* constant */

    pthread_mutex_t lock;       /* guards what follows, and the jobs */
    pthread_cond_t changed;     /* CLOCK_MONOTONIC; wakes the supervisor, and job_table_drain */
    struct job *current;        /* served now; NULL: none */
    struct job *over;           /* list of jobs to be recorded and freed, oldest first */
    struct stats_counters past; /* of the jobs that are over */
    uint64_t jobs_ok, jobs_failed;
    char last_job[WIRE_JOB_MAX]; /* the newest that is over, for ranks that reconnect; "": none */
    struct error last_failure;   /* of last_job; STATUS_OK: it succeeded */
    bool draining;               /* the server stops: no new jobs */
    int64_t drain_begin_ns, drain_deadline_ns;
};

/* timeout_ms and hooks are set by the caller. */
void job_table_init(struct job_table *t);
void job_table_release(struct job_table *t); /* no jobs are left */

/* Refuse new jobs, and wait until the supervisor has ended the current one: between two rounds if
 * possible, at the latest at drain_deadline_ns. */
void job_table_drain(struct job_table *t);

/* End a job.  Its ranks' calls end with failure's status and text; NULL: the ranks close them.
 * Only the first call has an effect.  No lock. */
void job_table_end(struct job_table *t, struct job *j, const struct error *failure);

/* The same in two steps, for a caller that must change the job and end it under one lock.  begin:
 * lock held; false: the job is over already.  finish: no lock; only after a begin that returned
 * true. */
bool job_table_begin_end(struct job_table *t, struct job *j, const struct error *failure);
void job_table_finish_end(struct job_table *t, struct job *j, const struct error *failure);

/* job_table_end, unless the job is GATHERING and has a member again.  No lock. */
void job_table_end_if_empty(struct job_table *t, struct job *j, const struct error *failure);

/* Free a job without references, and what higher layers own in it.  NULL is allowed. */
void job_table_free(struct job_table *t, struct job *j);

/* Release one use of the job (job->users), which may be freed afterwards.  No lock. */
void job_table_unref(struct job_table *t, struct job *j);

/* Persist the sessions of the ranks after a change.  err NULL: a failure is logged only; it recurs
 * with the job's next record, which then ends the job.  Lock held. */
enum status job_table_persist_members(struct job_table *t, struct job *j, struct error *err);

/* Get the counters of higher layers for the job.  No lock. */
void job_table_count(struct job_table *t, const struct job *j, struct job_figures *ret);

/* Add the job's counters, its round under way included, to *sum.  Lock held. */
void job_table_add_counters(struct job_table *t, const struct job *j, struct stats_counters *sum);

#endif
