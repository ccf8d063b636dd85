/*
 * ring_place: where a rank can be reached, told to all ranks of its group.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_PLACE_H
#define SPARRING_COMMON_COLLECTIVE_RING_PLACE_H

#include "common/base/net.h"
#include "common/collective/collective_ops.h"

#include <stdint.h>

struct ring_place {
    char address[288]; /* "host:port" */
    uint64_t cookie;   /* random: who knows it was told by the group */
    uint64_t host;     /* equal ones share a host */
    uint32_t streams;  /* as asked for; 0: tuned */
    uint32_t unused;
};

/* The address to listen on, into host (HOST_ADDRESS_SIZE).  Kept in the group's head, so a group
 * that is made of this one later, without a store, has it, too. */
void ring_choose_host(struct collective *group, char *host);

/* Tell where this rank listens and learn where all others do: ret_places[world_size].
 * STATUS_MISMATCH when they do not agree on `streams`. */
enum status ring_places_exchange(struct collective *group, const struct endpoint *self,
                                 unsigned streams, int64_t deadline_ns,
                                 struct ring_place *ret_places, struct error *err);

/* STATUS_CONFIG when it is a loopback address that cannot be this host's. */
enum status ring_place_endpoint(const struct ring_place *place, const struct endpoint *self,
                                struct endpoint *ret, struct error *err);

#endif
