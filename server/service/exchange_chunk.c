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
#include "server/service/exchange.h"

#include "common/base/clock.h"
#include "server/service/payload.h"
#include "server/service/payload_codec.h"

#include <inttypes.h>

/* A worker asks again once for what a connection has cost it: a push or an end, and the values; a
 * new one for a few rounds, where ranks are not in step. */
#define RETRIES_PER_PARTITION 64

/* Initial values, or the newest, for those whose pull waits. */
static void answer_pulls(struct service *s, struct job *j, uint32_t partition)
{
    struct shard_reply answer;
    unsigned rank;

    while (shard_next_parked(&j->shard, partition, &rank, &answer))
        reply_pull(s, j, rank, partition, &answer);
}

/* The counters know of a whole round: from now on others may be told, by any thread.  No lock. */
static void release_round(struct service *s, struct job *j, uint32_t partition)
{
    if (!j->shard.config.defer_replies)
        return;
    shard_release_replies(&j->shard, partition);
    answer_pulls(s, j, partition);
}

/* Is there anything that the job's counters must know?  In lockstep only whole sums. */
static void count_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                       const struct shard_reply *answer)
{
    if (answer->held || (job_is_lockstep(j) && !answer->complete))
        return;
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state == JOB_RUNNING && job_is_lockstep(j))
        job_count_complete(j, answer, clock_now_ns());
    else if (j->state == JOB_RUNNING)
        job_count_outcome(j, rank, answer, clock_now_ns());
    (void)pthread_mutex_unlock(&s->table.lock);
    if (answer->complete)
        release_round(s, j, partition);
}

/* Contributions that were held for their turn, then whoever may read: an answer may give the next
 * one its turn. */
static enum status go_on(struct service *s, struct job *j, uint32_t partition, struct error *err)
{
    bool found = true;

    while (found) {
        struct shard_reply answer;
        unsigned rank;
        enum status status = shard_next_apply(&j->shard, partition, &found, &rank, &answer, err);

        if (status != STATUS_OK)
            return error_prefix(err, "held contribution of rank %u: ", rank);
        if (found)
            count_push(s, j, rank, partition, &answer);
        reply_waiting(s, j, partition);
    }
    return STATUS_OK;
}

/* Something that had been taken before.  No lock. */
static enum status count_retry(const struct call_binding *t, bool is_push, struct error *err)
{
    struct job *j = t->job;
    size_t retries, most = RETRIES_PER_PARTITION * j->shard.length;

    (void)pthread_mutex_lock(&t->service->table.lock);
    job_count_retry(j, t->rank, is_push, clock_now_ns());
    retries = j->ranks[t->rank].session.retries;
    (void)pthread_mutex_unlock(&t->service->table.lock);
    if (retries <= most)
        return STATUS_OK;
    return error_set(err, STATUS_PROTOCOL,
                     "it asked again for more than %zu answers over one connection", most);
}

/* A push that was taken before waits again, or does not.  It is counted first: any thread may
 * answer it.  No lock. */
static void count_again(const struct call_binding *t, bool waits)
{
    (void)pthread_mutex_lock(&t->service->table.lock);
    if (t->job->state == JOB_RUNNING && !job_is_lockstep(t->job) && waits)
        job_count_park(t->job, t->rank, clock_now_ns());
    else if (t->job->state == JOB_RUNNING && !job_is_lockstep(t->job))
        job_count_unpark(t->job, t->rank);
    (void)pthread_mutex_unlock(&t->service->table.lock);
}

static enum status take_push(const struct call_binding *t, const struct chunk_header *h, bool again,
                             const struct shard_source *source, struct error *err)
{
    struct service *s = t->service;
    struct job *j = t->job;
    struct shard_reply answer;
    enum status status;

    if (again)
        count_again(t, true);
    status = shard_push(&j->shard, h->partition, t->rank, h->round, again, source, &answer, err);
    if (status == STATUS_OK && again && answer.again && answer.data)
        count_again(t, false); /* answered here, which is not counted */
    if (status == STATUS_OK && again)
        status = count_retry(t, true, err);
    if (status != STATUS_OK)
        return status;
    if (!again || answer.complete)
        count_push(s, j, t->rank, h->partition, &answer);
    if (answer.data) /* late, or only its answer was lost */
        reply_push(s, j, t->rank, h->partition, &answer);
    else if (answer.complete || answer.held)
        return go_on(s, j, h->partition, err);
    return STATUS_OK;
}

