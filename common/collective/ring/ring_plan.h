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
 *
 * Partial results that have no place in the output (reduce_scatter, reduce) pass through the stage,
 * a ring buffer of the executor: what byte x of the receive stream became lies there until it was
 * sent, so
 *
 *     processed received bytes <= stage size + sent - stage_lag_bytes
 *
 * where a staged byte is sent at most stage_lag_bytes behind its position in the receive stream.
 * The rotation of reduce_scatter therefore goes round once per piece of the blocks, and a stage
 * larger than a piece cannot deadlock: the rank that has processed least has sent at least as much,
 * because its right neighbour has processed it.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_PLAN_H
#define SPARRING_COMMON_COLLECTIVE_RING_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ring_kind {
    RING_ALL_REDUCE,     /* reduce-scatter, then all-gather (Patarasuk and Yuan 2009) */
    RING_REDUCE_SCATTER, /* its first half, with input left as it is */
    RING_ALL_GATHER,     /* its second half; this rank's block is in the output already */
    RING_BROADCAST,      /* a pipeline from the root to the right */
    RING_REDUCE,         /* a pipeline from the root's right neighbour to the root */
};

enum ring_buffer_kind { RING_INPUT, RING_OUTPUT, RING_STAGE };

/* A piece of a stream. */
struct ring_range {
    enum ring_buffer_kind buffer; /* sent from there, or received into there */
    size_t offset;                /* bytes from its start; in the stage: of the receive stream */
    size_t bytes;
    bool reduces; /* received: the result is the reduction of what comes ... */
    size_t own;   /* ... and of the own terms, at this offset of the input */
    bool raw;     /* what comes is another rank's input, not a partial result */
    bool last;    /* no other terms follow: the result is final */
};

/* The program of one operation on one rank.  Ranges are computed when asked for, so a plan has
 * the same few words for any world size. */
struct ring_plan {
    enum ring_kind kind;
    unsigned rank;
    unsigned world_size;
    unsigned root;     /* broadcast, reduce */
    size_t count;      /* elements, as in struct collective_args */
    size_t size;       /* bytes per element */
    size_t pieces;     /* of a block, each a rotation of its own; reduce_scatter, else 1 */
    size_t send_steps; /* ranges in the send list; some may be empty */
    size_t receive_steps;
    uint64_t send_bytes; /* whole streams */
    uint64_t receive_bytes;
    uint64_t lag_bytes;
    uint64_t stage_lag_bytes;
};

/*
 * Bytes sent by rank r of n, S = size * count, chunk c (mod n) of count / n (+ 1 for c < count % n)
 * elements:
 *   all_reduce      2 S - size (chunk(r + 1) + chunk(r + 2)): 2 (n - 1) / n S when n divides count
 *   reduce_scatter  (n - 1) S        all_gather  (n - 1) S
 *   broadcast       S, the rank left of the root nothing
 *   reduce          S, the root nothing
 * A rank receives what its left neighbour sends.  Pieces have at most piece_bytes (>= size).
 */
struct ring_plan ring_plan(enum ring_kind kind, unsigned rank, unsigned world_size, size_t count,
                           size_t size, unsigned root, size_t piece_bytes);

struct ring_range ring_plan_send(const struct ring_plan *plan, size_t step);
struct ring_range ring_plan_receive(const struct ring_plan *plan, size_t step);

#endif
