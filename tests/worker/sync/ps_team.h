/*
 * ps_team: a job of real parameter servers and workers in one process, optionally with a
 * fault_proxy between each worker and each server to break their connections; and the result of a
 * serial run.
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
    char servers[256];                           /* addresses of the proxies, or of the servers */
    pthread_t thread;
    struct shared_memory memory; /* owned; contains both slabs; none: separate ones */
    float *params, *grads;       /* owned if separate */
    struct sync *sync;
    uint64_t first;  /* first round that it runs */
    uint64_t rounds; /* last round that it runs */
    enum status status;
    struct error err;
    struct sync_counters counters; /* before sync_close */
};

struct team {
    struct ps_servers servers;
    unsigned world_size, server_count;
    struct tensor_table table;
    struct team_rank ranks[TEAM_RANKS_MAX];
    uint64_t rounds;
    /* May be set between team_init and team_open. */
    bool update; /* on the server */
    enum reduce_order order;
    struct consistency consistency;
    struct optimizer_config optimizer;
    int64_t timeout_ms, reconnect_ms, heartbeat_timeout_ms;
    enum worker_loss on_loss;
    bool direct;             /* no proxies */
    unsigned sharing;        /* every n-th rank has its slabs in shared memory; 0: none */
    bool another_host;       /* SYNC_TRANSPORT_AUTO: the servers may refuse to share memory */
    const uint32_t *weights; /* of the servers; NULL: equal */
    unsigned connections;    /* of each worker to each server; 0: one */
    bool priority;
    struct compression compression;
    bool overlap_forward;
    /* Called by a rank's thread before it closes, after success; NULL: nothing. */
    void (*check)(const struct team_rank *r);
    /* Called by each rank before its gradient of a round, when the last round is complete; NULL:
     * nothing. */
    void (*at_step)(struct team_rank *r, uint64_t round);
    uint64_t seed; /* the test's, for at_step */
};

/* Defaults: bit-exact (momentum SGD on the server, sums in rank order), and timeouts for a slow
 * machine. */
void team_init(struct team *t, unsigned world_size, unsigned servers, uint64_t rounds);

/* The same without proxies, heartbeats or reconnection: a lost connection is a failure at once. */
void team_init_plain(struct team *t, unsigned world_size, unsigned servers, uint64_t rounds);

/* Open servers, proxies and slabs; no worker yet. */
void team_open(struct team *t);
void team_close(struct team *t);

/* Only the ranks' part of that, for several jobs on the same servers. */
void team_open_ranks(struct team *t);
void team_close_ranks(struct team *t);

/* The worker's configuration, through its proxies. */
struct sync_config team_config(const struct team_rank *r);

/* sync_open and sync_start; r->first is set. */
enum status team_start_rank(struct team_rank *r);

/* One step: the gradient of (rank, round), reported ready in uneven pieces as by backward. */
enum status team_step(struct team_rank *r, uint64_t round);

/* The first part of a step: ready_count elements are ready. */
enum status team_begin_step(struct team_rank *r, uint64_t round, size_t ready_count);

/* Start a thread that opens the rank, runs its rounds and closes it; sets r->status and r->err. */
void team_run_rank(struct team_rank *r);
void team_join_rank(struct team_rank *r);

/* Run all ranks and join their threads. */
void team_run_all(struct team *t);

/* Parameters of a serial run after `rounds` rounds; the caller frees them. */
float *team_reference(const struct team *t, uint64_t rounds);

/* Check that all ranks have succeeded, with the same parameters, and with those of the serial run:
 * bit for bit if the order of the sums is fixed, else within its error bounds. */
void team_check(const struct team *t);

#endif
