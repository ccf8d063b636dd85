/*
 * cost_model: how long a step takes, by closed forms: what a rank computes, what crosses the links,
 * and what the processors do.  Times in seconds, sizes in bytes.  Pure functions.
 *
 * - Ring: a bucket of m bytes takes 2(n-1) messages of m/n bytes, each passed on while it comes.
 *   It starts when it is ready and the one before it has ended.
 * - Two levels: a chunk (HIER_SLICE_BYTES of each rank of a host) is reduced inside the hosts, goes
 *   round between them in as many rings as a host has ranks, which share its link, and is spread;
 *   the first and the last of these are hidden for all chunks of a bucket but one.
 * - Servers, where there are too many for a simulation (simulation.h): the one with the most
 *   partitions decides.  A partition is pushed when it is ready, summed when all n ranks have
 *   pushed it, and pulled; pushes and pulls overlap.  The ranks' flows into the server's link are
 *   not equally fast where its queue is bounded: TCP halves its window at a loss, so windows are
 *   between 2/3 and 4/3 of their mean, and the smallest of n is on average 2/3 + 2/(3(n+1)) of it.
 * - A step in lockstep takes as long as that of its slowest rank.
 * - Work law: processes that share cores take at least the sum of their processor times over the
 *   cores, whatever they wait for.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_COST_MODEL_H
#define SPARRING_EXPERIMENTS_PREDICT_COST_MODEL_H

#include "common/consistency/consistency.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the software on this machine, measured (calibration.h). */
struct cost_machine {
    double ring_message_s;              /* a message from a rank to the next, without its bytes */
    double ring_byte_s;                 /* a byte of it, where no link is slower */
    double ring_cpu_s, ring_cpu_byte_s; /* processor time of one rank for that */
    double local_s, local_byte_s;       /* all-reduce inside a host: without bytes, and a byte */
    double local_cpu_s, local_cpu_byte_s;
    double exchange_s;          /* a push and its reply, without their bytes */
    double exchange_byte_s;     /* a byte pushed and pulled, where no link is slower */
    double exchange_cpu_s;      /* processor time of rank and server, for a push */
    double exchange_cpu_byte_s; /* and for a byte of it */
};

struct cost_network {
    double byte_s;        /* of payload over the link of a host with ranks; 0: no limit */
    double server_byte_s; /* of a dedicated server's link */
    double latency_s;     /* one way between two hosts */
    double queue_s;       /* of a link's time: what waits for it at most; 0: all that comes */
};

/* The first `bytes` of the gradients, in the order of buckets, are ready so long after the step
 * began. */
struct cost_ready {
    double bytes, at_s;
};

/* What one rank computes in a step. */
struct cost_load {
    const struct cost_ready *ready; /* rising; the last has all bytes */
    size_t ready_count;
    double compute_s; /* until backward ends, input included */
    double other_s;   /* after the communication */
    double forward_s; /* of compute_s: layer by layer, the last gradients' one first */
    double cpu_s;     /* processor time of all that */
    /* Of every rank in steps one after another, rank by rank, where ranks differ or are slow now
     * and then; compute_s is their median, of the slowest rank.  NULL: always compute_s. */
    const double *computes;
    size_t compute_ranks, compute_steps;
};

struct cost_job {
    unsigned ranks;
    unsigned ranks_per_host; /* of which it is a multiple; 0: 1 */
    bool is_two_level;       /* the all-reduce */
    unsigned servers;        /* 0: as many as ranks */
    bool is_colocated;       /* servers run beside the ranks */
    double cores;            /* that all processes share; 0: every host has enough of its own */
    const double *buckets;   /* of the ring: bytes */
    size_t bucket_count;
    double partition_bytes; /* of the servers */
    uint64_t pushes_ahead;  /* to one server without replies; 0: no limit (send_limit.h) */
    bool in_order;          /* servers' messages; else what the next forward reads first is first */
    bool overlaps_forward;  /* which starts while parameters come, each layer waiting for its own */
    struct consistency consistency;
};

enum cost_side { COST_CONTROL, COST_ALLREDUCE, COST_SERVERS, COST_SIDES };

struct cost_inputs {
    enum cost_side side;
    struct cost_machine machine;
    struct cost_network network;
    struct cost_load load;
    struct cost_job job;
};

/* The times that a step is made of. */
enum cost_part {
    COST_PART_LINKS,
    COST_PART_DELAY,
    COST_PART_SOFTWARE,
    COST_PART_COMPUTE,
    COST_PARTS
};

enum cost_limit { COST_COMPUTE, COST_MESSAGES, COST_BYTES, COST_PROCESSORS };

struct cost {
    double step_s, exposed_s;
    double processor_s; /* what the work law allows; 0: cores are not shared */
    enum cost_limit limit;
};

struct cost cost_of(const struct cost_inputs *in);

/* A step that another model gives, in place of that of *c; the work law holds for it, too. */
void cost_set_step(const struct cost_load *load, double step_s, struct cost *c);

/* What this rank computes in this step, of those that are known in turn. */
double cost_compute_s(const struct cost_load *load, size_t rank, size_t step);

/* When the first `bytes` of the gradients are ready, after the step began. */
double cost_ready_at(const struct cost_load *load, double bytes);

/* By how many percent a step of step_s, with other inputs as step_of says, grows for each percent
 * that these times grow: 0 where they are hidden.  All together are 1. */
typedef double cost_step_fn(const struct cost_inputs *in, void *user);
void cost_sensitivities(const struct cost_inputs *in, double step_s, cost_step_fn *step_of,
                        void *user, double ret[COST_PARTS]);

/* Ranks of a host, and hosts with ranks. */
unsigned cost_ranks_per_host(const struct cost_job *job);
unsigned cost_hosts(const struct cost_job *job);

struct cost cost_of_ring(const struct cost_machine *m, const struct cost_network *n,
                         const struct cost_load *load, const struct cost_job *job);
struct cost cost_of_two_level(const struct cost_machine *m, const struct cost_network *n,
                              const struct cost_load *load, const struct cost_job *job);
struct cost cost_of_servers(const struct cost_machine *m, const struct cost_network *n,
                            const struct cost_load *load, const struct cost_job *job);
/* Without communication. */
struct cost cost_of_control(const struct cost_load *load, const struct cost_job *job);

/* "computation", "messages one after the other", "bytes on the links", "processors". */
const char *cost_limit_text(enum cost_limit limit);

#endif
