/*
 * departure: when a packet leaves the hub, and whether it does.  Pure functions of what arrived on
 * a path so far, so that a seed gives the same delays and losses again.
 */
#ifndef SPARRING_EXPERIMENTS_NETWORK_DEPARTURE_H
#define SPARRING_EXPERIMENTS_NETWORK_DEPARTURE_H

#include "experiments/network/network_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From one host to another. */
struct departure_path {
    struct network_link link;
    uint64_t random;
    int64_t last_ns; /* departure of the packet before; 0: none */
};

void departure_open(struct departure_path *p, const struct network_link *link, uint64_t seed,
                    size_t from, size_t to);

/* A packet arrives: delay +- jitter later it leaves, but not before the one that arrived before it.
 * False: it is lost. */
bool departure_next(struct departure_path *p, int64_t arrival_ns, int64_t *ret_ns);

#endif
