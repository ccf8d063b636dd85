/*
 * ring_connect: joins the ranks of a group to a ring of TCP connections.
 * Every rank listens, publishes its address in the store under "<group name>/address/<rank>",
 * connects to its right neighbour and accepts its left one; both ends say hello, so a stranger on
 * the port, or a rank of another group, is turned away and does no harm.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_CONNECT_H
#define SPARRING_COMMON_COLLECTIVE_RING_CONNECT_H

#include "common/collective/collective_ops.h"

#include <stdint.h>

/* Blocks until both connections stand or deadline_ns; the error names the rank that is missing.
 * The group has at least two ranks. */
enum status ring_connect(const struct collective *group, int64_t deadline_ns, int *ret_right_fd,
                         int *ret_left_fd, struct error *err);

#endif
