/*
 * ring_doubling: all-reduce of small messages by recursive doubling: in round k every rank
 * exchanges what it has with the rank whose number differs in bit k, so that after log2(n) rounds
 * all have everything.  Where n is no power of two, the first ranks pair up: one of each pair gives
 * its terms to the other before the rounds and gets the result behind them.
 *
 * Two ranks that exchange reduce the same two operands in the same order, so all ranks end with the
 * same bits; but not with those of the ascending sum.  Partial results of float16 and bfloat16 are
 * rounded in every round.
 *
 * Cannot deadlock, whatever the size: the ranks that are furthest behind wait for each other only.
 * Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations
 * in MPICH".
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_DOUBLING_H
#define SPARRING_COMMON_COLLECTIVE_RING_DOUBLING_H

#include "common/collective/ring/ring_pairs.h"

/* What one rank does with one peer. */
struct doubling_step {
    unsigned peer;
    bool sends, receives; /* all bytes */
    bool reduces;         /* what comes are terms; else it is the result */
    bool last;            /* no other terms follow: the result is final */
};

/* Pure: step 0, 1, ...; false behind the last one. */
bool doubling_step(unsigned rank, unsigned world_size, unsigned step, struct doubling_step *ret);

/* Pure: bytes that a rank sends and receives when the message has `bytes`. */
void doubling_bytes(unsigned rank, unsigned world_size, size_t bytes, uint64_t *ret_sent,
                    uint64_t *ret_received);

/* One operation in progress; its message fits in a buffer of the scratch. */
struct doubling_run {
    unsigned rank, world_size;
    size_t count, size, bytes;       /* elements, bytes per element, all of them */
    struct ring_operation operation; /* its header says the factor of what is sent */
    struct pairs_scratch *scratch;   /* borrowed: one operation at a time */
    unsigned step;
    bool active;  /* `now` is such a step; else all are done */
    bool reduced; /* the output holds a partial result; else the input counts */
    struct doubling_step now;
    struct ring_flow out, in; /* of the step */
    uint64_t sent, received;  /* by the steps before */
    size_t sends, receives;   /* headers */
};

void doubling_run_init(struct doubling_run *run, unsigned rank, unsigned world_size, size_t count,
                       size_t size, const struct ring_operation *operation,
                       struct pairs_scratch *scratch);

enum ring_outcome doubling_run(struct ring_io *io, struct doubling_run *run, int64_t until_ns);

/* Bytes sent and received so far, headers apart. */
void doubling_run_done(const struct doubling_run *run, uint64_t *ret_sent, uint64_t *ret_received);

#endif
