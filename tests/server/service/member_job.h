/*
 * member_job: session_job's job where ranks are lost for good and others take their places.  Update
 * on the server, SGD with a learning rate of 1: a step subtracts the mean of what was pushed, so
 * values say which contributions they hold.
 */
#ifndef SPARRING_TESTS_SERVER_SERVICE_MEMBER_JOB_H
#define SPARRING_TESTS_SERVER_SERVICE_MEMBER_JOB_H

#include "tests/server/service/session_job.h"

#define MEMBER_AWAY_MS 300  /* where nobody is to come back: how long a lost rank is waited for */
#define MEMBER_BACK_MS 3000 /* where one also does: a busy machine may need most of it */

/* The terms for open_service; and the whole start: the record is in run/server0.jsonl, and all have
 * read the initial values, 100.  away_ms: another time than MEMBER_AWAY_MS. */
void member_terms(unsigned world_size, enum worker_loss on_loss);
void member_start(unsigned world_size, enum worker_loss on_loss);
void member_start_away(unsigned world_size, enum worker_loss on_loss, uint32_t away_ms);

/* A contribution as workers make it: divided by the ranks that a step is the mean of. */
void member_push(unsigned rank, uint32_t partition, uint64_t round, float gradient);
void member_push_all(unsigned rank, uint64_t round, float gradient);

/* A whole round in lockstep of ranks 0 and 1, after which all values are `value`. */
void member_round(uint64_t round, float gradient_0, float gradient_1, float value);

/* The rank's connection breaks, and it is given up. */
void member_lose(unsigned rank);

/* A new process takes the rank's place. */
void member_take_place(unsigned rank, uint64_t session);

/* Pull every partition, flagged AGAIN: the newest values (`ask` is 0) or those of a round. */
void member_pull_all(unsigned rank, uint64_t ask);

/* The answers of all partitions, in any order: partition `odd` of this round, with this value, and
 * the others of theirs.  `odd` RAW_PARTITIONS: there is none. */
struct member_answer {
    uint64_t round;
    float value;
};
void member_expect(unsigned rank, struct member_answer wanted, uint32_t odd,
                   struct member_answer wanted_odd);

/* ---- not in lockstep ---- */

#define MEMBER_MODES 3

/* The terms of mode `mode`, of three ranks, each of whose pushes is a step of 1 where it is a step;
 * rank 2 has been lost with two of its pushes of round 2 taken. */
void member_start_mode(int mode, enum worker_loss on_loss, uint32_t away_ms);

/* A round of the ranks first..last. */
void member_play(unsigned first, unsigned last, uint64_t round);

/* One answer for each partition, whatever it says. */
void member_take_all(unsigned rank);

/* Rank 2's newcomer reads and pushes what it would have pushed, while the others play from round
 * `next` on; then all end with the same values, of every push once, and leave. */
void member_catch_up(uint64_t next);

#endif
