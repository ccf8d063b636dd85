/*
 * shard_fixture: one shard of two partitions; the tests check the second one.  Values are integers
 * and steps are 1, so that expected values follow by counting.
 */
#ifndef SPARRING_TESTS_SERVER_SHARD_SHARD_FIXTURE_H
#define SPARRING_TESTS_SERVER_SHARD_SHARD_FIXTURE_H

#include "server/shard/shard.h"

#include "tests/support/support.h"

#include <string.h>

#define FIXTURE_FULL (PARTITION_BYTES_MIN / sizeof(float))
#define FIXTURE_LAST 77u /* elements of partition 1 */

extern struct error err; /* of the last call that failed */
extern struct shard_map map;
extern struct shard shard;

/* value, value + 1, value + 2, value, ... */
struct shard_source fixture_source(float *value);

/* Update on the server, by SGD: a push of g adds -g, or its share of the mean, to the values. */
struct shard_config fixture_config(unsigned world_size, struct consistency consistency);

void fixture_open_map(void);
void fixture_open(struct shard_config config);
void fixture_close(void);

/* fixture_set: set the initial values.  fixture_start: open, set 100, and pull for all ranks. */
void fixture_set(uint32_t partition, float value);
void fixture_start(struct shard_config config);

/* Calls on partition 1. */
struct shard_reply fixture_push(unsigned rank, uint64_t round, float value, bool again);
void fixture_refuse_push(unsigned rank, uint64_t round, bool again, const char *why);
struct shard_reply fixture_pull(unsigned rank, uint64_t round);
struct shard_reply fixture_vacate(unsigned rank);

/* Check the round and the first value of a reply; check that exactly the ranks of the mask get a
 * reply, with these. */
void fixture_check(const struct shard_reply *reply, uint64_t round, float value);
void fixture_expect(unsigned mask, uint64_t round, float value);

#endif
