/*
 * ring_connect: joins the ranks of a group by TCP, every one to every other, with several
 * connections for each pair.  Every rank listens, tells its address and a random cookie to the
 * group (collective_exchange), connects to all lower ranks and accepts all higher ones; both ends
 * say hello, so a stranger on the port, or a rank of another group, is turned away and does no
 * harm.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_CONNECT_H
#define SPARRING_COMMON_COLLECTIVE_RING_CONNECT_H

#include "common/collective/collective_ops.h"

#include <stdint.h>

/* Blocks until all connections stand or deadline_ns; the error names the rank that is missing.
 *   fds  [world_size][streams], filled with -1; the caller closes what is in it, also after a
 *        failure */
enum status ring_connect(struct collective *group, unsigned streams, int64_t deadline_ns, int *fds,
                         struct error *err);

#endif
