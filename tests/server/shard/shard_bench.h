/*
 * shard_bench: one shard of two partitions, the second of which is looked at.  Whole numbers and
 * steps of 1, so that every value is known by counting.
 */
#ifndef SPARRING_TESTS_SERVER_SHARD_SHARD_BENCH_H
#define SPARRING_TESTS_SERVER_SHARD_SHARD_BENCH_H

#include "server/shard/shard.h"

#include "tests/support/support.h"

#include <string.h>

#define BENCH_FULL (PARTITION_BYTES_MIN / sizeof(float))
#define BENCH_LAST 77u /* elements of partition 1 */

extern struct error err; /* of the last call that failed */
extern struct shard_map map;
extern struct shard shard;

/* value, value + 1, value + 2, value, ... */
struct shard_source bench_source(float *value);

/* Update on the server, by SGD: a push of g moves the values by -g, or by its part of the mean. */
struct shard_config bench_config(unsigned world_size, struct consistency consistency);

void bench_open_map(void);
void bench_open(struct shard_config config);
void bench_close(void);

/* Set the initial values; everybody has them, 100. */
void bench_set(uint32_t partition, float value);
void bench_start(struct shard_config config);

/* All of partition 1. */
struct shard_reply bench_push(unsigned rank, uint64_t round, float value, bool again);
void bench_refuse_push(unsigned rank, uint64_t round, bool again, const char *why);
struct shard_reply bench_pull(unsigned rank, uint64_t round);
struct shard_reply bench_vacate(unsigned rank);

/* The answer has these values; exactly the ranks of the mask are answered, with these. */
void bench_check(const struct shard_reply *answer, uint64_t round, float value);
void bench_expect(unsigned mask, uint64_t round, float value);

#endif
