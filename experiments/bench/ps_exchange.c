/*
 * ps_exchange: the worker of the kinds exchange, replica and state: the training worker's own
 * synchronisation against real servers, without computation.
 */
#include "common/base/memory.h"
#include "experiments/bench/bench_ps.h"
#include "worker/sync/sync.h"

#include <stdlib.h>
#include <string.h>

#define TOP_K_PPM 10000 /* of topk: one in a hundred, as the worker's --top-k */

struct exchange {
    struct tensor_table table;
    float *params; /* owned, unless they are in the worker's shared memory */
    struct sync *sync;
    uint64_t step;
    uint64_t taken; /* payload bytes received before the current iteration */
};

/* The second half of the addresses are replicas. */
static enum status split_replicas(const struct ps_worker *w, char **ret_servers,
                                  struct sync_config *config, struct error *err)
{
    enum status status = mem_strdup(w->words.address, ret_servers, err);
    char *middle = *ret_servers;

    if (status != STATUS_OK)
        return status;
    for (uint64_t k = 0; k < w->words.servers; k++)
        middle += strcspn(middle, ",") + (k + 1 < w->words.servers);
    *middle = '\0';
    config->servers = *ret_servers;
    config->replicas = middle + 1;
    config->reconnect_ms = config->timeout_ms;
    config->heartbeat_timeout_ms = config->timeout_ms;
    return STATUS_OK;
}

static enum status exchange_open(struct ps_worker *w, struct error *err)
{
    struct exchange *x;
    uint32_t codec = (uint32_t)w->words.codec;
    struct sync_config config = {
        .kind = "ps",
        .grads = w->values,
        .rank = (unsigned)w->words.rank,
        .world_size = (unsigned)w->words.workers,
        .timeout_ms = (int64_t)w->words.timeout_ms,
        .order = REDUCE_FAST,
        .job = "bench",
        .servers = w->words.address,
        .servers_origin = "bench ps",
        .partition_bytes = w->words.partition_bytes,
        .connections = (unsigned)w->words.connections,
        .priority = true,
        .ps_transport = SYNC_TRANSPORT_GRPC,
        .optimizer = optimizer_defaults(OPTIMIZER_SGD),
        .compression = compression_make(codec, codec, codec == CODEC_TOP_K ? TOP_K_PPM : 0),
        .security = w->words.security};
    char *servers = NULL;
    enum status status = mem_calloc(1, sizeof(*x), "a worker", &x, err);

    if (status != STATUS_OK)
        return status;
    w->impl = x;
    status = tensor_table_add(&x->table, "slab", 1, &w->count, err);
    if (status != STATUS_OK)
        return status;
    tensor_table_layout(&x->table);
    if (w->memory.base) {
        x->params = w->values + w->count;
        config.memory = &w->memory;
        config.ps_transport = SYNC_TRANSPORT_SHM;
    } else {
        status = mem_calloc_aligned(w->count, sizeof(float), "parameters", &x->params, err);
    }
    config.table = &x->table;
    config.params = x->params;
    if (status == STATUS_OK && w->words.kind == PS_REPLICA)
        status = split_replicas(w, &servers, &config, err);
    if (status == STATUS_OK)
        status = sync_open(&config, &x->sync, err);
    free(servers);
    if (status == STATUS_OK)
        status = sync_start(x->sync, err);
    if (status == STATUS_OK)
        x->taken = sync_counters(x->sync).rx_payload_bytes;
    return status;
}

/* Compressed or not: the bytes of the formula count as the whole result. */
static void count_received(struct ps_worker *w)
{
    struct exchange *x = w->impl;
    uint64_t now = sync_counters(x->sync).rx_payload_bytes, tx, rx;

    sync_expected_bytes(x->sync, &tx, &rx);
    w->received = now - x->taken < rx ? now - x->taken : w->words.bytes;
    x->taken = now;
}

static enum status exchange_iterate(struct ps_worker *w, struct error *err)
{
    struct exchange *x = w->impl;
    enum status status = sync_begin(x->sync, x->step++, err);

    if (status != STATUS_OK)
        return status;
    sync_ready(x->sync, w->count);
    status = sync_finish(x->sync, err);
    if (status == STATUS_OK)
        count_received(w);
    return status;
}

static void exchange_close(struct ps_worker *w, const struct error *failure)
{
    struct exchange *x = w->impl;

    if (!x)
        return;
    if (sync_close(x->sync, failure) && !w->memory.base)
        free(x->params);
    tensor_table_release(&x->table);
    free(x);
}

const struct ps_worker_ops ps_exchange_worker = {
    .sums = true, .open = exchange_open, .iterate = exchange_iterate, .close = exchange_close};
