/*
 * Chunks of an Exchange stream: each one is checked, counted, and its payload passed to the shard
 * straight from the received slices.
 *
 * Not in lockstep, the end of a rank in a partition (CHUNK_FINAL, or the rank's leave) is an event
 * like a push: it may complete a round and so release the replies of other ranks.
 *
 * Locking: the table's lock for book-keeping before and after the sum and the sends, never during
 * them.  A push is counted before it is summed and a completion before its replies are sent, so the
 * counters of a round are final before any rank can begin the next round.
 */
#include "server/service/exchange.h"

#include "common/base/clock.h"
#include "server/service/payload.h"
#include "server/service/payload_codec.h"

#include <inttypes.h>

/* Limit of repeated chunks per connection and partition.  After a reconnect a worker repeats a push
 * or a FINAL, and a pull, once each; a replacement repeats a few rounds where ranks are not in
 * lockstep. */
#define RETRIES_PER_PARTITION 64

/* Send the initial values, or the newest, to the ranks whose pull is parked. */
static void reply_to_parked_pulls(struct service *s, struct job *j, uint32_t partition)
{
    struct shard_reply reply;
    unsigned rank;

    while (shard_next_parked(&j->shard, partition, &rank, &reply))
        reply_pull(s, j, rank, partition, &reply);
}

/* The counters contain the complete round: allow replies for it, by any thread.  No lock. */
static void release_round(struct service *s, struct job *j, uint32_t partition)
{
    if (!j->shard.config.defer_replies)
        return;
    shard_release_replies(&j->shard, partition);
    reply_to_parked_pulls(s, j, partition);
}

/* Count the outcome of a push.  In lockstep only a complete sum is counted here. */
static void count_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                       const struct shard_reply *reply)
{
    if (reply->held || (job_is_lockstep(j) && !reply->complete))
        return;
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state == JOB_RUNNING && job_is_lockstep(j))
        job_count_complete(j, reply, clock_now_ns());
    else if (j->state == JOB_RUNNING)
        job_count_outcome(j, rank, reply, clock_now_ns());
    (void)pthread_mutex_unlock(&s->table.lock);
    if (reply->complete)
        release_round(s, j, partition);
}

/* Apply contributions that were held for their turn, then send all replies that are ready: a reply
 * may allow the next held contribution. */
static enum status apply_held_pushes(struct service *s, struct job *j, uint32_t partition,
                                     struct error *err)
{
    bool found = true;

    while (found) {
        struct shard_reply reply;
        unsigned rank;
        enum status status = shard_next_apply(&j->shard, partition, &found, &rank, &reply, err);

        if (status != STATUS_OK)
            return error_prefix(err, "held contribution of rank %u: ", rank);
        if (found)
            count_push(s, j, rank, partition, &reply);
        reply_waiting(s, j, partition);
    }
    return STATUS_OK;
}

/* Count a repeated chunk.  STATUS_PROTOCOL above the limit.  No lock. */
static enum status count_retry(const struct call_binding *b, bool is_push, struct error *err)
{
    struct job *j = b->job;
    size_t retries, limit = RETRIES_PER_PARTITION * j->shard.length;

    (void)pthread_mutex_lock(&b->service->table.lock);
    job_count_retry(j, b->rank, is_push, clock_now_ns());
    retries = j->ranks[b->rank].session.retries;
    (void)pthread_mutex_unlock(&b->service->table.lock);
    if (retries <= limit)
        return STATUS_OK;
    return error_set(err, STATUS_PROTOCOL,
                     "it asked again for more than %zu answers over one connection", limit);
}

/* A repeated push waits for its reply again, or no longer.  It is counted before the shard sees it,
 * because any thread may send the reply.  No lock. */
static void count_repeated_wait(const struct call_binding *b, bool waits)
{
    (void)pthread_mutex_lock(&b->service->table.lock);
    if (b->job->state == JOB_RUNNING && !job_is_lockstep(b->job) && waits)
        job_count_park(b->job, b->rank, clock_now_ns());
    else if (b->job->state == JOB_RUNNING && !job_is_lockstep(b->job))
        job_count_unpark(b->job, b->rank);
    (void)pthread_mutex_unlock(&b->service->table.lock);
}

