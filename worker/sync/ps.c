/*
 * sync ps: the parameter server's worker.  The slab is cut by the shard map; each partition goes to
 * its server as soon as backward has filled it, and comes back (mean gradient or parameters) as
 * soon as every rank's is there.  So push, sum and pull of different partitions overlap each other
 * and the rest of backward.  Nothing is copied on the way out: gRPC sends from the gradient slab.
 * On the way in one copy is made, from the received slices into the slab.
 *
 * As in DistributedDataParallel a gradient is divided by the world size first and summed then; by
 * the contributions that a round takes where there are backup workers, and not at all where each
 * push is a step of its own (common/consistency).  The server does it as it reads the gradient,
 * which costs it nothing and here would be one more pass over memory; what is compressed is divided
 * here, before that.
 *
 * Backup workers: a push that comes late is answered with the newest values.  A step then ends at
 * the oldest round among its partitions' answers, and the next one contributes to the round behind
 * it, the lowest that is incomplete somewhere.
 *
 * Losses.  A lost connection costs time and nothing else (ps_tend.c, ps_resume.c): the gradients of
 * a round stay in their slab until it is answered, so whatever has no answer goes up again.
 *
 * A process that takes the place of a lost one joins a job that runs.  It reads the parameters that
 * the lost one's unfinished step was made from (in lockstep exactly those, else the newest), makes
 * that step again, and goes on; the steps before it are left out (sync_skipped).
 *
 * Memory.  A gradient partition may be overwritten by its own mean: the mean exists only after the
 * server has received the partition.  finish waits until core has let go of all of it, which by
 * then it has.
 *
 * Locking: `lock` guards the fields marked (L).  Chunks arrive on the I/O threads of the lanes; the
 * copies into the slabs are made without the lock, a range belongs to one lane.
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

/* ------------------------------------------------------------------ rounds */

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
        if (i == 0)
            ps_names_settle(&s->names);
        if (s->scale != 1.0f && !s->undivided)
            vector_scale(s->grads + p->offset, s->scale, p->count);
        ps_ask(s, i);
    }
}

static void ps_want(struct sync *base, size_t offset, size_t count)
{
    ps_names_collect(&((struct sync_ps *)base)->names, offset, count);
}

