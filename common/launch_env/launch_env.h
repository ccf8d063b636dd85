/*
 * launch_env: this process's rank, world size and master address.  Uses the first of these sources:
 * flags; RANK and WORLD_SIZE (torchrun, sparring launch); OMPI_COMM_WORLD_*; PMI_RANK and PMI_SIZE;
 * the Slurm *step* variables; none (one rank alone).  An incomplete source is an error that names
 * the variables that are set and those that are missing.
 *
 * Library.  Needs only base.  Called by the store and the worker.
 */
#ifndef SPARRING_COMMON_LAUNCH_ENV_LAUNCH_ENV_H
#define SPARRING_COMMON_LAUNCH_ENV_LAUNCH_ENV_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct launch_env {
    unsigned rank;
    unsigned world_size;
    unsigned local_rank;
    unsigned local_world_size;   /* 0: unknown */
    char master_addr[256];       /* default "127.0.0.1" */
    char master_addr_origin[64]; /* "MASTER_ADDR", "default", "SLURM_STEP_NODELIST", ... */
    uint16_t master_port;        /* default 29500 */
    char master_port_origin[64];
    bool
        agent_store; /* TORCHELASTIC_USE_AGENT_STORE=True: torchrun itself listens on master_port */
    char source[64]; /* "flags", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "alone"
                      */
};

/* Values of --rank, --world-size and --local-rank; < 0: not given. */
struct launch_flags {
    int64_t rank;
    int64_t world_size;
    int64_t local_rank;
    bool standalone; /* ignore every launcher */
};

/* `lookup` reads one variable (getenv in programs, a table in tests). */
enum status launch_env_read(const struct launch_flags *flags,
                            const char *(*lookup)(const char *name), struct launch_env *ret,
                            struct error *err);

/* First host of a Slurm node list: "gnode[10,20-25],other" -> "gnode10".  STATUS_CONFIG when
 * malformed. */
enum status launch_env_first_host(const char *nodelist, char *text, size_t size, struct error *err);

#endif
