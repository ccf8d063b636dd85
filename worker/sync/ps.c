/*
 * sync ps: the parameter server's worker.  The slab is cut by the shard map; each partition goes to
 * its server as soon as backward has filled it, and comes back (mean gradient or parameters) as
 * soon as every rank's is there.  So push, sum and pull of different partitions overlap each other
 * and the rest of backward.  Nothing is copied on the way out: gRPC sends from the gradient slab.
 * On the way in one copy is made, from the received slices into the slab.
 *
 * As in DistributedDataParallel a gradient is divided by the world size first and summed then; by
 * the contributions that a round takes where there are backup workers, and not at all where each
 * push is a step of its own (common/consistency).
 *
 * Backup workers: a push that comes late is answered with the newest values.  A step then ends at
 * the oldest round among its partitions' answers, and the next one contributes to the round behind
 * it, the lowest that is incomplete somewhere.
 *
 * Memory.  A gradient partition may be overwritten by its own mean: the mean exists only after the
 * server has received the partition.  finish waits until core has let go of all of it, which by
 * then it has.
 *
 * Locking: `lock` guards the fields marked (L).  Chunks arrive on the I/O threads of the links, one
 * per server; the copies into the slabs are made without the lock, a range belongs to one link.
 */
#include "worker/sync/ps.h"
#include "common/base/clock.h"
#include "common/base/stop.h"
#include "common/base/strbuf.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEAVE_FAILED_MS  2000   /* for telling the servers that we go because of a failure */
#define RELEASE_MS       2000   /* for gRPC to let go of the slabs of calls that are over */
#define SERVER_MARGIN_MS 2000   /* at a time-out the server, which knows the ranks, speaks first */
#define STOP_LOOK_MS     200    /* between looks whether to stop, while others still train */
#define RELEASE_POLL_NS  100000 /* between looks at the outstanding sends */

/* ------------------------------------------------------------------ what comes down */

/* May an answer be of that round?  One that the servers are ahead by is where there are backup
 * workers; the final values are of whatever round was the last.  Lock held. */
static bool is_expected(const struct sync_ps *s, uint64_t round)
{
    return round == s->round || s->ending || (s->consistency.backup > 0 && round > s->round);
}

/* Is this the answer to something that was asked?  Lock held. */
static enum status check_answer(const struct sync_ps *s, const struct ps_link *link,
                                const struct chunk_header *h, size_t payload_bytes,
                                struct error *err)
{
    enum chunk_kind wanted = ps_answer_slab(s, s->round) == s->params ? CHUNK_VALUES : CHUNK_MEAN;

    if (h->partition >= s->map.length || &s->links[s->map.partitions[h->partition].server] != link)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent partition %" PRIu32 ", which is not its own", h->partition);
    if (h->kind != wanted || h->rank != s->rank)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent a chunk of kind %d and rank %" PRIu32 " (wanted: %d, %u)",
                         (int)h->kind, h->rank, (int)wanted, s->rank);
    if (!is_expected(s, h->round) || h->partition >= s->queued ||
        s->answered[h->partition] == s->round + 1)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent partition %" PRIu32 " of round %" PRIu64
                         " unasked (round %" PRIu64 " is under way)",
                         h->partition, h->round, s->round);
    return ps_payload_check(s, h, payload_bytes, err);
}

enum status ps_take_chunk(void *user, struct ps_link *link, const struct chunk_header *h,
                          struct rpc_message *message, struct error *err)
{
    struct sync_ps *s = user;
    size_t payload = rpc_message_payload_size(message), head;
    enum status status;

