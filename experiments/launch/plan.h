/*
 * plan: the command line of `sparring launch`, checked and resolved.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_PLAN_H
#define SPARRING_EXPERIMENTS_LAUNCH_PLAN_H

#include "common/option/option.h"
#include "experiments/cluster/engine.h"
#include "experiments/cluster/kubernetes.h"
#include "experiments/launch/binding.h"
#include "experiments/launch/role.h"
#include "experiments/network/network_options.h"

#include <stdbool.h>
#include <stdint.h>

struct plan_options {
    bool standalone;
    char nnodes[OPTION_TEXT_MAX];
    int64_t node_rank;
    char nproc_per_node[OPTION_TEXT_MAX];
    char master_addr[OPTION_TEXT_MAX];
    int64_t master_port;
    int64_t servers;
    int64_t server_port;
    char server_transport[OPTION_TEXT_MAX];
    char server_addresses[OPTION_TEXT_MAX];
    char server_placement[OPTION_TEXT_MAX];
    char bind[OPTION_TEXT_MAX];
    char interface[OPTION_TEXT_MAX];
    char node_addresses[OPTION_TEXT_MAX];
    char on[OPTION_TEXT_MAX];
    char hosts[OPTION_TEXT_MAX];
    bool replicas;
    struct network_options network;
    int64_t ranks_per_host;
    char fault_schedule[OPTION_TEXT_MAX];
    int64_t fault_seed;
    char run_dir[OPTION_TEXT_MAX];
    char on_rank_loss[OPTION_TEXT_MAX];
    int64_t max_restarts;
    char state_dir[OPTION_TEXT_MAX];
    bool tee;
    bool pass_local_rank;
    char backend[OPTION_TEXT_MAX];
    bool dry_run;
    struct kubernetes_options kubernetes;
    bool no_python;
    bool use_env;
    int64_t timeout_ms;
    int64_t start_timeout_ms;
    int64_t grace_ms;
};

/* The job's servers in their order; see placement.h. */
struct placement {
    unsigned colocated; /* started beside ranks */
    unsigned dedicated; /* started on node 0 */
    unsigned given;     /* running already (--server-addresses) */
    unsigned hosts;     /* mixed: hosts of workers */
    unsigned replicas;  /* one for each server started here, numbered after all of them */
};

#define HOST_NAME_SIZE 256

/* Hosts of an emulated network or of an engine, where all processes of the job run: first those of
 * ranks and colocated servers, then one for each other server and replica. */
struct hosts {
    unsigned count;                               /* 0: all run on this host */
    unsigned workers;                             /* of them */
    struct network_link links[NETWORK_HOSTS_MAX]; /* emulated */
    const struct engine *engine;                  /* NULL: they are emulated */
    char names[OPTION_TEXT_MAX];                  /* the engine's, "n1,n2,..."; more may follow */
    char master_addr[HOST_NAME_SIZE];
};

struct plan {
    struct plan_options options;
    struct role role; /* of any kind but ROLE_NONE: the rest is empty */
    unsigned nodes;
    unsigned node_rank;
    unsigned ranks;           /* of this node */
    bool sets_on_rank_loss;   /* the option was given, so it is set for the ranks too */
    bool tolerates_rank_loss; /* the others go on after the loss of a rank */
    bool elastic; /* --sync ps with shrink or wait: a killed rank may be started again */
    struct placement placement;
    struct hosts hosts;
    bool with_mpirun;                 /* mpirun starts the ranks */
    bool has_one_child;               /* for all ranks: mpirun, or a step of the engine */
    struct binding_topology topology; /* of this host; count 0: with --bind none */
    const char *master_addr;          /* borrowed from options, or constant */
    uint16_t master_port;             /* 0: any free one */
    char **program;                   /* borrowed from argv, NULL-terminated */
    bool exit_now;                    /* --help, --version or --print-config was printed */
};

/* Does not block; prints --help and the like on stdout. */
enum status plan_read(struct plan *p, int argc, char **argv, struct error *err);

#endif
