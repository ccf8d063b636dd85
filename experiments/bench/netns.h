/*
 * netns: simulated hosts.  Each is a network namespace with one link, eth0, to a bridge in a
 * separate namespace (two hosts are linked directly), rate-limited in both directions (veth and
 * htb).
 *
 * The namespaces have no names: only this process's descriptors and the processes inside hold them,
 * so the kernel removes them and their links when those end, however they end.
 *
 * Needs CAP_SYS_ADMIN and the programs ip and tc.  Threads: only in a single-threaded process.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_NETNS_H
#define SPARRING_EXPERIMENTS_BENCH_NETNS_H

#include "common/base/error.h"

#include <stddef.h>

#define NETNS_MAX 64

/* Environment of a rank: the address of its host. */
#define NETNS_ADDRESS "SPARRING_BENCH_ADDRESS"

struct netns {
    size_t length;
    int home_fd, hub_fd; /* -1: none */
    int host_fds[NETNS_MAX];
};

/* `rate` as tc reads it ("1gbit"), "" for no limit.  STATUS_UNSUPPORTED without the permission,
 * STATUS_NOT_FOUND without the programs; the caller is in its own namespace again in every case. */
enum status netns_open(struct netns *n, size_t length, const char *rate, struct error *err);

/* Move this process, and the children that it starts from now on, into that host until netns_leave.
 */
enum status netns_enter(const struct netns *n, size_t host, struct error *err);
enum status netns_leave(const struct netns *n, struct error *err);

/* "10.77.0.1" */
void netns_address(size_t host, char *text, size_t size);

void netns_close(struct netns *n);

#endif
