/*
 * relay: a process that forwards the packets between the links of a hub, each after its delay; the
 * kernel's netem is not in every kernel.  It dies with the process that started it.
 */
#ifndef SPARRING_EXPERIMENTS_NETWORK_RELAY_H
#define SPARRING_EXPERIMENTS_NETWORK_RELAY_H

#include "common/base/error.h"
#include "experiments/network/network_options.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RELAY_BINS_PER_OCTAVE 4
#define RELAY_BINS            (40 * RELAY_BINS_PER_OCTAVE)

/* Written by the relay alone, in memory that both processes share. */
struct relay_counts {
    _Atomic uint64_t forwarded, lost, dropped; /* dropped: no room at the link */
    _Atomic uint64_t late_packets[RELAY_BINS]; /* sent from 2^(i/4) ns on after their departure */
};

struct relay {
    pid_t pid; /* -1: none */
    struct relay_counts *counts;
};

/* The Ethernet address of a host's eth0. */
void relay_mac(size_t host, unsigned char ret[6]);

/* Forward between the interfaces port0, port1, ... of the current network namespace. */
enum status relay_start(struct relay *r, const struct network_link *links, size_t length,
                        uint64_t seed, struct error *err);

/* What waits for a link at most; the rest is dropped. */
int relay_queue_bytes(const struct network_link *link);

/* Has it ended by itself? */
bool relay_has_ended(const struct relay *r);

/* The time that `share` of the packets so far were not later than, or 0. */
int64_t relay_lateness_ns(const struct relay *r, double share);

void relay_stop(struct relay *r);

#endif
