/*
 * shard_map: assigns the parts of the slab to parameter servers.  Pure arithmetic; a worker and a
 * server compute the same map from the same numbers.  The slab is cut into partitions of
 * partition_bytes (the last one shorter); a partition is the payload of one chunk.  In slab order
 * each is assigned to the server with the least (load + size) / weight, ties to the lower index.
 * With equal weights that is round-robin.  Neighbours in the slab are on different servers, so all
 * servers work while backward fills the slab.
 *
 * Library.  Needs only base.  Called by the parameter server, the worker, launch and the
 * benchmarks.
 */
#ifndef SPARRING_COMMON_SHARD_MAP_SHARD_MAP_H
#define SPARRING_COMMON_SHARD_MAP_SHARD_MAP_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define PARTITION_BYTES_MIN     (4u << 10)
#define PARTITION_BYTES_MAX     (4u << 20)
#define PARTITION_BYTES_DEFAULT (512u << 10)

/* The numbers may come from a wire: these limits bound the allocations. */
#define SHARD_MAP_PARTITIONS_MAX (1u << 18)
#define SHARD_MAP_SERVERS_MAX    4096u
#define SHARD_MAP_WEIGHT_MAX     (1u << 20)

struct partition {
    size_t offset;        /* elements from the start of the slab */
    size_t count;         /* elements, > 0 */
    unsigned server;      /* index of its server */
    uint32_t local_index; /* index among the partitions of that server, from 0 */
    size_t local_offset;  /* elements from the start of that server's own storage */
};

struct shard_map {
    struct partition *partitions; /* owned, in slab order */
    size_t length;
    unsigned server_count;
    size_t *server_elements; /* owned; elements on each server */
    uint32_t *held;   /* owned; all partitions, those of server 0 first; see shard_map_held */
    size_t *held_end; /* owned; end index of each server's partitions in `held` */
};

/*
 * Cut element_count float32 elements and place the partitions.
 *   element_count    > 0
 *   partition_bytes  PARTITION_BYTES_MIN to PARTITION_BYTES_MAX, a multiple of 4
 *   server_count     1 to SHARD_MAP_SERVERS_MAX; servers beyond the partition count hold nothing
 *   ret              released by the caller; unchanged on failure
 * Returns STATUS_OK, STATUS_INVALID (the text names the number and its bounds) or STATUS_NO_MEMORY.
 */
enum status shard_map_make(size_t element_count, size_t partition_bytes, unsigned server_count,
                           struct shard_map *ret, struct error *err);

/*
 * The same, with loads proportional to the weights: the largest load / weight is the minimum that
 * partitions of this size allow.
 *   weights  server_count of them, 0 (holds nothing) to SHARD_MAP_WEIGHT_MAX, not all 0; NULL: all
 *            the same
 */
enum status shard_map_make_weighted(size_t element_count, size_t partition_bytes,
                                    unsigned server_count, const uint32_t *weights,
                                    struct shard_map *ret, struct error *err);

/* The partitions that a server holds, ascending: returns their number and *ret, an array valid
 * until shard_map_release.  server < server_count. */
size_t shard_map_held(const struct shard_map *m, unsigned server, const uint32_t **ret);

/*
 * A good partition size for a slab of element_count on server_count servers: every server gets its
 * share in whole, equal partitions, the fewest that keep a partition at a limit or less.
 *   weights  as above.  Those without a small common measure are approximated with 64 partitions
 *            per server
 *   rate     of the links, bytes per second; 0: unknown
 * A step is longer than its bytes by about one partition of every rank, and a message costs the
 * processors some 50 us through gRPC.  So the limit is what a link carries in 0.7 ms, but at least
 * 64 KiB and the 64th part of a server's share, and at most PARTITION_BYTES_DEFAULT; rounded down
 * to a power of two, so that two measurements of one network mostly agree.  An unknown rate: the
 * default.  The result is a multiple of 4 within PARTITION_BYTES_MIN and PARTITION_BYTES_DEFAULT.
 */
size_t shard_map_partition_bytes(size_t element_count, unsigned server_count,
                                 const uint32_t *weights, double rate);

/*
 * Weights for n hosts that each run a worker and a server, and k hosts with only a server, all with
 * the same link speed, so that all links are busy equally long.  A colocated server holds M_c, a
 * dedicated one M_d; the link of a worker's host carries (M - M_c) up, and (n - 1) M_c down for its
 * server; the link of a dedicated host carries n M_d.  Both are equal, and n M_c + k M_d = M, hence
 * M_c : M_d = (n - k) : 2 (n - 1).  With k >= n the workers' hosts hold nothing.
 *   ret  n + k weights, those of the colocated servers first
 * Source: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in
 * Heterogeneous GPU/CPU Clusters" (BytePS), OSDI 2020, section 4.1.
 */
void shard_map_mixed_weights(unsigned n, unsigned k, uint32_t *ret);

/* NULL and a zeroed map are allowed. */
void shard_map_release(struct shard_map *m);

/* Largest server load divided by the mean load; 1.0 is perfect balance. */
double shard_map_imbalance(const struct shard_map *m);

/* The same relative to the weights: largest load / weight divided by the mean; 1.0 is perfect.
 * weights: those that the map was made with. */
double shard_map_weighted_imbalance(const struct shard_map *m, const uint32_t *weights);

#endif
