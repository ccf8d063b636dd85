/*
 * The loop of ring_stream.h.  Both directions are tried in turn; only when neither moves does the
 * loop wait.  Bytes to be reduced arrive in a scratch that stays in the L2 cache and are reduced at
 * once; all other bytes arrive in place.  An element that a receive has cut is carried to the front
 * of the scratch.
 *
 * There is no spinning before the wait.  Yielding in a loop gains a quarter of the latency of small
 * operations on idle cores, but loses a factor of ten and more where the cores compute (a thread
 * that yields waits for the others' time slices, one that sleeps is woken at once), and here
 * they do.
 *
 * Why bytes may land in place while the same range may still have to be sent: a byte comes round
 * the ring only after this rank has sent the byte that it is made of.
 */
#include "common/collective/ring/ring_stream.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define MOVES_PER_CLOCK 64 /* look at the clock this often while bytes move */

enum status ring_scratch_init(struct ring_scratch *s, size_t segment_bytes, struct error *err)
{
    enum status status;

    *s = (struct ring_scratch){.arrival_bytes = segment_bytes, .stage_bytes = 2 * segment_bytes};
    status = mem_calloc_aligned(s->arrival_bytes, 1, "ring segment", &s->arrival, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(s->stage_bytes, 1, "ring stage", &s->stage, err);
    return status;
}

void ring_scratch_release(struct ring_scratch *s)
{
    free(s->arrival);
    free(s->stage);
    *s = (struct ring_scratch){.arrival = NULL};
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- cursors ---- */

/* Enter the next range that is not empty, when the current one is done. */
static void next_send_range(const struct ring_plan *plan, struct ring_cursor *c)
{
    while (c->offset == c->range.bytes && c->step < plan->send_steps) {
        c->range = ring_plan_send(plan, c->step++);
        c->offset = 0;
    }
}

static void next_receive_range(const struct ring_plan *plan, struct ring_cursor *c)
{
    while (c->offset == c->range.bytes && c->step < plan->receive_steps) {
        c->range = ring_plan_receive(plan, c->step++);
        c->offset = 0;
    }
}

void ring_run_init(struct ring_run *run, const struct ring_plan *plan,
                   const struct ring_operation *operation, struct ring_scratch *scratch)
{
    unsigned n = plan->world_size;

    memset(run, 0, sizeof(*run));
    run->plan = *plan;
    run->operation = *operation;
    run->scratch = scratch;
    run->sends = plan->send_steps > 0;
    run->receives = plan->receive_steps > 0;
    run->right = (struct ring_flow){.peer = (plan->rank + 1) % n, .total = plan->send_bytes};
    run->left = (struct ring_flow){.peer = (plan->rank + n - 1) % n, .total = plan->receive_bytes};
    next_send_range(plan, &run->sent);
    next_receive_range(plan, &run->received);
}

static bool has_sent_all(const struct ring_run *run)
{
    return !run->sends || ring_flow_is_done(&run->right);
}

static bool has_received_all(const struct ring_run *run)
{
    return !run->receives || ring_flow_is_done(&run->left);
}

/* ---- sending ---- */

/* Bytes that may go out now, from *ret_data on: the rule of ring_plan.h. */
static size_t sendable(const struct ring_run *run, const unsigned char **ret_data)
{
    const struct ring_cursor *c = &run->sent;
    uint64_t allowed = run->plan.lag_bytes + run->left.done - run->right.done;
    size_t left = c->range.bytes - c->offset;
    size_t at;

    left = allowed < left ? (size_t)allowed : left;
    if (left == 0)
        return 0;
    if (c->range.buffer == RING_STAGE) {
        at = (c->range.offset + c->offset) % run->scratch->stage_bytes;
        *ret_data = run->scratch->stage + at;
        return smaller(left, run->scratch->stage_bytes - at);
    }
    *ret_data = (c->range.buffer == RING_INPUT ? run->operation.input : run->operation.output) +
                c->range.offset + c->offset;
    return left;
}

static enum ring_outcome send_some(struct ring_io *io, struct ring_run *run, bool *moved)
{
    const unsigned char *data = NULL;
    size_t bytes = sendable(run, &data);
    uint64_t before = run->right.done;
    enum ring_outcome outcome;

    if (has_sent_all(run))
        return RING_DONE;
    outcome = ring_flow_send(io, &run->operation, &run->right, data, bytes, moved);
    run->sent.offset += (size_t)(run->right.done - before);
    next_send_range(&run->plan, &run->sent);
    return outcome;
}

/* ---- receiving ---- */

/* Where the current range's next result goes, and for how many bytes from there. */
static unsigned char *result_target(const struct ring_run *run, size_t *ret_room)
{
    const struct ring_cursor *c = &run->received;
    size_t left = c->range.bytes - c->offset;
    uint64_t waiting; /* bytes that may still be in the stage */
    size_t at;

    if (c->range.buffer != RING_STAGE) {
        *ret_room = left;
        return run->operation.output + c->range.offset + c->offset;
    }
    at = (c->range.offset + c->offset) % run->scratch->stage_bytes;
    waiting = run->left.done;
    if (run->right.done > run->plan.stage_lag_bytes)
        waiting -= run->right.done - run->plan.stage_lag_bytes;
    left = smaller(left, run->scratch->stage_bytes - at);
    /* What went into the output counts, too, and is not bounded by the stage. */
    *ret_room = waiting >= run->scratch->stage_bytes
                    ? 0
                    : smaller(left, run->scratch->stage_bytes - (size_t)waiting);
    return run->scratch->stage + at;
}

/* Reduce what has arrived as far as it is whole elements; the number of bytes. */
static size_t reduce_arrived(struct ring_run *run, size_t filled)
{
    const struct ring_operation *o = &run->operation;
    const struct ring_cursor *c = &run->received;
    size_t whole = filled - filled % run->plan.size;
    const double factors[2] = {c->range.raw ? run->left.factor : 1.0, o->factor};
    struct reduction reduction = o->reduction;
    const void *inputs[2] = {run->scratch->arrival, o->input + c->range.own + c->offset};
    size_t room;
    void *result = result_target(run, &room);

    reduction.factors = o->has_factors ? factors : NULL;
    reduction.divisor = c->range.last ? o->divisor : 0;
    if (whole > 0)
        reduce_arrays(&reduction, &result, 1, inputs, 2, whole / run->plan.size);
    run->carried = filled - whole;
    memmove(run->scratch->arrival, run->scratch->arrival + whole, run->carried);
    return whole;
}

/* Where the next bytes arrive. */
static unsigned char *receive_target(const struct ring_run *run, size_t *ret_room)
{
    unsigned char *result = result_target(run, ret_room);

    if (!run->received.range.reduces)
        return result;
    *ret_room = smaller(*ret_room, run->scratch->arrival_bytes);
    *ret_room -= smaller(*ret_room, run->carried);
    return run->scratch->arrival + run->carried;
}

static enum ring_outcome receive_some(struct ring_io *io, struct ring_run *run, bool *moved)
{
    size_t room;
    unsigned char *target = receive_target(run, &room);
    size_t got;
    enum ring_outcome outcome;

    if (has_received_all(run))
        return RING_DONE;
    outcome = ring_flow_receive(io, &run->operation, &run->left, target, room, &got, moved);
    if (outcome != RING_DONE || got == 0)
        return outcome;
    if (run->received.range.reduces)
        got = reduce_arrived(run, run->carried + got);
    run->left.done += got;
    run->received.offset += got;
    next_receive_range(&run->plan, &run->received);
    return RING_DONE;
}

/* ---- the loop ---- */

/* Bytes for which it is safe to wait.  The rank that has processed least can get as many as its
 * left neighbour's lag, which has processed at least as much; the lags of two ranks differ by an
 * element at most.  In a pipeline all bytes come anyway. */
static size_t safe_wait_bytes(const struct ring_run *run)
{
    uint64_t bytes = run->left.total - run->left.done;
    uint64_t lag = run->plan.lag_bytes;
    uint64_t spare = run->carried + run->plan.size;

    if (run->left.header_done < RING_HEADER_BYTES || run->received.range.buffer == RING_STAGE)
        return 1;
    if (lag > 0 && lag < bytes)
        bytes = lag;
    return bytes > spare ? (size_t)(bytes - spare) : 1;
}

static enum ring_outcome wait_for_move(struct ring_io *io, struct ring_run *run, int64_t until_ns)
{
    struct transport_interest interests[2];
    struct ring_flow *flows[2];
    const unsigned char *data;
    size_t room;
    size_t count = 0;

    if (!has_sent_all(run) &&
        (run->right.header_done < RING_HEADER_BYTES || sendable(run, &data) > 0)) {
        flows[count] = &run->right;
        interests[count++] = (struct transport_interest){.peer = run->right.peer, .send = true};
    }
    if (!has_received_all(run) &&
        (run->left.header_done < RING_HEADER_BYTES || (receive_target(run, &room) && room > 0))) {
        flows[count] = &run->left;
        interests[count++] = (struct transport_interest){
            .peer = run->left.peer, .receive = true, .expected = safe_wait_bytes(run)};
    }
    return ring_flow_wait(io, interests, flows, count, until_ns);
}

enum ring_outcome ring_stream_run(struct ring_io *io, struct ring_run *run, int64_t until_ns)
{
    unsigned moves = 0;

    while (!has_sent_all(run) || !has_received_all(run)) {
        bool moved = false;
        enum ring_outcome outcome = send_some(io, run, &moved);

        if (outcome == RING_DONE)
            outcome = receive_some(io, run, &moved);
        if (outcome == RING_DONE && !moved)
            outcome = wait_for_move(io, run, until_ns);
        if (outcome != RING_DONE)
            return outcome;
        if (++moves % MOVES_PER_CLOCK == 0 && clock_now_ns() >= until_ns)
            return RING_PAUSED;
    }
    return RING_DONE;
}
