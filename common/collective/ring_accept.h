/*
 * ring_accept: waits on a listening socket for one particular neighbour among whoever connects.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_ACCEPT_H
#define SPARRING_COMMON_COLLECTIVE_RING_ACCEPT_H

#include "common/base/error.h"
#include "common/collective/ring_wire.h"

#include <stdint.h>

/* Accept until somebody says the hello `wanted`.  Connections that say anything else are closed;
 * silent ones are kept waiting, and the oldest makes room for a newer one.  STATUS_TIMEOUT tells
 * how many strangers there were and what the last one said. */
enum status ring_accept(int listen_fd, const struct ring_hello *wanted, int64_t deadline_ns,
                        int *ret_fd, struct error *err);

#endif
