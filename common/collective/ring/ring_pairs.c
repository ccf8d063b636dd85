/*
 * The loop of ring_pairs.h: every stream that is not blocked is tried in turn, what all peers have
 * sent is reduced, and only when nothing moves does the loop wait.
 */
#include "common/collective/ring/ring_pairs.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define TURNS_PER_CLOCK   16
#define BUFFERS_MAX_BYTES ((size_t)32 << 20) /* bytes of all buffers together */
#define BUFFER_MIN_BYTES  ((size_t)64 << 10)

/* ---- scratch ---- */

enum status pairs_scratch_init(struct pairs_scratch *s, unsigned world_size, size_t segment_bytes,
                               struct error *err)
{
    size_t n = world_size;
    size_t buffer = segment_bytes < BUFFERS_MAX_BYTES / n ? segment_bytes : BUFFERS_MAX_BYTES / n;
    enum status status;

    *s = (struct pairs_scratch){
        .buffer_bytes = (buffer < BUFFER_MIN_BYTES ? BUFFER_MIN_BYTES : buffer) / 64 * 64};
    status = mem_calloc_aligned(n, s->buffer_bytes, "buffers", &s->buffers, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*s->peers), "peers", &s->peers, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*s->sends), "streams", &s->sends, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*s->receives), "streams", &s->receives, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*s->inputs), "inputs", &s->inputs, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*s->factors), "factors", &s->factors, err);
    if (status == STATUS_OK)
        status = mem_calloc(2 * n, sizeof(*s->interests), "interests", &s->interests, err);
    if (status == STATUS_OK)
        status = mem_calloc(2 * n, sizeof(struct ring_flow *), "interests", &s->waiting, err);
    return status;
}

void pairs_scratch_release(struct pairs_scratch *s)
{
    free(s->buffers);
    free(s->peers);
    free(s->sends);
    free(s->receives);
    free(s->inputs);
    free(s->factors);
    free(s->interests);
    free(s->waiting);
    *s = (struct pairs_scratch){.buffers = NULL};
}

/* ---- beginning ---- */

