/*
 * network_measure: rates and round trips of the links, measured from this process, which has a
 * socket in every host.
 */
#ifndef SPARRING_EXPERIMENTS_NETWORK_NETWORK_MEASURE_H
#define SPARRING_EXPERIMENTS_NETWORK_NETWORK_MEASURE_H

#include "experiments/network/network.h"

/* Fill n->measured. */
enum status network_probe(struct network *n, struct error *err);

/* STATUS_DISTURBED: the link from that host to the next one is not what was asked for. */
enum status network_probe_check(const struct network *n, size_t host, struct error *err);

#endif
