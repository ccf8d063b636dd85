/*
 * sync allreduce: DistributedDataParallel.  Rank 0's parameters are broadcast once; then every
 * step's gradients are averaged bucket by bucket.  The gradient slab lies in bucket order and the
 * layers write straight into it, so a bucket is a range of the slab and nothing is copied in or
 * out.
 *
 * One communication thread takes the buckets in order as the fill mark passes them and all-reduces
 * each while backward computes the next ones.  As in DDP a bucket is divided by the world size
 * first and summed then.  With no_sync accumulation the training loop simply does not call begin,
 * ready and finish.
 *
 * Locking: `lock` guards the fields marked (L); the group belongs to the communication thread
 * between begin and finish, to the training thread otherwise.
 *
 * Source: Li et al., PyTorch Distributed, VLDB 2020; torch/nn/parallel/distributed.py and c10d's
 * reducer. Differs from PyTorch: the bucket plan is final from the first step, because the reverse
 * of the model order is the order in which our layers finish; PyTorch finds that order out in its
 * first step.
 */
#include "common/base/memory.h"
#include "worker/sync/sync.h"

#include <pthread.h>
#include <stdlib.h>

#define MIB                1048576.0
#define FIRST_BUCKET_BYTES ((size_t)1 << 20)
#define BUCKET_CAP_BYTES   ((size_t)25 << 20)

struct sync_allreduce {
    struct sync base;
    struct collective *group;
    struct bucket_plan plan;
    float *params;
    float *grads;
    size_t count;
    float scale; /* 1 / world size */
    unsigned world_size;
    enum reduce_order order;

    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* ready_count or stop changed */
    pthread_cond_t done;  /* reduced or failure changed */
    size_t ready_count;   /* (L) elements of the slab that backward has filled */
    size_t reduced;       /* (L) buckets finished in this step */
    bool stop;            /* (L) */
    bool failed;          /* (L) no further bucket is started */
    struct error failure; /* (L) */
};

static enum status reduce_bucket(struct sync_allreduce *s, const struct bucket *bucket,
                                 struct error *err)
{
    float *data = s->grads + bucket->offset;

    if (s->world_size > 1)
        vector_scale(data, s->scale, bucket->count);
    return collective_all_reduce(s->group, data, bucket->count, s->order, err);
}

/* Wait for the next bucket to be filled; false: stop. */
static bool wait_for_bucket(struct sync_allreduce *s, const struct bucket **ret_bucket)
{
    for (;;) {
        if (s->stop)
            return false;
        if (!s->failed && s->reduced < s->plan.length) {
            const struct bucket *bucket = &s->plan.buckets[s->reduced];

            if (s->ready_count >= bucket->offset + bucket->count) {
                *ret_bucket = bucket;
                return true;
            }
        }
        pthread_cond_wait(&s->work, &s->lock);
    }
}

