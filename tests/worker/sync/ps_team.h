/*
 * ps_team: real parameter servers and workers in one process, with a proxy between each worker and
 * each server that can break their connections, unless the test needs none; and what a serial run
 * comes to.
 */
#ifndef SPARRING_TESTS_WORKER_SYNC_PS_TEAM_H
#define SPARRING_TESTS_WORKER_SYNC_PS_TEAM_H

#include "tests/support/fault_proxy.h"
#include "tests/worker/sync/ps_parts.h"
#include "worker/sync/sync.h"

#include <pthread.h>
#include <stdbool.h>

#define TEAM_RANKS_MAX       4u
#define TEAM_PARTITION_BYTES 4096u
#define TEAM_COUNT           (6 * TEAM_PARTITION_BYTES / sizeof(float) + 99)

struct team;

struct team_rank {
    struct team *team;
    unsigned index;
    struct fault_proxy *proxies[PS_SERVERS_MAX]; /* owned; NULL: none */
    char servers[256];                           /* the proxies' addresses, or the servers' */
    pthread_t thread;
    struct shared_memory memory; /* owned; of both slabs, or they are apart */
    float *params, *grads;       /* owned where they are apart */
    struct sync *sync;
    uint64_t first;  /* round that it began with */
    uint64_t rounds; /* to run */
    enum status status;
    struct error err;
    struct sync_counters counters; /* before it closed */
};

struct team {
    struct ps_servers servers;
    unsigned world_size, server_count;
    struct tensor_table table;
    struct team_rank ranks[TEAM_RANKS_MAX];
    uint64_t rounds;
    /* To be set between team_init and team_open. */
    bool update; /* on the server */
    enum reduce_order order;
    struct consistency consistency;
    struct optimizer_config optimizer;
    int64_t timeout_ms, reconnect_ms, heartbeat_timeout_ms;
    enum worker_loss on_loss;
    bool direct;             /* no proxies */
    unsigned sharing;        /* every so many-th rank has its slabs in shared memory; 0: none */
    bool another_host;       /* it may share them, but the servers are to be asked first */
    const uint32_t *weights; /* of the servers; NULL: equal */
    unsigned connections;    /* of each worker to each server; 0: one */
    bool priority;
    struct compression compression;
    bool overlap_forward;
    /* Called by a rank's thread before it closes, when all has gone well; NULL: nothing. */
    void (*check)(const struct team_rank *r);
    /* Each rank, before its gradient of a round, when all of the round before is here; NULL: none.
     */
    void (*at_step)(struct team_rank *r, uint64_t round);
};

/* Bit for bit comparable: momentum SGD on the server, sums in rank order; time-outs for a slow
 * machine. */
void team_init(struct team *t, unsigned world_size, unsigned servers, uint64_t rounds);

/* The same without proxies, heartbeats or a way back: what is lost is lost at once. */
void team_init_plain(struct team *t, unsigned world_size, unsigned servers, uint64_t rounds);

/* Services, proxies, slabs; no worker yet. */
void team_open(struct team *t);
void team_close(struct team *t);

/* The ranks' part of that: so the servers may have one job after the other. */
void team_open_ranks(struct team *t);
void team_close_ranks(struct team *t);

/* The worker's configuration, through its proxies. */
struct sync_config team_config(const struct team_rank *r);

/* sync_open and sync_start; r->first is set. */
enum status team_start_rank(struct team_rank *r);

/* One step: the gradient of (rank, round), handed over in uneven pieces as by backward. */
enum status team_step(struct team_rank *r, uint64_t round);

/* The first part of a step: that many elements are handed over. */
enum status team_begin_step(struct team_rank *r, uint64_t round, size_t ready_count);

/* A thread that starts the rank, makes its rounds and closes it; r->status and err say how. */
void team_run_rank(struct team_rank *r);
void team_join_rank(struct team_rank *r);

/* All ranks at once, to their ends. */
void team_run_all(struct team *t);

/* What a serial run comes to after so many rounds; the caller frees it. */
float *team_reference(const struct team *t, uint64_t rounds);

/* All ranks have ended well, with the parameters of the serial run: bit for bit where the order of
 * the sums is fixed, and in any case the same on all. */
void team_check(const struct team *t);

#endif
