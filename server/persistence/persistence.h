/*
 * persistence: what a server does so that its job outlives it (--state-dir).
 *
 * Promises: what a rank was told is in the job's folder, so that another process can go on with it.
 * Needs: job, shard, checkpoint.  Called by: service.
 *
 * A job that begins gets a folder and a struct job_log; who holds its places is kept with it.  When
 * it is over the folder goes (all left in order), stays (the server stops), or is put aside (the
 * job failed).  A server that starts looks for a folder first and goes on with that job.
 *
 * A job with a replica is kept on both servers.  Started again, the copy is a copy, and the primary
 * cannot know whether the ranks have gone on without it: it asks them, and the replica.  Only where
 * the replica may not have heard who is in, nobody can go on from here.
 *
 * Without a state folder every function does nothing.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_PERSISTENCE_H
#define SPARRING_SERVER_PERSISTENCE_PERSISTENCE_H

#include "common/base/strbuf.h"
#include "server/job/job_table.h"
#include "server/persistence/membership_file.h"
#include "server/persistence/state_dir.h"

/* One of a server.  Supervisor only, once that runs. */
struct persistence {
    struct state_dir dir;    /* its path "": there is none */
    uint64_t snapshot_every; /* rounds; 0: see journal_bytes */
    uint64_t journal_bytes;  /* as in job_log_config */
};

/* A job that an earlier process has not finished. */
struct unfinished_job {
    char folder[STATE_PATH_MAX]; /* "": there is none */
    struct join_request terms;   /* owned (wire_release_join_request) */
    uint64_t digest;             /* of the terms */
};

/* Take the folder (NULL: none), and find what is in it. */
enum status persistence_open(struct persistence *p, const char *folder, struct unfinished_job *ret,
                             struct error *err);

/* Fill the shard of the job, which is built.  *ret_members, as membership_file_write wrote it,
 * stays empty when nobody was told that the job runs. */
enum status persistence_fill(struct persistence *p, const struct unfinished_job *found,
                             struct job *j, struct strbuf *ret_members, struct error *err);

/* A job that is built: keep it from here on.  No lock; nobody uses the shard yet. */
enum status persistence_begin(struct persistence *p, struct job *j, struct error *err);

/* Who holds the places of a job that runs, and j->role.  Lock held. */
enum status persistence_keep_members(struct job *j, struct error *err);

/* What becomes of the folder of a job that is over. */
enum folder_fate { FOLDER_KEPT, FOLDER_REMOVED, FOLDER_ASIDE };

/* A job that is over and whose folder waits for its fate, or NULL.  Lock held; it stays: only the
 * supervisor frees jobs.  And: do it.  No lock. */
struct job *persistence_next_over(struct job_table *t, enum folder_fate *ret_fate);
void persistence_settle(const struct job *j, enum folder_fate fate);

/* The folder of a job that cannot go on is put aside, for a person to look at; of one that is over,
 * or never began, it is removed. */
void persistence_put_aside(const struct job *j);
enum status persistence_remove(const struct unfinished_job *found, struct error *err);

/* Lock held. */
void persistence_count(const struct job *j, struct job_log_figures *ret);

/* Free what is in the job; the files stay. */
void persistence_release(struct job *j);

/* All jobs are closed. */
void persistence_close(struct persistence *p);

#endif
