/*
 * Requests.  Each partition of a round is requested once: by a push, by a pull of initial values
 * (rank 0 sends them first), or by a request for the final values.  While its link is not up a
 * partition is only marked as queued; after the reconnection every request without a reply is sent,
 * flagged AGAIN if the server may have received it before.
 *
 * Locking: the link may be lost and reconnected between marking and sending.  So prepare_request
 * acquires the stream and records the connection in one critical section: a send on a stream that
 * has ended meanwhile fails, and ps_repeat_requests repeats requests of older connections.
 *
 * A repeated request may have received its reply meanwhile, and its range of the slab be
 * overwritten: the server has that round of this rank already and ignores the payload.
 */
#include "common/base/clock.h"
#include "worker/sync/ps.h"

#include <assert.h>
#include <time.h>

/* The stream of a partition, with a reference; NULL: its link is not up.  Lock held. */
static struct rpc_call *acquire_stream(const struct sync_ps *s, size_t partition)
{
    const struct partition *p = &s->map.partitions[partition];
    const struct ps_link *l = &s->links[p->server];
    struct rpc_call *stream =
        l->state == PS_LINK_UP ? l->lanes[p->local_index % l->lane_count].stream : NULL;

    if (stream)
        rpc_call_ref(stream);
    return stream;
}

/* A request as prepared under the lock: a reply to an earlier request may end the round before it
 * is sent. */
struct partition_request {
    struct rpc_call *stream; /* one reference; NULL: the link is not up */
    struct channel *channel; /* one reference; NULL: none */
    struct chunk_header header;
    bool with_initial; /* send the initial values first */
    bool repeated;     /* sent before, on another connection */
};

/* Queue one chunk from `slab`; NULL: without a payload.  Errors of the send are ignored: the stream
 * has ended, and ps_link_closed handles that. */
static void send_chunk(struct sync_ps *s, const struct partition_request *q, enum chunk_kind kind,
                       const float *slab)
{
    struct rpc_payload payload;
    struct chunk_header header = q->header;
    struct error err = {0};
    size_t wire_bytes;

    header.kind = kind;
    if (kind == CHUNK_INIT)
        header.round = 0;
    if (slab && ps_payload_make(s, slab, &header, &payload, &err) != STATUS_OK) {
        (void)pthread_mutex_lock(&s->lock);
        ps_fail(s, &err);
        (void)pthread_mutex_unlock(&s->lock);
        return;
    }
    /* even if the send fails: repetitions do not count */
    s->counters.tx_payload_bytes += q->repeated ? 0 : header.length;
    if (header.flags & CHUNK_BY_REFERENCE)
        s->counters.tx_reference_bytes += q->repeated ? 0 : header.length;
    s->counters.retries += q->repeated;
    if (ps_channel_send(q->channel, &header))
        return;
    if (ps_link_send(q->stream, s->priority ? header.partition + 1 : 0, &header,
                     slab ? &payload : NULL, &wire_bytes) == STATUS_OK)
        s->counters.tx_wire_bytes += wire_bytes;
}

/* Send the rows that the reply must contain.  Not counted as payload, which is elements. */
static void send_row_selection(struct sync_ps *s, const struct partition_request *q,
                               const struct ps_selected_rows *selected)
{
    struct rpc_payload payload = {.data = ps_row_selection_numbers(&s->selection, selected),
                                  .size = selected->numbers_bytes,
                                  .release = ps_payload_release,
                                  .user = &s->unreleased_payloads};
    struct chunk_header header = q->header;
    size_t wire_bytes;

    header.kind = CHUNK_ROW_SELECTION;
    header.dtype = CODEC_SELECTED_ROWS;
    header.length = selected->numbers_bytes;
    if (selected->numbers_bytes > 0)
        in_flight_begin(&s->unreleased_payloads);
    if (ps_link_send(q->stream, s->priority ? header.partition + 1 : 0, &header,
                     selected->numbers_bytes > 0 ? &payload : NULL, &wire_bytes) == STATUS_OK)
        s->counters.tx_wire_bytes += wire_bytes;
}

/* Send the initial optimizer state of a continued run.  Not counted as payload, and not in shared
 * memory. */
