/*
 * ring_plan: what one rank of a ring sends to its right neighbour and receives from its left one,
 * as two streams of bytes.  Pure index arithmetic; ring_stream.h executes it.
 *
 * A program is a list of send ranges, a list of receive ranges, each with what is done to the
 * bytes on arrival, and one number, the lag.  Every byte that a rank sends is either its own (the
 * first lag_bytes of its send stream) or the result of the byte that lies lag_bytes earlier in its
 * receive stream.  So one rule makes a program correct and pipelined at any granularity:
 *
 *     sent <= lag_bytes + processed received bytes
 *
 * It cannot deadlock: around the ring, the rank whose stream is furthest behind may always move.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_PLAN_H
#define SPARRING_COMMON_COLLECTIVE_RING_PLAN_H

#include "common/collective/collective.h"

#include <stddef.h>
#include <stdint.h>

enum ring_kind {
    RING_ALL_REDUCE_FAST,    /* reduce-scatter, then all-gather (Patarasuk and Yuan 2009) */
    RING_ALL_REDUCE_ORDERED, /* a chain 0 -> n-1 that sums in rank order, then a broadcast */
    RING_BROADCAST,
    RING_ALL_GATHER,
};

enum ring_action {
    RING_COPY, /* the received bytes replace those of the range */
    RING_ADD,  /* the received float32 are added to those of the range */
};

struct ring_range {
    size_t offset; /* bytes from the start of the operation's buffer */
    size_t bytes;
};

/* The program of one operation on one rank.  Ranges are computed when asked for, so a plan has
 * the same few words for any world size. */
struct ring_plan {
    enum ring_kind kind;
    unsigned rank;
    unsigned world_size;
    unsigned root;       /* broadcast */
    size_t count;        /* all-reduce: float32 in the buffer; otherwise bytes per rank */
    unsigned send_steps; /* ranges in the send list; some may be empty */
    unsigned receive_steps;
    uint64_t send_bytes; /* whole streams */
    uint64_t receive_bytes;
    uint64_t lag_bytes;
};

/* The buffer is count float32.  Bytes sent by rank r of n, with chunk c of the count / n (+ 1 for
 * c < count % n) elements, c taken mod n, and S = 4 count:
 *   fast     2 S - 4 (chunk(r + 1) + chunk(r + 2)), that is 2 (n - 1) / n S when n divides count
 *   ordered  2 S; the ranks n - 2 and n - 1 send S
 * A rank receives what its left neighbour sends. */
struct ring_plan ring_plan_all_reduce(unsigned rank, unsigned world_size, size_t count,
                                      enum reduce_order order);

/* The buffer is `bytes` bytes; every rank but the one left of the root sends them once. */
struct ring_plan ring_plan_broadcast(unsigned rank, unsigned world_size, size_t bytes,
                                     unsigned root);

/* The buffer is world_size blocks of `bytes` bytes; every rank sends world_size - 1 of them. */
struct ring_plan ring_plan_all_gather(unsigned rank, unsigned world_size, size_t bytes);

struct ring_range ring_plan_send(const struct ring_plan *plan, unsigned step);
struct ring_range ring_plan_receive(const struct ring_plan *plan, unsigned step,
                                    enum ring_action *ret_action);

#endif
