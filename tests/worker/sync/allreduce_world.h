/*
 * allreduce_world: ranks of DistributedDataParallel as threads, each with slabs of its own in
 * shared memory, over any backend of the build.
 */
#ifndef SPARRING_TESTS_WORKER_SYNC_ALLREDUCE_WORLD_H
#define SPARRING_TESTS_WORKER_SYNC_ALLREDUCE_WORLD_H

#include "common/base/shared_memory.h"
#include "tests/support/support.h"
#include "worker/sync/sync.h"

#include <pthread.h>

#define REPLICAS_MAX 4u

struct replica {
    unsigned rank, size;
    const struct tensor_table *table;
    struct shared_memory memory;
    float *params, *grads, *buffers;
    struct sync *sync;
    void *argument;
    size_t arrived_count; /* elements reported to `arrived` */
    unsigned calls;       /* of `arrived` or `refresh_params` */
    pthread_t owner;      /* the thread that may call them */
};

typedef void replica_body(struct replica *r);

struct replicas {
    const char *backend;
    unsigned size;
    const struct tensor_table *table;
    size_t buffer_count;
    const struct ddp_config *ddp;
    enum reduce_order order;
    bool unstarted; /* the body calls sync_start */
    sync_arrived_fn *arrived;
    sync_refresh_fn *refresh_params; /* of both call-backs user is the struct replica */
};

/* Run `body` on every rank of a new world; a failed assertion on any thread fails the test. */
void replicas_run(const struct replicas *world, replica_body *body, void *argument);

/* Backends of this build that the suites run on, NULL-terminated: shm and ring. */
const char *const *replicas_backends(void);

/* One view per NULL-terminated shape text "name:4x5" in model order. */
void table_make(struct tensor_table *t, const char *const *shapes);

/* A number in [-1, 1), a function of the four arguments. */
float value_of(unsigned rank, uint64_t step, size_t index, unsigned salt);

/* Fill the gradient slab with value_of, report it ready in pieces as backward does, and finish. */
void replica_step(struct replica *r, uint64_t step);

/* The same with the gradient that is in the slab. */
void replica_sync(struct replica *r, uint64_t step);

#endif
