/*
 * network: emulated hosts on this one.  Each is a network namespace with one link, eth0, to a hub
 * in a namespace of its own (without a delay two hosts are linked directly).  A link has a rate in
 * each direction (htb); delay, jitter and loss are those of the relay.
 *
 * The namespaces have no names: only this process's descriptors and the processes inside hold them,
 * so the kernel removes them and their links when those end, however they end.
 *
 * Needs the programs ip and tc, and CAP_SYS_ADMIN or user namespaces.  Called by launch, net and
 * bench.  Threads: only in a single-threaded process.
 */
#ifndef SPARRING_EXPERIMENTS_NETWORK_NETWORK_H
#define SPARRING_EXPERIMENTS_NETWORK_NETWORK_H

#include "common/base/strbuf.h"
#include "experiments/network/network_options.h"
#include "experiments/network/relay.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct network_measured {
    double rate;           /* payload of TCP to the next host, all links busy, bit/s */
    int64_t round_trip_ns; /* to the next host and back, median */
};

/* Of eth0, with every header. */
struct network_bytes {
    uint64_t received, sent;
};

struct network {
    size_t length; /* hosts; 0: not open */
    uint64_t seed;
    bool warns; /* --network-check warn: STATUS_DISTURBED is a warning in the log */
    struct network_link links[NETWORK_HOSTS_MAX];
    struct network_measured measured[NETWORK_HOSTS_MAX]; /* by network_measure */
    bool is_measured;
    struct network_bytes before[NETWORK_HOSTS_MAX]; /* by the end of the measurement */
    char congestion_control[32];                    /* in the hosts */
    int home_fd, hub_fd;                            /* -1: none */
    int host_fds[NETWORK_HOSTS_MAX];
    struct relay relay;
};

/* A network that is not open; network_close is safe on it. */
#define NETWORK_CLOSED                                                                             \
    {                                                                                              \
        .home_fd = -1, .hub_fd = -1, .relay = {.pid = -1 }                                         \
    }

/*
 * Make the hosts with their links (changes: network_change will be called); of an ordinary user in
 * a user namespace, which this process then stays in, with an empty network namespace of its own.
 * Else the caller is in its former network namespace again in every case. STATUS_UNSUPPORTED
 * without the permission, STATUS_NOT_FOUND without the programs.
 */
enum status network_open(struct network *n, const struct network_link *links, size_t length,
                         const struct network_options *options, bool changes, struct error *err);

/* Move this process, and the children that it starts from now on, into that host until
 * network_leave. */
enum status network_enter(const struct network *n, size_t host, struct error *err);
enum status network_leave(const struct network *n, struct error *err);

/* From now on the link of a host is up or down, and has this rate in each direction; 0 where it has
 * no limit.  Only of a network that was opened with `changes`.  Blocks for some 10 ms. */
enum status network_change(const struct network *n, size_t host, double rate, bool is_up,
                           struct error *err);

/* "10.77.0.1" */
void network_address(size_t host, char *text, size_t size);

/*
 * Measure every link, all at once, each from a host to the next one.  STATUS_DISTURBED when a
 * rate or a round trip is not what was asked for, and which: this machine then cannot emulate the
 * network.  Blocks about 0.2 s and 30 round trips, or for 512 KiB at the slowest rate.
 */
enum status network_measure(struct network *n, struct error *err);

/* STATUS_DISTURBED: since the start half of the frames were sent later than a tenth of the smallest
 * delay, or one in a hundred later than that and than 0.3 ms, or the relay has ended. */
enum status network_check(const struct network *n, struct error *err);

/* Write FOLDER/network.json: settings, what was measured, bytes on every link since the start, and
 * how late the relay was. */
enum status network_write(const struct network *n, const char *folder, struct error *err);

void network_close(struct network *n);

#endif
