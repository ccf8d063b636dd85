/*
 * raw_job: a service and three workers played by hand, as globals of the test process (Check forks
 * each test), and the steps of a good job.
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

/* `who` ended with this status and a text that holds `part`. */
void check_result(const char *who, struct rpc_result r, enum status wanted, const char *part);

/* Behind `part` the text has seconds, as "4.0 s": no fewer than `least`, for on a busy machine they
 * may be more; no test runs for RAW_LONGEST. */
#define RAW_LONGEST 1000.0
void check_seconds(const char *text, const char *part, double least);

/* Ranks 0 and 1 join with raw_terms and are welcome. */
void join_both(void);

/* join_both, and the initial values are read. */
void start_job(void);

/* One whole round, its sums checked. */
void play_round(uint64_t round);

/* Both leave in order. */
void end_job(void);

/* After whatever happened, the server serves: a whole job of two rounds. */
void check_still_serves(void);

#endif
