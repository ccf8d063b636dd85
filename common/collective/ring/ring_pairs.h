/*
 * ring_pairs: operations in which every rank exchanges directly with every other that it has bytes
 * for: one or two rounds, whatever the number of ranks.  For small messages, where rounds cost; in
 * rank order, because all terms of an element meet on one rank, which reduces them in one pass in
 * ascending order and rounds once; and for the calls that are pairwise by nature.
 *
 * A rank's stream to a peer is a part of its input, then (in the second round) its part of the
 * result.  A stream from a peer likewise: terms or blocks, then the peer's part of the result.
 * Terms wait in a buffer per peer until all have come, a segment at a time.
 *
 *   reduced <= received terms of every peer;  received terms <= reduced + buffer size
 *   sent result <= reduced
 *
 * None of these can deadlock: inputs wait for no other data, so every buffer fills; results wait
 * for buffers only.  Where input and output are the same memory, bytes are only replaced after they
 * were sent.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_PAIRS_H
#define SPARRING_COMMON_COLLECTIVE_RING_PAIRS_H

#include "common/collective/ring/ring_flow.h"

enum pairs_kind {
    PAIRS_ALL_REDUCE_WHOLE,  /* every input to everyone; all reduce all */
    PAIRS_ALL_REDUCE_CHUNKS, /* chunk r of every input to rank r, which sends the result to all */
    PAIRS_REDUCE_SCATTER,    /* the first half of that */
    PAIRS_REDUCE,            /* every input to the root */
    PAIRS_ALL_GATHER,
    PAIRS_GATHER,
    PAIRS_SCATTER,
    PAIRS_BROADCAST,
    PAIRS_ALL_TO_ALL,
    PAIRS_BARRIER, /* headers only */
};

/* What one rank exchanges in one operation; pure. */
struct pairs_plan {
    enum pairs_kind kind;
    unsigned rank, world_size, root;
    size_t count, size; /* elements, as in struct collective_args; bytes per element */
};

/* With one peer; offsets and sizes in bytes. */
struct pairs_peer {
    bool sends, receives;                 /* has a stream in that direction at all */
    size_t send_offset, send_bytes;       /* of the input */
    size_t receive_offset, receive_bytes; /* terms: receive_offset unused; else of the output */
    size_t result_sent;                   /* behind it: this rank's result, whole or nothing */
    size_t result_offset, result_bytes;   /* the peer's: into the output */
};

/* What this rank reduces: `bytes` at input_offset of the input and in the buffers, to
 * output_offset.
 */
struct pairs_result {
    size_t input_offset, output_offset, bytes;
};

struct pairs_peer pairs_plan_peer(const struct pairs_plan *plan, unsigned peer);
struct pairs_result pairs_plan_result(const struct pairs_plan *plan);

/* Sums over the peers, for statistics and formulas. */
void pairs_plan_bytes(const struct pairs_plan *plan, uint64_t *ret_sent, uint64_t *ret_received);

/* Sized for one group; lives as long. */
struct pairs_scratch {
    unsigned char *buffers;   /* owned: world_size * buffer_bytes */
    size_t buffer_bytes;      /* a multiple of 64 */
    struct pairs_peer *peers; /* owned; these per rank, too: */
    struct ring_flow *sends, *receives;
    const void **inputs;
    double *factors;
    struct transport_interest *interests; /* 2 * world_size */
    struct ring_flow **waiting;
};

enum status pairs_scratch_init(struct pairs_scratch *s, unsigned world_size, size_t segment_bytes,
                               struct error *err);
void pairs_scratch_release(struct pairs_scratch *s);

/* One operation in progress. */
struct pairs_run {
    struct pairs_plan plan;
    struct pairs_result result;
    struct ring_operation operation;
    struct pairs_scratch *scratch; /* borrowed: one operation at a time */
    size_t reduced;                /* bytes of result done */
    bool in_place;
};

void pairs_run_init(struct pairs_run *run, const struct pairs_plan *plan,
                    const struct ring_operation *operation, struct pairs_scratch *scratch);

enum ring_outcome pairs_run(struct ring_io *io, struct pairs_run *run, int64_t until_ns);

/* Bytes sent and received so far, headers apart. */
void pairs_run_done(const struct pairs_run *run, uint64_t *ret_sent, uint64_t *ret_received);

#endif
