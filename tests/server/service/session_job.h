/*
 * session_job: a job of scripted workers with sessions, lanes and reconnects.  In round t, rank r
 * pushes session_push to every partition, so each reply shows what it contains.
 *
 * Needs: raw_job.  Called by the tests of sessions, membership, persistence and replication.
 */
#ifndef SPARRING_TESTS_SERVER_SERVICE_SESSION_JOB_H
#define SPARRING_TESTS_SERVER_SERVICE_SESSION_JOB_H

#include "common/wire/wire_stats.h"
#include "tests/server/service/raw_job.h"

#define LONG_MS 20000 /* a time-out that must not expire */

/* Terms of the next job, on top of raw_terms(rank). */
struct session_terms {
    unsigned world_size, lanes, on_loss, update;
    uint32_t reconnect_ms, heartbeat_timeout_ms;
    struct consistency consistency;
    double learning_rate; /* 0: 1 */
    char replica[64];     /* "": none */
};
extern struct session_terms session_terms;

/* Worker i is rank i with its own session; its terms. */
struct join_request session_request(unsigned rank);

/* All ranks join and are accepted; rank r's session is `first` + r, or none if first is 0. */
void session_join_all(uint64_t first);

/* Rank `rank` opens its lanes and pulls the initial values, which rank 0 sends. */
void session_begin(unsigned rank, float value);

/* The two steps above for all ranks, with sessions from 100 on: all join, open their lanes, and
 * read the initial values, which are `value`. */
void session_start(float value);

float session_push(unsigned rank, uint64_t round);

/* Rank `rank` pushes all partitions of a round; or repeats them with CHUNK_AGAIN. */
void session_push_all(unsigned rank, uint64_t round);
void session_repeat_all(unsigned rank, uint64_t round);

/* Take the replies for all partitions of that round and check that all have this value. */
void session_expect_all(unsigned rank, uint64_t round, float value);

/* The sum of all ranks' pushes of a round. */
float session_sum(uint64_t round);

/* Run a whole round and check its sums. */
void session_round(uint64_t round);

/* The session resumes and opens its lanes. */
void session_resume(unsigned rank);

/* Join and wait for its end. */
struct rpc_result session_join(struct raw_worker *w, const struct join_request *request);

/* All ranks leave normally. */
void session_end(void);

/* The current counters and, unless ret_job is NULL, the current job. */
struct stats_counters session_counters(struct stats_job *ret_job);

/* Wait until that many disconnects were counted. */
void session_wait_disconnects(uint64_t cuts);

/* Wait until that many ranks were given up as lost. */
void session_wait_lost(uint64_t ranks);

/* Wait until that many pushes were accepted or recognized as repeated. */
void session_wait_taken(uint64_t count);

#endif
