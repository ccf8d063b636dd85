/*
 * The ring backend: runs an operation over the links of a transport by the algorithm that
 * ring_algorithm.c chooses, and reports local errors.  Finding the culprit and time-outs are up to
 * the core.
 *
 * In the fast order float16 and bfloat16 are rounded at every hop of the ring and in every round of
 * doubling; in rank order once.
 *
 * A rank that leaves in order sends a header with COLLECTIVE_CLOSE on every link, so that peers
 * which still expect data can tell it from a dead rank.
 */
#include "common/collective/ring/ring.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Half of a usual L2 cache.  On loopback 256 KiB to 1 MiB measure alike, 64 KiB 10 to 20 % slower.
 * It bounds one system call; the pipeline itself moves by whatever the kernel has. */
#define SEGMENT_BYTES ((size_t)512 << 10)
#define SEGMENT_MIN   ((size_t)4 << 10)

/* Kept in a work: of sends and receives, several of which may be under way. */
struct ring_work {
    bool begun;
    struct ring_operation operation;
    struct ring_flow flow;
};

static_assert(sizeof(struct ring_work) <= COLLECTIVE_WORK_STATE, "a work's state");

/* ---- beginning ---- */

/* The part of the output that is this rank's input, before anything moves. */
static void copy_own_input(const struct collective *g, const struct collective_args *a)
{
    size_t bytes = ring_block_bytes(a);
    const char *from = a->input;
    char *to = a->output;

    switch (a->call) {
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
        if (g->rank != a->root)
            return;
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        break;
    default:
        return;
    }
    if (a->call == COLLECTIVE_ALL_TO_ALL || a->call == COLLECTIVE_SCATTER)
        from += g->rank * bytes;
    if (a->call != COLLECTIVE_BROADCAST && a->call != COLLECTIVE_SCATTER)
        to += g->rank * bytes;
    if (bytes > 0 && from != to)
        memmove(to, from, bytes);
}

static struct ring_operation make_operation(const struct collective *g,
                                            const struct collective_args *a,
                                            const struct signature *signature)
{
    /* For count 0 the caller may pass NULL, on which pointer arithmetic is undefined. */
    static unsigned char nothing;
    struct ring_operation o = {
        .input = a->input != NULL ? a->input : &nothing,
        .output = a->output != NULL ? a->output : &nothing,
        .reduction = {.dtype = a->dtype, .op = a->op},
        .factor = 1.0,
    };

    if (a->op == REDUCE_PREMUL_SUM) {
        o.factor = a->factor;
        o.has_factors = true;
    } else if (a->op == REDUCE_AVG && dtype_is_float(a->dtype)) {
        o.factor = 1.0 / g->world_size;
        o.has_factors = true;
    } else if (a->op == REDUCE_AVG) {
        o.divisor = g->world_size;
    }
    ring_header_encode(signature, o.factor, o.header);
    memcpy(o.expected, o.header, SIGNATURE_BYTES);
    return o;
}

void ring_begin(struct ring *r, const struct collective_args *args,
                const struct signature *signature, struct ring_algorithm algorithm)
{
    struct ring_operation operation = make_operation(&r->base, args, signature);

    r->by = algorithm.by;
    if (algorithm.by == BY_DOUBLING) {
        doubling_run_init(&r->doubling_run, r->base.rank, r->base.world_size, ring_count(args),
                          dtype_size(args->dtype), &operation, &r->pairs);
    } else if (algorithm.by == BY_PAIRS) {
        struct pairs_plan plan = ring_make_pairs_plan(&r->base, args, algorithm.pairs);

        pairs_run_init(&r->pairs_run, &plan, &operation, &r->pairs);
    } else {
        struct ring_plan plan = ring_make_ring_plan(r, args, algorithm.ring);

        ring_run_init(&r->stream_run, &plan, &operation, &r->scratch);
    }
}

enum ring_outcome ring_advance(struct ring *r, int64_t until_ns)
{
    switch (r->by) {
    case BY_DOUBLING:
        return doubling_run(&r->io, &r->doubling_run, until_ns);
    case BY_PAIRS:
        return pairs_run(&r->io, &r->pairs_run, until_ns);
    case BY_RING:
    default:
        return ring_stream_run(&r->io, &r->stream_run, until_ns);
    }
}

