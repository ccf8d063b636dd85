/*
 * service: one parameter-server shard as a gRPC service: Join, Exchange, Attend, Leave, Stats.  It
 * serves one job at a time and is ready for the next once all workers of a job have left or the job
 * has failed.
 *
 * Threads.  Calls are handled on rpc's threads and never block.  One thread of the service's own,
 * the supervisor, watches deadlines, builds jobs, writes records and frees what is no longer used.
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
    struct endpoint listen;       /* port 0: any free one; or a Unix socket */
    const char *listen_origin;    /* "--listen"; where the address came from, for messages */
    struct rpc_security security; /* its texts are borrowed until service_close */
    bool bind_ranks;    /* a peer speaks for the ranks that its certificate names, and no others */
    unsigned threads;   /* of rpc; 0: as rpc_server_config says */
    int64_t timeout_ms; /* how long ranks may wait for a silent one, in a join and in a round */
    bool show_metrics;  /* a page for Prometheus, */
    struct endpoint metrics_listen;    /* here (port 0: any free one); loopback, or insecure */
    const char *metrics_listen_origin; /* "--metrics-listen" */
    bool share_memory;       /* with workers of this host, where chunks then go by reference */
    const char *state_dir;   /* borrowed; unfinished jobs are kept here; NULL: nowhere */
    uint64_t snapshot_every; /* rounds; 0: see journal_bytes */
    uint64_t journal_bytes;  /* as in job_log_config */
    const char *run_dir; /* borrowed; records go to <run_dir>/server<index>.jsonl; NULL: nowhere */
};

struct service;

/* Bind and serve. */
enum status service_open(const struct service_config *config, struct service **ret_service,
                         struct error *err);

/* 0 for a Unix socket. */
uint16_t service_port(const struct service *s);

/* Of the metrics page, 0 without one. */
uint16_t service_metrics_port(const struct service *s);

/* What it counts and what it does now, in memory of the caller's (free).  Takes the service's lock
 * for a moment; any thread, until service_close. */
enum status service_stats(struct service *s, struct server_stats **ret_stats, struct error *err);

/* Health says NOT_SERVING, new calls are refused, the round under way is given timeout_ms to end;
 * then the workers are told, and everything is closed and freed.  NULL is allowed. */
void service_close(struct service *s);

#endif