static void send_state(struct sync_ps *s, const struct partition_request *q, unsigned index)
{
    const struct partition *p = &s->map.partitions[q->header.partition];
    struct rpc_payload payload = {.data = s->moments[index] + p->offset,
                                  .size = p->count * sizeof(float),
                                  .release = ps_payload_release,
                                  .user = &s->unreleased_payloads};
    struct chunk_header header = {.kind = CHUNK_STATE,
                                  .rank = q->header.rank,
                                  .partition = q->header.partition,
                                  .lane = index + 1,
                                  .flags = q->header.flags & CHUNK_AGAIN,
                                  .length = payload.size};
    size_t wire_bytes;

    in_flight_begin(&s->unreleased_payloads);
    if (ps_link_send(q->stream, s->priority ? header.partition + 1 : 0, &header, &payload,
                     &wire_bytes) == STATUS_OK)
        s->counters.tx_wire_bytes += wire_bytes;
}

static void send_request(struct sync_ps *s, struct partition_request *q)
{
    const struct ps_selected_rows *selected =
        q->header.kind == CHUNK_PUSH ? ps_row_selection_of(&s->selection, q->header.partition)
                                     : NULL;

    for (unsigned i = 0; q->with_initial && s->terms.steps_before > 0 && i < s->states; i++)
        send_state(s, q, i);
    if (q->with_initial)
        send_chunk(s, q, CHUNK_INIT, s->params);
    if (selected)
        send_row_selection(s, q, selected);
    send_chunk(s, q, q->header.kind, q->header.kind == CHUNK_PUSH ? s->grads : NULL);
    rpc_call_unref(q->stream);
    channel_unref(q->channel);
}

/* Make the request for a partition, and mark it as requested if its link is up.  Lock held. */
static struct partition_request prepare_request(struct sync_ps *s, size_t partition)
{
    struct ps_partition *p = &s->partitions[partition];
    const struct ps_link *l = &s->links[s->map.partitions[partition].server];
    struct partition_request q = {.stream = acquire_stream(s, partition),
                                  .header = {.kind = s->is_final_round ? CHUNK_FINAL
                                                     : s->round > 0    ? CHUNK_PUSH
                                                                       : CHUNK_PULL,
                                             .rank = s->rank,
                                             .round = s->round > 0 ? s->round : s->requested_round,
                                             .partition = (uint32_t)partition},
                                  .with_initial = s->round == 0 && s->sends_initial};

    if (!q.stream)
        return q;
    if (l->by_reference)
        q.header.flags |= CHUNK_BY_REFERENCE;
    if (l->channel)
        q.channel = channel_ref(l->channel);
    q.repeated = p->requested_mark == s->round + 1 && p->requested_on != l->connection_count;
    if (q.repeated || ps_may_repeat(s))
        q.header.flags |= CHUNK_AGAIN;
    p->duplicates_expected += q.repeated;
    p->requested_mark = s->round + 1;
    p->requested_on = l->connection_count;
    return q;
}

void ps_request_partition(struct sync_ps *s, size_t partition)
{
    struct partition_request q;

    (void)pthread_mutex_lock(&s->lock);
    assert(partition == s->queued);
    s->queued++;
    q = prepare_request(s, partition);
    if (s->queued == s->map.length && !s->is_final_round) /* ps_wait_final does not poll */
        ps_channel_expect_wait(s);
    (void)pthread_mutex_unlock(&s->lock);
    if (q.stream)
        send_request(s, &q);
}

/* Is it queued, without a reply, and not requested on this connection?  Lock held. */
static bool needs_request(const struct sync_ps *s, const struct ps_link *l, size_t partition)
{
    const struct ps_partition *p = &s->partitions[partition];

    return partition < s->queued && p->replied_mark != s->round + 1 &&
           (p->requested_mark != s->round + 1 || p->requested_on != l->connection_count);
}

void ps_repeat_requests(struct sync_ps *s, struct ps_link *l)
{
    const uint32_t *held;
    size_t length = shard_map_held(&s->map, l->index, &held);

    for (size_t i = 0; i < length; i++) {
        struct partition_request q = {0};

        (void)pthread_mutex_lock(&s->lock);
        if (needs_request(s, l, held[i]))
            q = prepare_request(s, held[i]);
        (void)pthread_mutex_unlock(&s->lock);
        if (q.stream)
            send_request(s, &q);
    }
}