    (void)rpc_message_head(message, &head);
    (void)pthread_mutex_lock(&s->lock);
    status = check_answer(s, link, h, payload, err);
    if (status == STATUS_OK)
        s->answered[h->partition] = s->round + 1;
    (void)pthread_mutex_unlock(&s->lock);
    if (status != STATUS_OK)
        return status;
    status = ps_payload_take(s, h, message, err);
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->counters.rx_payload_bytes += payload;
    s->counters.rx_wire_bytes += ps_link_wire_bytes(head, payload);
    if (h->round < s->oldest)
        s->oldest = h->round;
    if (++s->received == s->map.length)
        (void)pthread_cond_signal(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

void ps_link_ended(void *user, struct ps_link *link, const struct error *err)
{
    struct sync_ps *s = user;

    (void)pthread_mutex_lock(&s->lock);
    link->over = true;
    s->ended++;
    if (!s->closing && !s->failed) {
        s->failed = true;
        s->failure = *err;
    }
    (void)pthread_cond_signal(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------ waiting */

static struct timespec to_timespec(int64_t deadline_ns)
{
    return (struct timespec){.tv_sec = (time_t)(deadline_ns / 1000000000),
                             .tv_nsec = (long)(deadline_ns % 1000000000)};
}

/* "2 of 8 partitions of round 7 did not come ... from A, B".  Lock held. */
static enum status describe_timeout(const struct sync_ps *s, struct error *err)
{
    struct strbuf names = STRBUF_INIT;

    for (unsigned k = 0; k < s->link_count; k++) {
        const uint32_t *held;
        size_t length = shard_map_held(&s->map, k, &held);
        bool missing = false;

        for (size_t i = 0; i < length && !missing; i++)
            missing = s->answered[held[i]] != s->round + 1;
        if (missing)
            strbuf_addf(&names, "%s%s", names.length ? ", " : "", s->links[k].name);
    }
    (void)error_set(err, STATUS_TIMEOUT,
                    "rank %u: %zu of %zu partitions of round %" PRIu64
                    " did not come within %" PRId64 " ms from %s",
                    s->rank, s->map.length - s->received, s->map.length, s->round, s->timeout_ms,
                    names.text);
    strbuf_release(&names);
    return STATUS_TIMEOUT;
}

/* Until every partition of the round is here. */
static enum status wait_for_round(struct sync_ps *s, struct error *err)
{
    int64_t margin_ms = s->timeout_ms < SERVER_MARGIN_MS ? s->timeout_ms : SERVER_MARGIN_MS;
    struct timespec deadline = to_timespec(clock_deadline_ns(s->timeout_ms + margin_ms));
    enum status status = STATUS_OK;
    int late = 0;

    (void)pthread_mutex_lock(&s->lock);
    while (s->received < s->map.length && !s->failed && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &deadline);
    if (s->received < s->map.length)
        status = s->failed ? error_set(err, s->failure.status, "%s", s->failure.text)
                           : describe_timeout(s, err);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

/* Until the final values are here: when the last rank has made its last step, which nobody can know
 * beforehand.  The servers watch over the ranks, and the connections' keepalives over the servers.
 */
static enum status wait_for_the_others(struct sync_ps *s, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    while (s->received < s->map.length && !s->failed && !stop_requested()) {
        struct timespec look = to_timespec(clock_deadline_ns(STOP_LOOK_MS));

        (void)pthread_cond_timedwait(&s->changed, &s->lock, &look);
    }
    if (s->received < s->map.length)
        status = s->failed ? error_set(err, s->failure.status, "%s", s->failure.text)
                           : error_set(err, STATUS_CANCELLED,
                                       "stopped by signal %d while other ranks still trained",
                                       stop_requested());
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

/* Until core has let go of the slabs; a moment, once the answers are here. */
static bool wait_for_release(struct sync_ps *s, int64_t deadline_ns)
{
    struct timespec pause = {.tv_nsec = RELEASE_POLL_NS};

    while (atomic_load(&s->outstanding) > 0) {
        if (clock_now_ns() > deadline_ns)
            return false;
        (void)nanosleep(&pause, NULL); /* release functions may only touch atomics: no wake-up */
    }
    return true;
}

/* ------------------------------------------------------------------ what goes up */

/* Queue one chunk from `slab`, or one without a payload.  A failure needs no care here: the link
 * has ended, and finish says why. */
static void send_chunk(struct sync_ps *s, enum chunk_kind kind, size_t partition, const float *slab)
{
    struct rpc_payload payload;
    struct chunk_header header = {
        .kind = kind, .rank = s->rank, .round = s->round, .partition = (uint32_t)partition};
    size_t wire_bytes;

    if (slab)
        ps_payload_make(s, slab, &header, &payload);
    if (ps_link_send(&s->links[s->map.partitions[partition].server], &header,
                     slab ? &payload : NULL, &wire_bytes) != STATUS_OK)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->counters.tx_payload_bytes += header.length;
    s->counters.tx_wire_bytes += wire_bytes;
    (void)pthread_mutex_unlock(&s->lock);
}

/* From now on the answer to the next partition is expected. */
static void expect_answer(struct sync_ps *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->queued++;
    (void)pthread_mutex_unlock(&s->lock);
}

/*
 * Elements whose gradients may leave now.  When parameters come back they land where the model
 * reads them, and backward still reads the weights of the layer that it has just marked (for the
 * gradient of its input): so with the optimizer on the server a layer leaves when the next one is
 * marked.
 */
static size_t may_leave(struct sync_ps *s, size_t ready_count)
{
    size_t before = s->marked;

    s->marked = ready_count;
    return s->base.yields == SYNC_YIELDS_PARAMETERS && ready_count < s->count ? before
                                                                              : ready_count;
}

static void ps_ready(struct sync *base, size_t ready_count)
{
    struct sync_ps *s = (struct sync_ps *)base;
    size_t leaving = may_leave(s, ready_count);

    while (s->queued < s->map.length) {
        size_t i = s->queued;
        const struct partition *p = &s->map.partitions[i];

        if (p->offset + p->count > leaving)
            return;
        if (s->scale != 1.0f)
            vector_scale(s->grads + p->offset, s->scale, p->count);
        expect_answer(s);
        send_chunk(s, CHUNK_PUSH, i, s->grads);
    }
}

static enum status begin_round(struct sync_ps *s, uint64_t round, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    if (s->failed)
        status = error_set(err, s->failure.status, "%s", s->failure.text);
    s->round = round;
    s->received = 0;
    s->oldest = UINT64_MAX;
    s->queued = 0;
    s->marked = 0;
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

static enum status end_round(struct sync_ps *s, struct error *err)
{
    enum status status = wait_for_round(s, err);

    if (status == STATUS_OK && !wait_for_release(s, clock_deadline_ns(s->timeout_ms)))
        return error_set(err, STATUS_INTERNAL,
                         "rank %u: gRPC still holds gradients of round %" PRIu64
                         " that the servers have answered",
                         s->rank, s->round);
    return status;
}

static enum status ps_start(struct sync *base, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    enum status status = begin_round(s, 0, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < s->map.length; i++) {
        if (s->rank == 0)
            send_chunk(s, CHUNK_INIT, i, s->params);
        expect_answer(s);
        send_chunk(s, CHUNK_PULL, i, NULL);
    }
    return end_round(s, err);
}

static enum status ps_begin(struct sync *base, uint64_t step, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;

    (void)step; /* rounds are counted from this job's start, also after a resume */
    return begin_round(s, s->round + 1, err);
}

static enum status ps_finish(struct sync *base, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    enum status status;

    assert(s->queued == s->map.length); /* ready was called with the whole slab */
    status = end_round(s, err);
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->skipped = s->oldest - s->round;
    s->round = s->oldest;
    (void)pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

static uint64_t ps_skipped(const struct sync *base)
{
    return ((const struct sync_ps *)base)->skipped;
}

static enum status ps_end(struct sync *base, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    enum status status;

    if (consistency_is_lockstep(&s->consistency))
        return STATUS_OK;
    status = begin_round(s, s->round + 1, err);
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->ending = true;
    (void)pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < s->map.length; i++) {
        expect_answer(s);
        send_chunk(s, CHUNK_FINAL, i, NULL);
    }
    return wait_for_the_others(s, err);
}

/* ------------------------------------------------------------------ figures */

static struct sync_counters ps_counters(const struct sync *base)
{
    /* The lock is the one field of a const sync that changes. */
    union {
        const struct sync *constant;
        struct sync_ps *plain;
    } s = {.constant = base};
    struct sync_counters counters;

    (void)pthread_mutex_lock(&s.plain->lock);
    counters = s.plain->counters;
    (void)pthread_mutex_unlock(&s.plain->lock);
    return counters;
}

/* Every byte of the slab goes up once and comes down once, whatever the number of servers. */
static void ps_expected_bytes(const struct sync *base, uint64_t *ret_tx, uint64_t *ret_rx)
{
    const struct sync_ps *s = (const struct sync_ps *)base;

    *ret_tx = s->count * sizeof(float);
    *ret_rx = s->count * sizeof(float);
}

/* ------------------------------------------------------------------ open and close */

/* Tell every server that still listens that this rank goes.  A server that does not hear it sees a
 * lost rank in its place. */
static void leave_all(struct sync_ps *s, const char *reason, int64_t deadline_ns)
{
    for (unsigned k = 0; k < s->link_count; k++) {
        bool over;

        (void)pthread_mutex_lock(&s->lock);
        over = s->links[k].over;
        (void)pthread_mutex_unlock(&s->lock);
        if (!over)
            ps_link_leave(&s->links[k], s->job, reason, deadline_ns);
    }
}

void ps_close(struct sync *base, const struct error *failure)
{
    struct sync_ps *s = (struct sync_ps *)base;
    /* After a good run the servers are as alive as in any round, and given as long. */
    int64_t deadline_ns = clock_deadline_ns(failure ? LEAVE_FAILED_MS : s->timeout_ms);
    struct timespec deadline = to_timespec(deadline_ns);
    unsigned streams = 0;
    int late = 0;

    for (unsigned k = 0; k < s->link_count; k++)
        streams += s->links[k].stream != NULL;
    (void)pthread_mutex_lock(&s->lock);
    s->closing = true;
    (void)pthread_mutex_unlock(&s->lock);
    leave_all(s, failure ? failure->text : "", deadline_ns);
    (void)pthread_mutex_lock(&s->lock);
    while (s->ended < streams && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &deadline);
    (void)pthread_mutex_unlock(&s->lock);
    for (unsigned k = 0; k < s->link_count; k++)
        ps_link_close(&s->links[k]);
    (void)wait_for_release(s,
                           clock_deadline_ns(RELEASE_MS)); /* the slabs are the caller's to free */
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    shard_map_release(&s->map);
    free(s->weights);
    free(s->answered);
    free(s->links);
    free(s);
}

static const char *ps_backend(const struct sync *base)
{
    (void)base;
    return "grpc";
}

const struct sync_ops sync_ps_ops = {
    .name = "ps",
    .open = ps_open,
    .start = ps_start,
    .begin = ps_begin,
    .ready = ps_ready,
    .finish = ps_finish,
    .skipped = ps_skipped,
    .end = ps_end,
    .counters = ps_counters,
    .expected_bytes = ps_expected_bytes,
    .backend = ps_backend,
    .close = ps_close,
};