static enum status take_push(const struct call_binding *b, const struct chunk_header *h, bool again,
                             const struct shard_source *source, struct error *err)
{
    struct service *s = b->service;
    struct job *j = b->job;
    struct shard_reply reply;
    enum status status;

    if (again)
        count_repeated_wait(b, true);
    status = shard_push(&j->shard, h->partition, b->rank, h->round, again, source, &reply, err);
    if (status == STATUS_OK && again && reply.again && reply.data)
        count_repeated_wait(b, false); /* the reply is sent here and not counted */
    if (status == STATUS_OK && again)
        status = count_retry(b, true, err);
    if (status != STATUS_OK)
        return status;
    if (!again || reply.complete)
        count_push(s, j, b->rank, h->partition, &reply);
    if (reply.data) /* late, or only its reply was lost */
        reply_push(s, j, b->rank, h->partition, &reply);
    else if (reply.complete || reply.held)
        return apply_held_pushes(s, j, h->partition, err);
    return STATUS_OK;
}

static enum status take_init(const struct call_binding *b, const struct chunk_header *h,
                             const struct shard_source *source, struct error *err)
{
    struct job *j = b->job;
    bool again = h->flags & CHUNK_AGAIN;
    enum status status = shard_set(&j->shard, h->partition, source, again, &again, err);

    if (status != STATUS_OK)
        return status;
    if (again)
        return count_retry(b, false, err);
    (void)pthread_mutex_lock(&b->service->table.lock);
    if (j->state == JOB_RUNNING) {
        job_count_initial(j, h->length);
        j->totals.rx_reference_bytes += h->flags & CHUNK_BY_REFERENCE ? h->length : 0;
    }
    (void)pthread_mutex_unlock(&b->service->table.lock);
    reply_to_parked_pulls(b->service, j, h->partition);
    return STATUS_OK;
}

/* Initial state of the optimizer.  Not counted as payload: only parameters and gradients are. */
static enum status take_state(const struct call_binding *b, const struct chunk_header *h,
                              const struct shard_source *source, struct error *err)
{
    return shard_set_state(&b->job->shard, h->partition, h->lane - 1, source,
                           h->flags & CHUNK_AGAIN, err);
}

static enum status take_pull(const struct call_binding *b, const struct chunk_header *h,
                             struct error *err)
{
    struct job *j = b->job;
    struct shard_reply reply;
    bool again = h->flags & CHUNK_AGAIN;
    enum status status = shard_pull(&j->shard, h->partition, b->rank, h->round, again, &reply, err);

    if (status == STATUS_OK && reply.again)
        status = count_retry(b, false, err);
    if (status != STATUS_OK)
        return status;
    if (reply.data) {
        reply_pull(b->service, j, b->rank, h->partition, &reply);
        return STATUS_OK;
    }
    (void)pthread_mutex_lock(&b->service->table.lock);
    if (j->parked_since_ns == 0 && j->values_set < j->shard.length)
        j->parked_since_ns = clock_now_ns();
    (void)pthread_mutex_unlock(&b->service->table.lock);
    return STATUS_OK;
}

/* The row selection of the next reply. */
static enum status take_row_selection(const struct call_binding *b, const struct chunk_header *h,
                                      struct rpc_message *message, struct error *err)
{
    const struct row_reader reader = {.read = payload_read_row_selection, .user = message};

    return shard_select_rows(&b->job->shard, h->partition, b->rank, h->flags & CHUNK_AGAIN, &reader,
                             err);
}

/* A round may be complete because the job no longer waits for a rank.  No lock. */
static enum status count_completion(struct service *s, struct job *j, uint32_t partition,
                                    const struct shard_reply *reply, struct error *err)
{
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state == JOB_RUNNING && reply->complete && job_is_lockstep(j))
        job_count_complete(j, reply, clock_now_ns());
    else if (j->state == JOB_RUNNING && reply->complete)
        job_count_complete_sum(j, reply, clock_now_ns());
    (void)pthread_mutex_unlock(&s->table.lock);
    if (reply->complete)
        release_round(s, j, partition);
    return apply_held_pushes(s, j, partition, err);
}

/* The rank pushes no more to the partition.  It is counted as waiting first, because the end of
 * another rank may trigger its reply. */
static enum status finish_partition(struct service *s, struct job *j, unsigned rank,
                                    uint32_t partition, bool wants_final, bool again,
                                    bool *ret_again, struct error *err)
{
    struct shard_reply reply = {0};
    enum status status;

    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state == JOB_RUNNING && !job_is_lockstep(j))
        job_count_finish(j, rank, wants_final, clock_now_ns());
    (void)pthread_mutex_unlock(&s->table.lock);
    status = shard_finish(&j->shard, partition, rank, wants_final, again, &reply, err);
    if (status != STATUS_OK)
        return status;
    *ret_again = reply.again;
    return count_completion(s, j, partition, &reply, err);
}

