/*
 * tcp_ceiling: the bytes of a ring all-reduce over plain TCP, without headers, sums or order: the
 * bandwidth of this machine's sockets with the socket options of the ring.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_TCP_CEILING_H
#define SPARRING_EXPERIMENTS_BENCH_TCP_CEILING_H

#include "common/base/error.h"
#include "common/store/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tcp_ceiling {
    int right_fd; /* -1: closed */
    int left_fd;
    bool is_local; /* over loopback, where the ring bounds its windows */
};

/* Join the ranks of `store` to a ring; this one listens on `host`. */
enum status tcp_ceiling_open(struct tcp_ceiling *c, struct store *store, const char *host,
                             int64_t timeout_ms, struct error *err);

/* Send `amount` bytes to the right and receive as many from the left at the same time, cycling
 * through data[0..size). */
enum status tcp_ceiling_run(const struct tcp_ceiling *c, void *data, size_t size, uint64_t amount,
                            int64_t timeout_ms, struct error *err);

void tcp_ceiling_close(struct tcp_ceiling *c);

#endif
