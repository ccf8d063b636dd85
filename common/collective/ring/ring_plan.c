/*
 * The programs of ring_plan.h.  A step's chunk is a function of rank, step and world size, so
 * nothing is tabulated.  In the rotations (all_reduce, reduce_scatter, all_gather) receive step s
 * is send step s + 1, and the first send, the rank's own, is the lag; in the pipelines receive step
 * s is send step s, and only their head, which sends its whole buffer, has a lag.
 */
#include "common/collective/ring/ring_plan.h"

#include <assert.h>

static unsigned right_of(const struct ring_plan *p, unsigned rank)
{
    return (rank + 1) % p->world_size;
}

/* Of all_reduce: the first count % n chunks have one element more.  Of the others: whole blocks. */
static struct ring_range part(const struct ring_plan *p, unsigned index)
{
    size_t c = index % p->world_size;
    size_t base = p->count / p->world_size;
    size_t longer = p->count % p->world_size;

    if (p->kind != RING_ALL_REDUCE)
        return (struct ring_range){.offset = c * p->count * p->size, .bytes = p->count * p->size};
    return (struct ring_range){.offset = (c * base + (c < longer ? c : longer)) * p->size,
                               .bytes = (base + (c < longer ? 1 : 0)) * p->size};
}

/* The part that is `back` places behind this rank's own. */
static struct ring_range behind(const struct ring_plan *p, size_t back)
{
    return part(p, (unsigned)(p->rank + 2 * p->world_size - back));
}

/* Piece k of a block: the first ones may have one element more; where the rotations of the pieces
 * before it end, all blocks together. */
static struct ring_range piece(const struct ring_plan *p, size_t k, size_t *ret_start)
{
    size_t base = p->count / p->pieces;
    size_t longer = p->count % p->pieces;
    struct ring_range range = {.offset = (k * base + (k < longer ? k : longer)) * p->size,
                               .bytes = (base + (k < longer ? 1 : 0)) * p->size};

    *ret_start = range.offset * (p->world_size - 1);
    return range;
}

static struct ring_range whole(const struct ring_plan *p)
{
    return (struct ring_range){.bytes = p->count * p->size};
}

/* Sends its own bytes first. */
static bool is_head(const struct ring_plan *p)
{
    if (p->kind == RING_BROADCAST)
        return p->rank == p->root;
    if (p->kind == RING_REDUCE)
        return p->rank == right_of(p, p->root);
    return true;
}

static struct ring_range send_piece(const struct ring_plan *p, size_t step)
{
    size_t hop = step % (p->world_size - 1);
    size_t start;
    struct ring_range range = piece(p, step / (p->world_size - 1), &start);

    if (hop == 0) {
        range.offset += behind(p, 1).offset;
        range.buffer = RING_INPUT;
    } else { /* where it was received, one hop before */
        range.offset = start + (hop - 1) * range.bytes;
        range.buffer = RING_STAGE;
    }
    return range;
}

struct ring_range ring_plan_send(const struct ring_plan *plan, size_t step)
{
    struct ring_range range;

    assert(step < plan->send_steps);
    switch (plan->kind) {
    case RING_ALL_REDUCE:
        range = behind(plan, step);
        range.buffer = step == 0 ? RING_INPUT : RING_OUTPUT;
        break;
    case RING_REDUCE_SCATTER:
        return send_piece(plan, step);
    case RING_ALL_GATHER:
        range = behind(plan, step);
        range.buffer = RING_OUTPUT;
        break;
    case RING_BROADCAST:
        range = whole(plan);
        range.buffer = is_head(plan) ? RING_INPUT : RING_OUTPUT;
        break;
    case RING_REDUCE:
    default:
        range = whole(plan);
        range.buffer = is_head(plan) ? RING_INPUT : RING_STAGE;
        break;
    }
    return range;
}

