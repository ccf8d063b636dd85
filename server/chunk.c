/*
 * Chunks: every one is checked, counted, and its payload handed to the shard straight from the
 * received slices.
 *
 * Where ranks are not in lockstep the end of a rank in a partition (CHUNK_FINAL, or its leave) is
 * an event like a push: it may complete a round and free the answers of others.
 *
 * Locking: the service's lock for the book-keeping before and after, never during, the sum and the
 * sends.  A push is counted before it is summed and a completion before it is answered, so the
 * counters of a round are final before any rank can begin the next.
 */
#include "server/exchange.h"

#include "common/base/clock.h"
#include "server/payload.h"

#include <inttypes.h>

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
        shard_push(&j->shard, h->partition, st->rank, h->round, false, source, &answer, err);

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
    bool again;
    enum status status = shard_set(&j->shard, h->partition, source, false, &again, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&st->service->lock);
    if (j->state == JOB_RUNNING)
        job_count_initial(j, h->length);
    (void)pthread_mutex_unlock(&st->service->lock);
    while (shard_next_parked(&j->shard, h->partition, &rank, &answer))
        answer_pull(st->service, j, rank, h->partition, &answer);
    return STATUS_OK;
}

static enum status take_pull(struct stream *st, const struct chunk_header *h, struct error *err)
{
    struct job *j = st->job;
    struct shard_answer answer;
    enum status status = shard_pull(&j->shard, h->partition, st->rank, 0, false, &answer, err);

    if (status != STATUS_OK)
        return status;
    if (answer.complete) {
        answer_pull(st->service, j, st->rank, h->partition, &answer);
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
    status = shard_finish(&j->shard, partition, rank, wants_final, false, &answer, err);
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
    const uint32_t *held;
    size_t length = shard_map_held(c->map, c->index, &held);

    for (size_t i = 0; i < length; i++)
        (void)finish_partition(s, j, rank, held[i], false, NULL); /* or it has said so */
}

/* What the header says against the stream's rank and the shard. */
static enum status check_chunk(const struct stream *st, const struct chunk_header *h,
                               struct error *err)
{
    const struct shard_config *c = &st->job->shard.config;

    if (h->rank != st->rank)
        return error_set(err, STATUS_PROTOCOL, "the stream of rank %u carries a chunk of rank %u",
                         st->rank, h->rank);
    if (h->kind != CHUNK_PUSH && h->kind != CHUNK_INIT && h->kind != CHUNK_PULL &&
        h->kind != CHUNK_FINAL)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d, which only a server sends", st->rank,
                         (int)h->kind);
    if (shard_partition_count(&st->job->shard, h->partition) == 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk for partition %" PRIu32
                         ", which server %u of %u does not hold (the slab has %zu partitions)",
                         st->rank, h->partition, c->index, c->map->server_count, c->map->length);
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
    j->ranks[st->rank].by_reference = h->flags & CHUNK_BY_REFERENCE;
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

/* The memory that a chunk refers to; one reference, or NULL. */
static struct arena *arena_of(const struct stream *st, const struct chunk_header *h)
{
    const struct job_rank *r = &st->job->ranks[st->rank];
    struct arena *arena = NULL;

    if (!(h->flags & CHUNK_BY_REFERENCE))
        return NULL;
    (void)pthread_mutex_lock(&st->service->lock);
    if (r->arena && r->arena->session == r->session)
        arena = arena_ref(r->arena);
    (void)pthread_mutex_unlock(&st->service->lock);
    return arena;
}

static enum status take_admitted(struct stream *st, const struct chunk_header *h,
                                 const struct shard_source *source, struct error *err)
{
    enum status status;

    if (h->kind == CHUNK_PUSH)
        status = take_push(st, h, source, err);
    else if (h->kind == CHUNK_INIT)
        status = take_init(st, h, source, err);
    else if (h->kind == CHUNK_PULL)
        status = take_pull(st, h, err);
    else
        status = finish_partition(st->service, st->job, st->rank, h->partition, true, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "rank %u, partition %" PRIu32 ", round %" PRIu64 ": ", st->rank,
                           h->partition, h->round);
    return status;
}

enum status chunk_take(struct stream *st, const struct chunk_header *h, struct rpc_message *message,
                       struct error *err)
{
    struct payload payload = {.arena = arena_of(st, h)};
    struct shard_source source;
    enum status status = check_chunk(st, h, err);

    if (status == STATUS_OK)
        status = payload_open(&st->job->shard, h, message, &payload, &source, err);
    if (status == STATUS_OK)
        status = admit(st, h, err);
    if (status == STATUS_OK)
        status = take_admitted(st, h, &source, err);
    arena_unref(payload.arena);
    return status;
}
