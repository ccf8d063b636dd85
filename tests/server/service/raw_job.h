/*
 * raw_job: a service and three scripted workers, as globals of the test process (Check forks each
 * test), and the steps of a valid job.
 *
 * Needs: raw_worker, service.  Called by all tests of the service.
 */
#ifndef SPARRING_TESTS_SERVER_SERVICE_RAW_JOB_H
#define SPARRING_TESTS_SERVER_SERVICE_RAW_JOB_H

#include "server/service/service.h"
#include "tests/server/service/raw_worker.h"

extern struct service *service;
extern struct raw_worker workers[3];

void open_service(int64_t timeout_ms, const char *run_dir);
void close_service(void);
void close_workers(void);

/* Check that `who` ended with this status and a text that contains `part`. */
void check_result(const char *who, struct rpc_result r, enum status expected, const char *part);

/* Check that seconds follow `part` in the text, as "4.0 s", and are at least `least`.  On a busy
 * machine they may be more, up to RAW_LONGEST. */
#define RAW_LONGEST 1000.0
void check_seconds(const char *text, const char *part, double least);

/* Ranks 0 and 1 join with raw_terms and are accepted. */
void join_both(void);

/* join_both, then read the initial values. */
void start_job(void);

/* Run one whole round and check its sums. */
void play_round(uint64_t round);

/* Both ranks leave normally. */
void end_job(void);

/* Check that the server still serves: run a whole job of two rounds. */
void check_still_serves(void);

#endif
