/*
 * placement: which servers a job has, where each runs, and what share of the parameters it holds.
 *
 *   dedicated  K servers on node 0, or some that run already
 *   colocated  one beside the ranks of each node.  With one node every rank counts as a host of its
 *              own, or K says how many
 *   mixed      both, with the shares of shard_map_mixed_weights
 *
 * The job numbers its servers, those beside ranks first; server i listens on the port
 * --server-port + i where ports are given, so every node derives all addresses from its own command
 * line.  Pure functions.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_PLACEMENT_H
#define SPARRING_EXPERIMENTS_LAUNCH_PLACEMENT_H

#include "common/base/strbuf.h"
#include "experiments/launch/plan.h"

/* Fill plan->placement from the options and the number of nodes and ranks. */
enum status placement_read(struct plan *p, struct error *err);

/* How many servers this node starts, and the job-wide index of the `local`-th of them. */
unsigned placement_own_count(const struct plan *p);
unsigned placement_own(const struct plan *p, unsigned local);

/* Where the `local`-th rank of this node is. */
struct placement_rank {
    unsigned host, hosts;       /* node, or host of the emulated network */
    unsigned local_rank, ranks; /* of that host */
};
struct placement_rank placement_rank(const struct plan *p, unsigned local);

/* The emulated or the engine's host of the `local`-th server, its name as the engine has it, and
 * the address at which others reach it. */
unsigned placement_server_host(const struct plan *p, unsigned local);
void placement_host_name(const struct plan *p, unsigned host, char *text, size_t size);
void placement_host_address(const struct plan *p, unsigned host, char *text, size_t size);

/* Append the address of a server with a known port: with several nodes all ports are known. */
void placement_address(const struct plan *p, unsigned index, struct strbuf *addresses);

/* Append the shares for the workers' SPARRING_SERVER_WEIGHTS, "6,6,14"; nothing where they are
 * equal. */
enum status placement_weights(const struct plan *p, struct strbuf *weights, struct error *err);

/* Entry `index` of "a,b,[::1]", from the first again after the last; without brackets. */
void placement_entry(const char *list, unsigned index, char *text, size_t size);

/* The processors of the `local`-th rank or server of this node, in *set; NULL with --bind none. */
const cpu_set_t *placement_processors(const struct plan *p, bool is_server, unsigned local,
                                      cpu_set_t *set);

#endif
