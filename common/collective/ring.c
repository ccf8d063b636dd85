/*
 * The ring backend: operations over TCP between neighbours, and the verdict when one fails.
 *
 * A failure must name the rank that caused it on every survivor, not the neighbour that gave up
 * because of it:
 *   - a connection that ends without a goodbye is a dead neighbour, unless a failure notice is in
 *     the store already: whoever gives up writes one before it closes its connections;
 *   - a rank that hangs closes nothing.  A quarter of the time-out into an operation each waiting
 *     rank tells its left neighbour that it is alive; half-way, a rank that has heard nothing from
 *     its right neighbour blames it, and the blame travels round the ring.  This names the right
 *     rank while the others come to an operation within a quarter of the time-out of each other.
 *
 * After a failure the group is dead: every later call returns the first error again.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/collective/collective_ops.h"
#include "common/collective/ring_connect.h"
#include "common/collective/ring_stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A notice is written before connections are closed, so it is nearly always there already. */
#define NOTICE_WAIT_MS 50

struct ring {
    struct collective base;
    struct store *store; /* borrowed */
    uint64_t group_id;
    int64_t timeout_ms;
    uint64_t sequence;        /* operations started */
    uint64_t judged_sequence; /* newest operation that was not done half-way to its time-out */
    struct ring_stream stream;
    unsigned char *tokens; /* one byte per rank: what a barrier gathers */
    struct error failure;  /* the first one; STATUS_OK while the group works */
};

static unsigned left_of(const struct ring *r)
{
    return (r->base.rank + r->base.world_size - 1) % r->base.world_size;
}

static unsigned right_of(const struct ring *r)
{
    return (r->base.rank + 1) % r->base.world_size;
}

/* ---- verdicts ---- */

/* An operation that did not end well. */
struct trouble {
    const struct ring_operation *operation;
    const struct ring_run *run;
    char text[RING_TEXT_SIZE]; /* of the operation */
    int error_number;          /* of RING_FAILED */
};

static uint64_t done_bytes(const struct ring_run *run)
{
    return run->received.done + run->sent.done;
}

static uint64_t total_bytes(const struct ring_run *run)
{
    return run->plan->receive_bytes + run->plan->send_bytes;
}

/* Which rank hung, by what was said half-way; false while nobody is suspected. */
static bool find_suspect(const struct ring *r, uint64_t sequence, unsigned *ret_rank)
{
    if (r->judged_sequence < sequence)
        return false;
    if (r->stream.alive_sequence < sequence)
        *ret_rank = right_of(r);
    else if (r->stream.blamed_sequence >= sequence)
        *ret_rank = r->stream.blamed_rank;
    else
        return false;
    return true;
}

static enum status lost(struct ring *r, const struct trouble *t, unsigned peer, struct error *err)
{
    char text[RING_TEXT_SIZE + 96];
    unsigned suspect;

    if (store_find_failure(r->store, NOTICE_WAIT_MS, err))
        return error_prefix(err, "%s: ", t->text);
    if (find_suspect(r, t->operation->sequence, &suspect) && suspect != peer)
        return error_set(err, STATUS_TIMEOUT, "%s: rank %u gave up waiting for rank %u (it hangs)",
                         t->text, peer, suspect);
    (void)snprintf(text, sizeof(text), "its connection to rank %u ended in %s", r->base.rank,
                   t->text);
    store_report_failure(r->store, peer, text);
    return error_set(err, STATUS_PEER_LOST,
                     "rank %u was lost: %s (%" PRIu64 " of %" PRIu64 " bytes done)", peer, text,
                     done_bytes(t->run), total_bytes(t->run));
}

/* The suspect, or else the neighbour that the next byte must come from or go to. */
static unsigned culprit_of(const struct ring *r, const struct trouble *t)
{
    unsigned suspect;

    if (find_suspect(r, t->operation->sequence, &suspect))
        return suspect;
    return t->run->received.done < t->run->plan->receive_bytes ? left_of(r) : right_of(r);
}

static enum status timed_out(struct ring *r, const struct trouble *t, struct error *err)
{
    unsigned culprit = culprit_of(r, t);
    char text[RING_TEXT_SIZE + 96];

    (void)snprintf(text, sizeof(text), "rank %u waited %" PRId64 " ms for it in %s", r->base.rank,
                   r->timeout_ms, t->text);
    store_report_failure(r->store, culprit, text);
    return error_set(err, STATUS_TIMEOUT,
                     "%s: waited %" PRId64 " ms for rank %u (%" PRIu64 " of %" PRIu64
                     " bytes received, %" PRIu64 " of %" PRIu64 " sent)",
                     t->text, r->timeout_ms, culprit, t->run->received.done,
                     t->run->plan->receive_bytes, t->run->sent.done, t->run->plan->send_bytes);
}

