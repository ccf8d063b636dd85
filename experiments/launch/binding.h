/*
 * binding: which processors each rank and server of this host may use (--bind), so that two runs
 * differ in what is compared and not in where the kernel happened to put their threads.
 *
 *   core  all processes of this node, ranks first, then servers, get equally many physical cores,
 *         each with all its hardware threads; neighbours share a NUMA node.  More processes than
 *         cores: one core each, and some share one
 *   numa  the ranks are spread over the NUMA nodes in order, and so are the servers
 *
 * Memory follows: Linux allocates on the node of the thread that first writes a page.  Where a GPU
 * is attached is not considered.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_BINDING_H
#define SPARRING_EXPERIMENTS_LAUNCH_BINDING_H

#include "common/base/error.h"

#include <sched.h>

struct binding_processor {
    unsigned number; /* of the kernel */
    unsigned core;   /* the lowest number among the hardware threads of its core */
    unsigned node;   /* NUMA node */
};

struct binding_topology {
    unsigned count;
    struct binding_processor processors[CPU_SETSIZE]; /* by node, core, number */
};

/* The allowed processors, described by `folder`, "/sys/devices/system/cpu" except in tests.  A
 * processor without a description is a core of its own on node 0. */
void binding_read(const char *folder, const cpu_set_t *allowed, struct binding_topology *ret);

/* The processors of process `index` of `count`. */
void binding_by_core(const struct binding_topology *t, unsigned index, unsigned count,
                     cpu_set_t *ret);
void binding_by_node(const struct binding_topology *t, unsigned index, unsigned count,
                     cpu_set_t *ret);

unsigned binding_cores(const struct binding_topology *t);

#endif
