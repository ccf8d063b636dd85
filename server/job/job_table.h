/*
 * job_table: the jobs of one server: the one that is served now, and those that are over but still
 * referred to.  Needs: job, rpc.  Called by every room above.
 *
 * Lock: the table's guards it and its jobs (see job.h).  It is never held while a shard's lock is
 * taken, a file is synced, or rpc is called; but for the few bytes of who is in a job, which are
 * written under it, so that whoever is told of a change is told behind it.
 */
#ifndef SPARRING_SERVER_JOB_JOB_TABLE_H
#define SPARRING_SERVER_JOB_JOB_TABLE_H

#include "server/job/job.h"
#include "server/job/job_figures.h"

#include <pthread.h>

/* What a job means to the rooms above: the service sets them, in the order that matters. */
struct job_hooks {
    /* Who holds the places, or the epoch, has changed: keep that before anybody is told.  Lock
     * held. */
    enum status (*keep_members)(void *user, struct job *j, struct error *err);
    /* The job is over: say so where no rank is.  Before its ranks are told; no lock, with a use of
     * the job.  failure NULL: all ranks left in order. */
    void (*ended)(void *user, struct job *j, const struct error *failure);
    /* Free what the rooms above keep in it.  No lock; nothing refers to it any more. */
    void (*release)(void *user, struct job *j);
    /* Lock held. */
    void (*count)(void *user, const struct job *j, struct job_figures *ret);
    void *user;
};

struct job_table {
    int64_t timeout_ms;     /* constant: how long ranks may wait for a silent one */
    struct job_hooks hooks; /* constant */

    pthread_mutex_t lock;       /* guards what follows, and the jobs */
    pthread_cond_t changed;     /* CLOCK_MONOTONIC; wakes the supervisor, and who closes */
    struct job *current;        /* served now; NULL: none */
    struct job *over;           /* list of those that wait to be recorded and freed, oldest first */
    struct stats_counters past; /* of the jobs that are over */
    uint64_t jobs_ok, jobs_failed;
    char last_job[WIRE_JOB_MAX]; /* the newest that is over, for who comes back to it; "": none */
    struct error last_failure;   /* why; STATUS_OK: it is done */
    bool draining;               /* the server stops: no new jobs */
    int64_t drain_begin_ns, drain_deadline_ns;
};

/* timeout_ms and hooks are set by the caller. */
void job_table_init(struct job_table *t);
void job_table_release(struct job_table *t); /* no jobs are left */

/* Refuse new jobs; the supervisor ends the current one at a good moment: wait until then. */
void job_table_drain(struct job_table *t);

/* End a job and tell its ranks: failure's status and text, or with NULL nothing (their streams end
 * when they close them).  The first caller wins.  No lock. */
void job_table_end(struct job_table *t, struct job *j, const struct error *failure);

/* The same in two steps, for a caller that holds the lock: no other failure can come between what
 * it has noted and the end.  begin: lock held; false: the job has ended before.  finish: no lock;
 * only behind a begin that was true. */
bool job_table_begin_end(struct job_table *t, struct job *j, const struct error *failure);
void job_table_finish_end(struct job_table *t, struct job *j, const struct error *failure);

/* job_table_end when the last one that gathered has gone; nothing when another one has come. */
void job_table_end_deserted(struct job_table *t, struct job *j, const struct error *failure);

/* Free a job that nothing refers to, and what the rooms above keep in it.  NULL is allowed. */
void job_table_free(struct job_table *t, struct job *j);

/* One use of the job (job->users) ends; it may be gone afterwards.  No lock. */
void job_table_drop(struct job_table *t, struct job *j);

/* Who holds the places has changed.  err NULL: a failure to keep that is logged, and comes up again
 * with the job's next record, which ends the job.  Lock held. */
enum status job_table_keep_members(struct job_table *t, struct job *j, struct error *err);

/* What the rooms above have counted for the job.  No lock. */
void job_table_count(struct job_table *t, const struct job *j, struct job_figures *ret);

/* The job's counters, its round under way included, added to *sum.  Lock held. */
void job_table_add_counters(struct job_table *t, const struct job *j, struct stats_counters *sum);

#endif
