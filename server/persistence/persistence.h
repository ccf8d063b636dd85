/*
 * persistence: lets a job outlive its server (--state-dir).
 *
 * Promises: every value that a rank has received is in the job's folder, so that another process
 * can resume the job.  Needs: job, shard, checkpoint.  Called by: service.
 *
 * A job that begins gets a folder and a struct job_log, which also stores its membership.  When the
 * job ends the folder is removed (all ranks left in order), kept (the server stops), or put aside
 * (the job failed).  A server that starts looks for a folder and resumes the job in it.
 *
 * A job with a replica is stored on both servers.  After a restart the replica is a replica again;
 * the primary cannot know whether the ranks have continued without it, and asks them and the
 * replica.  Only if the replica may lack the current membership (role JOB_CHANGING), the job cannot
 * be resumed from this folder; then only the replica can continue it.
 *
 * Without a state folder every function does nothing.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_PERSISTENCE_H
#define SPARRING_SERVER_PERSISTENCE_PERSISTENCE_H

#include "common/base/strbuf.h"
#include "server/job/job_table.h"
#include "server/persistence/membership_file.h"
#include "server/persistence/state_dir.h"

/* One per server.  Supervisor only, once that runs. */
struct persistence {
    struct state_dir dir;    /* path "": none */
    uint64_t snapshot_every; /* rounds; 0: see journal_bytes */
    uint64_t journal_bytes;  /* as in job_log_config */
};

/* A job that an earlier process has not finished. */
struct unfinished_job {
    char folder[STATE_PATH_MAX]; /* "": none */
    struct join_request terms;   /* owned (wire_release_join_request) */
    uint64_t digest;             /* of the terms */
};

/* Lock the state folder (NULL: none) and find the unfinished job in it. */
enum status persistence_open(struct persistence *p, const char *folder, struct unfinished_job *ret,
                             struct error *err);

/* Restore the shard of the job, which is built.  *ret_membership is the text of
 * membership_file_write, empty when no join was replied to. */
enum status persistence_restore(struct persistence *p, const struct unfinished_job *found,
                                struct job *j, struct strbuf *ret_membership, struct error *err);

/* Create the folder and the log of a job that is built.  No lock; before other threads use the
 * shard. */
enum status persistence_begin(struct persistence *p, struct job *j, struct error *err);

/* Store the membership and j->role of a running job.  Lock held. */
enum status persistence_write_membership(struct job *j, struct error *err);

/* What to do with the folder of a job that has ended. */
enum folder_action { FOLDER_KEEP, FOLDER_REMOVE, FOLDER_PUT_ASIDE };

/* True when a job that has failed like this is continued after a restart: a server that stops has
 * interrupted it.  Lock held. */
bool persistence_keeps(const struct job_table *t, const struct error *failure);

/* A job that has ended and whose folder was not handled yet, or NULL.  Lock held; the job stays
 * valid, because only the supervisor frees jobs.  Then, without the lock, apply the action. */
struct job *persistence_next_ended(struct job_table *t, enum folder_action *ret_action);
void persistence_apply_folder_action(const struct job *j, enum folder_action action);

/* Put aside the folder of a job that cannot be resumed, for an operator to inspect; remove that of
 * one that has ended or never began. */
void persistence_put_aside(const struct job *j);
enum status persistence_remove(const struct unfinished_job *found, struct error *err);

/* Lock held. */
void persistence_count(const struct job *j, struct stats_counters *ret);

/* Free persistence's part of the job; the files stay. */
void persistence_release(struct job *j);

/* Unlock the state folder.  All jobs are closed. */
void persistence_close(struct persistence *p);

#endif
