/*
 * Replies: one partition to one rank, sent from the shard's own memory, which gRPC holds until
 * the send is done (job->outstanding).  A reply goes to the stream that the rank has at that time,
 * or through its channel if the request did; without either it is dropped, and the rank repeats its
 * request after it has reconnected.
 *
 * Locking: the table's lock to look up the stream and to count, never during the send.
 */
#include "server/service/exchange.h"

#include "server/service/payload.h"

static void release_payload(void *user)
{
    atomic_fetch_sub((atomic_size_t *)user, 1);
}

/* The rank's stream for a partition; NULL: it is closed.  Lock held. */
static struct rpc_call *stream_of(const struct job *j, unsigned rank, uint32_t partition)
{
    const struct rank_session *session = &j->ranks[rank].session;

    return session->streams[j->map.partitions[partition].local_index % session->lanes];
}

/* In lockstep the replies to pushes are counted with the completion.  Lock held. */
static void count_reply(struct job *j, unsigned rank, bool is_pull, size_t bytes,
                        const struct shard_reply *reply)
{
    if (is_pull)
        j->totals.initial_tx_payload_bytes += bytes;
    else if (!job_is_lockstep(j))
        job_count_reply(j, rank, bytes, reply->is_final);
}

/* Queue one reply to one rank; does nothing when its stream is closed. */
void reply_send(struct service *s, struct job *j, const struct held_reply *r)
{
    struct rpc_payload payload = {.release = release_payload, .user = &j->outstanding};
    size_t bytes = r->shard_reply.bytes;
    struct chunk_header header = r->header;
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    size_t head_size;
    struct rpc_call *call;
    struct channel *channel = NULL;
    bool by_reference;

    header.rank = r->rank;
    (void)pthread_mutex_lock(&s->table.lock);
    call = stream_of(j, r->rank, header.partition);
    if (call)
        rpc_call_ref(call);
    by_reference = j->ranks[r->rank].by_reference && !r->shard_reply.coded &&
                   shard_reply_memory_has(&j->shard, r->shard_reply.data);
    if (by_reference && j->ranks[r->rank].by_channel && j->ranks[r->rank].session.channel)
        channel = channel_ref(j->ranks[r->rank].session.channel);
    if (j->state == JOB_RUNNING && !r->shard_reply.again) {
        count_reply(j, r->rank, r->is_pull, bytes, &r->shard_reply);
        j->totals.tx_reference_bytes += by_reference && (call || channel) ? bytes : 0;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    payload_make_reply(&j->shard, &r->shard_reply, by_reference, &header, &payload);
    head_size = wire_pack_chunk(&header, head);
    if (!(channel && channel_send(channel, head, head_size)) && call) {
        if (payload.size > 0)
            atomic_fetch_add(&j->outstanding, 1);
        (void)rpc_call_send_prioritized(call, j->terms.in_order ? 0 : header.partition + 1, head,
                                        head_size, payload.size > 0 ? &payload : NULL);
    }
    channel_unref(channel);
    if (call)
        rpc_call_unref(call);
}

/* Send now, or when the replica has acknowledged the mutations that the reply contains. */
static void send_or_hold(struct service *s, struct job *j, const struct held_reply *r)
{
    if (!replication_hold(j, r))
        reply_send(s, j, r);
}

void reply_pull(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *reply)
{
    struct held_reply r = {
        .rank = rank,
        .is_pull = true,
        .header = {.kind = CHUNK_VALUES, .round = reply->round, .partition = partition},
        .shard_reply = *reply};

    send_or_hold(s, j, &r);
}

void reply_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *reply)
{
    struct held_reply r = {.rank = rank,
                           .header = {.kind = j->shard.config.update ? CHUNK_VALUES : CHUNK_MEAN,
                                      .round = reply->round,
                                      .partition = partition},
                           .shard_reply = *reply};

    send_or_hold(s, j, &r);
}

void reply_waiting(struct service *s, struct job *j, uint32_t partition)
{
    struct shard_reply reply;

    for (unsigned rank = 0; shard_next_reply(&j->shard, partition, &rank, &reply); rank++)
        reply_push(s, j, rank, partition, &reply);
}
