/*
 * ring: what the sources of the ring backend share.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_H
#define SPARRING_COMMON_COLLECTIVE_RING_H

#include "common/collective/collective_ops.h"
#include "common/collective/ring/ring_pairs.h"
#include "common/collective/ring/ring_stream.h"

struct ring {
    struct collective base;
    struct ring_io io;
    struct ring_scratch scratch;
    struct pairs_scratch pairs;
    struct ring_run stream_run; /* the collective in progress is one of these two ... */
    struct pairs_run pairs_run;
    bool is_pairs;                                 /* ... and this says which */
    struct collective_work **sending, **receiving; /* owned: per peer, whose link it is now */
    size_t whole_bytes;  /* all_reduce, broadcast, reduce: at most so many go in one round */
    size_t chunks_bytes; /* at most so many go in two rounds, more through the ring */
};

/* How an operation goes: by a program of the ring, or of the pairs. */
struct ring_way {
    bool is_pairs;
    enum pairs_kind pairs;
    enum ring_kind ring;
};

/* Measure which way is fastest for which size of all_reduce, and agree on it.  Blocks until
 * deadline_ns at most; every rank of the group calls it before its first operation. */
enum status ring_tune(struct ring *r, int64_t deadline_ns, struct error *err);

/* Prepare r for a collective. */
void ring_begin(struct ring *r, const struct collective_args *args,
                const struct signature *signature, struct ring_way way);

/* Advance it. */
enum ring_outcome ring_advance(struct ring *r, int64_t until_ns);

#endif
