/*
 * member_job: a session_job whose ranks are lost for good and replaced.  The optimizer runs on the
 * server, SGD with a learning rate of 1: a step subtracts the mean of the pushes, so the values
 * show which contributions they contain.
 *
 * Needs: session_job.  Called by the membership tests.
 */
#ifndef SPARRING_TESTS_SERVER_SERVICE_MEMBER_JOB_H
#define SPARRING_TESTS_SERVER_SERVICE_MEMBER_JOB_H

#include "tests/server/service/session_job.h"

#define MEMBER_AWAY_MS 300  /* time to wait for a lost rank, in tests where none reconnects */
#define MEMBER_BACK_MS 3000 /* where one reconnects: a busy machine may need most of it */

/* Set the terms for open_service; or the whole start: records go to run/server0.jsonl, and all
 * ranks have read the initial values, 100. away_ms: another time than MEMBER_AWAY_MS. */
void member_terms(unsigned world_size, enum worker_loss on_loss);
void member_start(unsigned world_size, enum worker_loss on_loss);
void member_start_away(unsigned world_size, enum worker_loss on_loss, uint32_t away_ms);

/* A contribution as workers send it: divided by the number of ranks. */
void member_push(unsigned rank, uint32_t partition, uint64_t round, float gradient);
void member_push_all(unsigned rank, uint64_t round, float gradient);

/* A whole round in lockstep of ranks 0 and 1, after which all values are `value`. */
void member_round(uint64_t round, float gradient_0, float gradient_1, float value);

/* Break the rank's connection and wait until the server gives the rank up. */
void member_lose(unsigned rank);

/* A new session joins as the rank. */
void member_take_place(unsigned rank, uint64_t session);

/* Pull every partition, flagged AGAIN: the newest values (`round` is 0) or those before that
 * round. */
void member_pull_all(unsigned rank, uint64_t round);

/* Check the replies for all partitions, in any order: partition `odd` has expected_odd, the others
 * have expected.  `odd` RAW_PARTITIONS: all have expected. */
struct member_reply {
    uint64_t round;
    float value;
};
void member_expect(unsigned rank, struct member_reply expected, uint32_t odd,
                   struct member_reply expected_odd);

/* ---- not in lockstep ---- */

#define MEMBER_MODES 3

/* Start a job in mode `mode` with three ranks; where each push is a step, it is a step of 1.  Rank
 * 2 is lost after two of its pushes of round 2 were accepted. */
void member_start_mode(int mode, enum worker_loss on_loss, uint32_t away_ms);

/* One round of the ranks first..last. */
void member_run_round(unsigned first, unsigned last, uint64_t round);

/* Take one reply per partition, with any content. */
void member_take_replies(unsigned rank);

/* The replacement of rank 2 reads and makes the pushes that rank 2 still had to make, while the
 * others run rounds from `next` on; then all ranks end with equal values, which contain every push
 * once, and leave. */
void member_catch_up(uint64_t next);

#endif
