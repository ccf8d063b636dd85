/*
 * Recursive doubling, one step at a time: send and receive as the step requires, then reduce.  A
 * peer that is a step ahead may have sent more already; that waits in its link.
 */
#include "common/collective/ring/ring_doubling.h"

#include "common/base/clock.h"

#include <assert.h>
#include <string.h>

#define TURNS_PER_CLOCK 16

/* ---- the plan ---- */

/* Of the ranks that take part in the rounds, `position` is this one's number: back to ranks. */
static unsigned rank_at(unsigned position, unsigned folded)
{
    return position < folded ? 2 * position + 1 : position + folded;
}

bool doubling_step(unsigned rank, unsigned world_size, unsigned step, struct doubling_step *ret)
{
    unsigned power = 1;
    unsigned rounds = 0;
    unsigned folded; /* pairs before the rounds */
    bool paired;
    unsigned position;

    for (; power * 2 <= world_size; power *= 2)
        rounds++;
    folded = world_size - power;
    paired = rank < 2 * folded;
    position = paired ? rank / 2 : rank - folded;
    *ret = (struct doubling_step){.peer = rank ^ 1u};
    if (paired && rank % 2 == 0) {
        ret->sends = step == 0;
        ret->receives = step == 1;
        return step < 2;
    }
    if (paired && step == 0) {
        ret->receives = ret->reduces = true;
        return true;
    }
    step -= paired;
    if (paired && step == rounds) {
        ret->sends = true;
        return true;
    }
    if (step >= rounds)
        return false;
    *ret = (struct doubling_step){.peer = rank_at(position ^ (1u << step), folded),
                                  .sends = true,
                                  .receives = true,
                                  .reduces = true,
                                  .last = step + 1 == rounds};
    return true;
}

void doubling_bytes(unsigned rank, unsigned world_size, size_t bytes, uint64_t *ret_sent,
                    uint64_t *ret_received)
{
    struct doubling_step s;

    *ret_sent = *ret_received = 0;
    for (unsigned step = 0; doubling_step(rank, world_size, step, &s); step++) {
        *ret_sent += s.sends ? bytes : 0;
        *ret_received += s.receives ? bytes : 0;
    }
}

/* ---- running ---- */

static const unsigned char *value_of(const struct doubling_run *run)
{
    return run->reduced ? run->operation.output : run->operation.input;
}

static unsigned char *buffer_of(const struct doubling_run *run)
{
    return run->scratch->buffers + run->now.peer * run->scratch->buffer_bytes;
}

static void begin_step(struct doubling_run *run)
{
    struct doubling_step *s = &run->now;

    run->active = doubling_step(run->rank, run->world_size, run->step, s);
    if (!run->active)
        return;
    run->out = (struct ring_flow){.peer = s->peer, .total = s->sends ? run->bytes : 0};
    run->in = (struct ring_flow){.peer = s->peer, .total = s->receives ? run->bytes : 0};
    if (!s->sends)
        run->out.header_done = RING_HEADER_BYTES;
    if (!s->receives)
        run->in.header_done = RING_HEADER_BYTES;
    run->sends += s->sends;
    run->receives += s->receives;
}

void doubling_run_init(struct doubling_run *run, unsigned rank, unsigned world_size, size_t count,
                       size_t size, const struct ring_operation *operation,
                       struct pairs_scratch *scratch)
{
    assert(count * size <= scratch->buffer_bytes);
    *run = (struct doubling_run){.rank = rank,
                                 .world_size = world_size,
                                 .count = count,
                                 .size = size,
                                 .bytes = count * size,
                                 .operation = *operation,
                                 .scratch = scratch};
    begin_step(run);
}

/* What came and what is here, the lower rank's first on both sides. */
static void reduce_step(struct doubling_run *run)
{
    struct ring_operation *o = &run->operation;
    struct reduction reduction = o->reduction;
    unsigned mine = run->now.peer < run->rank;
    const void *inputs[2];
    double factors[2];
    void *output = o->output;

    inputs[mine] = value_of(run);
    inputs[1 - mine] = buffer_of(run);
    factors[mine] = run->reduced ? 1.0 : o->factor;
    factors[1 - mine] = run->in.factor;
    reduction.factors = o->has_factors ? factors : NULL;
    reduction.divisor = run->now.last ? o->divisor : 0;
    if (run->count > 0)
        reduce_arrays(&reduction, &output, 1, inputs, 2, run->count);
    run->reduced = true;
    ring_header_set_factor(o->header, 1.0); /* of what is sent from here on */
}

static void end_step(struct doubling_run *run)
{
    if (run->now.reduces)
        reduce_step(run);
    run->sent += run->out.done;
    run->received += run->in.done;
    run->step++;
    begin_step(run);
}

static enum ring_outcome move_step_bytes(struct ring_io *io, struct doubling_run *run, bool *moved)
{
    unsigned char *target = run->now.reduces ? buffer_of(run) : run->operation.output;
    enum ring_outcome outcome = RING_DONE;
    size_t got = 0;

    if (!run->out.blocked && !ring_flow_is_done(&run->out))
        outcome = ring_flow_send(io, &run->operation, &run->out, value_of(run) + run->out.done,
                                 run->bytes - (size_t)run->out.done, moved);
    if (outcome == RING_DONE && !run->in.blocked && !ring_flow_is_done(&run->in)) {
        outcome = ring_flow_receive(io, &run->operation, &run->in, target + run->in.done,
                                    run->bytes - (size_t)run->in.done, &got, moved);
        run->in.done += outcome == RING_DONE ? got : 0;
    }
    return outcome;
}

static enum ring_outcome wait_for_move(struct ring_io *io, struct doubling_run *run,
                                       int64_t until_ns)
{
    struct transport_interest interests[2];
    struct ring_flow *flows[2];
    size_t count = 0;

    if (!ring_flow_is_done(&run->out)) {
        flows[count] = &run->out;
        interests[count++] = (struct transport_interest){.peer = run->out.peer, .send = true};
    }
    if (!ring_flow_is_done(&run->in)) {
        flows[count] = &run->in;
        interests[count++] = (struct transport_interest){.peer = run->in.peer, .receive = true};
    }
    return ring_flow_wait(io, interests, flows, count, until_ns);
}

enum ring_outcome doubling_run(struct ring_io *io, struct doubling_run *run, int64_t until_ns)
{
    unsigned turns = 0;

    while (run->active) {
        bool moved = false;
        enum ring_outcome outcome = move_step_bytes(io, run, &moved);

        if (outcome == RING_DONE && ring_flow_is_done(&run->out) && ring_flow_is_done(&run->in))
            end_step(run);
        else if (outcome == RING_DONE && !moved)
            outcome = wait_for_move(io, run, until_ns);
        if (outcome != RING_DONE)
            return outcome;
        if (++turns % TURNS_PER_CLOCK == 0 && run->active && clock_now_ns() >= until_ns)
            return RING_PAUSED;
    }
    return RING_DONE;
}

void doubling_run_done(const struct doubling_run *run, uint64_t *ret_sent, uint64_t *ret_received)
{
    *ret_sent = run->sent + (run->active ? run->out.done : 0);
    *ret_received = run->received + (run->active ? run->in.done : 0);
}