static enum status take_init(const struct call_binding *t, const struct chunk_header *h,
                             const struct shard_source *source, struct error *err)
{
    struct job *j = t->job;
    bool again = h->flags & CHUNK_AGAIN;
    enum status status = shard_set(&j->shard, h->partition, source, again, &again, err);

    if (status != STATUS_OK)
        return status;
    if (again)
        return count_retry(t, false, err);
    (void)pthread_mutex_lock(&t->service->table.lock);
    if (j->state == JOB_RUNNING) {
        job_count_initial(j, h->length);
        j->totals.rx_reference_bytes += h->flags & CHUNK_BY_REFERENCE ? h->length : 0;
    }
    (void)pthread_mutex_unlock(&t->service->table.lock);
    answer_pulls(t->service, j, h->partition);
    return STATUS_OK;
}

/* Initial state of the optimizer, which is no payload: what counts as that are parameters and
 * gradients. */
static enum status take_state(const struct call_binding *t, const struct chunk_header *h,
                              const struct shard_source *source, struct error *err)
{
    return shard_set_state(&t->job->shard, h->partition, h->lane - 1, source,
                           h->flags & CHUNK_AGAIN, err);
}

static enum status take_pull(const struct call_binding *t, const struct chunk_header *h,
                             struct error *err)
{
    struct job *j = t->job;
    struct shard_reply answer;
    bool again = h->flags & CHUNK_AGAIN;
    enum status status =
        shard_pull(&j->shard, h->partition, t->rank, h->round, again, &answer, err);

    if (status == STATUS_OK && answer.again)
        status = count_retry(t, false, err);
    if (status != STATUS_OK)
        return status;
    if (answer.data) {
        reply_pull(t->service, j, t->rank, h->partition, &answer);
        return STATUS_OK;
    }
    (void)pthread_mutex_lock(&t->service->table.lock);
    if (j->parked_since_ns == 0 && j->values_set < j->shard.length)
        j->parked_since_ns = clock_now_ns();
    (void)pthread_mutex_unlock(&t->service->table.lock);
    return STATUS_OK;
}

/* The rows that the next answer is to hold. */
static enum status take_names(const struct call_binding *t, const struct chunk_header *h,
                              struct rpc_message *message, struct error *err)
{
    const struct row_reader namer = {.read = payload_read_names, .user = message};

    return shard_select_rows(&t->job->shard, h->partition, t->rank, h->flags & CHUNK_AGAIN, &namer,
                             err);
}

/* A round may have become whole because a rank is waited for no more.  No lock. */
static enum status count_whole(struct service *s, struct job *j, uint32_t partition,
                               const struct shard_reply *answer, struct error *err)
{
    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state == JOB_RUNNING && answer->complete && job_is_lockstep(j))
        job_count_complete(j, answer, clock_now_ns());
    else if (j->state == JOB_RUNNING && answer->complete)
        job_count_whole(j, answer, clock_now_ns());
    (void)pthread_mutex_unlock(&s->table.lock);
    if (answer->complete)
        release_round(s, j, partition);
    return go_on(s, j, partition, err);
}

/* The rank pushes no more to the partition.  It is counted as waiting first: another rank's end may
 * answer it. */
static enum status finish_partition(struct service *s, struct job *j, unsigned rank,
                                    uint32_t partition, bool wants_final, bool again,
                                    bool *ret_again, struct error *err)
{
    struct shard_reply answer = {0};
    enum status status;

    (void)pthread_mutex_lock(&s->table.lock);
    if (j->state == JOB_RUNNING && !job_is_lockstep(j))
        job_count_finish(j, rank, wants_final, clock_now_ns());
    (void)pthread_mutex_unlock(&s->table.lock);
    status = shard_finish(&j->shard, partition, rank, wants_final, again, &answer, err);
    if (status != STATUS_OK)
        return status;
    *ret_again = answer.again;
    return count_whole(s, j, partition, &answer, err);
}

