/*
 * The Exchange stream: checks every chunk, hands its payload to the shard straight from the
 * received slices, and answers all ranks from one buffer.  One chunk is asked for at a time; while
 * it is summed the next ones wait in the transport, which is the back-pressure.
 *
 * A stream belongs to a rank from its first chunk on.  Until then a bad chunk ends that stream
 * only; after it, a bad chunk or the loss of the stream ends the job, because a round without this
 * rank cannot be completed.
 *
 * Where ranks are not in lockstep the end of a rank in a partition (CHUNK_FINAL, or its leave) is
 * an event like a push: it may complete a round and free the answers of others.
 *
 * Locking: the service's lock for the book-keeping before and after, never during, the sum and the
 * sends.  A push is counted before it is summed and a completion before it is answered, so the
 * counters of a round are final before any rank can begin the next.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "server/service_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

struct stream {
    struct service *service;
    struct job *job; /* NULL until its first chunk */
    unsigned rank;
};

/* ------------------------------------------------------------------ answers */

static void release_payload(void *user)
{
    atomic_fetch_sub((atomic_size_t *)user, 1);
}

/* Queue one answer to one rank; nothing happens when its stream is gone. */
static void send_answer(struct service *s, struct job *j, unsigned rank, struct chunk_header header,
                        const struct shard_answer *answer)
{
    struct rpc_payload payload = {
        .data = answer->data, .release = release_payload, .user = &j->outstanding};
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    struct rpc_call *call;

    header.rank = rank;
    payload.size = header.length = answer->count * sizeof(float);
    (void)pthread_mutex_lock(&s->lock);
    call = j->ranks[rank].stream;
    if (call)
        rpc_call_ref(call);
    if (header.round > 0 && j->state == JOB_RUNNING && !job_is_lockstep(j))
        job_count_answer(j, rank, payload.size, answer->is_final);
    else if (header.round == 0 && j->state == JOB_RUNNING)
        j->totals.initial_tx_payload_bytes += payload.size;
    (void)pthread_mutex_unlock(&s->lock);
    if (!call)
        return;
    atomic_fetch_add(&j->outstanding, 1);
    (void)rpc_call_send(call, head, wire_pack_chunk(&header, head), &payload);
    rpc_call_unref(call);
}

/* Initial values to a rank that asked for them. */
static void answer_pull(struct stream *st, unsigned rank, uint32_t partition,
                        const struct shard_answer *answer)
{
    struct chunk_header header = {.kind = CHUNK_VALUES, .partition = partition};

    send_answer(st->service, st->job, rank, header, answer);
}

/* The answer to a push or to a wish for the final values. */
static void answer_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                        const struct shard_answer *answer)
{
    struct chunk_header header = {.kind = j->shard.config.update ? CHUNK_VALUES : CHUNK_MEAN,
                                  .round = answer->round,
                                  .partition = partition};

    send_answer(s, j, rank, header, answer);
}

/* Whoever may read the partition now. */
static void answer_waiting(struct service *s, struct job *j, uint32_t partition)
{
    struct shard_answer answer;

    for (unsigned rank = 0; shard_next_answer(&j->shard, partition, &rank, &answer); rank++)
        answer_push(s, j, rank, partition, &answer);
}

/* ------------------------------------------------------------------ chunks */

static enum status source_copy(void *user, float *dst, size_t count, struct error *err)
{
    return rpc_message_copy(user, dst, count * sizeof(float), err);
}

static void source_drop(void *user)
{
    rpc_message_drop(user);
}

static enum status source_keep(void *user, struct shard_source *ret, struct error *err)
{
    struct rpc_message *kept = NULL;
    enum status status = rpc_message_keep(user, &kept, err);

    if (status == STATUS_OK)
        *ret = (struct shard_source){.copy = source_copy, .drop = source_drop, .user = kept};
    return status;
}

static enum status source_add(void *user, float *dst, size_t count, struct error *err)
{
    return rpc_message_add_f32(user, dst, count, err);
}