static void *communicate(void *argument)
{
    struct sync_allreduce *s = argument;
    const struct bucket *bucket;

    pthread_mutex_lock(&s->lock);
    while (wait_for_bucket(s, &bucket)) {
        struct error err = {0};
        enum status status;

        pthread_mutex_unlock(&s->lock);
        status = reduce_bucket(s, bucket, &err);
        pthread_mutex_lock(&s->lock);
        if (status == STATUS_OK) {
            s->reduced++;
        } else {
            size_t index = (size_t)(bucket - s->plan.buckets);

            (void)error_prefix(&err, "bucket %zu of %zu (%zu bytes): ", index + 1, s->plan.length,
                               bucket->count * sizeof(float));
            s->failed = true;
            s->failure = err;
        }
        if (s->failed || s->reduced == s->plan.length)
            pthread_cond_signal(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void allreduce_close(struct sync *base, const struct error *failure)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;

    (void)failure; /* the others learn of it from the store's failure notice */
    if (s->thread_started) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        (void)pthread_join(s->thread, NULL);
    }
    collective_close(s->group);
    bucket_plan_release(&s->plan);
    (void)pthread_cond_destroy(&s->done);
    (void)pthread_cond_destroy(&s->work);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

static enum status open_parts(struct sync_allreduce *s, const struct sync_config *config,
                              struct error *err)
{
    struct collective_config group = {
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
    };
    size_t first = FIRST_BUCKET_BYTES;
    size_t cap = BUCKET_CAP_BYTES;
    enum status status;

    if (config->bucket_cap_mb >= 0) /* an explicit cap also holds for the first bucket */
        first = cap = (size_t)(config->bucket_cap_mb * MIB);
    status = bucket_plan_make(config->table, first, cap, &s->plan, err);
    if (status == STATUS_OK)
        status = collective_open(&group, &s->group, err);
    if (status != STATUS_OK)
        return status;
    s->reduced = s->plan.length;
    if (pthread_create(&s->thread, NULL, communicate, s) != 0)
        return error_set(err, STATUS_NO_MEMORY, "cannot start the communication thread");
    s->thread_started = true;
    return STATUS_OK;
}

static enum status allreduce_open(const struct sync_config *config, struct sync **ret_sync,
                                  struct error *err)
{
    struct sync_allreduce *s;
    enum status status = mem_calloc(1, sizeof(*s), "allreduce sync", &s, err);

    if (status != STATUS_OK)
        return status;
    s->base.ops = &sync_allreduce_ops;
    s->base.yields = SYNC_YIELDS_GRADIENTS;
    s->params = config->params;
    s->grads = config->grads;
    s->count = config->table->count;
    s->world_size = config->world_size;
    s->scale = 1.0f / (float)config->world_size;
    s->order = config->order;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->work, NULL);
    (void)pthread_cond_init(&s->done, NULL);
    status = open_parts(s, config, err);
    if (status != STATUS_OK) {
        allreduce_close(&s->base, NULL);
        return status;
    }
    *ret_sync = &s->base;
    return STATUS_OK;
}

static enum status allreduce_start(struct sync *base, struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;

    return collective_broadcast(s->group, s->params, s->count * sizeof(float), 0, err);
}

static enum status allreduce_begin(struct sync *base, uint64_t step, struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;

    (void)step;
    (void)err;
    pthread_mutex_lock(&s->lock);
    s->ready_count = 0;
    s->reduced = 0;
    pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

static void allreduce_ready(struct sync *base, size_t ready_count)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;

    pthread_mutex_lock(&s->lock);
    s->ready_count = ready_count;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static enum status allreduce_finish(struct sync *base, struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;
    enum status status = STATUS_OK;

    pthread_mutex_lock(&s->lock);
    while (!s->failed && s->reduced < s->plan.length)
        pthread_cond_wait(&s->done, &s->lock); /* every all-reduce has its own deadline */
    if (s->failed)
        status = error_set(err, s->failure.status, "%s", s->failure.text);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static struct sync_counters allreduce_counters(const struct sync *base)
{
    const struct sync_allreduce *s = (const struct sync_allreduce *)base;
    struct collective_stats stats = collective_get_stats(s->group);

    return (struct sync_counters){
        .tx_payload_bytes = stats.tx_payload_bytes,
        .rx_payload_bytes = stats.rx_payload_bytes,
        .tx_wire_bytes = stats.tx_wire_bytes,
        .rx_wire_bytes = stats.rx_wire_bytes,
    };
}

static void allreduce_expected_bytes(const struct sync *base, uint64_t *ret_tx, uint64_t *ret_rx)
{
    const struct sync_allreduce *s = (const struct sync_allreduce *)base;

    *ret_tx = 0;
    *ret_rx = 0;
    for (size_t i = 0; i < s->plan.length; i++) {
        struct collective_args args = {
            .call = COLLECTIVE_ALL_REDUCE, .order = s->order, .count = s->plan.buckets[i].count};
        uint64_t tx;
        uint64_t rx;

        collective_expected_bytes(s->group, &args, &tx, &rx);
        *ret_tx += tx;
        *ret_rx += rx;
    }
}

static const char *allreduce_backend(const struct sync *base)
{
    return collective_backend(((const struct sync_allreduce *)base)->group);
}

const struct sync_ops sync_allreduce_ops = {
    .name = "allreduce",
    .open = allreduce_open,
    .start = allreduce_start,
    .begin = allreduce_begin,
    .ready = allreduce_ready,
    .finish = allreduce_finish,
    .counters = allreduce_counters,
    .expected_bytes = allreduce_expected_bytes,
    .backend = allreduce_backend,
    .close = allreduce_close,
};
