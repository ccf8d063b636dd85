/*
 * mode_job: a job of scripted workers in any consistency mode, on one partition of equal elements.
 * SGD with a learning rate that makes each step an integer, so the values show exactly which
 * contributions they contain.
 *
 * Needs: raw_job.  Called by test_modes.c and test_modes_terms.c.
 */
#ifndef SPARRING_TESTS_SERVER_SERVICE_MODE_JOB_H
#define SPARRING_TESTS_SERVER_SERVICE_MODE_JOB_H

#include "server/service/service.h"
#include "tests/server/service/raw_job.h"

#include <jansson.h>

#define ELEMENTS 64u
#define INITIAL  10.0f

static const struct consistency backup_1 = {.mode = CONSISTENCY_BSP, .backup = 1};
static const struct consistency ssp_0 = {.mode = CONSISTENCY_SSP};
static const struct consistency ssp_1 = {.mode = CONSISTENCY_SSP, .staleness = 1};
static const struct consistency asp = {.mode = CONSISTENCY_ASP};

/* Rules of exact staleness of the next job. */
extern struct exact_staleness rules[4];
extern size_t rule_count;

struct join_request terms_of(const struct consistency *c, unsigned rank, unsigned world_size);

void push(unsigned rank, uint64_t round, float value);
void send_chunk(unsigned rank, enum chunk_kind kind, uint64_t round, float value);

/* Take the next reply to this rank and check it. */
void expect(unsigned rank, uint64_t round, float value);

void join_all(const struct consistency *c, unsigned world_size);

/* Start a job in that mode; its ranks have read the initial values. */
void start_mode(const struct consistency *c, unsigned world_size);

void leave(unsigned rank);

/* Wait until the server has counted that many contributions. */
void wait_pushes(uint64_t pushes);

/* The last line of the job's records; one reference. */
json_t *end_record(void);
json_int_t number(const json_t *record, const char *key);

/* Number of pushes in staleness bucket i: 0, 1, 2, 3-4, ... */
json_int_t bucket(const json_t *record, size_t i);

#endif