/* Step of the n - 1 that reduce, one hop each. */
static struct ring_range reducing(const struct ring_plan *p, struct ring_range range, size_t step,
                                  enum ring_buffer_kind partial)
{
    range.reduces = true;
    range.own = range.offset;
    range.raw = step == 0;
    range.last = step == p->world_size - 2;
    range.buffer = range.last ? RING_OUTPUT : partial;
    return range;
}

static struct ring_range receive_piece(const struct ring_plan *p, size_t step)
{
    size_t hop = step % (p->world_size - 1);
    size_t start;
    struct ring_range range = piece(p, step / (p->world_size - 1), &start);
    size_t own = range.offset + behind(p, hop + 2).offset;

    range = reducing(p, range, hop, RING_STAGE);
    range.own = own;
    if (!range.last)
        range.offset = start + hop * range.bytes;
    return range;
}

struct ring_range ring_plan_receive(const struct ring_plan *plan, size_t step)
{
    unsigned n = plan->world_size;
    struct ring_range range;

    assert(step < plan->receive_steps);
    switch (plan->kind) {
    case RING_ALL_REDUCE:
        range = behind(plan, step + 1);
        if (step < n - 1)
            return reducing(plan, range, step, RING_OUTPUT);
        break;
    case RING_REDUCE_SCATTER:
        return receive_piece(plan, step);
    case RING_REDUCE: /* the hop of this rank, counted from the head of the pipeline */
        return reducing(plan, whole(plan), (plan->rank + 2 * n - plan->root - 2) % n, RING_STAGE);
    case RING_ALL_GATHER:
        range = behind(plan, step + 1);
        break;
    case RING_BROADCAST:
    default:
        range = whole(plan);
        break;
    }
    range.buffer = RING_OUTPUT;
    return range;
}

static void count_steps(struct ring_plan *p)
{
    switch (p->kind) {
    case RING_ALL_REDUCE:
        p->send_steps = p->receive_steps = 2 * (p->world_size - 1);
        break;
    case RING_REDUCE_SCATTER:
        p->send_steps = p->receive_steps = p->pieces * (p->world_size - 1);
        break;
    case RING_ALL_GATHER:
        p->send_steps = p->receive_steps = p->world_size - 1;
        break;
    case RING_BROADCAST:
        p->send_steps = right_of(p, p->rank) == p->root ? 0 : 1;
        p->receive_steps = is_head(p) ? 0 : 1;
        break;
    case RING_REDUCE:
        p->send_steps = p->rank == p->root ? 0 : 1;
        p->receive_steps = is_head(p) ? 0 : 1;
        break;
    }
}

/* The lags: of the shortest piece, which is safe for the longer ones, and of the longest. */
static void find_lags(struct ring_plan *p)
{
    size_t start;

    if (!is_head(p) || p->send_steps == 0)
        return;
    p->lag_bytes = ring_plan_send(p, 0).bytes;
    if (p->kind == RING_REDUCE_SCATTER) {
        p->stage_lag_bytes = p->lag_bytes;
        p->lag_bytes = piece(p, p->pieces - 1, &start).bytes;
    }
}

struct ring_plan ring_plan(enum ring_kind kind, unsigned rank, unsigned world_size, size_t count,
                           size_t size, unsigned root, size_t piece_bytes)
{
    struct ring_plan plan = {.kind = kind,
                             .rank = rank,
                             .world_size = world_size,
                             .root = root,
                             .count = count,
                             .size = size,
                             .pieces = 1};

    assert(rank < world_size && root < world_size && piece_bytes >= size);
    if (kind == RING_REDUCE_SCATTER && count > 0)
        plan.pieces = (count - 1) / (piece_bytes / size) + 1;
    count_steps(&plan);
    for (size_t s = 0; s < plan.send_steps; s++)
        plan.send_bytes += ring_plan_send(&plan, s).bytes;
    for (size_t s = 0; s < plan.receive_steps; s++)
        plan.receive_bytes += ring_plan_receive(&plan, s).bytes;
    find_lags(&plan);
    return plan;
}
