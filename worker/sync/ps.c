/*
 * sync ps: the worker of a parameter server.  The shard map cuts the slab into partitions; each is
 * pushed as soon as backward has filled it, and its reply (mean gradient or parameters) comes when
 * every rank has pushed it.  So push, sum and pull of different partitions overlap each other and
 * the rest of backward.  Sending copies nothing: gRPC reads the gradient slab.  Receiving copies
 * once, from the received slices into the slab.
 *
 * As in DistributedDataParallel a gradient is divided before it is summed: by the world size, by
 * the contributions of a round if there are backup workers, or not at all if each push is a step of
 * its own (common/consistency).  The server divides while it reads the gradient, which is free
 * there and would be another pass over memory here; compressed gradients are divided here, before
 * encoding.
 *
 * Backup workers: the reply to a late push has the newest values.  A step then ends at the oldest
 * round among its replies, and the next step contributes to the round after it, the lowest that is
 * incomplete on some server.
 *
 * Losses: a lost connection only costs time (ps_monitor.c, ps_reconnect.c).  Gradients stay in
 * their slab until the reply, so requests without a reply are repeated.  A replacement process
 * joins the running job.  It reads the parameters from which the lost process made its unfinished
 * step (in lockstep exactly those, else the newest), repeats that step and continues; sync_skipped
 * reports the steps before it.
 *
 * Memory: a gradient partition may be overwritten by its own mean, which exists only after the
 * server has received the partition.  finish waits until gRPC has released all payloads.
 *
 * Locking: `lock` guards the fields marked (L) in ps.h.  Chunks arrive on the I/O threads of the
 * lanes, which copy into the slabs without the lock; each range belongs to one lane.
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

static void ps_ready(struct sync *base, size_t ready_count)
{
    struct sync_ps *s = (struct sync_ps *)base;

    while (s->queued < s->map.length) {
        size_t i = s->queued;
        const struct partition *p = &s->map.partitions[i];

        if (p->offset + p->count > ready_count)
            return;
        if (i == 0)
            ps_row_selection_commit(&s->selection);
        if (s->scale != 1.0f && !s->undivided)
            vector_scale(s->grads + p->offset, s->scale, p->count);
        ps_request_partition(s, i);
    }
}

static void ps_select_range(struct sync *base, size_t offset, size_t count)
{
    ps_row_selection_add(&((struct sync_ps *)base)->selection, offset, count);
}

static bool ps_selects_rows(const struct sync *base)
{
    return ((const struct sync_ps *)base)->selection.map;
}

static enum status begin_round(struct sync_ps *s, uint64_t round, struct error *err)
{
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    if (s->failed)
        status = error_set(err, s->failure.status, "%s", s->failure.text);
    s->round = round;
    s->received = 0;
    s->oldest_round = UINT64_MAX;
    s->queued = 0;
    s->notified_count = s->first_unnotified = 0;
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

static enum status end_round(struct sync_ps *s, struct error *err)
{
    enum status status = ps_wait(s, 0, s->map.length, ps_deadline(s), err);

    /* short: the replies have arrived */
    if (status == STATUS_OK &&
        !in_flight_wait(&s->unreleased_payloads, clock_deadline_ns(s->timeout_ms)))
        return error_set(err, STATUS_INTERNAL,
                         "rank %u: gRPC still holds gradients of round %" PRIu64
                         " that the servers have answered",
                         s->rank, s->round);
    return status;
}

/* In lockstep all parameters must be of one round.  Some servers may have completed the round in
 * which the process was lost, with its pushes; they also keep the values before it.  Request those.
 */
static enum status pull_oldest_round(struct sync_ps *s, struct error *err)
{
    uint64_t oldest_round;
    size_t missing = 0;

    (void)pthread_mutex_lock(&s->lock);
    oldest_round = s->oldest_round;
    s->requested_round = oldest_round + 1;
    for (size_t i = 0; i < s->map.length; i++) {
        if (s->partitions[i].values_round == oldest_round)
            continue;
        s->partitions[i].replied_mark = s->partitions[i].requested_mark = 0;
        missing++;
    }
    s->received -= missing;
    (void)pthread_mutex_unlock(&s->lock);
    /* A link that has reconnected since may have sent its requests already. */
    for (unsigned k = 0; k < s->link_count && missing > 0; k++)
        ps_repeat_requests(s, &s->links[k]);
    return missing > 0 ? end_round(s, err) : STATUS_OK;
}