static enum status take_final(const struct call_binding *t, const struct chunk_header *h,
                              struct error *err)
{
    bool again = h->flags & CHUNK_AGAIN;
    enum status status =
        finish_partition(t->service, t->job, t->rank, h->partition, true, again, &again, err);

    return status == STATUS_OK && again ? count_retry(t, false, err) : status;
}

void exchange_finish_rank(struct service *s, struct job *j, unsigned rank)
{
    const struct shard_config *c = &j->shard.config;
    const uint32_t *held;
    size_t length = shard_map_held(c->map, c->index, &held);
    bool again;

    for (size_t i = 0; i < length; i++) /* or it has said so */
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
        struct shard_reply answer;

        status = shard_vacate(&j->shard, held[i], rank, &answer, &err);
        if (status == STATUS_OK)
            status = count_whole(s, j, held[i], &answer, &err);
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

/* What the header says against the stream's rank and the shard. */
static enum status check_chunk(const struct stream *st, const struct chunk_header *h,
                               struct error *err)
{
    const struct call_binding *t = &st->binding;
    const struct shard_config *c = &t->job->shard.config;
    unsigned lanes = st->lanes;

    if (h->rank != t->rank)
        return error_set(err, STATUS_PROTOCOL, "the stream of rank %u carries a chunk of rank %u",
                         t->rank, h->rank);
    if (h->kind == CHUNK_VALUES || h->kind == CHUNK_MEAN || h->kind == CHUNK_HELLO)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d, which only a server sends", t->rank,
                         (int)h->kind);
    if (h->flags & ~CHUNK_FLAGS) /* of a later version: it would be taken for something else */
        return error_set(err, STATUS_PROTOCOL, "rank %u sent a chunk with unknown flags %#" PRIx32,
                         t->rank, h->flags);
    if (shard_partition_count(&t->job->shard, h->partition) == 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk for partition %" PRIu32
                         ", which server %u of %u does not hold (the slab has %zu partitions)",
                         t->rank, h->partition, c->index, c->map->server_count, c->map->length);
    if ((h->kind == CHUNK_INIT || h->kind == CHUNK_STATE) && t->rank != 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent an initial value, which only rank 0 does", t->rank);
    if (h->kind == CHUNK_STATE && h->lane == 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent state 0 of the optimizer, they count "
                         "from 1",
                         t->rank);
    if (c->map->partitions[h->partition].local_index % lanes != st->lane)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent partition %" PRIu32
                         " on lane %u of %u, which is not its own",
                         t->rank, h->partition, st->lane, lanes);
    if ((h->kind == CHUNK_PUSH || h->kind == CHUNK_FINAL) != (h->round > 0) &&
        h->kind != CHUNK_ROW_SELECTION && !(h->kind == CHUNK_PULL && h->flags & CHUNK_AGAIN))
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d in round %" PRIu64
                         " (round 0 is for initial values)",
                         t->rank, (int)h->kind, h->round);
    return STATUS_OK;
}

/* Note that the rank is alive, and count its push if it is a new one.  STATUS_CANCELLED: the job is
 * over, or the rank cut off. */
