/*
 * ring: what the sources of the ring backend share.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_H
#define SPARRING_COMMON_COLLECTIVE_RING_H

#include "common/collective/collective_ops.h"
#include "common/collective/ring/ring_doubling.h"
#include "common/collective/ring/ring_pairs.h"
#include "common/collective/ring/ring_stream.h"

/* The executor of an operation: ring_stream, ring_pairs or ring_doubling. */
enum ring_executor { BY_RING, BY_PAIRS, BY_DOUBLING };

struct ring_algorithm {
    enum ring_executor by;
    enum pairs_kind pairs;
    enum ring_kind ring;
};

/* All-reduces are measured at these sizes. */
#define RING_TUNED_SIZES 6
extern const size_t ring_tuned_sizes[RING_TUNED_SIZES];

struct ring {
    struct collective base;
    struct ring_io io;
    struct ring_scratch scratch;
    struct pairs_scratch pairs;
    struct ring_run stream_run; /* the collective in progress is one of these three ... */
    struct pairs_run pairs_run;
    struct doubling_run doubling_run;
    enum ring_executor by;                         /* ... selected by this */
    struct collective_work **sending, **receiving; /* owned: per peer, whose link it is now */
    struct ring_algorithm
        all_reduce_algorithms[RING_TUNED_SIZES]; /* up to ring_tuned_sizes[], fast order */
    size_t tuned_sizes;                          /* of them; more bytes go through the ring */
    size_t whole_bytes;  /* broadcast, reduce, ordered all_reduce: at most so many in one round */
    size_t chunks_bytes; /* at most so many in two rounds */
    unsigned streams;    /* connections in use per neighbour */
};

/* Have the group's alarm end waiting. */
void ring_watch(struct ring *r);

/* Measure which algorithm is fastest for which size of all_reduce, and agree on it.  Blocks until
 * deadline_ns at most; every rank of the group calls it before its first operation. */
enum status ring_tune(struct ring *r, int64_t deadline_ns, struct error *err);

/* Elements and bytes of one block of the operation; of a barrier none. */
size_t ring_count(const struct collective_args *a);
size_t ring_block_bytes(const struct collective_args *a);

/* The algorithm of a collective.  The same on all ranks: it depends on the signature and on what
 * ring_tune agreed.  Pure, as are the plans of an algorithm, and as is struct collective_ops's
 * expected_bytes. */
struct ring_algorithm ring_choose_algorithm(const struct ring *r, const struct collective_args *a);
struct pairs_plan ring_make_pairs_plan(const struct collective *group,
                                       const struct collective_args *a, enum pairs_kind kind);
struct ring_plan ring_make_ring_plan(const struct ring *r, const struct collective_args *a,
                                     enum ring_kind kind);
void ring_expected_bytes(const struct collective *group, const struct collective_args *a,
                         uint64_t *ret_tx, uint64_t *ret_rx);

/* Prepare r for a collective. */
void ring_begin(struct ring *r, const struct collective_args *args,
                const struct signature *signature, struct ring_algorithm algorithm);

/* Advance it. */
enum ring_outcome ring_advance(struct ring *r, int64_t until_ns);

#endif
