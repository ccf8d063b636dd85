/*
 * hier_chunk: what a two-level all-reduce does with each chunk of its elements.  Pure.
 *
 * A chunk is one slice per rank of the host where all hosts have equally many ranks, else one slice
 * that leaders reduce.  It goes in (reduced inside the host), across (between hosts) and out
 * (spread inside the host).  The elements that do not divide among the ranks of a host come behind
 * the last chunk and go through the ring of all ranks.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_HIER_CHUNK_H
#define SPARRING_COMMON_COLLECTIVE_HIER_CHUNK_H

#include "common/collective/collective.h"
#include "common/collective/hier/hier_plan.h"

#define HIER_SLICE_BYTES ((size_t)1 << 20) /* at most */

/* Elements in chunks: all but fewer than the ranks of a host. */
size_t hier_chunk_even_count(const struct hier_layout *l, const struct collective_args *a);
size_t hier_chunk_count(const struct hier_layout *l, const struct collective_args *a);

/* The inner operation on a chunk below hier_chunk_count of the all_reduce `a`, whose buffers it
 * reads and writes.  An average of floats is multiplied on the way in; one of integers comes out as
 * a sum. */
struct collective_args hier_chunk_in(const struct hier_layout *l, const struct collective_args *a,
                                     size_t chunk);
struct collective_args hier_chunk_cross(const struct hier_layout *l,
                                        const struct collective_args *a, size_t chunk);
struct collective_args hier_chunk_out(const struct hier_layout *l, const struct collective_args *a,
                                      size_t chunk);

/* The elements behind the last chunk, as they are; count 0: there are none. */
struct collective_args hier_chunk_rest(const struct hier_layout *l,
                                       const struct collective_args *a);

#endif
