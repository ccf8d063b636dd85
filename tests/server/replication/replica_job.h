/*
 * replica_job_job: session_job's job on two services, a primary (`service`) and its replica.
 */
#ifndef SPARRING_TESTS_SERVER_REPLICATION_REPLICA_JOB_H
#define SPARRING_TESTS_SERVER_REPLICATION_REPLICA_JOB_H

#include "tests/server/service/session_job.h"

extern struct service *replica_job_replica;

/* The replica alone, which session_terms then names; both services; and their end. */
void replica_job_open_replica(void);
void replica_job_set_up(void);
void replica_job_tear_down(void);

/* What a service says now (free). */
struct server_stats *replica_job_stats(struct service *s);

/* Until the service has ended so many jobs, well or badly. */
void replica_job_wait_ended(struct service *s, uint64_t ok, uint64_t failed);

/* The rank's next connection goes to that port. */
void replica_job_move(unsigned rank, uint16_t port);

/* The join of a rank that comes back; and there and back again. */
struct join_request replica_job_return_request(unsigned rank, uint64_t round, bool follows);
void replica_job_come_over(unsigned rank, uint64_t round, bool follows);

/* A beat with a vote; beats (counted on from *count) until the server asks for one; and nothing has
 * come on the rank's stream, behind a beat there and back, so it is not just late. */
void replica_job_send_vote(unsigned rank, uint64_t count, uint64_t epoch);
void replica_job_wait_proposal(unsigned rank, uint64_t *count, uint64_t epoch);
void replica_job_check_silent(unsigned rank, uint64_t *count);

/* Both ranks join in vain. */
void replica_job_check_refused(enum status status, const char *text);

#endif