/* Is there anything that the job's counters must know?  In lockstep only whole sums. */
static void count_push(struct service *s, struct job *j, unsigned rank,
                       const struct shard_answer *answer)
{
    if (answer->held || (job_is_lockstep(j) && !answer->complete))
        return;
    (void)pthread_mutex_lock(&s->lock);
    if (j->state == JOB_RUNNING && job_is_lockstep(j))
        job_count_complete(j, answer, clock_now_ns());
    else if (j->state == JOB_RUNNING)
        job_count_outcome(j, rank, answer, clock_now_ns());
    (void)pthread_mutex_unlock(&s->lock);
}

/* Contributions that were held for their turn, then whoever may read: an answer may give the next
 * one its turn. */
static enum status go_on(struct service *s, struct job *j, uint32_t partition, struct error *err)
{
    bool found = true;

    while (found) {
        struct shard_answer answer;
        unsigned rank;
        enum status status = shard_next_apply(&j->shard, partition, &found, &rank, &answer, err);

        if (status != STATUS_OK)
            return status;
        if (found)
            count_push(s, j, rank, &answer);
        answer_waiting(s, j, partition);
    }
    return STATUS_OK;
}

static enum status take_push(struct stream *st, const struct chunk_header *h,
                             const struct shard_source *source, struct error *err)
{
    struct service *s = st->service;
    struct job *j = st->job;
    struct shard_answer answer;
    enum status status =
        shard_push(&j->shard, h->partition, st->rank, h->round, source, &answer, err);

    if (status != STATUS_OK)
        return status;
    count_push(s, j, st->rank, &answer);
    if (answer.late)
        answer_push(s, j, st->rank, h->partition, &answer);
    else if (answer.complete || answer.held)
        return go_on(s, j, h->partition, err);
    return STATUS_OK;
}

static enum status take_init(struct stream *st, const struct chunk_header *h,
                             const struct shard_source *source, struct error *err)
{
    struct job *j = st->job;
    struct shard_answer answer;
    unsigned rank;
    enum status status = shard_set(&j->shard, h->partition, source, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&st->service->lock);
    if (j->state == JOB_RUNNING)
        job_count_initial(j, h->length);
    (void)pthread_mutex_unlock(&st->service->lock);
    while (shard_next_parked(&j->shard, h->partition, &rank, &answer))
        answer_pull(st, rank, h->partition, &answer);
    return STATUS_OK;
}

static enum status take_pull(struct stream *st, const struct chunk_header *h, struct error *err)
{
    struct job *j = st->job;
    struct shard_answer answer;
    enum status status = shard_pull(&j->shard, h->partition, st->rank, &answer, err);

    if (status != STATUS_OK)
        return status;
    if (answer.complete) {
        answer_pull(st, st->rank, h->partition, &answer);
        return STATUS_OK;
    }
    (void)pthread_mutex_lock(&st->service->lock);
    if (j->parked_since_ns == 0 && j->values_set < j->shard.length)
        j->parked_since_ns = clock_now_ns();
    (void)pthread_mutex_unlock(&st->service->lock);
    return STATUS_OK;
}

/* The rank pushes no more to the partition.  It is counted as waiting first: another rank's end may
 * answer it. */
static enum status finish_partition(struct service *s, struct job *j, unsigned rank,
                                    uint32_t partition, bool wants_final, struct error *err)
{
    struct shard_answer answer = {0};
    int64_t now_ns = clock_now_ns();
    enum status status;

    (void)pthread_mutex_lock(&s->lock);
    if (j->state == JOB_RUNNING && !job_is_lockstep(j))
        job_count_finish(j, rank, wants_final, now_ns);
    (void)pthread_mutex_unlock(&s->lock);
    status = shard_finish(&j->shard, partition, rank, wants_final, &answer, err);
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    if (j->state == JOB_RUNNING && answer.complete)
        job_count_whole(j, &answer, now_ns);
    (void)pthread_mutex_unlock(&s->lock);
    return go_on(s, j, partition, err);
}

