/*
 * session_job: a job whose ranks have sessions, lanes and a way back, played by hand.  Rank r of
 * round t pushes session_push to every partition, so each answer tells what it holds.
 */
#ifndef SPARRING_TESTS_SERVER_SERVICE_SESSION_JOB_H
#define SPARRING_TESTS_SERVER_SERVICE_SESSION_JOB_H

#include "common/wire/wire_stats.h"
#include "tests/server/service/raw_job.h"

#define LONG_MS 20000 /* of times that are not to run out */

/* Of the next job; raw_terms(rank) with these. */
struct session_terms {
    unsigned world_size, lanes, on_loss, update;
    uint32_t reconnect_ms, heartbeat_timeout_ms;
    struct consistency consistency;
    double learning_rate; /* 0: 1 */
    char replica[64];     /* "": none */
};
extern struct session_terms session_terms;

/* Worker i is rank i of a session of its own; terms for it. */
struct join_request session_request(unsigned rank);

/* Everybody joins, and is welcome; rank r's session is `first` + r, or none with 0. */
void session_join_all(uint64_t first);

/* Rank `rank` opens its lanes and asks for the initial values, which rank 0 sets. */
void session_begin(unsigned rank, float value);

/* Both of all, with sessions from 100 on: everybody joins, opens its lanes, and reads the initial
 * values, which are `value`. */
void session_start(float value);

float session_push(unsigned rank, uint64_t round);

/* Rank `rank` pushes all partitions of a round; with CHUNK_AGAIN. */
void session_push_all(unsigned rank, uint64_t round);
void session_again_all(unsigned rank, uint64_t round);

/* The answers of all partitions of that round, every one of this value. */
void session_expect_all(unsigned rank, uint64_t round, float value);

/* What all ranks' pushes of a round add up to. */
float session_sum(uint64_t round);

/* A whole round, its sums checked. */
void session_round(uint64_t round);

/* The session joins again, and opens its lanes. */
void session_resume(unsigned rank);

/* Join and see its end. */
struct rpc_result session_join(struct raw_worker *w, const struct join_request *request);

/* All leave in order. */
void session_end(void);

/* Counters and the job as they are now. */
struct stats_counters session_counters(struct stats_job *ret_job);

/* Until so many ranks have been cut off. */
void session_wait_cuts(uint64_t cuts);

/* Until so many ranks have been given up. */
void session_wait_lost(uint64_t ranks);

/* Until so many pushes have been taken, or found to have been taken before. */
void session_wait_taken(uint64_t count);

#endif