/* ---- ends ---- */

/* A link has ended: read what is left in it.  True when it holds another header
 * (io.trouble.header), which explains the end. */
static bool has_peer_header(struct ring *r)
{
    static const struct ring_operation none = {.factor = 1.0}; /* no header equals its zeros */
    struct ring_flow last = {.peer = r->io.trouble.peer};
    bool moved = true;
    enum ring_outcome outcome = RING_DONE;
    size_t got;

    while (outcome == RING_DONE && moved) {
        moved = false;
        outcome = ring_flow_receive(&r->io, &none, &last, NULL, 0, &got, &moved);
    }
    return outcome == RING_DIFFERS;
}

static enum run_outcome mismatch_outcome(struct ring *r, const struct collective_work *work,
                                         struct error *err)
{
    struct signature theirs;

    if (signature_decode(r->io.trouble.header, &theirs))
        return collective_mismatch(&r->base, work, r->io.trouble.peer, &theirs, err);
    (void)error_set(err, STATUS_PROTOCOL, "rank %u sends something that is no operation",
                    r->base.members[r->io.trouble.peer]);
    return RUN_FAILED;
}

static bool is_other_operation(const struct ring *r, const struct collective_work *work)
{
    struct signature theirs;

    return signature_decode(r->io.trouble.header, &theirs) &&
           !signature_equal(&theirs, &work->signature);
}

static enum run_outcome to_run_outcome(struct ring *r, const struct collective_work *work,
                                       enum ring_outcome outcome, struct error *err)
{
    unsigned peer = r->io.trouble.peer;

    switch (outcome) {
    case RING_DONE:
        return RUN_DONE;
    case RING_PAUSED:
        return RUN_PENDING;
    case RING_DIFFERS:
        return mismatch_outcome(r, work, err);
    case RING_LOST:
        if (has_peer_header(r) && is_other_operation(r, work))
            return mismatch_outcome(r, work, err);
        (void)error_set(err, STATUS_PEER_LOST, "the connection to rank %u ended",
                        r->base.members[peer]);
        break;
    case RING_FAILED:
        (void)error_set_errno(err, r->io.trouble.error_number, "the connection to rank %u failed",
                              r->base.members[peer]);
        break;
    }
    return RUN_FAILED;
}

static void count_done(struct ring *r, uint64_t sent, uint64_t received, size_t sends,
                       size_t receives)
{
    struct collective_stats *stats = &r->base.stats;

    stats->operations++;
    stats->tx_payload_bytes += sent;
    stats->rx_payload_bytes += received;
    stats->tx_wire_bytes += sent + sends * RING_HEADER_BYTES;
    stats->rx_wire_bytes += received + receives * RING_HEADER_BYTES;
}

static void count_collective(struct ring *r, uint64_t sent, uint64_t received)
{
    size_t sends = r->stream_run.sends;
    size_t receives = r->stream_run.receives;

    if (r->by == BY_DOUBLING) {
        sends = r->doubling_run.sends;
        receives = r->doubling_run.receives;
    } else if (r->by == BY_PAIRS) {
        sends = receives = 0;
        for (unsigned i = 0; i < r->base.world_size; i++) {
            sends += r->pairs.peers[i].sends;
            receives += r->pairs.peers[i].receives;
        }
    } else if (r->io.transport->ops->queued && r->stream_run.plan.kind == RING_ALL_REDUCE) {
        r->base.stats.tx_queued_bytes +=
            r->io.transport->ops->queued(r->io.transport, r->stream_run.right.peer);
    }
    count_done(r, sent, received, sends, receives);
}

/* ---- one peer: send and receive ---- */

static void begin_transfer(struct ring *r, struct collective_work *work, struct ring_work *w)
{
    struct signature signature = work->signature;

    signature.op = REDUCE_SUM;
    signature.order = REDUCE_FAST;
    signature.call = COLLECTIVE_SEND; /* the receiver expects the sender's signature */
    signature.root = work->args.call == COLLECTIVE_SEND ? work->args.root : r->base.rank;
    w->operation = make_operation(&r->base, &work->args, &signature);
    w->flow = (struct ring_flow){.peer = work->args.root, .total = ring_block_bytes(&work->args)};
    w->begun = true;
    work->total_bytes = w->flow.total;
}

