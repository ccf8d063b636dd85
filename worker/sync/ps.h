/*
 * ps: what the sources of the parameter server's worker share; see ps.c for the model.
 */
#ifndef SPARRING_WORKER_SYNC_PS_H
#define SPARRING_WORKER_SYNC_PS_H

#include "common/shard_map/shard_map.h"
#include "worker/sync/ps_link.h"
#include "worker/sync/ps_payload.h"
#include "worker/sync/sync.h"

#include <pthread.h>
#include <stdatomic.h>

struct sync_ps {
    struct sync base;
    float *params;
    float *grads;
    size_t count;
    float scale; /* of a gradient before it is pushed: 1 / consistency_divisor */
    struct consistency consistency;
    unsigned rank, world_size;
    int64_t timeout_ms;
    char job[WIRE_JOB_MAX];
    struct shard_map map;
    uint32_t *weights;     /* owned; of the servers; NULL: equal */
    struct ps_link *links; /* owned, one per server */
    unsigned link_count;
    size_t queued; /* partitions of this round handed over; training thread writes it under lock */
    size_t marked; /* what ready said last; the training thread's */
    atomic_size_t outstanding; /* payloads that core still holds */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC: received, ended or failed changed */
    uint64_t round;         /* (L) 0: initial values */
    size_t received;        /* (L) partitions of this round that are here */
    uint64_t oldest;        /* (L) least round of their answers */
    uint64_t skipped;       /* rounds that the last one was late by; the training thread's */
    bool ending;            /* (L) the round is the final values */
    uint64_t *answered;     /* (L) owned; round + 1 that each partition was last received in */
    unsigned ended;         /* (L) links whose stream is over */
    bool closing;           /* (L) an end is no failure any more */
    bool failed;            /* (L) */
    struct error failure;   /* (L) the first one */
    struct sync_counters counters; /* (L) */
};

/* The links' call-backs. */
enum status ps_take_chunk(void *user, struct ps_link *link, const struct chunk_header *h,
                          struct rpc_message *message, struct error *err);
void ps_link_ended(void *user, struct ps_link *link, const struct error *err);

enum status ps_open(const struct sync_config *config, struct sync **ret_sync, struct error *err);
void ps_close(struct sync *base, const struct error *failure); /* half-built ones too */

#endif
