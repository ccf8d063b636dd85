/*
 * The gloo backend: the shim behind the backend table.  Gloo does not tell how much it sends, so
 * payload is counted by the formula of its ring (facebookincubator/gloo 5b14351, allreduce.cc) once
 * an operation has ended, and wire bytes are payload: its own messages are not visible.
 */
#include "common/base/memory.h"
#include "common/collective/collective_ops.h"
#include "common/collective/gloo.h"
#include "common/collective/host_address.h"

#include <stdint.h>
#include <stdlib.h>

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
static void gloo_all_reduce_bytes(const struct collective *group, size_t count,
                                  enum reduce_order order, uint64_t *ret_tx, uint64_t *ret_rx)
{
    unsigned n = group->world_size;
    unsigned r = group->rank;
    uint64_t both = 2 * (uint64_t)count * sizeof(float);

    (void)order;
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

static enum status gloo_group_all_reduce(struct collective *group, float *data, size_t count,
                                         enum reduce_order order, struct error *err)
{
    struct gloo_group *g = (struct gloo_group *)group;
    enum status status = STATUS_OK;
    uint64_t tx;
    uint64_t rx;

    if (order != REDUCE_FAST)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the gloo backend cannot sum in rank order; the ring can");
    if (g->context && count > 0)
        status = gloo_all_reduce(g->context, data, count, err);
    if (status != STATUS_OK)
        return explain(g, status, err);
    gloo_all_reduce_bytes(group, count, order, &tx, &rx);
    count_payload(group, g->context ? tx : 0, g->context ? rx : 0);
    return STATUS_OK;
}

/* A binomial tree whose shape Gloo keeps to itself: counted is what a rank must receive. */
static enum status gloo_group_broadcast(struct collective *group, void *data, size_t bytes,
                                        unsigned root, struct error *err)
{
    struct gloo_group *g = (struct gloo_group *)group;
    enum status status = STATUS_OK;

    if (g->context && bytes > 0)
        status = gloo_broadcast(g->context, data, bytes, root, err);
    if (status == STATUS_OK)
        count_payload(group, 0, group->rank == root ? 0 : bytes);
    return explain(g, status, err);
}

static enum status gloo_group_all_gather(struct collective *group, size_t bytes, void *all,
                                         struct error *err)
{
    struct gloo_group *g = (struct gloo_group *)group;
    uint64_t others = (uint64_t)(group->world_size - 1) * bytes;
    enum status status = STATUS_OK;

    if (g->context && bytes > 0)
        status = gloo_all_gather(g->context, (char *)all + group->rank * bytes, bytes, all, err);
    if (status == STATUS_OK)
        count_payload(group, others, others);
    return explain(g, status, err);
}

static enum status gloo_group_barrier(struct collective *group, struct error *err)
{
    struct gloo_group *g = (struct gloo_group *)group;
    enum status status = g->context ? gloo_barrier(g->context, err) : STATUS_OK;

    if (status == STATUS_OK)
        count_payload(group, 0, 0);
    return explain(g, status, err);
}

/* ---- lifetime ---- */

static void gloo_group_close(struct collective *group)
{
    struct gloo_group *g = (struct gloo_group *)group;

    gloo_close(g->context);
    free(g);
}

static enum status gloo_group_open(const struct collective_config *config,
                                   struct collective **ret_group, struct error *err)
{
    struct gloo_group *g;
    char host[HOST_ADDRESS_SIZE];
    enum status status = mem_calloc(1, sizeof(*g), "gloo group", &g, err);

    if (status != STATUS_OK)
        return status;
    g->base = (struct collective){
        .ops = &collective_gloo_ops, .rank = config->rank, .world_size = config->world_size};
    g->store = config->store;
    if (config->world_size > 1) {
        host_address_choose(config->interface_host, store_address(config->store), host);
        status = gloo_open(config, host, &g->context, err);
    }
    if (status != STATUS_OK) {
        gloo_group_close(&g->base);
        return status;
    }
    *ret_group = &g->base;
    return STATUS_OK;
}

const struct collective_ops collective_gloo_ops = {
    .name = "gloo",
    .open = gloo_group_open,
    .all_reduce = gloo_group_all_reduce,
    .broadcast = gloo_group_broadcast,
    .all_gather = gloo_group_all_gather,
    .barrier = gloo_group_barrier,
    .all_reduce_bytes = gloo_all_reduce_bytes,
    .close = gloo_group_close,
};