void exchange_finish_rank(struct service *s, struct job *j, unsigned rank)
{
    const struct shard_config *c = &j->shard.config;

    for (size_t i = c->index; i < c->map->length; i += c->map->server_count)
        (void)finish_partition(s, j, rank, (uint32_t)i, false, NULL); /* or it has said so */
}

/* What the header says against the stream's rank, the shard and the payload. */
static enum status check_chunk(const struct stream *st, const struct chunk_header *h,
                               size_t payload_bytes, struct error *err)
{
    const struct shard_config *c = &st->job->shard.config;
    size_t bytes = shard_partition_count(&st->job->shard, h->partition) * sizeof(float);

    if (h->rank != st->rank)
        return error_set(err, STATUS_PROTOCOL, "the stream of rank %u carries a chunk of rank %u",
                         st->rank, h->rank);
    if (h->kind != CHUNK_PUSH && h->kind != CHUNK_INIT && h->kind != CHUNK_PULL &&
        h->kind != CHUNK_FINAL)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d, which only a server sends", st->rank,
                         (int)h->kind);
    if (bytes == 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk for partition %" PRIu32
                         ", which server %u of %u does not hold (the slab has %zu partitions)",
                         st->rank, h->partition, c->index, c->map->server_count, c->map->length);
    if (h->dtype != 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent partition %" PRIu32 " with dtype %" PRIu32
                         " (only 0, float32, is known)",
                         st->rank, h->partition, h->dtype);
    if (h->kind == CHUNK_PULL || h->kind == CHUNK_FINAL)
        bytes = 0;
    if (payload_bytes != bytes || h->length != bytes)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent %zu bytes for partition %" PRIu32 " of %zu (its header says "
                         "%" PRIu64 ")",
                         st->rank, payload_bytes, h->partition, bytes, h->length);
    if (h->kind == CHUNK_INIT && st->rank != 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent an initial value, which only rank 0 does", st->rank);
    if ((h->kind == CHUNK_PUSH || h->kind == CHUNK_FINAL) != (h->round > 0))
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d in round %" PRIu64
                         " (round 0 is for initial values)",
                         st->rank, (int)h->kind, h->round);
    return STATUS_OK;
}

/* Note that the rank is alive, and count its push.  STATUS_CANCELLED: the job is over. */
static enum status admit(struct stream *st, const struct chunk_header *h, struct error *err)
{
    struct job *j = st->job;
    int64_t now_ns = clock_now_ns();
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&st->service->lock);
    j->ranks[st->rank].heard_ns = now_ns;
    if (j->state != JOB_RUNNING)
        status = STATUS_CANCELLED;
    else if (j->members.left > 0 && job_is_lockstep(j))
        status = error_set(err, STATUS_PEER_LOST,
                           "round %" PRIu64 " cannot be completed: %u of %u ranks have left",
                           h->round, j->members.left, j->members.world_size);
    else if (h->kind == CHUNK_PUSH && job_is_lockstep(j) && h->round != job_round(j))
        status = error_set(err, STATUS_PROTOCOL,
                           "rank %u pushed partition %" PRIu32 " of round %" PRIu64
                           " while round %" PRIu64 " is under way",
                           st->rank, h->partition, h->round, job_round(j));
    else if (h->kind == CHUNK_PUSH)
        job_count_push(j, st->rank, h->round, h->length, now_ns);
    (void)pthread_mutex_unlock(&st->service->lock);
    return status;
}

static enum status take_chunk(struct stream *st, const struct chunk_header *h,
                              struct rpc_message *message, struct error *err)
{
    struct shard_source source = {
        .copy = source_copy, .add = source_add, .keep = source_keep, .user = message};
    enum status status = check_chunk(st, h, rpc_message_payload_size(message), err);

    if (status == STATUS_OK)
        status = admit(st, h, err);
    if (status != STATUS_OK)
        return status;
    if (h->kind == CHUNK_PUSH)
        status = take_push(st, h, &source, err);
    else if (h->kind == CHUNK_INIT)
        status = take_init(st, h, &source, err);
    else if (h->kind == CHUNK_PULL)
        status = take_pull(st, h, err);
    else
        status = finish_partition(st->service, st->job, st->rank, h->partition, true, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "rank %u, partition %" PRIu32 ", round %" PRIu64 ": ", st->rank,
                           h->partition, h->round);
    return status;
}

