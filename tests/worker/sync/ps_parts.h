/*
 * ps_parts: what tests of workers with parameter servers are put together from: servers in this
 * process, slabs, and values that a seed gives.  Whatever fails fails the test.
 */
#ifndef SPARRING_TESTS_WORKER_SYNC_PS_PARTS_H
#define SPARRING_TESTS_WORKER_SYNC_PS_PARTS_H

#include "common/tensor/tensor.h"
#include "server/service/service.h"

#include <stdbool.h>

#define PS_SERVERS_MAX 3u

struct ps_servers {
    struct service *services[PS_SERVERS_MAX]; /* owned; NULL: closed by the test */
    unsigned count;
    char addresses[128]; /* as --servers takes them */
};

/* On free ports of 127.0.0.1; they share memory with workers who have some to share. */
void ps_servers_open(struct ps_servers *s, unsigned count, int64_t timeout_ms);
void ps_servers_close(struct ps_servers *s);

/* One tensor of `count` elements; tensor_table_release releases it. */
void ps_table_open(struct tensor_table *t, size_t count);

/* Zeros; the caller's to free. */
float *ps_slab_new(size_t count);

/* From -1 to 1, the same for the same seed. */
void ps_fill(float *values, size_t count, uint32_t seed);

/* Of floats: 0 and -0 differ, a NaN equals itself. */
bool ps_same_bits(const void *a, const void *b, size_t count);

#endif
