/*
 * sync allreduce: DistributedDataParallel.  Rank 0's parameters and buffers are broadcast once;
 * then every step's gradients are averaged bucket by bucket.  The gradient slab lies in bucket
 * order and the layers write directly into it, so a bucket is a range of the slab and nothing is
 * copied; if the slab is shared memory, the ranks of a host reduce it in place.
 *
 * As in DDP a bucket is divided by the world size first and summed then (REDUCE_AVG), and buffers
 * (running statistics) come from rank 0 before the forward that follows a synchronised one.  With
 * no_sync accumulation the training loop does not call begin, ready and finish in between.
 *
 * Locking: see allreduce_queue.c.  The group and the hook's state belong to the thread that reduces
 * a bucket, everything else to the training thread.
 *
 * Source: Li et al., PyTorch Distributed, VLDB 2020; torch/nn/parallel/distributed.py and c10d's
 * reducer. Differs from PyTorch: the bucket plan is final from the first step, because the reverse
 * of the model order is the order in which our layers finish; PyTorch determines that order in its
 * first step.
 */
#include "worker/sync/allreduce.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

static const struct hook_ops *const hooks[] = {
    [DDP_HOOK_NONE] = &hook_none,
    [DDP_HOOK_FP16] = &hook_fp16,
    [DDP_HOOK_BF16] = &hook_bf16,
    [DDP_HOOK_POWERSGD] = &hook_powersgd,
};

/* ---- one reduction ---- */

enum status allreduce_reduce(struct sync_allreduce *s, enum dtype dtype, void *data, size_t count,
                             size_t bucket, bool mean, struct error *err)
{
    struct collective_args args = {
        .call = COLLECTIVE_ALL_REDUCE,
        .dtype = dtype,
        .op = !mean              ? REDUCE_SUM
              : s->equal_weights ? REDUCE_AVG
                                 : REDUCE_PREMUL_SUM,
        .order = s->order,
        .input = data,
        .output = data,
        .count = count,
        .factor = s->factor,
        .bucket = (int)bucket + 1,
        .buckets = (int)s->plan.length,
        .step = s->step,
    };

    /* If the host cannot scale either, the backend returns the error. */
    if (mean && !s->grads_on_device && !collective_supports(s->group, &args)) {
        args.op = REDUCE_SUM;
        reduce_scale(dtype, data, s->equal_weights ? 1.0 / s->world_size : s->factor, count);
    }
    return collective_run(s->group, &args, err);
}

void allreduce_reduce_bytes(const struct sync_allreduce *s, enum dtype dtype, size_t count,
                            uint64_t *ret_tx, uint64_t *ret_rx)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = dtype,
                                   .op = REDUCE_AVG,
                                   .order = s->order,
                                   .count = count};

    collective_expected_bytes(s->group, &args, ret_tx, ret_rx);
}

enum status allreduce_open_scratch(struct sync_allreduce *s, size_t bytes, struct error *err)
{
    enum status status = shared_memory_open(bytes, "sparring-hook", &s->scratch, err);

    return status == STATUS_OK ? collective_register(s->group, &s->scratch, err) : status;
}

/* ---- opening ---- */

static bool allreduce_close(struct sync *base, const struct error *failure)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;

    (void)failure; /* the store's failure notice informs the others */
    bucket_queue_stop(&s->queue);
    collective_close(s->group);
    if (s->hook->close)
        s->hook->close(s);
    shared_memory_release(&s->scratch);
    bucket_plan_release(&s->plan);
    (void)pthread_cond_destroy(&s->queue.done);
    (void)pthread_cond_destroy(&s->queue.work);
    (void)pthread_mutex_destroy(&s->queue.lock);
    free(s->samples);
    free(s->used_map);
    free(s->used_first);
    free(s->used_anywhere);
    free(s);
    return true;
}

/* TLS files protect the store, and the ring only over gRPC. */
static void warn_of_plaintext(const struct sync_allreduce *s, const struct sync_config *config)
{
    const char *backend = collective_backend(s->group);
    bool over_tcp = (!config->transport || strcmp(config->transport, "tcp") == 0) &&
                    (strcmp(backend, "ring") == 0 || strcmp(backend, "hier") == 0);
    bool has_tls = false;

    (void)rpc_security_check(&s->security, &has_tls, NULL);
    if (over_tcp && has_tls && s->rank == 0)
        log_warning("gradients travel in plaintext over %s; --transport grpc encrypts them",
                    backend);
}

