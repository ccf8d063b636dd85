/*
 * ring_accept: accepts the connections of all higher ranks on a listening socket and rejects
 * others.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_ACCEPT_H
#define SPARRING_COMMON_COLLECTIVE_RING_ACCEPT_H

#include "common/base/error.h"
#include "common/collective/mesh/mesh.h"
#include "common/collective/ring/ring_wire.h"

#include <stdbool.h>
#include <stdint.h>

/* The connections of one rank. */
struct ring_connections {
    unsigned stride;         /* the most that a rank has */
    unsigned *counts;        /* [world_size]: to each rank */
    bool *local;             /* [world_size]: is it on this host? */
    int *fds;                /* [world_size][stride], -1: not there */
    const unsigned *members; /* [world_size]: ranks of the job, for errors; borrowed */
};

/*
 * Accept until every rank above self->rank has sent its hello on each of its streams, and reply to
 * each with ours.  Connections that send anything else are closed; silent ones are kept waiting,
 * and the oldest makes room for a newer one.  STATUS_TIMEOUT names the first rank that is missing,
 * how many connections were rejected and why the last one was; STATUS_PEER_LOST: the alarm
 * (NULL: none) was raised.
 *   self     this rank, with its own cookie: what the others must know
 *   cookies  [world_size], what goes into the answers
 *   c        says how many; its descriptors are filled
 */
enum status ring_accept(int listen_fd, const struct ring_hello *self, const uint64_t *cookies,
                        const struct mesh_alarm *alarm, int64_t deadline_ns,
                        struct ring_connections *c, struct error *err);

#endif
