/*
 * Offsets and sizes of the direct exchanges between each pair of ranks; pure.
 */
#include "common/collective/ring/ring_pairs.h"

#include <assert.h>

static size_t whole(const struct pairs_plan *p)
{
    return p->count * p->size;
}

/* Chunk `index` of an all-reduce: the first count % n chunks have one element more. */
static size_t chunk_bytes(const struct pairs_plan *p, unsigned index, size_t *ret_offset)
{
    size_t base = p->count / p->world_size;
    size_t longer = p->count % p->world_size;

    *ret_offset = (index * base + (index < longer ? index : longer)) * p->size;
    return (base + (index < longer ? 1 : 0)) * p->size;
}

/* A part of the input goes to `peer`. */
static void set_send(struct pairs_peer *p, size_t offset, size_t bytes)
{
    p->sends = true;
    p->send_offset = offset;
    p->send_bytes = bytes;
}

static void set_receive(struct pairs_peer *p, size_t offset, size_t bytes)
{
    p->receives = true;
    p->receive_offset = offset;
    p->receive_bytes = bytes;
}

static struct pairs_peer chunk_exchange(const struct pairs_plan *plan, unsigned peer)
{
    struct pairs_peer p = {.sends = true, .receives = true};
    size_t own_offset;

    p.send_bytes = p.result_bytes = chunk_bytes(plan, peer, &p.send_offset);
    p.result_offset = p.send_offset;
    p.receive_bytes = p.result_sent = chunk_bytes(plan, plan->rank, &own_offset);
    return p;
}

/* Calls with a root: it and each other rank. */
static void exchange_with_root(const struct pairs_plan *plan, unsigned peer, struct pairs_peer *p)
{
    bool to_root = plan->kind == PAIRS_REDUCE || plan->kind == PAIRS_GATHER;
    size_t block = whole(plan);

    if (plan->rank != plan->root && peer != plan->root)
        return;
    if (to_root == (plan->rank == plan->root))
        set_receive(p, plan->kind == PAIRS_GATHER ? peer * block : 0, block);
    else
        set_send(p, plan->kind == PAIRS_SCATTER ? peer * block : 0, block);
}

struct pairs_peer pairs_plan_peer(const struct pairs_plan *plan, unsigned peer)
{
    struct pairs_peer p = {.sends = false};
    size_t block = whole(plan);

    assert(peer < plan->world_size);
    if (peer == plan->rank)
        return p;
    switch (plan->kind) {
    case PAIRS_ALL_REDUCE_CHUNKS:
        return chunk_exchange(plan, peer);
    case PAIRS_ALL_REDUCE_WHOLE:
        set_send(&p, 0, block);
        set_receive(&p, 0, block);
        break;
    case PAIRS_REDUCE_SCATTER:
        set_send(&p, peer * block, block);
        set_receive(&p, 0, block);
        break;
    case PAIRS_ALL_GATHER:
        set_send(&p, 0, block);
        set_receive(&p, peer * block, block);
        break;
    case PAIRS_ALL_TO_ALL:
        set_send(&p, peer * block, block);
        set_receive(&p, peer * block, block);
        break;
    case PAIRS_BARRIER:
        set_send(&p, 0, 0);
        set_receive(&p, 0, 0);
        break;
    default:
        exchange_with_root(plan, peer, &p);
        break;
    }
    return p;
}

struct pairs_result pairs_plan_result(const struct pairs_plan *plan)
{
    struct pairs_result r = {.bytes = 0};

    switch (plan->kind) {
    case PAIRS_ALL_REDUCE_WHOLE:
        r.bytes = whole(plan);
        break;
    case PAIRS_ALL_REDUCE_CHUNKS:
        r.bytes = chunk_bytes(plan, plan->rank, &r.input_offset);
        r.output_offset = r.input_offset;
        break;
    case PAIRS_REDUCE_SCATTER:
        r.bytes = whole(plan);
        r.input_offset = plan->rank * r.bytes;
        break;
    case PAIRS_REDUCE:
        r.bytes = plan->rank == plan->root ? whole(plan) : 0;
        break;
    default:
        break;
    }
    return r;
}

void pairs_plan_bytes(const struct pairs_plan *plan, uint64_t *ret_sent, uint64_t *ret_received)
{
    *ret_sent = *ret_received = 0;
    for (unsigned r = 0; r < plan->world_size; r++) {
        struct pairs_peer p = pairs_plan_peer(plan, r);

        *ret_sent += p.send_bytes + p.result_sent;
        *ret_received += p.receive_bytes + p.result_bytes;
    }
}