static enum status open_group(struct sync_allreduce *s, const struct sync_config *config,
                              struct error *err)
{
    const struct collective_config group = {
        .backend = config->backend,
        .transport = config->transport,
        .interface_host = config->interface_host,
        .heartbeat_timeout_ms = config->heartbeat_timeout_ms,
        .name = "allreduce",
        .rank = config->rank,
        .world_size = config->world_size,
        .store = config->store,
        .flight = config->flight,
        .timeout_ms = config->timeout_ms,
        .security = &s->security,
    };
    enum status status = collective_open(&group, &s->group, err);

    if (status == STATUS_OK)
        warn_of_plaintext(s, config);
    if (status == STATUS_OK && config->memory)
        status = collective_register(s->group, config->memory, err);
    return status;
}

static enum status open_parts(struct sync_allreduce *s, const struct sync_config *config,
                              struct error *err)
{
    size_t views = s->table->length;
    size_t first = BUCKET_FIRST_BYTES;
    size_t cap = BUCKET_CAP_BYTES;
    enum status status;

    if (s->config.bucket_cap_mb >= 0) /* an explicit cap also holds for the first bucket */
        first = cap = (size_t)(s->config.bucket_cap_mb * MIB);
    status = bucket_plan_make(s->table, first, cap, &s->plan, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->world_size, sizeof(*s->samples), "sample counts", &s->samples, err);
    if (status == STATUS_OK)
        status = mem_calloc(views, sizeof(*s->used_map), "used map", &s->used_map, err);
    if (status == STATUS_OK)
        status = mem_calloc(views, sizeof(*s->used_first), "used map", &s->used_first, err);
    if (status == STATUS_OK)
        status = mem_calloc(views, sizeof(*s->used_anywhere), "used map", &s->used_anywhere, err);
    if (status == STATUS_OK)
        status = open_group(s, config, err);
    if (status == STATUS_OK && s->hook->open)
        status = s->hook->open(s, err);
    if (status == STATUS_OK)
        status = bucket_queue_start(s, s->config.comm_cpu, err);
    return status;
}

static enum status allreduce_open(const struct sync_config *config, struct sync **ret_sync,
                                  struct error *err)
{
    struct sync_allreduce *s;
    enum status status = mem_calloc(1, sizeof(*s), "allreduce sync", &s, err);

    if (status != STATUS_OK)
        return status;
    s->base.yields = SYNC_YIELDS_GRADIENTS;
    s->config = config->ddp ? *config->ddp : DDP_DEFAULTS;
    s->hook = hooks[s->config.hook];
    s->security = config->security;
    s->table = config->table;
    s->params = config->params;
    s->grads = config->grads;
    s->grads_on_device = config->grads_on_device;
    s->memory = config->memory;
    s->arrived = config->arrived;
    s->refresh_params = config->refresh_params;
    s->user = config->user;
    s->buffers = config->buffers;
    s->buffer_count = config->buffers ? config->buffer_count : 0;
    s->rank = config->rank;
    s->world_size = config->world_size;
    s->last_trained = config->world_size - 1;
    s->equal_weights = true;
    s->order = config->order;
    s->scratch = SHARED_MEMORY_NONE;
    (void)pthread_mutex_init(&s->queue.lock, NULL);
    (void)pthread_cond_init(&s->queue.work, NULL);
    (void)pthread_cond_init(&s->queue.done, NULL);
    status = open_parts(s, config, err);
    if (status != STATUS_OK) {
        allreduce_close(&s->base, NULL);
        return status;
    }
    *ret_sync = &s->base;
    return STATUS_OK;
}

/* ---- a step ---- */

static enum status broadcast_buffers(struct sync_allreduce *s, struct error *err)
{
    enum status status;

    if (s->buffer_count == 0)
        return STATUS_OK;
    status = collective_broadcast(s->group, s->buffers, s->buffer_count * sizeof(float), 0, err);
    return status == STATUS_OK || !err ? status : error_prefix(err, "buffers: ");
}

static enum status allreduce_start(struct sync *base, struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;
    enum status status =
        collective_broadcast(s->group, s->params, s->table->count * sizeof(float), 0, err);

    return status == STATUS_OK ? broadcast_buffers(s, err) : status;
}

static enum status allreduce_begin(struct sync *base, uint64_t step, struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;

    s->step = step;
    s->begun_ns = clock_now_ns();
    bucket_queue_begin(s);
    return s->config.broadcast_buffers ? broadcast_buffers(s, err) : STATUS_OK;
}