/* ------------------------------------------------------------------ the stream */

/* May a stream of this rank begin now?  Lock held. */
static enum status check_bind(const struct job *j, unsigned rank, struct error *err)
{
    if (!j || j->state != JOB_RUNNING)
        return error_set(err, STATUS_PROTOCOL, "rank %u sent a chunk, but no job runs here", rank);
    if (rank >= j->members.world_size || j->members.members[rank].state != MEMBER_JOINED)
        return error_set(err, STATUS_PROTOCOL, "rank %u sent a chunk, but is not in job '%s'", rank,
                         j->members.job);
    if (j->ranks[rank].stream)
        return error_set(err, STATUS_EXISTS, "rank %u has an open stream already (%s)", rank,
                         rpc_call_peer(j->ranks[rank].stream));
    return STATUS_OK;
}

/* The first chunk says whose stream this is. */
static enum status bind_stream(struct stream *st, struct rpc_call *call, unsigned rank,
                               struct error *err)
{
    struct job *j;
    enum status status = service_check_rank(st->service, call, rank, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&st->service->lock);
    j = st->service->current;
    status = check_bind(j, rank, err);
    if (status == STATUS_OK) {
        assert(j); /* check_bind refuses none */
        st->job = j;
        st->rank = rank;
        j->users++;
        j->ranks[rank].stream = call;
        j->ranks[rank].has_streamed = true;
        rpc_call_ref(call);
    }
    (void)pthread_mutex_unlock(&st->service->lock);
    return status;
}

/* The job cannot go on without this stream: say so to all, if the rank is still expected. */
static void lose_rank(struct stream *st, const char *how)
{
    struct job *j = st->job;
    struct error err = {0};
    bool lost;

    (void)pthread_mutex_lock(&st->service->lock);
    lost = j->state == JOB_RUNNING && j->members.members[st->rank].state != MEMBER_LEFT;
    if (lost)
        (void)error_set(&err, STATUS_PEER_LOST, "rank %u was lost (%s in round %" PRIu64 ")",
                        st->rank, how, job_round(j));
    (void)pthread_mutex_unlock(&st->service->lock);
    if (lost)
        service_end_job(st->service, j, &err);
}

static void exchange_start(struct rpc_call *call, void *user)
{
    struct stream *st = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*st), "stream", &st, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        st->service = user;
    rpc_call_set_user(call, st);
    if (st)
        rpc_call_receive(call);
}

static void exchange_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct stream *st = user;
    struct chunk_header header;
    struct error err = {0};
    size_t size;
    const uint8_t *head;
    enum status status;

    if (!message) {
        if (st->job)
            lose_rank(st, "it closed its stream without leaving");
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &header, &err);
    if (status == STATUS_OK && !st->job)
        status = bind_stream(st, call, header.rank, &err);
    if (status == STATUS_OK)
        status = take_chunk(st, &header, message, &err);
    if (status == STATUS_OK) {
        rpc_call_receive(call);
        return;
    }
    if (status == STATUS_CANCELLED)
        return; /* the job is over, and this stream's end is on its way */
    if (st->job)
        service_end_job(st->service, st->job, &err);
    rpc_call_finish(call, status, err.text);
}

static void exchange_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct stream *st = user;

    (void)result;
    if (st && st->job) {
        struct service *s = st->service;

        lose_rank(st, "its connection closed");
        (void)pthread_mutex_lock(&s->lock);
        st->job->ranks[st->rank].stream = NULL;
        (void)pthread_mutex_unlock(&s->lock);
        service_drop_job(s, st->job);
        rpc_call_unref(call);
    }
    free(st);
}

const struct rpc_handler exchange_handler = {
    .start = exchange_start, .message = exchange_message, .closed = exchange_closed};
