/*
 * The programs of ring_plan.h.  A step's chunk is a function of rank, step and world size, so
 * nothing is tabulated.  In every program receive step s is send step s + 1 (all-gather, fast
 * all-reduce: the first send is the rank's own chunk, the lag) or send step s (the pipelines:
 * no lag but at their head, which sends its whole buffer first).
 */
#include "common/collective/ring_plan.h"

#include <assert.h>

static unsigned right_of(const struct ring_plan *p)
{
    return (p->rank + 1) % p->world_size;
}

/* Chunk `index` (mod n) of an all-reduce buffer: the first count % n chunks have one more. */
static struct ring_range chunk_range(const struct ring_plan *p, unsigned index)
{
    size_t c = index % p->world_size;
    size_t base = p->count / p->world_size;
    size_t longer = p->count % p->world_size;
    struct ring_range range = {
        .offset = (c * base + (c < longer ? c : longer)) * sizeof(float),
        .bytes = (base + (c < longer ? 1 : 0)) * sizeof(float),
    };

    return range;
}

static struct ring_range block_range(const struct ring_plan *p, unsigned index)
{
    return (struct ring_range){.offset = index % p->world_size * p->count, .bytes = p->count};
}

/* The chunk or block that is `back` places behind this rank's own. */
static struct ring_range behind(const struct ring_plan *p, unsigned back)
{
    unsigned index = p->rank + p->world_size - back % p->world_size;

    return p->kind == RING_ALL_GATHER ? block_range(p, index) : chunk_range(p, index);
}

static struct ring_range whole_buffer(const struct ring_plan *p)
{
    size_t unit = p->kind == RING_BROADCAST ? 1 : sizeof(float);

    return (struct ring_range){.offset = 0, .bytes = p->count * unit};
}

static int is_rotation(const struct ring_plan *p)
{
    return p->kind == RING_ALL_REDUCE_FAST || p->kind == RING_ALL_GATHER;
}

struct ring_range ring_plan_send(const struct ring_plan *plan, unsigned step)
{
    assert(step < plan->send_steps);
    return is_rotation(plan) ? behind(plan, step) : whole_buffer(plan);
}

struct ring_range ring_plan_receive(const struct ring_plan *plan, unsigned step,
                                    enum ring_action *ret_action)
{
    unsigned n = plan->world_size;

    assert(step < plan->receive_steps);
    switch (plan->kind) {
    case RING_ALL_REDUCE_FAST:
        *ret_action = step < n - 1 ? RING_ADD : RING_COPY;
        break;
    case RING_ALL_REDUCE_ORDERED:
        *ret_action = plan->rank > 0 && step == 0 ? RING_ADD : RING_COPY;
        break;
    case RING_BROADCAST:
    case RING_ALL_GATHER:
        *ret_action = RING_COPY;
        break;
    }
    return is_rotation(plan) ? behind(plan, step + 1) : whole_buffer(plan);
}

/* Sum up the streams and set the lag: one step less is received than sent by a head, the owner of
 * the first bytes of its send stream. */
static struct ring_plan finish(struct ring_plan plan, int sends_own_first)
{
    enum ring_action action;

    for (unsigned s = 0; s < plan.send_steps; s++)
        plan.send_bytes += ring_plan_send(&plan, s).bytes;
    for (unsigned s = 0; s < plan.receive_steps; s++)
        plan.receive_bytes += ring_plan_receive(&plan, s, &action).bytes;
    if (sends_own_first && plan.send_steps > 0)
        plan.lag_bytes = ring_plan_send(&plan, 0).bytes;
    return plan;
}

struct ring_plan ring_plan_all_reduce(unsigned rank, unsigned world_size, size_t count,
                                      enum reduce_order order)
{
    unsigned n = world_size;
    struct ring_plan plan = {.rank = rank, .world_size = n, .count = count};

    assert(rank < n);
    if (order == REDUCE_FAST) {
        plan.kind = RING_ALL_REDUCE_FAST;
        plan.send_steps = plan.receive_steps = 2 * (n - 1);
        return finish(plan, 1);
    }
    plan.kind = RING_ALL_REDUCE_ORDERED;
    if (n > 1) {
        plan.send_steps = rank + 2 >= n ? 1 : 2;
        plan.receive_steps = rank == 0 || rank == n - 1 ? 1 : 2;
    }
    return finish(plan, rank == 0);
}

struct ring_plan ring_plan_broadcast(unsigned rank, unsigned world_size, size_t bytes,
                                     unsigned root)
{
    struct ring_plan plan = {.kind = RING_BROADCAST,
                             .rank = rank,
                             .world_size = world_size,
                             .root = root,
                             .count = bytes};

    assert(rank < world_size && root < world_size);
    plan.send_steps = right_of(&plan) == root ? 0 : 1;
    plan.receive_steps = rank == root ? 0 : 1;
    return finish(plan, rank == root);
}

struct ring_plan ring_plan_all_gather(unsigned rank, unsigned world_size, size_t bytes)
{
    struct ring_plan plan = {
        .kind = RING_ALL_GATHER, .rank = rank, .world_size = world_size, .count = bytes};

    assert(rank < world_size);
    plan.send_steps = plan.receive_steps = world_size - 1;
    return finish(plan, 1);
}