static bool ps_names_rows(const struct sync *base)
{
    return ((const struct sync_ps *)base)->names.map;
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
    s->told = s->untold = 0;
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

static enum status end_round(struct sync_ps *s, struct error *err)
{
    enum status status = ps_wait(s, 0, s->map.length, ps_deadline(s), err);

    if (status == STATUS_OK && !ps_wait_release(s, clock_deadline_ns(s->timeout_ms)))
        return error_set(err, STATUS_INTERNAL,
                         "rank %u: gRPC still holds gradients of round %" PRIu64
                         " that the servers have answered",
                         s->rank, s->round);
    return status;
}

/* In lockstep all that this rank computes from has to be of one round.  Some servers may have
 * completed the one that the lost process was in, with what it had sent before: they keep the
 * values before it, too. */
static enum status fetch_older(struct sync_ps *s, struct error *err)
{
    uint64_t oldest;
    size_t missing = 0;

    (void)pthread_mutex_lock(&s->lock);
    oldest = s->oldest;
    s->wanted = oldest + 1;
    for (size_t i = 0; i < s->map.length; i++) {
        if (s->partitions[i].of == oldest)
            continue;
        s->partitions[i].answered = s->partitions[i].sent = 0;
        missing++;
    }
    s->received -= missing;
    (void)pthread_mutex_unlock(&s->lock);
    /* A link that has come back since may have asked already. */
    for (unsigned k = 0; k < s->link_count && missing > 0; k++)
        ps_ask_again(s, &s->links[k]);
    return missing > 0 ? end_round(s, err) : STATUS_OK;
}

/* The parameters of a job that runs already are here: go on where they are. */
static enum status catch_up(struct sync_ps *s, struct error *err)
{
    enum status status =
        s->terms.on_loss == WORKER_LOSS_WAIT && consistency_is_lockstep(&s->consistency)
            ? fetch_older(s, err)
            : STATUS_OK;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->catching_up = false;
    s->wanted = 0;
    s->round = s->skipped = s->oldest;
    s->again_through = s->newest > s->oldest ? s->newest : s->oldest + 1;
    (void)pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

static bool ps_replaces(const struct sync *base)
{
    return ((const struct sync_ps *)base)->catching_up;
}

static enum status ps_start(struct sync *base, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    enum status status = begin_round(s, 0, err);

    for (size_t i = 0; status == STATUS_OK && i < s->map.length; i++)
        ps_ask(s, i);
    if (status == STATUS_OK)
        status = end_round(s, err);
    return status == STATUS_OK && s->catching_up ? catch_up(s, err) : status;
}

static enum status ps_begin(struct sync *base, uint64_t step, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;

    (void)step; /* rounds are counted from this job's start, also after a resume */
    s->begin_waits = s->base.outstanding;
    return s->base.outstanding ? STATUS_OK : begin_round(s, s->round + 1, err);
}

/* All of the round is here. */
static enum status complete_round(struct sync_ps *s, struct error *err)
{
    enum status status = end_round(s, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->contributed = s->round;
    s->skipped = s->oldest - s->round;
    s->round = s->oldest;
    (void)pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

/* Where answers are of the round that was asked for, and nothing else can come of it, the step's
 * books are closed before its parameters are here. */
static enum status ps_finish(struct sync *base, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    bool repeats;

    assert(s->queued == s->map.length); /* ready was called with the whole slab */
    (void)pthread_mutex_lock(&s->lock);
    repeats = ps_may_repeat(s);
    (void)pthread_mutex_unlock(&s->lock);
    if (!s->overlaps || repeats)
        return complete_round(s, err);
    s->skipped = 0;
    s->deadline_ns = ps_deadline(s);
    s->base.outstanding = true;
    return STATUS_OK;
}

/* Partitions that elements [offset, offset + count) lie in: [*ret_first, *ret_end). */
static void find_partitions(const struct sync_ps *s, size_t offset, size_t count, size_t *ret_first,
                            size_t *ret_end)
{
    size_t first = 0, end;

    while (first < s->map.length &&
           s->map.partitions[first].offset + s->map.partitions[first].count <= offset)
        first++;
    for (end = first; end < s->map.length && s->map.partitions[end].offset < offset + count; end++)
        ;
    *ret_first = first;
    *ret_end = end;
}

static enum status ps_await(struct sync *base, size_t offset, size_t count, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    size_t first, end;
    enum status status;

    find_partitions(s, offset, count, &first, &end);
    status = ps_wait(s, first, end, s->deadline_ns, err);
    if (status != STATUS_OK || end - first < s->map.length)
        return status;
    status = complete_round(s, err);
    if (status != STATUS_OK)
        return status;
    s->base.outstanding = false;
    if (!s->begin_waits)
        return STATUS_OK;
    s->begin_waits = false;
    return begin_round(s, s->round + 1, err);
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
    for (size_t i = 0; i < s->map.length; i++)
        ps_ask(s, i);
    status = ps_wait_others(s, err);
    return status == STATUS_OK && s->arrived ? s->arrived(s->user, 0, s->count, err) : status;
}

/* ------------------------------------------------------------------ figures */

/* The lock is the one field of a const sync that changes. */
static struct sync_ps *lock_constant(const struct sync *base)
{
    union {
        const struct sync *constant;
        struct sync_ps *plain;
    } s = {.constant = base};

    (void)pthread_mutex_lock(&s.plain->lock);
    return s.plain;
}

static struct sync_counters ps_counters(const struct sync *base)
{
    struct sync_ps *s = lock_constant(base);
    struct sync_counters counters = s->counters;

    (void)pthread_mutex_unlock(&s->lock);
    return counters;
}

/* Every partition goes up once and comes down once, each as long as its codec makes it, whatever
 * the number of servers; with rows nobody can say beforehand. */
static void ps_expected_bytes(const struct sync *base, uint64_t *ret_tx, uint64_t *ret_rx)
{
    const struct sync_ps *s = (const struct sync_ps *)base;

    *ret_tx = s->codec.tx_bytes;
    *ret_rx = s->codec.rx_bytes;
}

/* A server cannot tell a dead rank from one that is cut off. */
static enum fault ps_fault(const struct sync *base, unsigned *ret_rank)
{
    struct sync_ps *s = lock_constant(base);
    unsigned rank;
    bool is_lost = s->failed && wire_find_lost_rank(s->failure.text, &rank);

    (void)pthread_mutex_unlock(&s->lock);
    if (is_lost && ret_rank)
        *ret_rank = rank;
    return is_lost ? FAULT_NETWORK : FAULT_NONE;
}

static const char *ps_backend(const struct sync *base)
{
    struct sync_ps *s = lock_constant(base);
    unsigned used = 0, shared = 0;

    for (unsigned k = 0; k < s->link_count; k++) {
        used += s->map.server_elements[k] > 0;
        shared += s->links[k].by_reference;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return shared == 0 ? "grpc" : shared == used ? "shm" : "shm and grpc";
}

const struct sync_ops sync_ps_ops = {
    .name = "ps",
    .open = ps_open,
    .replaces = ps_replaces,
    .start = ps_start,
    .begin = ps_begin,
    .ready = ps_ready,
    .want = ps_want,
    .names_rows = ps_names_rows,
    .finish = ps_finish,
    .await = ps_await,
    .skipped = ps_skipped,
    .end = ps_end,
    .fetch_state = ps_fetch_state,
    .counters = ps_counters,
    .expected_bytes = ps_expected_bytes,
    .backend = ps_backend,
    .fault = ps_fault,
    .close = ps_close,
};
