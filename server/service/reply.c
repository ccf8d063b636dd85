/*
 * Answers: one partition to one rank, sent from the shard's own memory, which core holds until it
 * is done with it (job->outstanding).  An answer goes to the stream that the rank has by then; one
 * whose stream is gone is dropped.
 *
 * Locking: the service's lock to look up the stream and to count, never during the send.
 */
#include "server/service/exchange.h"

#include "server/service/payload.h"

static void release_payload(void *user)
{
    atomic_fetch_sub((atomic_size_t *)user, 1);
}

/* The stream that a partition travels on, both ways; NULL: it is gone.  Lock held. */
static struct rpc_call *lane_of(const struct job *j, unsigned rank, uint32_t partition)
{
    const struct rank_session *session = &j->ranks[rank].session;

    return session->streams[j->map.partitions[partition].local_index % session->lanes];
}

/* In lockstep answers to pushes are counted with the completion.  Lock held. */
static void count_answer(struct job *j, unsigned rank, bool is_pull, size_t bytes,
                         const struct shard_reply *answer)
{
    if (is_pull)
        j->totals.initial_tx_payload_bytes += bytes;
    else if (!job_is_lockstep(j))
        job_count_answer(j, rank, bytes, answer->is_final);
}

/* Queue one answer to one rank; nothing happens when its stream is gone. */
void reply_send(struct service *s, struct job *j, const struct held_reply *a)
{
    struct rpc_payload payload = {.release = release_payload, .user = &j->outstanding};
    size_t bytes = a->answer.bytes;
    struct chunk_header header = a->header;
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    struct rpc_call *call;
    bool by_reference;

    header.rank = a->rank;
    (void)pthread_mutex_lock(&s->table.lock);
    call = lane_of(j, a->rank, header.partition);
    if (call)
        rpc_call_ref(call);
    by_reference = j->ranks[a->rank].by_reference && !a->answer.coded &&
                   shard_reply_memory_has(&j->shard, a->answer.data);
    if (j->state == JOB_RUNNING && !a->answer.again) {
        count_answer(j, a->rank, a->is_pull, bytes, &a->answer);
        j->totals.tx_reference_bytes += by_reference && call ? bytes : 0;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    if (!call)
        return;
    payload_make(&j->shard, &a->answer, by_reference, &header, &payload);
    if (payload.size > 0)
        atomic_fetch_add(&j->outstanding, 1);
    (void)rpc_call_send_prioritized(call, j->terms.in_order ? 0 : header.partition + 1, head,
                                    wire_pack_chunk(&header, head),
                                    payload.size > 0 ? &payload : NULL);
    rpc_call_unref(call);
}

/* Now, or when the replica has what is in it. */
static void send_safe(struct service *s, struct job *j, const struct held_reply *a)
{
    if (!replication_hold(j, a))
        reply_send(s, j, a);
}

void reply_pull(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *answer)
{
    struct held_reply a = {
        .rank = rank,
        .is_pull = true,
        .header = {.kind = CHUNK_VALUES, .round = answer->round, .partition = partition},
        .answer = *answer};

    send_safe(s, j, &a);
}

void reply_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *answer)
{
    struct held_reply a = {.rank = rank,
                           .header = {.kind = j->shard.config.update ? CHUNK_VALUES : CHUNK_MEAN,
                                      .round = answer->round,
                                      .partition = partition},
                           .answer = *answer};

    send_safe(s, j, &a);
}

void reply_waiting(struct service *s, struct job *j, uint32_t partition)
{
    struct shard_reply answer;

    for (unsigned rank = 0; shard_next_reply(&j->shard, partition, &rank, &answer); rank++)
        reply_push(s, j, rank, partition, &answer);
}