static enum status admit(const struct stream *st, const struct chunk_header *h, bool is_new,
                         struct error *err)
{
    const struct call_binding *t = &st->binding;
    struct job *j = t->job;
    struct job_rank *r = &j->ranks[t->rank];
    int64_t now_ns = clock_now_ns();
    bool lockstep = job_is_lockstep(j);
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&t->service->table.lock);
    if (j->state != JOB_RUNNING || !call_binding_holds(t)) {
        (void)pthread_mutex_unlock(&t->service->table.lock);
        return STATUS_CANCELLED;
    }
    r->heard_ns = r->session.alive_ns[st->lane] = now_ns;
    r->session.has_chunks = true;
    r->by_reference = h->flags & CHUNK_BY_REFERENCE;
    if (h->kind == CHUNK_PUSH && !(h->flags & CHUNK_AGAIN))
        r->fresh = false;
    if (j->members.left > 0 && lockstep && j->terms.on_loss != WORKER_LOSS_SHRINK &&
        h->kind != CHUNK_ROW_SELECTION && (h->kind != CHUNK_PUSH || is_new))
        /* what was taken before is only to be answered; of names the question will tell */
        status = error_set(err, STATUS_PEER_LOST,
                           "round %" PRIu64 " cannot be completed: %u of %u ranks have left",
                           h->round, j->members.left, j->members.world_size);
    else if (h->kind == CHUNK_PUSH && is_new && lockstep && h->round != job_round(j))
        status = error_set(err, STATUS_PROTOCOL,
                           "rank %u pushed partition %" PRIu32 " of round %" PRIu64
                           " while round %" PRIu64 " is under way",
                           t->rank, h->partition, h->round, job_round(j));
    else if (h->kind == CHUNK_PUSH && is_new)
        job_count_push(j, t->rank, h->round, h->length, now_ns);
    if (status == STATUS_OK && r->by_reference && h->kind == CHUNK_PUSH && is_new)
        j->totals.rx_reference_bytes += h->length;
    (void)pthread_mutex_unlock(&t->service->table.lock);
    return status;
}

/* The memory that a chunk refers to; one reference, or NULL. */
static struct worker_memory *memory_of(const struct call_binding *t, const struct chunk_header *h)
{
    const struct job_rank *r = &t->job->ranks[t->rank];
    struct worker_memory *memory = NULL;

    if (!(h->flags & CHUNK_BY_REFERENCE))
        return NULL;
    (void)pthread_mutex_lock(&t->service->table.lock);
    if (r->memory && r->memory->session == r->session.id)
        memory = worker_memory_ref(r->memory);
    (void)pthread_mutex_unlock(&t->service->table.lock);
    return memory;
}

/* again: a push that has been taken before. */
static enum status take_admitted(const struct call_binding *t, const struct chunk_header *h,
                                 bool again, struct rpc_message *message,
                                 const struct shard_source *source, struct error *err)
{
    enum status status;

    if (h->kind == CHUNK_PUSH)
        status = take_push(t, h, again, source, err);
    else if (h->kind == CHUNK_INIT)
        status = take_init(t, h, source, err);
    else if (h->kind == CHUNK_STATE)
        status = take_state(t, h, source, err);
    else if (h->kind == CHUNK_PULL)
        status = take_pull(t, h, err);
    else if (h->kind == CHUNK_ROW_SELECTION)
        status = take_names(t, h, message, err);
    else
        status = take_final(t, h, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "rank %u, partition %" PRIu32 ", round %" PRIu64 ": ", t->rank,
                           h->partition, h->round);
    return status;
}

enum status exchange_take_chunk(struct stream *st, const struct chunk_header *h,
                                struct rpc_message *message, struct error *err)
{
    const struct call_binding *t = &st->binding;
    struct payload payload = {.memory = memory_of(t, h)};
    struct shard_source source = {0};
    enum status status = check_chunk(st, h, err);
    bool again = status == STATUS_OK && h->kind == CHUNK_PUSH && h->flags & CHUNK_AGAIN &&
                 shard_is_in(&t->job->shard, h->partition, t->rank, h->round);

    if (status == STATUS_OK && h->kind == CHUNK_ROW_SELECTION)
        status = payload_check_names(h, message,
                                     shard_partition_count(&t->job->shard, h->partition), err);
    else if (status == STATUS_OK)
        status = payload_open(&t->job->shard, h, message, &payload, &source, err);
    if (status == STATUS_OK)
        status = admit(st, h, !again, err);
    if (status == STATUS_OK)
        status = take_admitted(t, h, again, message, &source, err);
    worker_memory_unref(payload.memory);
    return status;
}