void pairs_run_init(struct pairs_run *run, const struct pairs_plan *plan,
                    const struct ring_operation *operation, struct pairs_scratch *scratch)
{
    *run = (struct pairs_run){.plan = *plan,
                              .result = pairs_plan_result(plan),
                              .operation = *operation,
                              .scratch = scratch,
                              .in_place = operation->input == operation->output};
    for (unsigned r = 0; r < plan->world_size; r++) {
        struct pairs_peer *p = &scratch->peers[r];

        *p = pairs_plan_peer(plan, r);
        scratch->sends[r] = (struct ring_flow){.peer = r, .total = p->send_bytes + p->result_sent};
        scratch->receives[r] =
            (struct ring_flow){.peer = r, .total = p->receive_bytes + p->result_bytes};
        if (!p->sends)
            scratch->sends[r].header_done = RING_HEADER_BYTES;
        if (!p->receives)
            scratch->receives[r].header_done = RING_HEADER_BYTES;
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- the two directions ---- */

/* Bytes that may go to a peer now, from *ret_data on. */
static size_t sendable(const struct pairs_run *run, unsigned peer, const unsigned char **ret_data)
{
    const struct pairs_peer *p = &run->scratch->peers[peer];
    size_t done = (size_t)run->scratch->sends[peer].done;

    if (done < p->send_bytes) {
        *ret_data = run->operation.input + p->send_offset + done;
        return p->send_bytes - done;
    }
    done -= p->send_bytes;
    *ret_data = run->operation.output + run->result.output_offset + done;
    return p->result_sent > done ? smaller(p->result_sent, run->reduced) - done : 0;
}

/* Bytes that may come from a peer now, into *ret_target. */
static size_t receivable(const struct pairs_run *run, unsigned peer, unsigned char **ret_target)
{
    const struct pairs_scratch *s = run->scratch;
    const struct pairs_peer *p = &s->peers[peer];
    size_t done = (size_t)s->receives[peer].done;
    size_t room = p->receive_bytes - smaller(done, p->receive_bytes);

    if (room == 0) {
        done -= p->receive_bytes;
        *ret_target = run->operation.output + p->result_offset + done;
        return p->result_bytes - done;
    }
    if (run->result.bytes > 0) { /* terms */
        *ret_target = s->buffers + peer * s->buffer_bytes + done % s->buffer_bytes;
        room = smaller(room, s->buffer_bytes - done % s->buffer_bytes);
        return smaller(room, run->reduced + s->buffer_bytes - done);
    }
    *ret_target = run->operation.output + p->receive_offset + done;
    if (run->in_place && run->plan.kind == PAIRS_ALL_TO_ALL)
        room =
            smaller(room, (size_t)s->sends[peer].done - smaller((size_t)s->sends[peer].done, done));
    return room;
}

static enum ring_outcome move_peer(struct ring_io *io, struct pairs_run *run, unsigned peer,
                                   bool *moved)
{
    struct ring_flow *out = &run->scratch->sends[peer];
    struct ring_flow *in = &run->scratch->receives[peer];
    enum ring_outcome outcome = RING_DONE;
    const unsigned char *data;
    unsigned char *target;
    size_t bytes;

    if (!out->blocked && !ring_flow_is_done(out)) {
        bytes = sendable(run, peer, &data);
        outcome = ring_flow_send(io, &run->operation, out, data, bytes, moved);
    }
    if (outcome == RING_DONE && !in->blocked && !ring_flow_is_done(in)) {
        bytes = receivable(run, peer, &target);
        outcome = ring_flow_receive(io, &run->operation, in, target, bytes, &bytes, moved);
        in->done += outcome == RING_DONE ? bytes : 0;
    }
    return outcome;
}

/* ---- reducing ---- */

/* Bytes of the result for which all terms are here, and which may be written. */
static size_t reducible(const struct pairs_run *run)
{
    const struct pairs_scratch *s = run->scratch;
    size_t limit = run->result.bytes;

    for (unsigned r = 0; r < run->plan.world_size; r++) {
        if (s->peers[r].receives)
            limit = smaller(limit, (size_t)s->receives[r].done);
        if (run->in_place && run->plan.kind == PAIRS_ALL_REDUCE_WHOLE && r != run->plan.rank)
            limit = smaller(limit, (size_t)s->sends[r].done);
    }
    return limit;
}

static void reduce_run(struct pairs_run *run, size_t bytes)
{
    struct pairs_scratch *s = run->scratch;
    size_t at = run->reduced % s->buffer_bytes;
    void *output = run->operation.output + run->result.output_offset + run->reduced;
    struct reduction reduction = run->operation.reduction;

    for (unsigned r = 0; r < run->plan.world_size; r++) {
        bool own = r == run->plan.rank;

        s->inputs[r] = own ? run->operation.input + run->result.input_offset + run->reduced
                           : s->buffers + r * s->buffer_bytes + at;
        s->factors[r] = own ? run->operation.factor : s->receives[r].factor;
    }
    reduction.factors = run->operation.has_factors ? s->factors : NULL;
    reduction.divisor = run->operation.divisor;
    reduce_arrays(&reduction, &output, 1, s->inputs, run->plan.world_size, bytes / run->plan.size);
}

static void reduce_ready(struct pairs_run *run, bool *moved)
{
    for (;;) {
        size_t at = run->reduced % run->scratch->buffer_bytes;
        size_t bytes = reducible(run) - run->reduced;

        bytes = smaller(bytes, run->scratch->buffer_bytes - at);
        bytes -= bytes % run->plan.size;
        if (bytes == 0)
            return;
        reduce_run(run, bytes);
        run->reduced += bytes;
        *moved = true;
    }
}

/* ---- the loop ---- */

static bool is_finished(const struct pairs_run *run)
{
    if (run->reduced < run->result.bytes)
        return false;
    for (unsigned r = 0; r < run->plan.world_size; r++)
        if (!ring_flow_is_done(&run->scratch->sends[r]) ||
            !ring_flow_is_done(&run->scratch->receives[r]))
            return false;
    return true;
}

static enum ring_outcome wait_for_move(struct ring_io *io, struct pairs_run *run, int64_t until_ns)
{
    struct pairs_scratch *s = run->scratch;
    const unsigned char *data;
    unsigned char *target;
    size_t count = 0;

    for (unsigned r = 0; r < run->plan.world_size; r++) {
        struct ring_flow *out = &s->sends[r];
        struct ring_flow *in = &s->receives[r];

        if (!ring_flow_is_done(out) &&
            (out->header_done < RING_HEADER_BYTES || sendable(run, r, &data) > 0)) {
            s->waiting[count] = out;
            s->interests[count++] = (struct transport_interest){.peer = r, .send = true};
        }
        if (!ring_flow_is_done(in) &&
            (in->header_done < RING_HEADER_BYTES || receivable(run, r, &target) > 0)) {
            s->waiting[count] = in;
            s->interests[count++] = (struct transport_interest){.peer = r, .receive = true};
        }
    }
    return ring_flow_wait(io, s->interests, s->waiting, count, until_ns);
}

enum ring_outcome pairs_run(struct ring_io *io, struct pairs_run *run, int64_t until_ns)
{
    unsigned n = run->plan.world_size;
    unsigned turns = 0;

    while (!is_finished(run)) {
        bool moved = false;
        enum ring_outcome outcome = RING_DONE;

        for (unsigned i = 1; i < n && outcome == RING_DONE; i++)
            outcome = move_peer(io, run, (run->plan.rank + i) % n, &moved);
        if (outcome == RING_DONE)
            reduce_ready(run, &moved);
        if (outcome == RING_DONE && !moved)
            outcome = wait_for_move(io, run, until_ns);
        if (outcome != RING_DONE)
            return outcome;
        if (++turns % TURNS_PER_CLOCK == 0 && clock_now_ns() >= until_ns)
            return RING_PAUSED;
    }
    return RING_DONE;
}

void pairs_run_done(const struct pairs_run *run, uint64_t *ret_sent, uint64_t *ret_received)
{
    *ret_sent = *ret_received = 0;
    for (unsigned r = 0; r < run->plan.world_size; r++) {
        *ret_sent += run->scratch->sends[r].done;
        *ret_received += run->scratch->receives[r].done;
    }
}
