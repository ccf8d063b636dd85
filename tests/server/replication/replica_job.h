/*
 * chain_job: session_job's job on two services, a primary (`service`) and its replica.
 */
#ifndef SPARRING_TESTS_SERVER_REPLICATION_REPLICA_JOB_H
#define SPARRING_TESTS_SERVER_REPLICATION_REPLICA_JOB_H

#include "tests/server/service/session_job.h"

extern struct service *chain_replica;

/* The replica alone, which session_terms then names; both services; and their end. */
void chain_open_replica(void);
void chain_set_up(void);
void chain_tear_down(void);

/* What a service says now (free). */
struct server_stats *chain_stats(struct service *s);

/* Until the service has ended so many jobs, well or badly. */
void chain_wait_ended(struct service *s, uint64_t ok, uint64_t failed);

/* The rank's next connection goes to that port. */
void chain_move(unsigned rank, uint16_t port);

/* The join of a rank that comes back; and there and back again. */
struct join_request chain_return_request(unsigned rank, uint64_t round, bool follows);
void chain_come_over(unsigned rank, uint64_t round, bool follows);

/* A beat with a vote; beats (counted on from *count) until the server asks for one; and nothing has
 * come on the rank's stream, behind a beat there and back, so it is not just late. */
void chain_send_vote(unsigned rank, uint64_t count, uint64_t epoch);
void chain_wait_proposal(unsigned rank, uint64_t *count, uint64_t epoch);
void chain_check_silent(unsigned rank, uint64_t *count);

/* Both ranks join in vain. */
void chain_check_refused(enum status status, const char *text);

#endif