/* The parameters of a running job have arrived: continue at their round. */
static enum status catch_up(struct sync_ps *s, struct error *err)
{
    enum status status =
        s->terms.on_loss == WORKER_LOSS_WAIT && consistency_is_lockstep(&s->consistency)
            ? pull_oldest_round(s, err)
            : STATUS_OK;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->catching_up = false;
    s->requested_round = 0;
    s->round = s->skipped = s->oldest_round;
    s->repeat_through_round =
        s->newest_round > s->oldest_round ? s->newest_round : s->oldest_round + 1;
    (void)pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

static bool ps_is_replacement(const struct sync *base)
{
    return ((const struct sync_ps *)base)->catching_up;
}

static enum status ps_start(struct sync *base, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    enum status status = begin_round(s, 0, err);

    for (size_t i = 0; status == STATUS_OK && i < s->map.length; i++)
        ps_request_partition(s, i);
    if (status == STATUS_OK)
        status = end_round(s, err);
    return status == STATUS_OK && s->catching_up ? catch_up(s, err) : status;
}

static enum status ps_begin(struct sync *base, uint64_t step, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;

    (void)step; /* rounds count from this job's start, also in a resumed run */
    s->begin_deferred = s->base.outstanding;
    return s->base.outstanding ? STATUS_OK : begin_round(s, s->round + 1, err);
}

/* Wait for the whole round, then set `round` and `skipped` from its replies. */
static enum status complete_round(struct sync_ps *s, struct error *err)
{
    enum status status = end_round(s, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->completed_round = s->round;
    s->skipped = s->oldest_round - s->round;
    s->round = s->oldest_round;
    (void)pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

/* With overlap the round number is known before the replies (lockstep, no repetition): return, and
 * let ps_await complete the round. */
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

/* The partitions [*ret_first, *ret_end) that contain elements [offset, offset + count). */
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
    if (!s->begin_deferred)
        return STATUS_OK;
    s->begin_deferred = false;
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
    s->is_final_round = true;
    (void)pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < s->map.length; i++)
        ps_request_partition(s, i);
    status = ps_wait_final(s, err);
    return status == STATUS_OK && s->arrived ? s->arrived(s->user, 0, s->count, err) : status;
}

/* ------------------------------------------------------------------ figures */

/* Locking is the only change to a const sync. */
static struct sync_ps *lock_const(const struct sync *base)
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
    const struct ps_counters *c = &((const struct sync_ps *)base)->counters;

    return (struct sync_counters){.tx_payload_bytes = c->tx_payload_bytes,
                                  .rx_payload_bytes = c->rx_payload_bytes,
                                  .tx_wire_bytes = c->tx_wire_bytes,
                                  .rx_wire_bytes = c->rx_wire_bytes,
                                  .tx_reference_bytes = c->tx_reference_bytes,
                                  .rx_reference_bytes = c->rx_reference_bytes,
                                  .takeovers = c->takeovers,
                                  .reconnects = c->reconnects,
                                  .away_ns = c->away_ns,
                                  .retries = c->retries};
}

/* Every partition is sent and received once, in its codec's size, for any number of servers; row
 * codecs have no size that is known beforehand. */
static void ps_expected_bytes(const struct sync *base, uint64_t *ret_tx, uint64_t *ret_rx)
{
    const struct sync_ps *s = (const struct sync_ps *)base;

    *ret_tx = s->codec.tx_bytes;
    *ret_rx = s->codec.rx_bytes;
}

/* A server cannot distinguish a dead rank from a disconnected one. */
static enum fault ps_fault(const struct sync *base, unsigned *ret_rank)
{
    struct sync_ps *s = lock_const(base);
    unsigned rank;
    bool is_lost = s->failed && wire_find_lost_rank(s->failure.text, &rank);

    (void)pthread_mutex_unlock(&s->lock);
    if (is_lost && ret_rank)
        *ret_rank = rank;
    return is_lost ? FAULT_NETWORK : FAULT_NONE;
}

static const char *ps_backend(const struct sync *base)
{
    struct sync_ps *s = lock_const(base);
    unsigned used = 0, shared = 0, with_channel = 0;

    for (unsigned k = 0; k < s->link_count; k++) {
        used += s->map.server_elements[k] > 0;
        shared += s->links[k].by_reference;
        with_channel += s->links[k].channel != NULL;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (shared == used && with_channel < used)
        return "shm, headers by grpc";
    return shared == 0 ? "grpc" : shared == used ? "shm" : "shm and grpc";
}

static const struct sync_server_ops server_ops = {
    .is_replacement = ps_is_replacement,
    .select_range = ps_select_range,
    .selects_rows = ps_selects_rows,
    .await = ps_await,
    .skipped = ps_skipped,
    .fetch_state = ps_fetch_state,
};

const struct sync_ops sync_ps_ops = {
    .name = "ps",
    .open = ps_open,
    .start = ps_start,
    .begin = ps_begin,
    .ready = ps_ready,
    .finish = ps_finish,
    .end = ps_end,
    .counters = ps_counters,
    .expected_bytes = ps_expected_bytes,
    .backend = ps_backend,
    .fault = ps_fault,
    .close = ps_close,
    .server = &server_ops,
};
