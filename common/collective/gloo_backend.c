/*
 * The gloo backend: the shim behind the backend table.  Gloo does not tell how much it sends, so
 * payload is counted by the formula of its ring (facebookincubator/gloo 5b14351, allreduce.cc) once
 * an operation has ended, and wire bytes are payload: its own messages are not visible.
 */
#include "common/collective/collective_ops.h"
#include "common/collective/gloo.h"
#include "common/collective/host_address.h"

#include <stdint.h>
#include <string.h>

#define SEGMENT_MAX_BYTES ((size_t)1 << 20) /* AllreduceOptions' default */

struct gloo_group {
    struct collective base;
    struct store *store;          /* borrowed */
    struct gloo_context *context; /* NULL in a world of one */
};

/* ---- what Gloo sends ---- */

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Bytes of chunk `index` (mod n): equal runs of segments, cut off where the buffer ends. */
static uint64_t chunk_bytes(unsigned n, size_t count, unsigned index)
{
    size_t total = count * sizeof(float);
    size_t segments = (total + SEGMENT_MAX_BYTES - 1) / SEGMENT_MAX_BYTES;
    size_t chunk;
    size_t start;

    if (segments < 2 * (size_t)n)
        segments = 2 * (size_t)n;
    segments = round_up(segments, n);
    chunk = segments / n * round_up((total + segments - 1) / segments, sizeof(float));
    start = index % n * chunk;
    if (start >= total)
        return 0;
    return total - start < chunk ? total - start : chunk;
}

/* Rank r sends to r - 1: all chunks but r to reduce, all but r - 1 to gather. */
static void all_reduce_bytes(const struct collective *group, size_t count, uint64_t *ret_tx,
                             uint64_t *ret_rx)
{
    unsigned n = group->world_size;
    unsigned r = group->rank;
    uint64_t both = 2 * (uint64_t)count * sizeof(float);

    *ret_tx = both - chunk_bytes(n, count, r) - chunk_bytes(n, count, r + n - 1);
    *ret_rx = both - chunk_bytes(n, count, r + 1) - chunk_bytes(n, count, r);
}

static void count_payload(struct collective *group, uint64_t tx, uint64_t rx)
{
    group->stats.operations++;
    group->stats.tx_payload_bytes += tx;
    group->stats.rx_payload_bytes += rx;
    group->stats.tx_wire_bytes += tx;
    group->stats.rx_wire_bytes += rx;
}

/* ---- operations ---- */

/* A failure notice names the rank, which Gloo's own text does not. */
static enum status explain(const struct gloo_group *g, enum status status, struct error *err)
{
    struct error notice;

    if (status == STATUS_OK || !err || !store_find_failure(g->store, 50, &notice))
        return status;
    return error_set(err, notice.status, "%s (%.1000s)", notice.text, err->text);
}

static void gloo_expected_bytes(const struct collective *group, const struct collective_args *a,
                                uint64_t *ret_tx, uint64_t *ret_rx)
{
    uint64_t bytes = (uint64_t)a->count * dtype_size(a->dtype);

    *ret_tx = *ret_rx = 0;
    if (a->call == COLLECTIVE_ALL_REDUCE)
        all_reduce_bytes(group, a->count, ret_tx, ret_rx);
    else if (a->call == COLLECTIVE_BROADCAST) /* a tree whose shape Gloo keeps to itself: counted is
                                                 what a rank must receive */
        *ret_rx = group->rank == a->root ? 0 : bytes;
    else if (a->call == COLLECTIVE_ALL_GATHER)
        *ret_tx = *ret_rx = (group->world_size - 1) * bytes;
}

static bool gloo_supports(const struct collective *group, const struct collective_args *a)
{
    (void)group;
    switch (a->call) {
    case COLLECTIVE_ALL_REDUCE:
        return a->dtype == DTYPE_FLOAT32 && a->op == REDUCE_SUM && a->order == REDUCE_FAST;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_BARRIER:
        return true;
    default:
        return false;
    }
}

static enum status run_call(struct gloo_group *g, const struct collective_args *a,
                            struct error *err)
{
    size_t bytes = a->count * dtype_size(a->dtype);

    if (a->call == COLLECTIVE_BARRIER)
        return gloo_barrier(g->context, err);
    if (bytes == 0)
        return STATUS_OK;
    if (a->call == COLLECTIVE_ALL_GATHER)
        return gloo_all_gather(g->context, a->input, bytes, a->output, err);
    if (a->output != a->input && collective_input_bytes(&g->base, a) > 0)
        memmove(a->output, a->input, bytes);
    if (a->call == COLLECTIVE_ALL_REDUCE)
        return gloo_all_reduce(g->context, a->output, a->count, err);
    return gloo_broadcast(g->context, a->output, bytes, a->root, err);
}

static enum run_outcome gloo_run(struct collective *group, struct collective_work *work,
                                 int64_t until_ns, struct error *err)
{
    struct gloo_group *g = (struct gloo_group *)group;
    enum status status = explain(g, run_call(g, &work->args, err), err);
    uint64_t tx;
    uint64_t rx;

    (void)until_ns;
    if (status != STATUS_OK)
        return RUN_FAILED;
    gloo_expected_bytes(group, &work->args, &tx, &rx);
    count_payload(group, tx, rx);
    return RUN_DONE;
}

/* ---- lifetime ---- */

static void gloo_group_close(struct collective *group)
{
    gloo_close(((struct gloo_group *)group)->context);
}

static enum status gloo_group_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    struct gloo_group *g = (struct gloo_group *)group;
    char host[HOST_ADDRESS_SIZE];
    struct gloo_config config;

    (void)deadline_ns;
    g->store = group->store;
    if (group->world_size == 1)
        return STATUS_OK;
    host_address_choose(group->interface_host, store_address(group->store), host);
    config = (struct gloo_config){.store = group->store,
                                  .name = group->name,
                                  .host = host,
                                  .rank = group->rank,
                                  .world_size = group->world_size,
                                  .timeout_ms = group->timeout_ms};
    return gloo_open(&config, &g->context, err);
}

const struct collective_ops collective_gloo_ops = {
    .name = "gloo",
    .size = sizeof(struct gloo_group),
    .blocking = true,
    .open = gloo_group_open,
    .supports = gloo_supports,
    .run = gloo_run,
    .expected_bytes = gloo_expected_bytes,
    .close = gloo_group_close,
};
