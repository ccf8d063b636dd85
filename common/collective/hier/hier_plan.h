/*
 * hier_plan: the role of each rank in a two-level all-reduce.  Pure.
 *
 * Hosts are numbered in the order of their lowest rank.  When all hosts have equally many ranks,
 * the ranks with local index i of all hosts form cross group i, and each reduces 1/L of the data
 * between hosts; else the first rank of each host, its leader, does so alone.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_HIER_PLAN_H
#define SPARRING_COMMON_COLLECTIVE_HIER_PLAN_H

#include "common/base/host_id.h"

#include <stdbool.h>
#include <stddef.h>

struct hier_layout {
    unsigned world_size; /* ranks of all hosts */
    unsigned hosts;
    unsigned host;        /* of this rank */
    unsigned local_count; /* ranks of this host */
    unsigned local_index; /* of this rank among them */
    bool equal;           /* all hosts have local_count ranks */
};

/* `local` and `cross` (room for world_size each) get the ranks of this host, and of this rank's
 * cross group, ascending; *ret_cross_count is 0 for a rank without one. */
void hier_plan_layout(const char (*host_ids)[HOST_ID_SIZE], unsigned world_size, unsigned rank,
                      struct hier_layout *ret, unsigned *local, unsigned *cross,
                      unsigned *ret_cross_count);

/* The operations of a rank inside its host, in the order in which all its ranks start them: chunk
 * by chunk first in, later out again, so that one chunk is between hosts meanwhile. */
struct hier_step {
    size_t chunk;
    bool is_out; /* else in */
};
/* step < 2 * chunks */
struct hier_step hier_plan_step(size_t step, size_t chunks);

#endif
