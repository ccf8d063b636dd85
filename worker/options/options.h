/*
 * options: the options of `sparring-worker` as one struct.  The tables that fill it are in
 * options.c and options_<subject>.c; options_derived.c checks combinations and derives the settings
 * of the modules.  Needs common/option to parse.  Called by main and worker/train.
 * Threads: the struct is constant after parsing.
 */
#ifndef SPARRING_WORKER_OPTIONS_OPTIONS_H
#define SPARRING_WORKER_OPTIONS_OPTIONS_H

#include "common/base/random.h"
#include "common/consistency/consistency.h"
#include "common/launch_env/launch_env.h"
#include "common/optimizer/optimizer.h"
#include "common/option/option.h"
#include "common/rpc/security_options.h"
#include "worker/data/sampler.h"
#include "worker/sync/sync.h"

#include <stdbool.h>
#include <stdint.h>

#define OPTIONS_DEVICES_MAX 64u /* limit of --devices */

struct worker_options {
    /* job */
    char model[OPTION_TEXT_MAX];
    char data[OPTION_TEXT_MAX];
    int64_t samples;
    int64_t batch_size;
    int64_t epochs; /* one of epochs and steps is set */
    int64_t steps;
    int64_t accumulate_steps;
    bool shuffle;
    bool drop_last;
    int64_t seed;
    char init[OPTION_TEXT_MAX];
    double layer_drop;
    /* optimizer */
    char optimizer[OPTION_TEXT_MAX];
    double lr, momentum, dampening, weight_decay, beta1, beta2, epsilon;
    bool nesterov;
    /* synchronisation */
    char sync[OPTION_TEXT_MAX];
    char backend[OPTION_TEXT_MAX];
    char transport[OPTION_TEXT_MAX];
    char interface[OPTION_TEXT_MAX];
    int64_t heartbeat_timeout_ms;
    double bucket_cap_mb;
    int64_t comm_cpu;
    bool broadcast_buffers, find_unused_parameters, static_graph;
    char uneven[OPTION_TEXT_MAX];
    char join_divide[OPTION_TEXT_MAX];
    char weighting[OPTION_TEXT_MAX];
    char comm_hook[OPTION_TEXT_MAX];
    int64_t powersgd_rank, powersgd_start_iter;
    double powersgd_min_rate;
    char reduce[OPTION_TEXT_MAX];
    char on_rank_loss[OPTION_TEXT_MAX];
    char servers[OPTION_TEXT_MAX], server_placement[OPTION_TEXT_MAX];
    char server_weights[OPTION_TEXT_MAX];
    char consistency[OPTION_TEXT_MAX];
    int64_t staleness, backup_workers;
    char asp_lr[OPTION_TEXT_MAX];
    double delay_compensation;
    char ps_update[OPTION_TEXT_MAX];
    int64_t reconnect_ms;
    char replicas[OPTION_TEXT_MAX];
    char ps_transport[OPTION_TEXT_MAX];
    int64_t connections;
    char priority[OPTION_TEXT_MAX];
    char compression[OPTION_TEXT_MAX], compression_down[OPTION_TEXT_MAX];
    double top_k; /* percent */
    bool overlap_forward;
    uint64_t partition_bytes;
    char delay_schedule[OPTION_TEXT_MAX];
    /* device */
    char device[OPTION_TEXT_MAX];
    int64_t devices; /* of --sync dataparallel */
    char precision[OPTION_TEXT_MAX];
    bool deterministic, cuda_graph;
    int64_t threads;
    /* rank and rendezvous */
    int64_t rank, world_size, local_rank;
    bool standalone;
    char init_method[OPTION_TEXT_MAX];
    char group[OPTION_TEXT_MAX];
    int64_t timeout_ms;
    struct security_options security;
    bool insecure;
    /* results */
    char run_dir[OPTION_TEXT_MAX];
    char save[OPTION_TEXT_MAX];
    char checkpoint_dir[OPTION_TEXT_MAX];
    int64_t checkpoint_every; /* 0: at the end only */
    int64_t checkpoint_keep;  /* 0: all */
    char resume[OPTION_TEXT_MAX];
    char evaluate[OPTION_TEXT_MAX];
    char log_level[OPTION_TEXT_MAX];
};

extern const struct option_set worker_option_set;

/* Check combinations of options.  STATUS_INVALID names the options. */
enum status worker_options_check(const struct worker_options *o, struct error *err);

/* The optimizer's settings.  STATUS_INVALID: unknown --optimizer. */
enum status worker_options_optimizer(const struct worker_options *o, struct optimizer_config *ret,
                                     struct error *err);

/* The consistency mode of parameter servers.  STATUS_INVALID: unknown name, or, with --sync ps
 * only, options that exclude each other or do not fit the world size. */
enum status worker_options_consistency(const struct worker_options *o, unsigned world_size,
                                       struct consistency *ret, struct error *err);

/* The transport to a parameter server on this host (--ps-transport). */
enum sync_transport worker_options_ps_transport(const struct worker_options *o);

/* The reaction of a job with parameter servers to the loss of a worker (--on-rank-loss). */
enum worker_loss worker_options_on_loss(const struct worker_options *o);

/* Whether the job is elastic: processes may leave and be replaced (--sync ps with --on-rank-loss
 * shrink or wait).  Its workers can agree only through the servers. */
bool worker_options_elastic(const struct worker_options *o);

/* The compression to and from parameter servers.  STATUS_INVALID: unknown name, or, with --sync ps
 * only, options that exclude each other, such as compression and shared memory. */
enum status worker_options_compression(const struct worker_options *o,
                                       const struct consistency *consistency,
                                       struct compression *ret, struct error *err);

/* DistributedDataParallel's settings. */
struct ddp_config worker_options_ddp(const struct worker_options *o);

/* Whether ranks may run out of inputs before others (--uneven join, stop). */
bool worker_options_uneven(const struct worker_options *o);

/* The number of updates that a rank makes from `samples` samples. */
uint64_t worker_options_updates(const struct worker_options *o, uint64_t samples);

/* The policy for samples that do not divide among the ranks. */
enum sampler_remainder worker_options_remainder(const struct worker_options *o);

/* --sync dataparallel: one process, several devices. */
bool worker_options_data_parallel(const struct worker_options *o);

/* Number of addresses in --servers. */
size_t worker_options_server_count(const struct worker_options *o);

/* --server-weights, one per server.  *ret is owned by the caller; NULL: all are equal, or no
 * servers are used.  STATUS_INVALID: malformed. */
enum status worker_options_server_weights(const struct worker_options *o, uint32_t **ret,
                                          struct error *err);

/* The TLS and token settings; texts are borrowed from `o`. */
struct rpc_security worker_options_security(const struct worker_options *o);

#endif
