/*
 * What goes up.  Each partition of a round is asked for once: by a push, by a pull of initial
 * values (rank 0 sends them first), or by a request for the final values.  A partition whose link
 * is away is only noted; when the link is back, everything that it owes an answer to goes up,
 * flagged AGAIN where it may have arrived before.
 *
 * Between the note and the send the link may be lost and come back.  So the stream is taken in the
 * same breath as the note: a stream that is over by then refuses, and the note says on which
 * connection the question was put, so ps_ask_again puts those of older ones again.
 *
 * What goes up again may have been answered meanwhile, and its place in the slab be in use: the
 * server, which has that round of this rank, does not look at the payload then.
 */
#include "common/base/clock.h"
#include "worker/sync/ps.h"

#include <assert.h>
#include <time.h>

/* The stream that a partition travels on, with a reference; NULL: its link is away.  Lock held. */
static struct rpc_call *take_stream(const struct sync_ps *s, size_t partition)
{
    const struct partition *p = &s->map.partitions[partition];
    const struct ps_link *l = &s->links[p->server];
    struct rpc_call *stream =
        l->state == PS_LINK_UP ? l->lanes[p->local_index % l->lane_count].stream : NULL;

    if (stream)
        rpc_call_ref(stream);
    return stream;
}

/* One chunk that asks for a partition, as it is when it is noted: until it is sent, an answer to an
 * earlier one may end the round. */
struct question {
    struct rpc_call *stream; /* one reference; NULL: the link is away */
    struct chunk_header header;
    bool with_initial; /* behind an initial value */
    bool repeated;     /* it was sent before, on another connection */
};

/* Queue one chunk from `slab`, or one without a payload.  A failure needs no care here: the stream
 * is over, and its end is looked after. */
static void send_chunk(struct sync_ps *s, const struct question *q, enum chunk_kind kind,
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
    (void)pthread_mutex_lock(&s->lock); /* refused or not: what is sent once more is no payload */
    s->counters.tx_payload_bytes += q->repeated ? 0 : header.length;
    if (header.flags & CHUNK_BY_REFERENCE)
        s->counters.tx_reference_bytes += q->repeated ? 0 : header.length;
    s->counters.retries += q->repeated;
    (void)pthread_mutex_unlock(&s->lock);
    if (ps_link_send(q->stream, s->priority ? header.partition + 1 : 0, &header,
                     slab ? &payload : NULL, &wire_bytes) != STATUS_OK)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->counters.tx_wire_bytes += wire_bytes;
    (void)pthread_mutex_unlock(&s->lock);
}

/* The rows that the answer is to hold.  They are no payload: what counts as that are elements. */
static void send_names(struct sync_ps *s, const struct question *q, const struct ps_named *named)
{
    struct rpc_payload payload = {.data = ps_names_numbers(&s->names, named),
                                  .size = named->size,
                                  .release = ps_payload_release,
                                  .user = &s->outstanding};
    struct chunk_header header = q->header;
    size_t wire_bytes;

    header.kind = CHUNK_ROW_SELECTION;
    header.dtype = CODEC_SELECTED_ROWS;
    header.length = named->size;
    if (named->size > 0)
        (void)atomic_fetch_add(&s->outstanding, 1);
    if (ps_link_send(q->stream, s->priority ? header.partition + 1 : 0, &header,
                     named->size > 0 ? &payload : NULL, &wire_bytes) != STATUS_OK)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->counters.tx_wire_bytes += wire_bytes;
    (void)pthread_mutex_unlock(&s->lock);
}

/* The state of the optimizer that the servers are to go on with.  Like names it is no payload, and
 * it does not lie in shared memory. */
static void send_state(struct sync_ps *s, const struct question *q, unsigned index)
{
    const struct partition *p = &s->map.partitions[q->header.partition];
    struct rpc_payload payload = {.data = s->moments[index] + p->offset,
                                  .size = p->count * sizeof(float),
                                  .release = ps_payload_release,
                                  .user = &s->outstanding};
    struct chunk_header header = {.kind = CHUNK_STATE,
                                  .rank = q->header.rank,
                                  .partition = q->header.partition,
                                  .lane = index + 1,
                                  .flags = q->header.flags & CHUNK_AGAIN,
                                  .length = payload.size};
    size_t wire_bytes;

    (void)atomic_fetch_add(&s->outstanding, 1);
    if (ps_link_send(q->stream, s->priority ? header.partition + 1 : 0, &header, &payload,
                     &wire_bytes) != STATUS_OK)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->counters.tx_wire_bytes += wire_bytes;
    (void)pthread_mutex_unlock(&s->lock);
}

static void send_question(struct sync_ps *s, struct question *q)
{
    const struct ps_named *named =
        q->header.kind == CHUNK_PUSH ? ps_names_of(&s->names, q->header.partition) : NULL;

    for (unsigned i = 0; q->with_initial && s->terms.steps_before > 0 && i < s->states; i++)
        send_state(s, q, i);
    if (q->with_initial)
        send_chunk(s, q, CHUNK_INIT, s->params);
    if (named)
        send_names(s, q, named);
    send_chunk(s, q, q->header.kind, q->header.kind == CHUNK_PUSH ? s->grads : NULL);
    rpc_call_unref(q->stream);
}

/* How a partition is asked for now, which counts as done when its link is there.  Lock held. */
static struct question note_question(struct sync_ps *s, size_t partition)
{
    struct ps_partition *p = &s->partitions[partition];
    const struct ps_link *l = &s->links[s->map.partitions[partition].server];
    struct question q = {.stream = take_stream(s, partition),
                         .header = {.kind = s->ending      ? CHUNK_FINAL
                                            : s->round > 0 ? CHUNK_PUSH
                                                           : CHUNK_PULL,
                                    .rank = s->rank,
                                    .round = s->round > 0 ? s->round : s->wanted,
                                    .partition = (uint32_t)partition},
                         .with_initial = s->round == 0 && s->gives_initial};

    if (!q.stream)
        return q;
    if (l->by_reference)
        q.header.flags |= CHUNK_BY_REFERENCE;
    q.repeated = p->sent == s->round + 1 && p->connection != l->connections;
    if (q.repeated || ps_may_repeat(s))
        q.header.flags |= CHUNK_AGAIN;
    p->extra += q.repeated;
    p->sent = s->round + 1;
    p->connection = l->connections;
    return q;
}

void ps_ask(struct sync_ps *s, size_t partition)
{
    struct question q;

    (void)pthread_mutex_lock(&s->lock);
    assert(partition == s->queued);
    s->queued++;
    q = note_question(s, partition);
    (void)pthread_mutex_unlock(&s->lock);
    if (q.stream)
        send_question(s, &q);
}

/* Has it been handed over, and neither been answered nor asked for on this connection?  Lock held.
 */
static bool is_owed(const struct sync_ps *s, const struct ps_link *l, size_t partition)
{
    const struct ps_partition *p = &s->partitions[partition];

    return partition < s->queued && p->answered != s->round + 1 &&
           (p->sent != s->round + 1 || p->connection != l->connections);
}

void ps_ask_again(struct sync_ps *s, struct ps_link *l)
{
    const uint32_t *held;
    size_t length = shard_map_held(&s->map, l->index, &held);

    for (size_t i = 0; i < length; i++) {
        struct question q = {0};

        (void)pthread_mutex_lock(&s->lock);
        if (is_owed(s, l, held[i]))
            q = note_question(s, held[i]);
        (void)pthread_mutex_unlock(&s->lock);
        if (q.stream)
            send_question(s, &q);
    }
}
