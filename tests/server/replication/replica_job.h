/*
 * replica_job: session_job's job on two services, a primary (`service`) and its replica.
 */
#ifndef SPARRING_TESTS_SERVER_REPLICATION_REPLICA_JOB_H
#define SPARRING_TESTS_SERVER_REPLICATION_REPLICA_JOB_H

#include "tests/server/service/session_job.h"

extern struct service *replica_job_replica;

/* Open the replica, which session_terms then names; open both services; close both. */
void replica_job_open_replica(void);
void replica_job_set_up(void);
void replica_job_tear_down(void);

/* The service's current statistics (free). */
struct server_stats *replica_job_stats(struct service *s);

/* Wait until the service has ended so many jobs, in order and failed. */
void replica_job_wait_ended(struct service *s, uint64_t ok, uint64_t failed);

/* Replace the rank's connection by one to that port. */
void replica_job_redirect(unsigned rank, uint16_t port);

/* The request of a rank that resumes its session; and such a join with its reply. */
struct join_request replica_job_rejoin_request(unsigned rank, uint64_t round, bool follows);
void replica_job_rejoin(unsigned rank, uint64_t round, bool follows);

/* Send a heartbeat with a vote; send heartbeats (counted on from *count) until the server proposes
 * an epoch; check that the rank's stream has received nothing, after a heartbeat and its reply, so
 * that a message sent before would have arrived. */
void replica_job_send_vote(unsigned rank, uint64_t count, uint64_t epoch);
void replica_job_wait_proposal(unsigned rank, uint64_t *count, uint64_t epoch);
void replica_job_check_silent(unsigned rank, uint64_t *count);

/* Both ranks join and are refused. */
void replica_job_check_refused(enum status status, const char *text);

#endif
