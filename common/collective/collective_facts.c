/*
 * Queries on groups and operations that need no communication: ranks, bytes.
 */
#include "common/collective/collective_ops.h"

#include <assert.h>

/* ---- groups ---- */

unsigned collective_rank(const struct collective *group)
{
    return group->rank;
}

unsigned collective_world_size(const struct collective *group)
{
    return group->world_size;
}

unsigned collective_generation(const struct collective *group)
{
    return group->generation;
}

unsigned collective_world_rank(const struct collective *group, unsigned rank)
{
    assert(rank < group->world_size);
    return group->members[rank];
}

const char *collective_backend(const struct collective *group)
{
    return group->ops->name;
}

enum fault collective_fault(const struct collective *group, unsigned *ret_rank)
{
    if (ret_rank && group->culprit >= 0)
        *ret_rank = (unsigned)group->culprit;
    return group->fault;
}

struct mesh *collective_mesh(const struct collective *group)
{
    return group->mesh;
}

struct collective_stats collective_get_stats(const struct collective *group)
{
    return group->stats;
}

/* ---- bytes ---- */

void collective_expected_bytes(const struct collective *group, const struct collective_args *args,
                               uint64_t *ret_tx, uint64_t *ret_rx)
{
    *ret_tx = 0;
    *ret_rx = 0;
    if (group->world_size > 1)
        group->ops->expected_bytes(group, args, ret_tx, ret_rx);
}

size_t collective_input_bytes(const struct collective *group, const struct collective_args *args)
{
    size_t bytes = args->count * dtype_size(args->dtype);

    switch (args->call) {
    case COLLECTIVE_BROADCAST:
        return group->rank == args->root ? bytes : 0;
    case COLLECTIVE_SCATTER:
        return group->rank == args->root ? bytes * group->world_size : 0;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return bytes * group->world_size;
    case COLLECTIVE_RECV:
    case COLLECTIVE_BARRIER:
        return 0;
    default:
        return bytes;
    }
}

size_t collective_output_bytes(const struct collective *group, const struct collective_args *args)
{
    size_t bytes = args->count * dtype_size(args->dtype);

    switch (args->call) {
    case COLLECTIVE_REDUCE:
        return group->rank == args->root ? bytes : 0;
    case COLLECTIVE_GATHER:
        return group->rank == args->root ? bytes * group->world_size : 0;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        return bytes * group->world_size;
    case COLLECTIVE_SEND:
    case COLLECTIVE_BARRIER:
        return 0;
    default:
        return bytes;
    }
}