static enum ring_outcome advance_transfer(struct ring *r, struct ring_work *w, bool sends,
                                          int64_t until_ns)
{
    struct ring_flow *f = &w->flow;
    struct ring_flow *flows[] = {f};
    enum ring_outcome outcome = RING_DONE;

    while (outcome == RING_DONE && !ring_flow_is_done(f)) {
        struct transport_interest interest = {.peer = f->peer, .send = sends, .receive = !sends};
        size_t left = (size_t)(f->total - f->done);
        bool moved = false;
        size_t got = 0;

        if (sends)
            outcome = ring_flow_send(&r->io, &w->operation, f, w->operation.input + f->done, left,
                                     &moved);
        else
            outcome = ring_flow_receive(&r->io, &w->operation, f, w->operation.output + f->done,
                                        left, &got, &moved);
        f->done += got;
        if (outcome == RING_DONE && !moved)
            outcome = ring_flow_wait(&r->io, &interest, flows, 1, until_ns);
        else if (outcome == RING_DONE && clock_now_ns() >= until_ns && !ring_flow_is_done(f))
            outcome = RING_PAUSED;
    }
    return outcome;
}

static enum run_outcome run_transfer(struct ring *r, struct collective_work *work, int64_t until_ns,
                                     struct error *err)
{
    struct ring_work *w = (struct ring_work *)(void *)work->backend;
    bool sends = work->args.call == COLLECTIVE_SEND;
    struct collective_work **owner =
        sends ? &r->sending[work->args.root] : &r->receiving[work->args.root];
    enum ring_outcome outcome;

    if (*owner && *owner != work)
        return RUN_PENDING; /* an earlier one has the link */
    *owner = work;
    if (!w->begun)
        begin_transfer(r, work, w);
    outcome = advance_transfer(r, w, sends, until_ns);
    if (outcome == RING_DONE)
        outcome = ring_flow_flush(&r->io, until_ns);
    work->done_bytes = w->flow.done;
    if (outcome == RING_DONE) {
        *owner = NULL;
        count_done(r, sends ? w->flow.done : 0, sends ? 0 : w->flow.done, sends, !sends);
    }
    return to_run_outcome(r, work, outcome, err);
}

/* ---- running ---- */

static void begin_collective(struct ring *r, struct collective_work *work)
{
    struct ring_work *w = (struct ring_work *)(void *)work->backend;
    uint64_t tx;
    uint64_t rx;

    copy_own_input(&r->base, &work->args);
    ring_begin(r, &work->args, &work->signature, ring_choose_algorithm(r, &work->args));
    ring_expected_bytes(&r->base, &work->args, &tx, &rx);
    work->total_bytes = tx + rx;
    w->begun = true;
}

static void report_ring_progress(void *argument, uint64_t moved)
{
    collective_progress(argument, moved);
}

static enum run_outcome run_collective(struct ring *r, struct collective_work *work,
                                       int64_t until_ns, struct error *err)
{
    struct ring_work *w = (struct ring_work *)(void *)work->backend;
    enum ring_outcome outcome;
    uint64_t sent;
    uint64_t received;

    if (!w->begun)
        begin_collective(r, work);
    outcome = ring_advance(r, until_ns);
    if (outcome == RING_DONE)
        outcome = ring_flow_flush(&r->io, until_ns);
    if (r->by == BY_DOUBLING) {
        doubling_run_done(&r->doubling_run, &sent, &received);
    } else if (r->by == BY_PAIRS) {
        pairs_run_done(&r->pairs_run, &sent, &received);
    } else {
        sent = r->stream_run.right.done;
        received = r->stream_run.left.done;
    }
    work->done_bytes = sent + received;
    if (outcome == RING_DONE)
        count_collective(r, sent, received);
    return to_run_outcome(r, work, outcome, err);
}

void ring_watch(struct ring *r)
{
    const struct mesh_alarm *alarm = r->base.alarm;

    r->io.alarm = alarm ? &alarm->raised : NULL;
    r->io.alarm_fd = alarm ? alarm->fd : -1;
}

