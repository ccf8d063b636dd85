/*
 * service: one shard of the parameter server as a gRPC service (Join, Exchange, Attend, Leave,
 * State, Stats, Replicate).  It serves one job at a time and accepts the next one when all workers
 * of a job have left or the job has failed.
 *
 * Needs: job, shard, replication, persistence, observe, rpc.  Called by: the server's main.
 *
 * Threads.  Calls are handled on rpc's threads; handlers never block.  One thread of the service,
 * the supervisor, checks deadlines, builds jobs, writes records and frees jobs.
 */
#ifndef SPARRING_SERVER_SERVICE_SERVICE_H
#define SPARRING_SERVER_SERVICE_SERVICE_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire_stats.h"

#include <stdint.h>

#define SERVICE_JOIN      "/sparring.v1.ParameterServer/Join"
#define SERVICE_EXCHANGE  "/sparring.v1.ParameterServer/Exchange"
#define SERVICE_ATTEND    "/sparring.v1.ParameterServer/Attend"
#define SERVICE_LEAVE     "/sparring.v1.ParameterServer/Leave"
#define SERVICE_REPLICATE "/sparring.v1.ParameterServer/Replicate"
#define SERVICE_STATE     "/sparring.v1.ParameterServer/State"
#define SERVICE_STATS     "/sparring.v1.ParameterServer/Stats"

struct service_config {
    struct endpoint listen;       /* port 0: any free port; or a Unix socket */
    const char *listen_origin;    /* the option that gave the address ("--listen"), for messages */
    struct rpc_security security; /* its texts are borrowed until service_close */
    bool bind_ranks;              /* a peer may act only for the ranks that its certificate names */
    unsigned threads;             /* of rpc, and of channels; 0: their defaults */
    int64_t timeout_ms; /* how long ranks wait for a silent rank, in a join and in a round */
    bool show_metrics;  /* serve a Prometheus page */
    struct endpoint metrics_listen;    /* port 0: any free port; loopback, or insecure */
    const char *metrics_listen_origin; /* "--metrics-listen" */
    bool share_memory;       /* with workers on this host; their chunks then go by reference */
    const char *state_dir;   /* borrowed; unfinished jobs are persisted here; NULL: not persisted */
    uint64_t snapshot_every; /* rounds; 0: see journal_bytes */
    uint64_t journal_bytes;  /* as in job_log_config */
    const char *run_dir;     /* borrowed; records go to <run_dir>/server<index>.jsonl; NULL: none */
};

struct service;

/* Bind, restore the job in state_dir if there is one, and serve. */
enum status service_open(const struct service_config *config, struct service **ret_service,
                         struct error *err);

/* The bound TCP port; 0: a Unix socket. */
uint16_t service_port(const struct service *s);

/* The port of the metrics page; 0: there is none. */
uint16_t service_metrics_port(const struct service *s);

/* Counters and current state.  *ret_stats is allocated; the caller frees it.  Takes the table's
 * lock briefly; any thread, until service_close. */
enum status service_stats(struct service *s, struct server_stats **ret_stats, struct error *err);

/* Set health to NOT_SERVING, refuse new calls, give the current round up to timeout_ms to end; then
 * send the workers the reason, close everything and free it.  NULL is allowed. */
void service_close(struct service *s);

#endif
