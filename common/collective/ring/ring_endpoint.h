/*
 * ring_endpoint: the data address of a rank, exchanged among the ranks of its group.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_ENDPOINT_H
#define SPARRING_COMMON_COLLECTIVE_RING_ENDPOINT_H

#include "common/base/net.h"
#include "common/collective/collective_ops.h"

#include <stdint.h>

struct ring_endpoint {
    char address[288]; /* "host:port" */
    uint64_t cookie;   /* random: proves membership of the group */
    uint64_t host;     /* equal ones share a host */
    uint32_t streams;  /* as configured; 0: tuned */
    uint32_t unused;
};

/* The address to listen on, into host (HOST_ADDRESS_SIZE).  Kept in the group's head, so a group
 * that is made of this one later, without a store, has it, too. */
void ring_choose_host(struct collective *group, char *host);

/* Exchange the listening addresses of all ranks: ret_endpoints[world_size].
 * STATUS_MISMATCH when they do not agree on `streams`. */
enum status ring_endpoints_exchange(struct collective *group, const struct endpoint *self,
                                    unsigned streams, int64_t deadline_ns,
                                    struct ring_endpoint *ret_endpoints, struct error *err);

/* STATUS_CONFIG when it is a loopback address that cannot be this host's. */
enum status ring_endpoint_parse(const struct ring_endpoint *endpoint, const struct endpoint *self,
                                struct endpoint *ret, struct error *err);

#endif
