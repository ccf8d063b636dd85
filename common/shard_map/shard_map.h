/*
 * shard_map: which parameter server holds which part of the slab.  Pure arithmetic; a worker and a
 * server compute the same map from the same three numbers. The slab is cut into partitions of
 * partition_bytes (the last one shorter); a partition is what one chunk carries.  Partitions go to
 * the least loaded server, largest first, ties to the lower index: loads differ by at most one
 * partition.  Neighbours in the slab lie on different servers, so all servers work while backward
 * fills the slab.
 */
#ifndef SPARRING_COMMON_SHARD_MAP_SHARD_MAP_H
#define SPARRING_COMMON_SHARD_MAP_SHARD_MAP_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define PARTITION_BYTES_MIN     (4u << 10)
#define PARTITION_BYTES_MAX     (4u << 20)
#define PARTITION_BYTES_DEFAULT (1u << 20)

/* The three numbers come from a wire: these bound what they can make us allocate. */
#define SHARD_MAP_PARTITIONS_MAX (1u << 18)
#define SHARD_MAP_SERVERS_MAX    4096u

struct partition {
    size_t offset;       /* elements from the start of the slab */
    size_t count;        /* elements, > 0 */
    unsigned server;     /* index of its server */
    size_t local_offset; /* elements from the start of that server's own storage */
};

struct shard_map {
    struct partition *partitions; /* owned, in slab order */
    size_t length;
    unsigned server_count;
    size_t *server_elements; /* owned; elements on each server */
};

/*
 * Cut element_count float32 elements and place the partitions.
 *   element_count    > 0
 *   partition_bytes  PARTITION_BYTES_MIN to PARTITION_BYTES_MAX, a multiple of 4
 *   server_count     1 to SHARD_MAP_SERVERS_MAX; servers beyond the partition count hold nothing
 *   ret              released by the caller; unchanged on failure
 * Returns STATUS_OK, STATUS_INVALID (which number, and its bounds) or STATUS_NO_MEMORY.
 */
enum status shard_map_make(size_t element_count, size_t partition_bytes, unsigned server_count,
                           struct shard_map *ret, struct error *err);

/*
 * The partition size that serves a slab of element_count on server_count servers well: every server
 * gets the same number of equal partitions, the fewest that keep a partition at
 * PARTITION_BYTES_DEFAULT or less. A multiple of 4 within PARTITION_BYTES_MIN and
 * PARTITION_BYTES_MAX.
 */
size_t shard_map_partition_bytes(size_t element_count, unsigned server_count);

/* NULL and a zeroed map are allowed. */
void shard_map_release(struct shard_map *m);

/* Largest server load over the mean load, 1.0 is perfect balance. */
double shard_map_imbalance(const struct shard_map *m);

#endif
