/*
 * allreduce: what the sources of DistributedDataParallel share; allreduce.c has the model.
 *   allreduce.c           opening, the step, ends
 *   allreduce_queue.c     buckets in order: the communication thread and who helps it
 *   allreduce_hook.c      how one bucket travels: as it is, or as 16-bit floats
 *   allreduce_powersgd.c  ... or as two thin matrices
 *   allreduce_join.c      uneven inputs
 *   allreduce_used.c      parameters without a gradient
 *   allreduce_recover.c   going on without ranks that are lost
 */
#ifndef SPARRING_WORKER_SYNC_ALLREDUCE_H
#define SPARRING_WORKER_SYNC_ALLREDUCE_H

#include "worker/sync/sync.h"

#include <pthread.h>

struct sync_allreduce;

/* ---- the queue of buckets ---- */

/* Buckets start strictly in order.  Whoever sets `busy` runs the next one without the lock. */
struct bucket_queue {
    struct sync_bucket *times; /* owned; one per bucket; a bucket's runner writes its own */
    size_t length;
    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock;
    pthread_cond_t work; /* for the communication thread: a bucket is ready, or stop */
    pthread_cond_t done; /* for the training thread: all reduced, or failed; if it tells: one */
    /* under lock: */
    size_t ready;   /* buckets that backward has filled */
    size_t reduced; /* buckets finished in this step */
    bool busy;      /* one is being reduced */
    bool asleep;    /* the communication thread waits for work */
    bool stop;
    bool failed; /* no further bucket is started */
    struct error failure;
};

/* Starts the thread, on core `cpu` where that is >= 0. */
enum status bucket_queue_start(struct sync_allreduce *s, int cpu, struct error *err);
void bucket_queue_stop(struct bucket_queue *q); /* half-built ones too */
void bucket_queue_begin(struct sync_allreduce *s);
void bucket_queue_ready(struct sync_allreduce *s, size_t ready_count);
/* Blocks; runs what nobody has started, and tells of each bucket that is reduced. */
enum status bucket_queue_finish(struct sync_allreduce *s, struct error *err);

/* ---- hooks ---- */

struct hook_ops {
    const char *name;
    /* Everything it needs for all buckets; NULL: nothing.  close after a failure, too. */
    enum status (*open)(struct sync_allreduce *s, struct error *err);
    /* Replace bucket `index` of the gradient slab by the mean over the ranks. */
    enum status (*reduce)(struct sync_allreduce *s, size_t index, struct error *err);
    /* Payload of this rank for that bucket in a step with full compression. */
    void (*expected_bytes)(const struct sync_allreduce *s, size_t index, uint64_t *ret_tx,
                           uint64_t *ret_rx);
    /* The group has fewer ranks now; every rank calls it.  NULL: nothing is remembered, so close
     * and open do. */
    enum status (*renew)(struct sync_allreduce *s, struct error *err);
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
    const struct shared_memory *memory; /* borrowed: the slabs'; NULL: ordinary memory */
    sync_arrived_fn *arrived;           /* or NULL */
    sync_current_fn *current;           /* or NULL */
    void *user;                         /* of both */
    unsigned rank, world_size;
    struct collective_stats past; /* of the groups before ranks were lost */
    enum reduce_order order;
    struct bucket_plan plan;
    uint64_t step;
    int64_t begun_ns;
    double factor; /* of this rank's gradient in this step; 0 with `even` */
    bool even;     /* the factor is 1 / world size on every rank */
    struct bucket_queue queue;

    const struct hook_ops *hook;
    struct shared_memory scratch; /* of the hook; registered */
    struct powersgd *powersgd;    /* owned; NULL: another hook */

    uint64_t *samples;     /* owned; per rank: of the step, as enlisted */
    unsigned last_trained; /* the largest rank that had samples in the last step */

    int32_t *used_map;   /* owned; per view: ranks that used it */
    bool *used_first;    /* owned; static graph: what this rank used in the first step ... */
    bool *used_anywhere; /* ... and what any rank did */
    bool used_known;
};

/* ---- one reduction ---- */

/* data[0..count) becomes the ranks' mean as the step weighs it (`mean`), or their plain sum.
 * Backends without the scaling operation get scaled data. */
enum status allreduce_reduce(struct sync_allreduce *s, enum dtype dtype, void *data, size_t count,
                             size_t bucket, bool mean, struct error *err);
void allreduce_reduce_bytes(const struct sync_allreduce *s, enum dtype dtype, size_t count,
                            uint64_t *ret_tx, uint64_t *ret_rx);

/* A scratch of `bytes` that peers may reach, at s->scratch. */
enum status allreduce_open_scratch(struct sync_allreduce *s, size_t bytes, struct error *err);

/* ---- parts of sync_ops ---- */

enum status allreduce_enlist(struct sync *base, size_t samples, unsigned *ret_active,
                             struct error *err);
enum fault allreduce_fault(const struct sync *base, unsigned *ret_rank);
enum status allreduce_shrink(struct sync *base, struct sync_loss *ret, struct error *err);
enum status allreduce_gather(struct sync *base, const void *mine, size_t bytes, void *all,
                             struct error *err);
enum status allreduce_share(struct sync *base, void *data, size_t bytes, unsigned root,
                            struct error *err);
enum status allreduce_agree_used(struct sync *base, bool *used, struct error *err);

#endif
