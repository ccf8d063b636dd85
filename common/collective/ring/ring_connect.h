/*
 * ring_connect: joins the ranks of a group by TCP, every one to every other, with several
 * connections for each pair.  Every rank listens, sends its address and a random cookie to the
 * group (collective_exchange), connects to all lower ranks and accepts all higher ones; both ends
 * send a hello, so that other programs and ranks of other groups are rejected.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_CONNECT_H
#define SPARRING_COMMON_COLLECTIVE_RING_CONNECT_H

#include "common/collective/collective_ops.h"
#include "common/collective/ring/ring_accept.h"

#include <stdint.h>

/* Connections of a link whose number is tuned. */
#define RING_STREAMS_TUNED 4

/* Blocks until all connections stand or deadline_ns; the error names the rank that is missing.
 * Between ranks there are as many as group->streams; where that is 0, RING_STREAMS_TUNED between
 * neighbours on different hosts, to be measured, and one between all others.
 *   c           filled; its fds are [world_size][stride] of -1, with stride enough for that; the
 *               caller closes what is in it, also after a failure
 *   ret_tunable some neighbours of the ring have several whose number is not settled; the same on
 *               all ranks */
enum status ring_connect(struct collective *group, int64_t deadline_ns, struct ring_connections *c,
                         bool *ret_tunable, struct error *err);

#endif
