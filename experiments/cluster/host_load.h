/*
 * host_load: the first line of /proc/stat, read twice: who used a host's processors in between.
 * Pure.  Called by doctor and compare.
 */
#ifndef SPARRING_EXPERIMENTS_CLUSTER_HOST_LOAD_H
#define SPARRING_EXPERIMENTS_CLUSTER_HOST_LOAD_H

#include <stdbool.h>

struct host_load {
    double busy;   /* share of the processors' time, 0 to 1 */
    double stolen; /* likewise, by the hypervisor; not in `busy` */
};

/* Two lines "cpu  TICKS...".  False, and *ret is 0, when they are none or no time has passed. */
bool host_load_read(const char *before, const char *after, struct host_load *ret);

#endif
