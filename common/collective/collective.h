/*
 * collective: operations that all ranks of a group call in the same order with the same sizes.
 * Backends: `ring` (TCP between neighbours, this code) and `gloo` (the real library, for
 * comparison).  Each call of the ring carries (group, sequence, operation, count): ranks that
 * disagree fail with both sides named.  A call that fails names the rank that caused it, and so do
 * those of all other survivors (Gloo names an address); after that the group is dead and every call
 * returns the first error again.
 * Threads: one caller at a time per group.  Every call blocks at most cfg.timeout_ms, and a failing
 * one two seconds more where the store hangs, too.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_COLLECTIVE_H
#define SPARRING_COMMON_COLLECTIVE_COLLECTIVE_H

#include "common/base/error.h"
#include "common/store/store.h"

#include <stddef.h>
#include <stdint.h>

struct collective;

/* How floating-point sums associate. */
enum reduce_order {
    REDUCE_FAST, /* the algorithm's own order: bandwidth-optimal, same result on every rank */
    REDUCE_REPRODUCIBLE, /* ((g0 + g1) + g2) + ...: ascending ranks, whatever the sizes and segments
                          */
};

struct collective_config {
    const char *backend; /* "auto" (ring), "ring", "gloo" */
    const char *name; /* prefix of this group's keys in the store; one group per name and store */
    unsigned rank;
    unsigned world_size;
    struct store *store; /* borrowed for the group's life; addresses are exchanged through it */
    const char *interface_host; /* address or interface to bind and publish; NULL: the address that
                                   reaches the store */
    int64_t timeout_ms;         /* of every operation, and of the connection phase */
};

/* Monotone counters of one rank. */
struct collective_stats {
    uint64_t operations;
    uint64_t tx_payload_bytes; /* tensor bytes handed to the network */
    uint64_t rx_payload_bytes;
    uint64_t tx_wire_bytes; /* payload and our own headers; not TCP/IP's */
    uint64_t rx_wire_bytes;
};

enum status collective_open(const struct collective_config *config, struct collective **ret_group,
                            struct error *err);

/* Replace data[0..count) (float32) by its sum over the ranks. */
enum status collective_all_reduce(struct collective *group, float *data, size_t count,
                                  enum reduce_order order, struct error *err);

/* Copy `bytes` bytes of data from rank `root` to all. */
enum status collective_broadcast(struct collective *group, void *data, size_t bytes, unsigned root,
                                 struct error *err);

/* all[rank * bytes] = mine of `rank`, on every rank; mine may be inside all. */
enum status collective_all_gather(struct collective *group, const void *mine, size_t bytes,
                                  void *all, struct error *err);

enum status collective_barrier(struct collective *group, struct error *err);

/* Payload bytes that rank `rank` sends (*ret_tx) and receives (*ret_rx) in one all-reduce of count
 * floats, by the algorithm's formula: ring 2(n-1)/n * S, stated for uneven chunks; what stats must
 * count. */
void collective_all_reduce_bytes(const struct collective *group, size_t count,
                                 enum reduce_order order, uint64_t *ret_tx, uint64_t *ret_rx);

/* Bus-bandwidth factor of an all-reduce: busbw = bytes / seconds * 2(n-1)/n (nccl-tests). */
double collective_bus_factor(unsigned world_size);

struct collective_stats collective_get_stats(const struct collective *group);
const char *collective_backend(const struct collective *group);
void collective_close(struct collective *group); /* NULL allowed */

/* Names of the backends in this build, NULL-terminated; for --help and errors. */
const char *const *collective_backends(void);

#endif
