/*
 * persistence: what a service does so that its job outlives it (--state-dir).
 *
 * A job that begins gets a folder and a struct job_log; who holds its slots is kept with it.  When
 * it is over the folder goes (all left in order), stays (the server stops), or is put aside (the
 * job failed).  A service that starts looks for a folder first and goes on with that job: it runs,
 * and every rank is away.
 *
 * A job with a replica is kept on both servers.  Started again, the copy is a copy, and the primary
 * cannot know whether the ranks have gone on without it: it asks them, and the replica.  Only where
 * the replica may not have heard who is in, nobody can go on from here.
 *
 * Every function here does nothing in a service without a state folder.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_PERSISTENCE_H
#define SPARRING_SERVER_PERSISTENCE_PERSISTENCE_H

#include "server/job/job.h"
#include "server/service/service_internal.h"

/* Take the folder, and restore the job that is in it.  Before there are calls. */
enum status persistence_open(struct service *s, const struct service_config *config,
                             struct error *err);

/* A job that is built: keep it from here on.  Supervisor only, no lock; nobody uses the shard yet.
 */
enum status persistence_begin(struct service *s, struct job *j, struct error *err);

/* Who holds the job's slots has changed: keep that before anybody is told.  Lock held. */
void persistence_members(struct service *s, struct job *j);

/* The same, for who acknowledges the change: fails where it could not be kept. */
enum status persistence_told_members(struct job *j, struct error *err);

/* They were changing when that was kept: have they changed by now?  Supervisor only, lock held. */
void persistence_standing(struct service *s, struct job *j);

/* Decide what becomes of the folder of a job that is over.  Supervisor only, lock held on entry and
 * return; returns whether there was anything to do. */
bool persistence_settle(struct service *s);

/* All jobs are closed.  NULL is allowed. */
void persistence_close(struct service *s);

#endif