static enum run_outcome ring_run(struct collective *group, struct collective_work *work,
                                 int64_t until_ns, struct error *err)
{
    struct ring *r = (struct ring *)group;
    bool is_transfer = collective_call_is_pair(work->args.call);
    enum run_outcome outcome;

    ring_watch(r);
    r->io.moved = r->io.reported = work->done_bytes;
    r->io.waited_ns = work->waited_ns;
    r->io.report_progress = report_ring_progress;
    r->io.progress_argument = work;
    outcome =
        is_transfer ? run_transfer(r, work, until_ns, err) : run_collective(r, work, until_ns, err);
    work->waited_ns = r->io.waited_ns;
    return outcome;
}

/* ---- lifetime ---- */

/* Send a COLLECTIVE_CLOSE header to every peer. */
static void send_close_headers(struct ring *r)
{
    struct signature leave = {.call = COLLECTIVE_CLOSE,
                              .group = r->base.id,
                              .generation = r->base.generation,
                              .sequence = r->base.sequence + 1};
    unsigned char header[RING_HEADER_BYTES];
    struct iovec part = {.iov_base = header, .iov_len = sizeof(header)};

    ring_header_encode(&leave, 1.0, header);
    for (unsigned peer = 0; peer < r->base.world_size; peer++)
        if (peer != r->base.rank)
            (void)r->io.transport->ops->send(r->io.transport, peer, &part, 1);
}

static void ring_close(struct collective *group)
{
    struct ring *r = (struct ring *)group;
    bool in_order = group->failure.status == STATUS_OK;

    if (r->io.transport) {
        if (in_order)
            send_close_headers(r);
        r->io.transport->ops->close(r->io.transport, in_order);
    }
    ring_scratch_release(&r->scratch);
    pairs_scratch_release(&r->pairs);
    free(r->sending);
    free(r->receiving);
}

static enum status find_transport(const struct collective *group, const struct transport_ops **ret,
                                  struct error *err)
{
    static const struct transport_ops *const all[] = {&transport_tcp_ops, &transport_grpc_ops};
    const char *name = group->ops == &collective_grpc_ops ? "grpc" : group->transport;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        *ret = all[i];
        if (strcmp(all[i]->name, name) == 0)
            return STATUS_OK;
    }
    return error_set(err, STATUS_CONFIG, "unknown transport '%s'; the ring has tcp, grpc", name);
}

static enum status allocate_scratch(struct ring *r, struct error *err)
{
    unsigned n = r->base.world_size;
    enum status status = ring_scratch_init(&r->scratch, r->io.segment_bytes, err);

    if (status == STATUS_OK)
        status = pairs_scratch_init(&r->pairs, n, r->io.segment_bytes, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(struct collective_work *), "links", &r->sending, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(struct collective_work *), "links", &r->receiving, err);
    return status;
}

static enum status ring_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    struct ring *r = (struct ring *)group;
    size_t segment = group->segment_bytes > 0 ? group->segment_bytes : SEGMENT_BYTES;
    const struct transport_ops *transport;
    struct error local;
    enum status status = find_transport(group, &transport, err ? err : &local);

    if (!err)
        err = &local; /* the prefix below needs one */
    r->io.alarm_fd = -1;
    r->io.segment_bytes = (segment < SEGMENT_MIN ? SEGMENT_MIN : segment) / 64 * 64;
    if (status == STATUS_OK)
        status = allocate_scratch(r, err);
    if (status != STATUS_OK || group->world_size == 1)
        return status;
    status = transport->open(group, deadline_ns, &r->io.transport, err);
    if (status == STATUS_OK)
        status = ring_tune(r, deadline_ns, err);
    return status == STATUS_OK
               ? STATUS_OK
               : error_prefix(err, "ring '%s' of %u ranks: ", group->name, group->world_size);
}

const struct collective_ops collective_ring_ops = {
    .name = "ring",
    .size = sizeof(struct ring),
    .open = ring_open,
    .run = ring_run,
    .expected_bytes = ring_expected_bytes,
    .close = ring_close,
};

const struct collective_ops collective_grpc_ops = {
    .name = "grpc",
    .size = sizeof(struct ring),
    .open = ring_open,
    .run = ring_run,
    .expected_bytes = ring_expected_bytes,
    .close = ring_close,
};