/* The ranks do not agree on what they run; this rank stops the job with a text that shows both. */
static enum status mismatch(struct ring *r, const struct trouble *t, unsigned peer,
                            const char *peer_does, struct error *err)
{
    char text[3 * RING_TEXT_SIZE];

    (void)snprintf(text, sizeof(text), "rank %u %s, this rank %u is in %s", peer, peer_does,
                   r->base.rank, t->text);
    store_report_failure(r->store, r->base.rank, text);
    return error_set(err, STATUS_MISMATCH, "%s", text);
}

static enum status left_differs(struct ring *r, const struct trouble *t, struct error *err)
{
    struct ring_operation other;
    char text[RING_TEXT_SIZE];
    char does[RING_TEXT_SIZE + 16];

    if (!ring_operation_decode(t->run->left_header, &other))
        return mismatch(r, t, left_of(r), "sends something that is no operation", err);
    ring_operation_text(&other, text);
    (void)snprintf(does, sizeof(does), "%s%s", other.call == RING_CALL_CLOSE ? "" : "is in ", text);
    return mismatch(r, t, left_of(r), does, err);
}

static enum status judge(struct ring *r, enum ring_outcome outcome, struct trouble *t,
                         struct error *err)
{
    ring_operation_text(t->operation, t->text);
    switch (outcome) {
    case RING_PAUSED:
        return timed_out(r, t, err);
    case RING_LEFT_LOST:
        return lost(r, t, left_of(r), err);
    case RING_RIGHT_LOST:
        return lost(r, t, right_of(r), err);
    case RING_LEFT_DIFFERS:
        return left_differs(r, t, err);
    case RING_RIGHT_CLOSED:
        return mismatch(r, t, right_of(r), "has closed the group", err);
    case RING_FAILED:
        return error_set_errno(err, t->error_number, "%s", t->text);
    case RING_DONE:
        break;
    }
    return STATUS_OK;
}

/* ---- running ---- */

static void say(const struct ring *r, enum ring_note_kind kind, unsigned rank, uint64_t sequence)
{
    struct ring_note note = {.kind = kind, .rank = rank, .sequence = sequence};

    ring_stream_note(&r->stream, &note);
}

/* Run to the end or to the time-out, in four quarters; see the head of this file. */
static enum ring_outcome run_quarters(struct ring *r, struct ring_run *run, uint64_t sequence)
{
    int64_t start_ns = clock_now_ns();
    int64_t end_ns = clock_deadline_ns(r->timeout_ms);
    int64_t quarter_ns = (end_ns - start_ns) / 4;
    enum ring_outcome outcome = ring_stream_run(&r->stream, run, start_ns + quarter_ns);

    if (outcome != RING_PAUSED)
        return outcome;
    say(r, RING_NOTE_ALIVE, r->base.rank, sequence);
    outcome = ring_stream_run(&r->stream, run, start_ns + 2 * quarter_ns);
    if (outcome != RING_PAUSED)
        return outcome;
    r->judged_sequence = sequence;
    if (r->stream.alive_sequence < sequence)
        say(r, RING_NOTE_BLAME, right_of(r), sequence);
    return ring_stream_run(&r->stream, run, end_ns);
}

static void count_bytes(struct ring *r, const struct ring_run *run, enum ring_call call)
{
    struct collective_stats *stats = &r->base.stats;
    bool has_payload = call != RING_CALL_BARRIER;

    stats->operations++;
    stats->tx_payload_bytes += has_payload ? run->sent.done : 0;
    stats->rx_payload_bytes += has_payload ? run->received.done : 0;
    stats->tx_wire_bytes += run->sent.done + run->header_sent;
    stats->rx_wire_bytes += run->received.done + run->header_received;
}

static enum status run_operation(struct ring *r, struct ring_operation *operation,
                                 const struct ring_plan *plan, void *buffer, struct error *err)
{
    unsigned char header[RING_HEADER_BYTES];
    struct ring_run run;
    struct trouble trouble = {.operation = operation, .run = &run};
    enum ring_outcome outcome;

    if (r->failure.status != STATUS_OK)
        return error_set(err, r->failure.status, "the group failed before: %s", r->failure.text);
    operation->sequence = ++r->sequence;
    operation->group = r->group_id;
    ring_operation_encode(operation, header);
    ring_run_init(&run, plan, buffer, header);
    outcome = run_quarters(r, &run, operation->sequence);
    trouble.error_number = errno;
    count_bytes(r, &run, operation->call);
    if (outcome == RING_DONE)
        return STATUS_OK;
    (void)judge(r, outcome, &trouble, &r->failure);
    return error_set(err, r->failure.status, "%s", r->failure.text);
}

/* ---- the operations ---- */

static enum status all_reduce(struct ring *r, const struct collective_args *a, struct error *err)
{
    struct ring_plan plan =
        ring_plan_all_reduce(r->base.rank, r->base.world_size, a->count, a->order);
    struct ring_operation operation = {
        .call = RING_CALL_ALL_REDUCE, .order = a->order, .count = a->count};

    return run_operation(r, &operation, &plan, a->output, err);
}

static enum status broadcast(struct ring *r, const struct collective_args *a, struct error *err)
{
    size_t bytes = a->count * dtype_size(a->dtype);
    struct ring_plan plan = ring_plan_broadcast(r->base.rank, r->base.world_size, bytes, a->root);
    struct ring_operation operation = {
        .call = RING_CALL_BROADCAST, .count = bytes, .root = a->root};