static enum status take_final(const struct call_binding *b, const struct chunk_header *h,
                              struct error *err)
{
    bool again = h->flags & CHUNK_AGAIN;
    enum status status =
        finish_partition(b->service, b->job, b->rank, h->partition, true, again, &again, err);

    return status == STATUS_OK && again ? count_retry(b, false, err) : status;
}

void exchange_finish_rank(struct service *s, struct job *j, unsigned rank)
{
    const struct shard_config *c = &j->shard.config;
    const uint32_t *held;
    size_t length = shard_map_held(c->map, c->index, &held);
    bool again;

    for (size_t i = 0; i < length; i++) /* STATUS_PROTOCOL: it has sent FINAL already */
        (void)finish_partition(s, j, rank, held[i], false, false, &again, NULL);
}

void exchange_vacate_rank(struct service *s, struct job *j, unsigned rank)
{
    const struct shard_config *c = &j->shard.config;
    const uint32_t *held;
    size_t length = shard_map_held(c->map, c->index, &held);
    struct error err = {0};
    enum status status = STATUS_OK;

    for (size_t i = 0; status == STATUS_OK && i < length; i++) {
        struct shard_reply reply;

        status = shard_vacate(&j->shard, held[i], rank, &reply, &err);
        if (status == STATUS_OK)
            status = count_completion(s, j, held[i], &reply, &err);
    }
    if (status != STATUS_OK)
        job_table_end(&s->table, j, &err);
}

enum status exchange_occupy_rank(struct job *j, unsigned rank, bool replaces, struct error *err)
{
    const struct shard_config *c = &j->shard.config;
    const uint32_t *held;
    size_t length = shard_map_held(c->map, c->index, &held);
    enum status status = STATUS_OK;

    for (size_t i = 0; status == STATUS_OK && i < length; i++)
        status = replaces ? shard_replace(&j->shard, held[i], rank, err)
                          : shard_occupy(&j->shard, held[i], rank, err);
    return status;
}

/* Check the header against the stream's rank and lane and against the shard. */
static enum status check_chunk(const struct exchange_stream *st, const struct chunk_header *h,
                               struct error *err)
{
    const struct call_binding *b = &st->binding;
    const struct shard_config *c = &b->job->shard.config;
    unsigned lanes = st->lanes;

    if (h->rank != b->rank)
        return error_set(err, STATUS_PROTOCOL, "the stream of rank %u carries a chunk of rank %u",
                         b->rank, h->rank);
    if (h->kind == CHUNK_HELLO)
        return error_set(err, STATUS_PROTOCOL, "rank %u said hello twice on one stream", b->rank);
    if (h->kind == CHUNK_VALUES || h->kind == CHUNK_MEAN)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d, which only a server sends", b->rank,
                         (int)h->kind);
    if (h->flags & ~CHUNK_FLAGS) /* of a later version: ignoring them would misread the chunk */
        return error_set(err, STATUS_PROTOCOL, "rank %u sent a chunk with unknown flags %#" PRIx32,
                         b->rank, h->flags);
    if (shard_partition_count(&b->job->shard, h->partition) == 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk for partition %" PRIu32
                         ", which server %u of %u does not hold (the slab has %zu partitions)",
                         b->rank, h->partition, c->index, c->map->server_count, c->map->length);
    if ((h->kind == CHUNK_INIT || h->kind == CHUNK_STATE) && b->rank != 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent an initial value, which only rank 0 does", b->rank);
    if (h->kind == CHUNK_STATE && h->lane == 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent state 0 of the optimizer, they count "
                         "from 1",
                         b->rank);
    if (c->map->partitions[h->partition].local_index % lanes != st->lane)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent partition %" PRIu32
                         " on lane %u of %u, which is not its own",
                         b->rank, h->partition, st->lane, lanes);
    if ((h->kind == CHUNK_PUSH || h->kind == CHUNK_FINAL) != (h->round > 0) &&
        h->kind != CHUNK_ROW_SELECTION && !(h->kind == CHUNK_PULL && h->flags & CHUNK_AGAIN))
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d in round %" PRIu64
                         " (round 0 is for initial values)",
                         b->rank, (int)h->kind, h->round);
    return STATUS_OK;
}

/* Note a sign of life of the rank, and count its push if it is new.  STATUS_CANCELLED: the job is
 * over, or the rank was cut off. */
