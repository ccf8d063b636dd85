/*
 * allreduce: declarations shared by the sources of DistributedDataParallel; allreduce.c has the
 * model.
 *   allreduce.c           open, step, counters, close
 *   allreduce_queue.c     reduces buckets in order, on the communication or the training thread
 *   allreduce_hook.c      encoding of a bucket: float32, or 16-bit floats
 *   allreduce_powersgd.c  ... or two thin matrices
 *   allreduce_join.c      uneven inputs
 *   allreduce_used.c      parameters without a gradient
 *   allreduce_recover.c   a smaller group after ranks were lost
 * Private to worker/sync and its tests.
 */
#ifndef SPARRING_WORKER_SYNC_ALLREDUCE_H
#define SPARRING_WORKER_SYNC_ALLREDUCE_H

#include "worker/sync/sync.h"

#include <pthread.h>

struct sync_allreduce;

/* ---- the queue of buckets ---- */

/* Buckets start strictly in order.  The thread that sets `reducing` reduces the next one without
 * the lock. */
struct bucket_queue {
    struct sync_bucket *times; /* owned; per bucket; written by the thread that reduces it */
    size_t length;
    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock;
    pthread_cond_t work; /* wakes the communication thread: a bucket is ready, or stop */
    pthread_cond_t done; /* wakes the training thread: all reduced, or failed; with `arrived`:
                            each bucket */
    /* under lock: */
    size_t ready;   /* buckets that backward has filled */
    size_t reduced; /* buckets reduced in this step */
    bool reducing;  /* a bucket is being reduced */
    bool asleep;    /* the communication thread waits for work */
    bool stop;
    bool failed; /* no further bucket is started */
    struct error failure;
};

/* Starts the thread, on core `cpu` where that is >= 0. */
enum status bucket_queue_start(struct sync_allreduce *s, int cpu, struct error *err);
void bucket_queue_stop(struct bucket_queue *q); /* also half-built ones */
/* After a failure: as before the first step.  The thread may still look at the queue. */
void bucket_queue_reset(struct bucket_queue *q);
void bucket_queue_begin(struct sync_allreduce *s);
void bucket_queue_ready(struct sync_allreduce *s, size_t ready_count);
/* Blocks until all buckets are reduced; reduces those that have not started, and reports each to
 * `arrived`. */
enum status bucket_queue_finish(struct sync_allreduce *s, struct error *err);

/* ---- hooks ---- */

struct hook_ops {
    const char *name;
    /* Allocate the state for all buckets; NULL: none.  close follows also after a failure. */
    enum status (*open)(struct sync_allreduce *s, struct error *err);
    /* Replace bucket `index` of the gradient slab by the mean over the ranks. */
    enum status (*reduce)(struct sync_allreduce *s, size_t index, struct error *err);
    /* Payload of this rank for that bucket in a step with full compression. */
    void (*expected_bytes)(const struct sync_allreduce *s, size_t index, uint64_t *ret_tx,
                           uint64_t *ret_rx);
    /* Adapt the state to a smaller group; every rank calls it.  NULL: no state to keep: close, then
     * open. */
    enum status (*rebuild)(struct sync_allreduce *s, struct error *err);
    void (*close)(struct sync_allreduce *s);
};

extern const struct hook_ops hook_none;
extern const struct hook_ops hook_fp16;
extern const struct hook_ops hook_bf16;
extern const struct hook_ops hook_powersgd;

struct sync_allreduce {
    struct sync base;
    struct ddp_config config;
    struct collective *group;
    const struct tensor_table *table; /* borrowed, as are the slabs */
    float *params, *grads, *buffers;
    bool grads_on_device; /* as in sync_config */
    size_t buffer_count;
    const struct shared_memory *memory; /* borrowed; the slabs'; NULL: ordinary memory */
    sync_arrived_fn *arrived;           /* NULL: no call-back */
    sync_refresh_fn *refresh_params;    /* or NULL */
    void *user;                         /* of both call-backs */
    unsigned rank, world_size;
    struct rpc_security security;       /* the group's */
    struct collective_stats past_stats; /* of earlier groups */
    enum reduce_order order;
    struct bucket_plan plan;
    uint64_t step;
    int64_t begun_ns;
    double factor;      /* of this rank's gradient in this step, unless equal_weights */
    bool equal_weights; /* the factor is 1 / world size on every rank */
    struct bucket_queue queue;

    const struct hook_ops *hook;
    struct shared_memory scratch; /* of the hook; registered with the group */
    struct powersgd *powersgd;    /* owned; NULL: another hook is in use */

    uint64_t *samples;     /* owned; per rank: as announced for the step */
    unsigned last_trained; /* greatest rank with samples in the last step */

    int32_t *used_map;   /* owned; per view: number of ranks that used it */
    bool *used_first;    /* owned; static graph: what this rank used in the first step ... */
    bool *used_anywhere; /* ... and what any rank did */
    bool used_known, has_used_first;
};

/* ---- one reduction ---- */

/* Replace data[0..count) by the ranks' mean with the step's weights (`mean`), or by their sum.  For
 * a backend without the scaling operation the data are scaled first. */
enum status allreduce_reduce(struct sync_allreduce *s, enum dtype dtype, void *data, size_t count,
                             size_t bucket, bool mean, struct error *err);
void allreduce_reduce_bytes(const struct sync_allreduce *s, enum dtype dtype, size_t count,
                            uint64_t *ret_tx, uint64_t *ret_rx);

/* Allocate s->scratch, `bytes` of shared memory, and register it with the group. */
enum status allreduce_open_scratch(struct sync_allreduce *s, size_t bytes, struct error *err);

/* ---- parts of sync_ops ---- */

enum status allreduce_announce_samples(struct sync *base, size_t samples, unsigned *ret_active,
                                       struct error *err);
enum fault allreduce_fault(const struct sync *base, unsigned *ret_rank);
enum status allreduce_shrink(struct sync *base, struct sync_loss *ret, struct error *err);
enum status allreduce_all_gather(struct sync *base, const void *mine, size_t bytes, void *all,
                                 struct error *err);
enum status allreduce_broadcast(struct sync *base, void *data, size_t bytes, unsigned root,
                                struct error *err);
enum status allreduce_agree_used(struct sync *base, bool *used, struct error *err);

#endif