    return run_operation(r, &operation, &plan, a->output, err);
}

static enum status all_gather(struct ring *r, const struct collective_args *a, struct error *err)
{
    size_t bytes = a->count * dtype_size(a->dtype);
    struct ring_plan plan = ring_plan_all_gather(r->base.rank, r->base.world_size, bytes);
    struct ring_operation operation = {.call = RING_CALL_ALL_GATHER, .count = bytes};

    return run_operation(r, &operation, &plan, a->output, err);
}

/* Whoever has a token from every rank knows that all have come. */
static enum status barrier(struct ring *r, struct error *err)
{
    struct ring_plan plan = ring_plan_all_gather(r->base.rank, r->base.world_size, 1);
    struct ring_operation operation = {.call = RING_CALL_BARRIER};

    return run_operation(r, &operation, &plan, r->tokens, err);
}

static bool ring_supports(const struct collective *group, const struct collective_args *a)
{
    (void)group;
    switch (a->call) {
    case COLLECTIVE_ALL_REDUCE:
        return a->dtype == DTYPE_FLOAT32 && a->op == REDUCE_SUM;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_BARRIER:
        return true;
    default:
        return false;
    }
}

/* The part of the output that this rank's input is, before the ring moves anything. */
static void place_input(const struct ring *r, const struct collective_args *a)
{
    size_t bytes = collective_input_bytes(&r->base, a);
    char *place = a->output;

    if (a->call == COLLECTIVE_ALL_GATHER)
        place += r->base.rank * bytes;
    if (bytes > 0 && place != a->input)
        memmove(place, a->input, bytes);
}

static enum run_outcome ring_run(struct collective *group, struct collective_work *work,
                                 int64_t until_ns, struct error *err)
{
    struct ring *r = (struct ring *)group;
    const struct collective_args *a = &work->args;
    enum status status = STATUS_INTERNAL;

    (void)until_ns;
    place_input(r, a);
    if (a->call == COLLECTIVE_ALL_REDUCE)
        status = all_reduce(r, a, err);
    else if (a->call == COLLECTIVE_BROADCAST)
        status = broadcast(r, a, err);
    else if (a->call == COLLECTIVE_ALL_GATHER)
        status = all_gather(r, a, err);
    else
        status = barrier(r, err);
    return status == STATUS_OK ? RUN_DONE : RUN_FAILED;
}

static void ring_expected_bytes(const struct collective *group, const struct collective_args *a,
                                uint64_t *ret_tx, uint64_t *ret_rx)
{
    size_t bytes = a->count * dtype_size(a->dtype);
    struct ring_plan plan = {.send_bytes = 0};

    if (a->call == COLLECTIVE_ALL_REDUCE)
        plan = ring_plan_all_reduce(group->rank, group->world_size, a->count, a->order);
    else if (a->call == COLLECTIVE_BROADCAST)
        plan = ring_plan_broadcast(group->rank, group->world_size, bytes, a->root);
    else if (a->call == COLLECTIVE_ALL_GATHER)
        plan = ring_plan_all_gather(group->rank, group->world_size, bytes);
    *ret_tx = plan.send_bytes;
    *ret_rx = plan.receive_bytes;
}

/* ---- lifetime ---- */

static void ring_close(struct collective *group)
{
    struct ring *r = (struct ring *)group;
    struct ring_operation leave = {
        .call = RING_CALL_CLOSE, .group = r->group_id, .sequence = r->sequence + 1};
    struct ring_note goodbye = {.kind = RING_NOTE_GOODBYE, .rank = group->rank};
    unsigned char header[RING_HEADER_BYTES];

    if (r->stream.right_fd >= 0 && r->failure.status == STATUS_OK) {
        ring_operation_encode(&leave, header);
        ring_stream_leave(&r->stream, header, &goodbye);
    }
    ring_stream_release(&r->stream);
    free(r->tokens);
}

static enum status ring_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    struct ring *r = (struct ring *)group;
    struct error local;
    enum status status;

    if (!err)
        err = &local; /* the prefixes below need one */
    r->store = group->store;
    r->group_id = group->id;
    r->timeout_ms = group->timeout_ms;
    status = ring_stream_init(&r->stream, err);
    if (status == STATUS_OK)
        status = mem_calloc(group->world_size, 1, "barrier tokens", &r->tokens, err);
    if (status == STATUS_OK && group->world_size > 1) {
        status = ring_connect(group, deadline_ns, &r->stream.right_fd, &r->stream.left_fd, err);
        if (status != STATUS_OK)
            status = error_prefix(err, "ring '%s' of %u ranks: ", group->name, group->world_size);
    }
    return status;
}

const struct collective_ops collective_ring_ops = {
    .name = "ring",
    .size = sizeof(struct ring),
    .open = ring_open,
    .supports = ring_supports,
    .run = ring_run,
    .expected_bytes = ring_expected_bytes,
    .close = ring_close,
};
