/*
 * The layout of ranks on hosts, and the order of steps.  Pure; quadratic in the number of ranks.
 */
#include "common/collective/hier/hier_plan.h"

#include <string.h>

static bool share_host(const char (*ids)[HOST_ID_SIZE], unsigned a, unsigned b)
{
    return strncmp(ids[a], ids[b], HOST_ID_SIZE) == 0;
}

/* The lowest rank on the host of `rank`. */
static unsigned leader_of(const char (*ids)[HOST_ID_SIZE], unsigned rank)
{
    unsigned leader = 0;

    while (!share_host(ids, leader, rank))
        leader++;
    return leader;
}

/* How many ranks below `end` share the host of `rank`. */
static unsigned count_sharing(const char (*ids)[HOST_ID_SIZE], unsigned rank, unsigned end)
{
    unsigned count = 0;

    for (unsigned r = 0; r < end; r++)
        count += share_host(ids, r, rank);
    return count;
}

void hier_plan_layout(const char (*host_ids)[HOST_ID_SIZE], unsigned world_size, unsigned rank,
                      struct hier_layout *ret, unsigned *local, unsigned *cross,
                      unsigned *ret_cross_count)
{
    unsigned cross_count = 0;
    unsigned local_count = 0;

    *ret = (struct hier_layout){.world_size = world_size,
                                .local_count = count_sharing(host_ids, rank, world_size),
                                .local_index = count_sharing(host_ids, rank, rank),
                                .equal = true};
    for (unsigned r = 0; r < world_size; r++) {
        if (leader_of(host_ids, r) == r) {
            if (leader_of(host_ids, rank) == r)
                ret->host = ret->hosts;
            ret->hosts++;
            if (count_sharing(host_ids, r, world_size) != ret->local_count)
                ret->equal = false;
        }
        if (share_host(host_ids, r, rank))
            local[local_count++] = r;
    }
    for (unsigned r = 0; r < world_size; r++) {
        unsigned index = count_sharing(host_ids, r, r);

        if (ret->equal ? index == ret->local_index : index == 0)
            cross[cross_count++] = r;
    }
    *ret_cross_count = ret->equal || ret->local_index == 0 ? cross_count : 0;
}

struct hier_step hier_plan_step(size_t step, size_t chunks)
{
    if (step == 0)
        return (struct hier_step){.chunk = 0};
    if (step == 2 * chunks - 1)
        return (struct hier_step){.chunk = chunks - 1, .is_out = true};
    if (step % 2 == 1)
        return (struct hier_step){.chunk = (step + 1) / 2};
    return (struct hier_step){.chunk = step / 2 - 1, .is_out = true};
}