static enum status admit_chunk(const struct exchange_stream *st, const struct chunk_header *h,
                               bool is_new, struct error *err)
{
    const struct call_binding *b = &st->binding;
    struct job *j = b->job;
    struct job_rank *r = &j->ranks[b->rank];
    int64_t now_ns = clock_now_ns();
    bool lockstep = job_is_lockstep(j);
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&b->service->table.lock);
    if (j->state != JOB_RUNNING || !call_binding_is_current(b)) {
        (void)pthread_mutex_unlock(&b->service->table.lock);
        return STATUS_CANCELLED;
    }
    r->heard_ns = r->session.alive_ns[st->lane] = now_ns;
    r->session.has_chunks = true;
    r->by_reference = h->flags & CHUNK_BY_REFERENCE;
    r->by_channel = st->by_channel;
    if (h->kind == CHUNK_PUSH && !(h->flags & CHUNK_AGAIN))
        r->took_vacant_rank = false;
    if (j->members.left > 0 && lockstep && j->terms.on_loss != WORKER_LOSS_SHRINK &&
        h->kind != CHUNK_ROW_SELECTION && (h->kind != CHUNK_PUSH || is_new))
        /* a repeated push only needs its reply; a row selection is checked with the chunk that
         * follows it */
        status = error_set(err, STATUS_PEER_LOST,
                           "round %" PRIu64 " cannot be completed: %u of %u ranks have left",
                           h->round, j->members.left, j->members.world_size);
    else if (h->kind == CHUNK_PUSH && is_new && lockstep && h->round != job_round(j))
        status = error_set(err, STATUS_PROTOCOL,
                           "rank %u pushed partition %" PRIu32 " of round %" PRIu64
                           " while round %" PRIu64 " is under way",
                           b->rank, h->partition, h->round, job_round(j));
    else if (h->kind == CHUNK_PUSH && is_new)
        job_count_push(j, b->rank, h->round, h->length, now_ns);
    if (status == STATUS_OK && r->by_reference && h->kind == CHUNK_PUSH && is_new)
        j->totals.rx_reference_bytes += h->length;
    (void)pthread_mutex_unlock(&b->service->table.lock);
    return status;
}

/* The memory that a chunk refers to: one reference, or NULL. */
static struct worker_memory *ref_worker_memory(const struct call_binding *b,
                                               const struct chunk_header *h)
{
    const struct job_rank *r = &b->job->ranks[b->rank];
    struct worker_memory *memory = NULL;

    if (!(h->flags & CHUNK_BY_REFERENCE))
        return NULL;
    (void)pthread_mutex_lock(&b->service->table.lock);
    if (r->memory && r->memory->session == r->session.id)
        memory = worker_memory_ref(r->memory);
    (void)pthread_mutex_unlock(&b->service->table.lock);
    return memory;
}

/* again: a push that was accepted before. */
static enum status dispatch_chunk(const struct call_binding *b, const struct chunk_header *h,
                                  bool again, struct rpc_message *message,
                                  const struct shard_source *source, struct error *err)
{
    enum status status;

    if (h->kind == CHUNK_PUSH)
        status = take_push(b, h, again, source, err);
    else if (h->kind == CHUNK_INIT)
        status = take_init(b, h, source, err);
    else if (h->kind == CHUNK_STATE)
        status = take_state(b, h, source, err);
    else if (h->kind == CHUNK_PULL)
        status = take_pull(b, h, err);
    else if (h->kind == CHUNK_ROW_SELECTION)
        status = take_row_selection(b, h, message, err);
    else
        status = take_final(b, h, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "rank %u, partition %" PRIu32 ", round %" PRIu64 ": ", b->rank,
                           h->partition, h->round);
    return status;
}

enum status exchange_take_chunk(struct exchange_stream *st, const struct chunk_header *h,
                                struct rpc_message *message, struct error *err)
{
    const struct call_binding *b = &st->binding;
    struct payload payload = {.memory = ref_worker_memory(b, h)};
    struct shard_source source = {0};
    enum status status = check_chunk(st, h, err);
    bool again = status == STATUS_OK && h->kind == CHUNK_PUSH && h->flags & CHUNK_AGAIN &&
                 shard_has_contributed(&b->job->shard, h->partition, b->rank, h->round);

    if (status == STATUS_OK && h->kind == CHUNK_ROW_SELECTION)
        status = payload_check_row_selection(
            h, message, shard_partition_count(&b->job->shard, h->partition), err);
    else if (status == STATUS_OK)
        status = payload_open(&b->job->shard, h, message, &payload, &source, err);
    if (status == STATUS_OK)
        status = admit_chunk(st, h, !again, err);
    if (status == STATUS_OK)
        status = dispatch_chunk(b, h, again, message, &source, err);
    worker_memory_unref(payload.memory);
    return status;
}
