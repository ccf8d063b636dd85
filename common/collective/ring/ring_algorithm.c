/*
 * The algorithm of an operation: ring_stream for large messages, ring_pairs or ring_doubling for
 * small ones, ring_pairs for those in rank order and for those that are pairwise by nature; and how
 * many bytes that is.
 */
#include "common/collective/ring/ring.h"

size_t ring_count(const struct collective_args *a)
{
    return a->call == COLLECTIVE_BARRIER ? 0 : a->count;
}

size_t ring_block_bytes(const struct collective_args *a)
{
    return ring_count(a) * dtype_size(a->dtype);
}

static struct ring_algorithm by_pairs(enum pairs_kind kind)
{
    return (struct ring_algorithm){.by = BY_PAIRS, .pairs = kind};
}

static struct ring_algorithm by_ring(enum ring_kind kind)
{
    return (struct ring_algorithm){.by = BY_RING, .ring = kind};
}

static struct ring_algorithm choose_all_reduce(const struct ring *r,
                                               const struct collective_args *a)
{
    size_t bytes = ring_block_bytes(a);

    if (a->order == REDUCE_REPRODUCIBLE) /* only ring_pairs brings all terms together */
        return by_pairs(bytes <= r->whole_bytes ? PAIRS_ALL_REDUCE_WHOLE : PAIRS_ALL_REDUCE_CHUNKS);
    for (size_t i = 0; i < r->tuned_sizes; i++)
        if (bytes <= ring_tuned_sizes[i])
            return r->all_reduce_algorithms[i];
    return by_ring(RING_ALL_REDUCE);
}

struct ring_algorithm ring_choose_algorithm(const struct ring *r, const struct collective_args *a)
{
    bool whole = ring_block_bytes(a) <= r->whole_bytes;
    bool chunks = ring_block_bytes(a) <= r->chunks_bytes / r->base.world_size;
    bool ordered = a->order == REDUCE_REPRODUCIBLE;

    switch (a->call) {
    case COLLECTIVE_ALL_REDUCE:
        return choose_all_reduce(r, a);
    case COLLECTIVE_BROADCAST:
        return whole ? by_pairs(PAIRS_BROADCAST) : by_ring(RING_BROADCAST);
    case COLLECTIVE_REDUCE:
        return whole || ordered ? by_pairs(PAIRS_REDUCE) : by_ring(RING_REDUCE);
    case COLLECTIVE_ALL_GATHER:
        return chunks ? by_pairs(PAIRS_ALL_GATHER) : by_ring(RING_ALL_GATHER);
    case COLLECTIVE_REDUCE_SCATTER:
        return chunks || ordered ? by_pairs(PAIRS_REDUCE_SCATTER) : by_ring(RING_REDUCE_SCATTER);
    case COLLECTIVE_GATHER:
        return by_pairs(PAIRS_GATHER);
    case COLLECTIVE_SCATTER:
        return by_pairs(PAIRS_SCATTER);
    case COLLECTIVE_ALL_TO_ALL:
        return by_pairs(PAIRS_ALL_TO_ALL);
    default: /* as an all_reduce of nothing */
        return r->all_reduce_algorithms[0].by == BY_DOUBLING ? r->all_reduce_algorithms[0]
                                                             : by_pairs(PAIRS_BARRIER);
    }
}

struct pairs_plan ring_make_pairs_plan(const struct collective *g, const struct collective_args *a,
                                       enum pairs_kind kind)
{
    return (struct pairs_plan){.kind = kind,
                               .rank = g->rank,
                               .world_size = g->world_size,
                               .root = a->root,
                               .count = ring_count(a),
                               .size = dtype_size(a->dtype)};
}

struct ring_plan ring_make_ring_plan(const struct ring *r, const struct collective_args *a,
                                     enum ring_kind kind)
{
    return ring_plan(kind, r->base.rank, r->base.world_size, a->count, dtype_size(a->dtype),
                     a->root, r->io.segment_bytes);
}

void ring_expected_bytes(const struct collective *group, const struct collective_args *a,
                         uint64_t *ret_tx, uint64_t *ret_rx)
{
    struct ring_algorithm algorithm = ring_choose_algorithm((const struct ring *)group, a);

    *ret_tx = *ret_rx = 0;
    if (a->call == COLLECTIVE_SEND) {
        *ret_tx = ring_block_bytes(a);
    } else if (a->call == COLLECTIVE_RECV) {
        *ret_rx = ring_block_bytes(a);
    } else if (algorithm.by == BY_DOUBLING) {
        doubling_bytes(group->rank, group->world_size, ring_block_bytes(a), ret_tx, ret_rx);
    } else if (algorithm.by == BY_PAIRS) {
        struct pairs_plan plan = ring_make_pairs_plan(group, a, algorithm.pairs);

        pairs_plan_bytes(&plan, ret_tx, ret_rx);
    } else {
        struct ring_plan plan = ring_make_ring_plan((const struct ring *)group, a, algorithm.ring);

        *ret_tx = plan.send_bytes;
        *ret_rx = plan.receive_bytes;
    }
}