static void allreduce_ready(struct sync *base, size_t ready_count)
{
    bucket_queue_ready((struct sync_allreduce *)base, ready_count);
}

static enum status allreduce_finish(struct sync *base, struct error *err)
{
    return bucket_queue_finish((struct sync_allreduce *)base, err);
}

static enum status allreduce_end(struct sync *base, struct error *err)
{
    return collective_finish(((struct sync_allreduce *)base)->group, err);
}

/* ---- timeline and counters ---- */

static void allreduce_timeline(const struct sync *base, struct sync_timeline *ret)
{
    const struct sync_allreduce *s = (const struct sync_allreduce *)base;

    *ret = (struct sync_timeline){
        .buckets = s->queue.times, .length = s->queue.length, .begun_ns = s->begun_ns};
}

static struct sync_counters allreduce_counters(const struct sync *base)
{
    const struct sync_allreduce *s = (const struct sync_allreduce *)base;
    struct collective_stats stats = {0};

    if (s->group)
        stats = collective_get_stats(s->group);
    return (struct sync_counters){
        .tx_payload_bytes = s->past_stats.tx_payload_bytes + stats.tx_payload_bytes,
        .rx_payload_bytes = s->past_stats.rx_payload_bytes + stats.rx_payload_bytes,
        .tx_wire_bytes = s->past_stats.tx_wire_bytes + stats.tx_wire_bytes,
        .rx_wire_bytes = s->past_stats.rx_wire_bytes + stats.rx_wire_bytes,
        .tx_queued_bytes = s->past_stats.tx_queued_bytes + stats.tx_queued_bytes,
    };
}

/* Of a typical step, including the sample counts, the used map and the buffers. */
static void allreduce_expected_bytes(const struct sync *base, uint64_t *ret_tx, uint64_t *ret_rx)
{
    const struct sync_allreduce *s = (const struct sync_allreduce *)base;
    struct collective_args buffers = {.call = COLLECTIVE_BROADCAST,
                                      .dtype = DTYPE_BYTE,
                                      .count = s->buffer_count * sizeof(float)};
    struct collective_args announce_samples = {
        .call = COLLECTIVE_ALL_GATHER, .dtype = DTYPE_BYTE, .count = sizeof(*s->samples)};
    uint64_t tx[3] = {0};
    uint64_t rx[3] = {0};

    *ret_tx = 0;
    *ret_rx = 0;
    if (s->buffer_count > 0 && s->config.broadcast_buffers)
        collective_expected_bytes(s->group, &buffers, &tx[0], &rx[0]);
    if (s->config.uneven != DDP_EVEN || s->config.weight_by_samples)
        collective_expected_bytes(s->group, &announce_samples, &tx[1], &rx[1]);
    if (s->config.find_unused_parameters && !s->config.static_graph)
        allreduce_reduce_bytes(s, DTYPE_INT32, s->table->length, &tx[2], &rx[2]);
    for (size_t i = 0; i < 3; i++) {
        *ret_tx += tx[i];
        *ret_rx += rx[i];
    }
    for (size_t i = 0; i < s->plan.length; i++) {
        s->hook->expected_bytes(s, i, &tx[0], &rx[0]);
        *ret_tx += tx[0];
        *ret_rx += rx[0];
    }
}

static const char *allreduce_backend(const struct sync *base)
{
    const struct sync_allreduce *s = (const struct sync_allreduce *)base;

    return s->group ? collective_backend(s->group) : s->base.ops->name;
}

static const struct sync_group_ops group_ops = {
    .announce_samples = allreduce_announce_samples,
    .agree_used = allreduce_agree_used,
    .timeline = allreduce_timeline,
    .shrink = allreduce_shrink,
    .all_gather = allreduce_all_gather,
    .broadcast = allreduce_broadcast,
};

const struct sync_ops sync_allreduce_ops = {
    .name = "allreduce",
    .open = allreduce_open,
    .start = allreduce_start,
    .begin = allreduce_begin,
    .ready = allreduce_ready,
    .finish = allreduce_finish,
    .end = allreduce_end,
    .counters = allreduce_counters,
    .expected_bytes = allreduce_expected_bytes,
    .backend = allreduce_backend,
    .fault = allreduce_fault,
    .close = allreduce_close,
    .group = &group_ops,
};
